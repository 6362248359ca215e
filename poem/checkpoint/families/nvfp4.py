"""NVFP4 as modelopt writes it: two e2m1 codes a byte, an e4m3 scale for 16 of them, an f32 scale for all.

P.weight U8 [N, K/2];  P.weight_scale F8_E4M3 [N, K/16];  P.weight_scale_2 F32;  value = code * scale * scale_2
"""

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, module_of, unreadable
from poem.checkpoint.families.config import Stated
from poem.checkpoint.families.mlx import whole_scale
from poem.checkpoint.stored import Stored, Table
from poem.dtypes import Dtype


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """Packed codes under that name, with both scales beside them."""
    raw, scale, outer = table.get(name), table.get(f"{name}_scale"), table.get(f"{name}_scale_2")
    if raw is None or raw.tag != "U8" or (scale is None and outer is None) or len(raw.shape) < 2:
        return None
    shape = (*raw.shape[:-1], raw.shape[-1] * 2)
    tensors = companions(table, name, raw, scale, outer)
    if scale is None or outer is None:
        missing = f"{name}_scale" if scale is None else f"{name}_scale_2"
        return unreadable(name, "nvfp4", shape, tensors, f"NVFP4 codes without `{missing}`")
    problem = ""
    if f"{module_of(name)}.pre_quant_scale" in table:
        problem = "NVFP4 with a pre_quant_scale would have to multiply the input"
    elif scale.tag != "F8_E4M3" or outer.tag != "F32" or outer.nbytes != 4 * int(np.prod(shape[:-2])):
        found = f"{list(scale.shape)} {scale.tag} and {list(outer.shape)} {outer.tag}"
        problem = f"NVFP4 wants [N, K/16] F8_E4M3 scales and one F32 scale, found {found}"
    if problem:
        return unreadable(name, "nvfp4", shape, tensors, problem)
    whole = {"gain.gain": outer} if len(shape) == 2 else whole_scale(outer.data(), shape)
    return from_planes(name, "nvfp4", Dtype("nvfp4"), shape, tensors, raw, {"gain.code": scale, **whole})
