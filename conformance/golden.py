"""Goldens: what an original computed for one prompt, on disk."""

import json
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from conformance.folders import EXPECTED, INPUTS
from poem.checkpoint import Checkpoint, open_checkpoint
from poem.dataclass import dataclass
from poem.errors import CheckpointError, UsageError

LARGEST_WEIGHTS = 32 << 20  # a golden with more bytes of weights than this keeps only what the original gave


@dataclass(frozen=True)
class Golden:
    """A prompt and what the original made of it.

    place: where it is from, for reports. tokens: the prompt. expected: by name, [rows, width] float32 but for `greedy.ids`:
    `logits`, `hidden.<layer>`, `greedy.ids`, `greedy.logits`, `module.<name>.input/output`,
    `attention.<layer>.query/key/value/output`.
    meta: who made it, with which versions.
    """

    place: str
    tokens: tuple[int, ...]
    expected: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(array.shape) for name, array in self.expected.items()}

    @property
    def stated(self) -> bool:
        """Whether it is what dtypes state, in float64 and with their casts, in place of what a class computed in float32."""
        return self.meta.get("precision") == "f64"

    @property
    def checkpoint(self) -> Path:
        """Where the weights lie: in its folder, or in the one that its meta.json names."""
        return Path(self.place, str(self.meta.get("checkpoint", "")))

    @cached_property
    def layers(self) -> int:
        """How many layers' hidden states it holds; the embedding counts as none."""
        return sum(1 for name in self.expected if re.fullmatch(r"hidden\.\d+", name)) - 1

    @cached_property
    def fine(self) -> bool:
        """Whether it holds more than hidden states and logits."""
        return any(name.startswith("module.") for name in self.expected)


def open_golden(folder: str | Path) -> Golden:
    """Read a golden folder; arrays stay mapped.

    Raises UsageError (`check.golden`) for a folder that is none, CheckpointError for files that cannot be read.
    """
    folder = Path(folder)
    for name in (INPUTS, EXPECTED):
        if not (folder / name).is_file():
            raise UsageError(
                "check.golden", f"there is no golden: {name} is missing", phase="check", file=str(folder),
                expected=f"{INPUTS} (input_ids) and {EXPECTED} (logits, hidden.0, hidden.1, ...)",
                hint="make one with --checkpoint DIR --against transformers --save-golden DIR",
            )  # fmt: skip
    tokens, expected = read_prompt(folder), _arrays(folder / EXPECTED)
    _check(folder, tokens, expected)
    try:
        meta = json.loads((folder / "meta.json").read_text())
    except (OSError, ValueError):
        meta = {}
    return Golden(str(folder), tokens, expected, meta if isinstance(meta, dict) else {})


def read_prompt(folder: Path) -> tuple[int, ...]:
    """The prompt of a golden folder, which need not hold more. CheckpointError (`check.golden`) where it is none."""
    inputs = _arrays(folder / INPUTS)
    if "input_ids" not in inputs:
        raise _bad(folder, f"{INPUTS} holds no input_ids", expected="input_ids [1, tokens]", found=", ".join(inputs) or "nothing")
    ids = inputs["input_ids"]
    if ids.dtype.kind not in "iu" or ids.shape not in ((ids.size,), (1, ids.size)):
        raise _bad(folder, "input_ids is no prompt", expected="integers [1, tokens]", found=f"{ids.dtype} {list(ids.shape)}")
    if not ids.size:
        raise _bad(folder, "the prompt is empty", expected="at least one token in input_ids")
    return tuple(int(token) for token in ids.reshape(-1))


def _arrays(file: Path) -> dict[str, np.ndarray]:
    checkpoint: Checkpoint = open_checkpoint(file)
    found = {}
    for name in checkpoint.names():
        tensor = checkpoint.tensor(name)
        array = tensor.planes.get("data")
        if array is None or not tensor.dtype.is_leaf:
            raise _bad(file.parent, f"{file.name} holds {name} in {tensor.dtype}", expected="floats and integers")
        found[name] = array if array.dtype.kind in "iu" else array.astype(np.float32, copy=False)
    return found


def _check(folder: Path, tokens: tuple[int, ...], expected: Mapping[str, np.ndarray]) -> None:
    """Refuse a golden whose tensors do not belong together."""
    rows = len(tokens)
    if "logits" not in expected:
        raise _bad(folder, f"{EXPECTED} holds no logits", expected=f"logits [{rows}, vocabulary]", found=", ".join(sorted(expected)[:4]))
    for name, array in expected.items():
        if name.startswith("greedy."):
            continue
        if array.ndim != 2 or len(array) != rows:
            raise _bad(folder, f"{name} does not fit the prompt", expected=f"[{rows}, width]", found=str(list(array.shape)))
    if ("greedy.ids" in expected) != ("greedy.logits" in expected):
        raise _bad(folder, "greedy.ids and greedy.logits go together")
    if "greedy.ids" in expected:
        ids, logits = expected["greedy.ids"], expected["greedy.logits"]
        if ids.dtype.kind not in "iu" or ids.shape != (rows + len(logits),) or tuple(ids[:rows].tolist()) != tokens:
            raise _bad(folder, "greedy.ids does not continue the prompt", expected=f"the {rows} ids of the prompt, then {len(logits)} more")
        width = expected["logits"].shape[1]
        if logits.shape != (len(logits), width):
            raise _bad(folder, "greedy.logits does not fit logits", expected=f"[steps, {width}]", found=str(list(logits.shape)))
        if not all(0 <= id < width for id in ids[rows:].tolist()):
            raise _bad(folder, "greedy.ids holds what no logits choose", expected=f"ids below {width}", found=str(ids[rows:].tolist()))


def _bad(folder: Path, message: str, *, expected: str = "", found: str = "") -> CheckpointError:
    return CheckpointError("check.golden", message, phase="check", file=str(folder), expected=expected, found=found)


def save_golden(folder: Path, checkpoint: Path, input_ids: np.ndarray, expected: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> bool:
    """Write a golden folder. Returns whether the weights went in: only those of a mini do.

    expected: what the original gave, never this project's own results.
    """
    import shutil

    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file({"input_ids": np.ascontiguousarray(input_ids.reshape(1, -1))}, folder / INPUTS)
    save_file({name: np.ascontiguousarray(array) for name, array in expected.items()}, folder / EXPECTED)
    for name in (INPUTS, EXPECTED):
        (folder / name).chmod(0o644)
    (folder / "meta.json").write_text(json.dumps(dict(meta), indent=2) + "\n")
    weights = sorted(checkpoint.glob("*.safetensors")) if checkpoint.is_dir() else [checkpoint]
    weights = [file for file in weights if file.name not in (INPUTS, EXPECTED)]
    source = checkpoint if checkpoint.is_dir() else checkpoint.parent
    small = sum(file.stat().st_size for file in weights) <= LARGEST_WEIGHTS
    for file in [source / "config.json", *(weights if small else [])]:
        if file.is_file() and file.parent.resolve() != folder.resolve():
            shutil.copyfile(file, folder / file.name)
    return small
