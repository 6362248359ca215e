"""MLX: codes in words of 32 bits, element i of a row at bit `bits * i`; the bytes of the words are our packed codes.

    P.weight U32 [N, K * bits / 32];  P.scales and P.biases [N, K / group];  value = code * scale + bias
    without biases: mxfp4 (a scale for 32, e8m0 bytes) or nvfp4 (a scale for 16, e4m3 bytes, no outer scale)

The two widths give the product of bits and group; config.json's `quantization`, which may differ by module, gives both.
"""

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, module_of, unreadable
from poem.checkpoint.stored import RawTensor, Settings, Stored, Table
from poem.dtypes import Dtype

BITS, GROUPS, FACTORS = (2, 4, 8), (32, 64, 128), ("bf16", "f16", "f32")


def find(table: Table, name: str, settings: Settings) -> Stored | None:
    """Words under that name, with scales beside them."""
    raw, module = table.get(name), module_of(name)
    scales, biases = table.get(f"{module}.scales"), table.get(f"{module}.biases")
    if raw is None or raw.tag != "U32" or scales is None or not raw.shape or not scales.shape:
        return None
    tensors = companions(table, name, raw, scales, biases)
    if biases is None:
        return _without_biases(name, raw, scales, tensors)
    own = settings.get(module)
    stated = {**settings, **(own if isinstance(own, dict) else {})}
    bits, group = stated.get("bits"), stated.get("group_size")
    product = raw.shape[-1] * 32 / max(1, scales.shape[-1])
    if bits not in BITS or group not in GROUPS:
        problem = f"MLX weights of {bits} bits in groups of {group} as config.json states them under `quantization`"
    elif bits * group != product or scales.leaf not in FACTORS or (biases.leaf, biases.shape) != (scales.leaf, scales.shape):
        found = f"words {list(raw.shape)} with scales {list(scales.shape)} {scales.tag}"
        problem = f"MLX {found}, where config.json says {bits} bits in groups of {group}"
    else:
        term = Dtype(f"g{group}_u{bits}_{scales.leaf}_b_{scales.leaf}")
        word = f"u{bits}g{group}" + ("" if scales.leaf == "bf16" else f":{scales.leaf}")
        shape = (*raw.shape[:-1], raw.shape[-1] * 32 // bits)
        return from_planes(name, word, term, shape, tensors, {"code": raw, "gain": scales, "offset": biases})
    return unreadable(name, "u32", raw.shape, tensors, problem)


def _without_biases(name: str, raw: RawTensor, scales: RawTensor, tensors: tuple[str, ...]) -> Stored:
    shape = (*raw.shape[:-1], raw.shape[-1] * 8)
    if scales.tag == "U8" and scales.shape[-1] * 32 == shape[-1]:
        return from_planes(name, "mxfp4", Dtype("mxfp4"), shape, tensors, {"code": raw, "gain": scales})
    if scales.tag == "U8" and scales.shape[-1] * 16 == shape[-1] and len(shape) == 2:
        one = np.ones((), np.float32)
        return from_planes(name, "nvfp4", Dtype("nvfp4"), shape, tensors, {"code": raw, "gain.code": scales, "gain.gain": one})
    return unreadable(name, "u32", raw.shape, tensors, f"MLX words with scales {list(scales.shape)} {scales.tag} and no biases")
