"""MXFP4 as gpt-oss writes it: banks of e2m1 codes, two a byte, with an e8m0 scale for 32 of them.

NAME_blocks U8 [..., K/32, 16];  NAME_scales U8 [..., K/32]
"""

from poem.checkpoint.families.common import companions, from_planes, unreadable
from poem.checkpoint.families.config import Stated
from poem.checkpoint.stored import Stored, Table
from poem.dtypes import Dtype


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """A bank of that name."""
    blocks, scales = table.get(f"{name}_blocks"), table.get(f"{name}_scales")
    if blocks is None:
        return None
    tensors = companions(table, name, blocks, scales)
    if scales is None:
        return unreadable(name, "mxfp4", blocks.shape, tensors, f"MXFP4 blocks without their scales `{name}_scales`")
    if name in table:
        return unreadable(name, "mxfp4", blocks.shape, tensors, f"it is there twice, as `{name}` and as `{name}_blocks`")
    if blocks.tag != "U8" or scales.tag != "U8" or len(blocks.shape) < 3 or blocks.shape[-1] != 16 or scales.shape != blocks.shape[:-1]:
        problem = (
            f"MXFP4 wants U8 [..., K/32, 16] blocks and U8 [..., K/32] scales, found {list(blocks.shape)} {blocks.tag} "
            f"and {list(scales.shape)} {scales.tag}"
        )
        return unreadable(name, "mxfp4", blocks.shape, tensors, problem)
    shape = (*blocks.shape[:-2], blocks.shape[-2] * 32)
    return from_planes(name, "mxfp4", Dtype("mxfp4"), shape, tensors, blocks, {"gain": scales})
