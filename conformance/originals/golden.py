"""Goldens: a mini checkpoint beside what its original class computes from it."""

import json
from pathlib import Path

import numpy as np

from conformance.golden import save_golden
from conformance.originals.record import record_original

GREEDY = 8


def make_golden(source: Path, golden: Path) -> dict[str, np.ndarray]:
    """Record the original class on a checkpoint folder with a prompt, and write the golden folder.

    source: config.json, model.safetensors and inputs.safetensors (`input_ids`); an expected.safetensors there, from
    an earlier run of the class, must be reproduced.
    golden: receives config.json, model.safetensors, inputs.safetensors, expected.safetensors (what `record_original`
    returns) and meta.json (class, versions, how it was run).

    Returns what was recorded. Raises ValueError when an expected value is not reproduced, naming it.
    """
    import torch
    import transformers
    from safetensors.numpy import load_file

    input_ids = load_file(source / "inputs.safetensors")["input_ids"]
    recorded = record_original(source, input_ids, greedy=GREEDY)
    earlier = source / "expected.safetensors"
    if earlier.exists():
        require_equal(recorded, load_file(earlier))
    meta = {
        "class": "transformers." + json.loads((source / "config.json").read_text())["architectures"][0],
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "run": "float32, eager attention, on the CPU",
    }
    save_golden(golden, source, input_ids, recorded, meta)
    return recorded


def require_equal(got: dict[str, np.ndarray], want: dict[str, np.ndarray]) -> None:
    """Raise ValueError unless `got` holds every array of `want`: integers equal, floats within what the order of
    float32 sums may change.

    Two machines run one class in float32 with other orders of summation: values of unit scale then differ by a few
    2**-24 a layer. The bound is 2**-20 of the array's largest magnitude.
    """
    for name, expected in want.items():
        if name not in got:
            raise ValueError(f"{name}: expected, but not recorded")
        value = got[name]
        if value.shape != expected.shape:
            raise ValueError(f"{name}: shape {value.shape}, expected {expected.shape}")
        exact = expected.dtype.kind != "f"
        bound = 0.0 if exact else 2.0**-20 * float(np.abs(expected).max(initial=0.0))
        error = np.abs(value.astype(np.float64) - expected.astype(np.float64))
        if not (error <= bound).all():
            at = np.unravel_index(int(np.argmax(np.where(np.isnan(error), np.inf, error))), error.shape)
            index = ", ".join(map(str, at))
            raise ValueError(f"{name}[{index}] = {value[at]}, expected {expected[at]} within {bound:.3g}")
