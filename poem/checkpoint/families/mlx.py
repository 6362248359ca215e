"""MLX: codes in words of 32 bits, element i of a row at bit `bits * i`; the bytes of the words are our packed codes.

    P.weight U32 [N, K * bits / 32];  P.scales and P.biases [N, K / group];  value = code * scale + bias
    without biases: mxfp4 (a scale for 32, e8m0 bytes) or nvfp4 (a scale for 16, e4m3 bytes, no outer scale)

The two widths give the product of bits and group; config.json's `quantization`, which may differ by module, gives both.
"""

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, module_of, unreadable
from poem.checkpoint.families.config import BITS, Stated
from poem.checkpoint.stored import RawTensor, Stored, Table
from poem.dtypes import Dtype

GROUPS, FACTORS = (32, 64, 128), ("bf16", "f16", "f32")


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """Words under that name, with scales beside them."""
    raw, module = table.get(name), module_of(name)
    scales, biases = table.get(f"{module}.scales"), table.get(f"{module}.biases")
    if raw is None or raw.tag != "U32" or (scales is None and biases is None) or not raw.shape:
        return None
    tensors = companions(table, name, raw, scales, biases)
    if scales is None or not scales.shape:
        return unreadable(name, "u32", raw.shape, tensors, f"MLX words without their scales `{module}.scales`")
    words = f"words {list(raw.shape)} with scales {list(scales.shape)} {scales.tag}"
    if biases is None:
        return _without_biases(name, raw, scales, tensors, words, stated)
    product = raw.shape[-1] * 32 / max(1, scales.shape[-1])
    pairs = [(bits, group) for bits in BITS for group in GROUPS if bits * group == product]
    bits, group = (stated.bits, stated.group) if stated.method == "mlx" else pairs[0] if len(pairs) == 1 else (None, None)
    if (biases.leaf, biases.shape) != (scales.leaf, scales.shape) or scales.leaf not in FACTORS:
        problem = f"MLX {words} and biases {list(biases.shape)} {biases.tag}: both should be floats of one shape"
    elif bits is None or group is None:
        said = " or ".join(f"{bits} bits in groups of {group}" for bits, group in pairs) or "no bits and group that are read"
        problem = f"MLX {words} are {said}, and config.json does not tell them under `quantization`"
    elif bits not in BITS or group not in GROUPS:
        problem = f"MLX weights of {bits} bits in groups of {group} as config.json states them under `quantization`"
    elif bits * group != product or stated.mode not in ("", "affine"):
        problem = f"MLX {words} and biases, where config.json says {stated.said}"
    else:
        term = Dtype(f"g{group}_u{bits}_{scales.leaf}_b_{scales.leaf}")
        word = f"u{bits}g{group}" + ("" if scales.leaf == "bf16" else f":{scales.leaf}")
        shape = (*raw.shape[:-1], raw.shape[-1] * 32 // bits)
        return from_planes(name, word, term, shape, tensors, raw, {"gain": scales, "offset": biases})
    return unreadable(name, "u32", raw.shape, tensors, problem)


def _without_biases(name: str, raw: RawTensor, scales: RawTensor, tensors: tuple[str, ...], words: str, stated: Stated) -> Stored:
    shape = (*raw.shape[:-1], raw.shape[-1] * 8)
    groups = shape[-1] // max(1, scales.shape[-1])
    word = {32: "mxfp4", 16: "nvfp4"}.get(groups, "")
    if scales.tag != "U8" or not word or scales.shape[-1] * groups != shape[-1]:
        problem = f"MLX {words} and no biases: mxfp4 has a U8 scale for 32 codes, nvfp4 for 16, all others have biases"
        return unreadable(name, "u32", raw.shape, tensors, problem)
    if stated.mode and stated.mode != word:
        return unreadable(name, word, shape, tensors, f"MLX {words} and no biases are {word}, where config.json says {stated.said}")
    if word == "mxfp4":
        return from_planes(name, word, Dtype("mxfp4"), shape, tensors, raw, {"gain": scales})
    one = whole_scale(np.ones(shape[:-2], np.float32), shape)
    return from_planes(name, word, Dtype("nvfp4"), shape, tensors, raw, {"gain.code": scales, **one})


def whole_scale(scale: np.ndarray, shape: tuple[int, ...]) -> dict[str, np.ndarray]:
    """The outer scale of nvfp4 as planes: one, or one for each entry of a bank, whose rows are then one segment."""
    if len(shape) == 2:
        return {"gain.gain": scale.reshape(())}
    return {"gain.gain": scale.reshape((*shape[:-2], 1)), "gain.rows": np.array([shape[-2]], np.int64)}
