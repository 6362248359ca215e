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
    """Rounds activations `x` float32 `[M, K]`: e4m3 codes uint8 `[M, K]` and scales float32 `[M, ceil(K / 128)]`.

    A run's scale is `max|x| / 448`, or 1 where that is 0; its codes are `x / scale` (a true division) rounded to e4m3. The last run may
    be shorter. NaN in a run makes its scale NaN and so its codes; infinity gives NaN codes where `x` is infinite.
    """
    rows, columns = x.shape
    scales = np.empty((rows, -(-columns // RUN)), np.float32)
    codes = np.empty((rows, columns), np.uint8)
    for run in range(scales.shape[1]):
        here = slice(run * RUN, (run + 1) * RUN)
        scale = np.abs(x[:, here]).max(axis=1, initial=0) / LARGEST
        scales[:, run] = np.where(scale == 0, np.float32(1), scale)
        with np.errstate(invalid="ignore"):
            codes[:, here] = leaves.encode_codes(x[:, here] / scales[:, run, None], "e4m3")
    return codes, scales


def contract(
    codes: np.ndarray, scales: np.ndarray, weight: Tensor, *, matmul: Callable[[np.ndarray, np.ndarray], np.ndarray] = np.matmul
) -> np.ndarray:
    """The product `[M, N]` of quantised activations and a weight `[N, K]` of `e4m3tile128a8`, float32, before the output's rounding.

    For each run b in order: `p = sum of code products over the run; sum = sum + (p * scales[m, b]) * gain[n // 128, b]`, every
    operation rounded to float32. `matmul(a, b)` computes the sum over a run: `a` `[M, k]` times `b` `[k, N]` in float32.
    """
    height, columns = weight.shape
    gains = np.repeat(weight.planes["gain"], RUN, axis=0)[:height]
    total = np.zeros((len(codes), height), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for run in range(scales.shape[1]):
            here = slice(run * RUN, min((run + 1) * RUN, columns))
            x = leaves.decode(np.ascontiguousarray(codes[:, here]), "e4m3")
            w = leaves.decode(np.ascontiguousarray(weight.planes["code"][:, here]), "e4m3")
            partial = matmul(x, w.T)
            total += (partial * scales[:, run, None]) * gains[:, run]
    return total
