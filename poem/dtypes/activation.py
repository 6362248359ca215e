"""The activation rule `a8`: activations are rounded to e4m3 at run time, a scale for each run of 128 columns.

It goes with weights in tiles of 128 x 128 e4m3 codes, and is the dynamic block scheme of DeepSeek-V3 (arXiv:2412.19437,
section 3.3) with scales that are not rounded to powers of two.
"""

from collections.abc import Callable

import numpy as np

from poem.dtypes import leaves
from poem.dtypes.tensor import Tensor

RUN = 128
LARGEST = np.float32(leaves.largest("e4m3"))


def quantise(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rounds activations `x` `[M, K]`, taken as float32: e4m3 codes uint8 `[M, K]` and scales float32 `[M, ceil(K / 128)]`.

    A run's scale is `max|x| / 448`, or 1 where that is 0; its codes are `x / scale` (a true division) rounded to e4m3. The last run may
    be shorter. NaN in a run makes its scale NaN and so its codes; infinity gives NaN codes where `x` is infinite.
    """
    x = x.astype(np.float32, copy=False)
    columns = x.shape[1]
    starts = np.arange(0, columns, RUN)
    scales = np.maximum.reduceat(np.abs(x), starts, axis=1) / LARGEST
    scales[scales == 0] = 1
    with np.errstate(invalid="ignore"):
        return leaves.encode_codes(x / _by_column(scales, columns), "e4m3"), scales


def dequantise(codes: np.ndarray, scales: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    """`code * scale`, `[M, K]`: what an a8 product takes in place of the activations."""
    return leaves.decode(codes, "e4m3", dtype) * _by_column(scales, codes.shape[1])


def _by_column(scales: np.ndarray, columns: int) -> np.ndarray:
    return np.repeat(scales, RUN, axis=1)[:, :columns]


def contract(
    codes: np.ndarray,
    scales: np.ndarray,
    weight: Tensor,
    *,
    rows: slice = slice(None),
    matmul: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda x, w: x @ w.T,
) -> np.ndarray:
    """The product `[M, N]` of quantised activations and `rows` of a weight `[N, K]` of `e4m3tile128a8`, float32, not yet rounded.

    For each run b in order: `p = sum of code products over the run; sum = sum + (p * scales[m, b]) * gain[n // 128, b]`, every
    operation rounded to float32. `matmul(x, w)` computes the sums over a run: x `[M, k]` times the transpose of w `[N, k]`, in float32.
    """
    values = leaves.decode(weight.planes["code"][rows], "e4m3")
    gains = weight.planes["gain"][np.arange(weight.shape[0])[rows] // RUN]
    activations = leaves.decode(codes, "e4m3")
    total = np.zeros((len(codes), len(values)), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for run in range(scales.shape[1]):
            here = slice(run * RUN, (run + 1) * RUN)
            total += (matmul(activations[:, here], values[:, here]) * scales[:, run, None]) * gains[:, run]
    return total
