"""FP8: e4m3 codes with a scale per tensor, row or tile of 128 by 128 (DeepSeek-V3, Qwen3-FP8, compressed-tensors, modelopt).

P.weight F8_E4M3 [N, K];  P.weight_scale_inv or P.weight_scale;  value = code * scale, whatever the scale is called
"""

from poem.checkpoint.families.common import companions, from_planes, unreadable
from poem.checkpoint.stored import Settings, Stored, Table
from poem.dtypes import LEAF_BITS, Dtype

TILE = 128
SCALE_LEAVES = ("f32", "bf16", "f16", "e8m0")


def find(table: Table, name: str, settings: Settings) -> Stored | None:
    """e4m3 codes under that name, with a scale beside them."""
    raw = table.get(name)
    if raw is None or raw.tag != "F8_E4M3":
        return None
    scale = table.get(f"{name}_scale_inv") or table.get(f"{name}_scale")
    if scale is None:
        return None
    tensors = companions(table, name, raw, scale)
    if scale.leaf not in SCALE_LEAVES or len(raw.shape) < 2:
        return unreadable(name, "e4m3", raw.shape, tensors, f"FP8 codes of rank {len(raw.shape)} with {scale.tag} scales")
    *lead, rows, columns = raw.shape
    tiles = (*lead, -(-rows // TILE), -(-columns // TILE))
    with_unit_axes = (*lead, tiles[-2], 1, tiles[-1], 1)  # as modelopt writes them
    if scale.nbytes * 8 == LEAF_BITS[scale.leaf]:
        word, term = "e4m3tensor", f"gt_e4m3_{scale.leaf}_n"
    elif scale.shape in (tiles, with_unit_axes):
        word, term = "e4m3tile128", f"g{TILE}x{TILE}_e4m3_{scale.leaf}_n"
    elif scale.shape in ((*lead, rows), (*lead, rows, 1)):
        word, term = "e4m3row", f"gr_e4m3_{scale.leaf}_n"
    else:
        problem = f"FP8 scales {list(scale.shape)} for {list(raw.shape)} are neither one, nor one a row, nor one a tile of {TILE} by {TILE}"
        return unreadable(name, "e4m3", raw.shape, tensors, problem)
    return from_planes(name, word, Dtype(term), raw.shape, tensors, {"code": raw, "gain": scale})
