"""The cast of rows on their way into a KV cache and back.

bf16, f16 and f32 caches hold the rounded value. e4m3 and e5m2 caches hold `encode(x / scale)`, saturating, and are read as
`code * scale` in float32, not rounded again. The value cast is the one the op stored: a bf16 value goes through bf16.
"""

import numpy as np

from poem.dtypes import leaves
from poem.dtypes.dtype import KV_DTYPES, Dtype

ONE = np.float32(1)
VOID = 0xFF  # the bytes of cells that were never written: NaN in every dtype of a cache, so that a kernel that reads one shows


def store(values: np.ndarray, dtype: Dtype, scale: np.float32 = ONE) -> np.ndarray:
    """`values` (bf16 or float32 array) as a cache of `dtype` holds them: the array of its storage type, same shape.

    ValueError for a dtype that no cache has, and for a scale on a cache of plain floats.
    """
    _check(dtype, scale)
    if scale != 1:
        with np.errstate(over="ignore"):
            values = values.astype(np.float32) / scale
    if dtype.name in leaves.MINIFLOATS and values.dtype == leaves.STORAGE["bf16"]:
        return np.take(leaves.codes_of_bfloat16(dtype.name), values.view(np.uint16), mode="clip")
    return leaves.encode(values, dtype.name)


def load(stored: np.ndarray, dtype: Dtype, scale: np.float32 = ONE) -> np.ndarray:
    """The float32 values of what `store` returned."""
    _check(dtype, scale)
    values = leaves.decode(stored, dtype.name)
    return values if scale == 1 else values * scale


def _check(dtype: Dtype, scale: np.float32) -> None:
    if dtype.name not in KV_DTYPES:
        raise ValueError(f"a KV cache is one of {', '.join(KV_DTYPES)}, found {dtype}")
    if scale != 1 and dtype.name not in leaves.MINIFLOATS:
        raise ValueError(f"only e4m3 and e5m2 caches have scales, found {dtype}")
