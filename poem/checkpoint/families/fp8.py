"""FP8: e4m3 codes with a scale per tensor or entry of a bank, row, or tile of 128 by 128 (DeepSeek-V3, compressed-tensors, modelopt).

P.weight F8_E4M3 [N, K];  P.weight_scale_inv or P.weight_scale;  value = code * scale, whatever the scale is called
"""

from collections.abc import Iterator

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, module_of, unreadable
from poem.checkpoint.families.config import TILE, Stated
from poem.checkpoint.stored import RawTensor, Stored, Table
from poem.dtypes import LEAF_BITS, Dtype

SCALE_LEAVES = ("f32", "bf16", "f16", "e8m0")
BYTES_AT_ONCE = 1 << 18


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """e4m3 codes under that name, with a scale beside them."""
    raw = table.get(name)
    if raw is None or raw.tag != "F8_E4M3":
        return None
    found = [scale for ending in ("_scale_inv", "_scale") if (scale := table.get(name + ending)) is not None]
    if not found:
        return None
    tensors, scale = companions(table, name, raw, *found), found[0]
    if len(found) > 1:
        return unreadable(name, "e4m3", raw.shape, tensors, f"it has two scales, `{found[0].name}` and `{found[1].name}`")
    if f"{module_of(name)}.pre_quant_scale" in table:
        return unreadable(name, "e4m3", raw.shape, tensors, "a pre_quant_scale would have to multiply the input")
    if scale.leaf not in SCALE_LEAVES or len(raw.shape) < 2:
        return unreadable(name, "e4m3", raw.shape, tensors, f"FP8 codes of rank {len(raw.shape)} with {scale.tag} scales")
    *lead, rows, columns = raw.shape
    height, width = stated.tile or TILE
    tiles = (*lead, -(-rows // height), -(-columns // width))
    with_unit_axes = (*lead, tiles[-2], 1, tiles[-1], 1)  # as modelopt writes them
    segments: dict[str, np.ndarray] = {}
    if scale.shape in (tiles, with_unit_axes) and (stated.tile or scale.nbytes * 8 != LEAF_BITS[scale.leaf]):
        word, term = f"e4m3tile{height}" + (f"x{width}" if (height, width) != TILE else ""), f"g{height}x{width}_e4m3_{scale.leaf}_n"
    elif scale.nbytes * 8 == LEAF_BITS[scale.leaf]:
        word, term = "e4m3tensor", f"gt_e4m3_{scale.leaf}_n"
    elif scale.shape in ((*lead, rows), (*lead, rows, 1)):
        word, term = "e4m3row", f"gr_e4m3_{scale.leaf}_n"
    elif scale.shape in ((*lead,), (*lead, 1), (*lead, 1, 1)):  # one for each entry of a bank
        word, term, segments = "e4m3tensor", f"gt_e4m3_{scale.leaf}_n", {"rows": np.array([rows], np.int64)}
    else:
        problem = (
            f"FP8 scales {list(scale.shape)} for {list(raw.shape)} are neither one, nor one a row, nor one a tile of {height} by {width}"
        )
        return unreadable(name, "e4m3", raw.shape, tensors, problem)
    return from_planes(name, word, Dtype(term), raw.shape, tensors, raw, {"gain": scale, **segments}, check=lambda: _nan_codes(raw))


def _nan_codes(raw: RawTensor) -> Iterator[str]:
    """A note when codes mean NaN: they are kept as they are."""
    held = raw.raw()
    count = sum(
        np.count_nonzero((held[start : start + BYTES_AT_ONCE] & 0x7F) == 0x7F) for start in range(0, raw.nbytes, BYTES_AT_ONCE)
    )  # fmt: skip
    if count:
        yield f"`{raw.name}`: {count} {'code means' if count == 1 else 'codes mean'} NaN"
