"""compressed-tensors' packed weights, under `P.weight_packed`.

U8 with P.weight_scale F8_E4M3 and P.weight_global_scale F32 [1]: nvfp4; the global scale is the reciprocal of ours
U8 with P.weight_scale U8: mxfp4
I32 with P.weight_scale: integer groups, which are recognised and not read yet
"""

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, unreadable
from poem.checkpoint.stored import Settings, Stored, Table
from poem.dtypes import Dtype


def find(table: Table, name: str, settings: Settings) -> Stored | None:
    """Packed codes of a weight of that name."""
    raw, scale, outer = table.get(f"{name}_packed"), table.get(f"{name}_scale"), table.get(f"{name}_global_scale")
    if raw is None or not raw.shape:
        return None
    tensors = companions(table, name, raw, scale, outer, *(table.get(f"{name}_{part}") for part in ("shape", "zero_point", "g_idx")))
    if raw.tag == "I32" and scale is not None:
        bits = _bits(settings)
        shape = (*raw.shape[:-1], raw.shape[-1] * 32 // bits)
        group = shape[-1] // max(1, *scale.shape[-1:])
        problem = "integer groups of compressed-tensors (pack-quantized) are not read yet"
        return unreadable(name, f"int{bits}:g{group}", shape, tensors, problem)
    shape = (*raw.shape[:-1], raw.shape[-1] * 2)
    if raw.tag == "U8" and scale is not None and scale.tag == "F8_E4M3" and outer is not None and outer.tag == "F32" and outer.nbytes == 4:
        with np.errstate(divide="ignore"):
            gain = (np.float32(1) / outer.data().reshape(1)).reshape(())
        return from_planes(name, "nvfp4", Dtype("nvfp4"), shape, tensors, {"code": raw, "gain.code": scale, "gain.gain": gain})
    if raw.tag == "U8" and scale is not None and scale.tag == "U8" and outer is None:
        return from_planes(name, "mxfp4", Dtype("mxfp4"), shape, tensors, {"code": raw, "gain": scale})
    return unreadable(name, raw.tag.lower(), raw.shape, tensors, "packed weights of compressed-tensors with scales that are not known")


def _bits(settings: Settings) -> int:
    """The width of integer codes that the configuration states for its first group of modules; 4 without one."""
    groups = settings.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    bits = weights.get("num_bits") if isinstance(weights, dict) else None
    return bits if bits in (2, 4, 8) else 4
