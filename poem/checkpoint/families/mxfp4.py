"""MXFP4 as gpt-oss writes it: banks of e2m1 codes, two a byte, with an e8m0 scale for 32 of them.

NAME_blocks U8 [..., K/32, 16];  NAME_scales U8 [..., K/32]
"""

from poem.checkpoint.families.common import companions, from_planes, unreadable
from poem.checkpoint.stored import Settings, Stored, Table
from poem.dtypes import Dtype


def find(table: Table, name: str, settings: Settings) -> Stored | None:
    """A bank of that name."""
    blocks, scales = table.get(f"{name}_blocks"), table.get(f"{name}_scales")
    if blocks is None or scales is None or len(blocks.shape) < 3:
        return None
    shape = (*blocks.shape[:-2], blocks.shape[-2] * 32)
    tensors = companions(table, name, blocks, scales)
    if blocks.tag != "U8" or scales.tag != "U8" or blocks.shape[-1] != 16 or scales.shape != blocks.shape[:-1]:
        problem = f"MXFP4 wants U8 [..., K/32, 16] blocks and U8 [..., K/32] scales, found {list(blocks.shape)} and {list(scales.shape)}"
        return unreadable(name, "mxfp4", shape, tensors, problem)
    return from_planes(name, "mxfp4", Dtype("mxfp4"), shape, tensors, {"code": blocks, "gain": scales})
