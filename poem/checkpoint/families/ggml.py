"""Blocks of a GGUF: decoded to f32 by the package `gguf`, a strip of rows at a time.

MXFP4, Q4_0 and Q4_1 are terms of ours with their nibbles in another order (byte j of a block holds elements j and j + 16),
and are repacked without decoding. All other block types count as float data whose source is quantised.
"""

import math
from typing import Any

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, unreadable
from poem.checkpoint.families.config import Stated
from poem.checkpoint.stored import RawTensor, Stored, Table
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import CheckpointError

BLOCK = 32  # elements of a block of nibbles
NIBBLES = {
    "MXFP4": ("mxfp4", 17, 1),  # term, bytes of a block, bytes before its codes
    "Q4_0": ("g32_u4_f16_z_u8", 18, 2),
    "Q4_1": ("g32_u4_f16_b_f16", 20, 4),
}
# Where a block of a type that is decoded keeps its f16 scales. Types that are not here are looked at as they are decoded.
SCALES = {
    "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip
BLOCKS_AT_ONCE = 256


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """A tensor of a ggml block type."""
    raw = table.get(name)
    if raw is None or raw.leaf is not None or not (raw.tag.startswith("ggml type ") or _kind(raw.tag) is not None):
        return None
    tensors = companions(table, name, raw)
    word, shape = raw.tag.lower(), raw.shape
    kind = _kind(raw.tag)
    if kind is None:
        return unreadable(name, word, shape, tensors, f"{raw.tag} is not known to the installed package gguf: a newer one may know it")
    if not shape:
        return unreadable(name, word, shape, tensors, f"a scalar of {raw.tag} blocks")
    if raw.tag in NIBBLES and len(shape) > 1 and all(shape):
        return _nibbles(name, raw, tensors)
    from gguf.quants import _type_traits

    if kind not in _type_traits:
        return unreadable(name, word, shape, tensors, f"the package gguf decodes no {raw.tag} blocks")
    return Stored(
        name, word, shape, Dtype("f32"), tensors, lambda start, stop: _decoded(raw, start, stop), decoded=True,
        check=lambda: _check_scales(raw),
    )  # fmt: skip


def _kind(tag: str) -> Any:
    from gguf.constants import GGMLQuantizationType

    return GGMLQuantizationType.__members__.get(tag)


def _block_rows(raw: RawTensor, start: int, stop: int) -> np.ndarray:
    if len(raw.shape) == 1:  # one row; its elements are the first axis
        return raw.block_rows(0, 1)
    per_entry = math.prod(raw.shape[1:-1])
    return raw.block_rows(start * per_entry, stop * per_entry)


def _decoded(raw: RawTensor, start: int, stop: int) -> Tensor:
    values = _dequantised(_block_rows(raw, start, stop), raw.tag)
    _check_finite(raw, values, start * math.prod(raw.shape[1:]), 1)
    return Tensor.of(values[start:stop] if len(raw.shape) == 1 else values.reshape(stop - start, *raw.shape[1:]))


def _check_scales(raw: RawTensor) -> tuple[str, ...]:
    """Looks at the scales of all blocks, and at nothing else of them. Raises `import.bad-scale`."""
    from gguf.constants import GGML_QUANT_SIZES

    elements, size = GGML_QUANT_SIZES[_kind(raw.tag)]
    blocks = raw.raw().reshape(-1, size)
    for at in SCALES.get(raw.tag, ()):
        _check_finite(raw, np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16), 0, elements)
    return ()


def _check_finite(raw: RawTensor, numbers: np.ndarray, first: int, elements: int) -> None:
    """Raises `import.bad-scale` where numbers are not finite: values from element `first` on, or scales of so many elements each."""
    wrong = np.flatnonzero(~np.isfinite(numbers))
    if wrong.size:
        row, column = divmod(first + int(wrong[0]) * elements, raw.shape[-1])
        raise CheckpointError(
            "import.bad-scale", f"a scale of `{raw.name}` is not finite", phase="import", file=str(raw.file.path),
            found=f"the block of element {column} of row {row}", hint="the checkpoint is damaged, or was quantised wrongly",
        )  # fmt: skip


def _dequantised(rows: np.ndarray, tag: str) -> np.ndarray:
    """The values of rows of blocks, flat. The package works on 16 rows at a time; blocks do not depend on each other, so they
    are given to it in rows of 256, which is four times as fast as a small model's own rows."""
    from gguf.constants import GGML_QUANT_SIZES
    from gguf.quants import dequantize

    kind = _kind(tag)
    _, size = GGML_QUANT_SIZES[kind]
    blocks = rows.reshape(-1, size)
    whole = len(blocks) // BLOCKS_AT_ONCE * BLOCKS_AT_ONCE
    parts = (blocks[:whole].reshape(-1, BLOCKS_AT_ONCE * size), blocks[whole:].reshape(1, -1))
    values = [dequantize(part, kind).reshape(-1) for part in parts if part.size] or [np.empty(0, np.float32)]
    return values[0] if len(values) == 1 else np.concatenate(values)


def _nibbles(name: str, raw: RawTensor, tensors: tuple[str, ...]) -> Stored:
    text, size, before = NIBBLES[raw.tag]

    def codes(start: int, stop: int) -> np.ndarray:
        blocks = _block_rows(raw, start, stop).reshape(-1, size)[:, before:]
        out = np.empty(blocks.shape, np.uint8)  # byte i: elements 2i and 2i + 1 are the low, then the high nibbles of two bytes
        even, odd = blocks[:, 0::2], blocks[:, 1::2]
        out[:, :8] = (even & 0x0F) | (odd << 4)
        out[:, 8:] = (even >> 4) | (odd & 0xF0)
        return out.reshape(stop - start, *raw.shape[1:-1], raw.shape[-1] // 2)

    def factors(start: int, stop: int) -> dict[str, np.ndarray]:
        head = _block_rows(raw, start, stop).reshape(-1, size)[:, :before]
        groups = (stop - start, *raw.shape[1:-1], raw.shape[-1] // BLOCK)
        if raw.tag == "MXFP4":
            return {"gain": np.ascontiguousarray(head).reshape(groups)}
        halves = np.ascontiguousarray(head).view(np.float16)
        offset = np.full(len(halves), 8, np.uint8) if raw.tag == "Q4_0" else np.ascontiguousarray(halves[:, 1])
        return {"gain": np.ascontiguousarray(halves[:, 0]).reshape(groups), "offset": offset.reshape(groups)}

    return from_planes(name, raw.tag.lower(), Dtype(text), raw.shape, tensors, codes, factors, zeros=True)
