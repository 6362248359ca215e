"""A checkpoint and the package that fits it, to be planned as they are or with something wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from poem.checkpoint import Checkpoint, open_checkpoint
from poem.errors import PoemError, PoemErrors
from poem.graph import Cut
from poem.importer import plan_import
from tests.poem.checkpoint.files import bf16, write_checkpoint
from tests.poem.importer.fakes import FakePackage, pairs, weight

WEIGHTS = {
    "embed": weight([16, 8]),
    "layers.0.q": weight([8, 8]),
    "layers.0.gate_up": weight([12, 8], cut=Cut(0, (4, 8))),
    "layers.1.q": weight([8, 8]),
    "layers.1.gate_up": weight([12, 8], cut=Cut(0, (4, 8))),
    "norm": weight([8]),
}
READ = pairs(
    ("tok.weight", "embed"), ("layers.{l}.q.weight", "layers.{l}.q"),
    (["layers.{l}.gate.weight", "layers.{l}.up.weight"], "layers.{l}.gate_up"),
    ("norm.weight", "norm"),
)  # fmt: skip


PARTS = {"q": 8, "gate": 4, "up": 8}


def tensors() -> dict[str, Any]:
    return {
        "tok.weight": bf16(16, 8, seed=1),
        **{f"layers.{n}.{name}.weight": bf16(rows, 8, seed=10 * n + rows) for n in (0, 1) for name, rows in PARTS.items()},
        "norm.weight": bf16(8, seed=2),
    }  # fmt: skip


def opened(folder: Path, held: dict[str, Any] | None = None, config: dict[str, Any] | None = None, **side_files: Any) -> Checkpoint:
    return open_checkpoint(write_checkpoint(folder, tensors() if held is None else held, config, **side_files))


def refused(checkpoint: Checkpoint, packages: FakePackage | list[FakePackage], **more: Any) -> PoemError:
    named = {} if "model" in more or more.pop("any_deployment", False) else {"deployment": "toy-bf16-kv-bf16"}
    with pytest.raises(PoemError) as caught:
        plan_import(checkpoint, packages if isinstance(packages, list) else [packages], **{**named, **more})
    return caught.value


def codes(fault: PoemError) -> list[str]:
    return [error.code for error in (fault.errors if isinstance(fault, PoemErrors) else (fault,))]


CODES = np.random.default_rng(1).integers(0, 0x70, (256, 128), np.uint8)
TILE_SCALES = np.array([[0.5], [2.0]], np.float32)
FP8 = {"w.weight": ("F8_E4M3", CODES), "w.weight_scale_inv": TILE_SCALES}


EXTRA = {"layers.0.q.bias": bf16(8), "layers.1.q.bias": bf16(8)}
