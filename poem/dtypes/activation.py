"""The activation rule `a8`: activations are rounded to e4m3 at run time, a scale for each run of 128 columns.

It goes with weights in tiles of 128 x 128 e4m3 codes, and is the dynamic block scheme of DeepSeek-V3 (arXiv:2412.19437,
section 3.3) with scales that are not rounded to powers of two.
"""

from collections.abc import Callable

import numpy as np

from poem.dtypes import leaves
from poem.dtypes.tensor import Tensor

RUN = 128
STRIP = 1 << 18  # elements of a weight decoded at a time: they should be near the core when they are multiplied
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
    matmul: Callable[[np.ndarray, np.ndarray], np.ndarray] = lambda x, w: x @ w.swapaxes(-1, -2),
) -> np.ndarray:
    """The product `[M, N]` of quantised activations and `rows` of a weight `[N, K]` of `e4m3tile128a8`, float32, not yet rounded.

    For each run b in order: `p = sum of code products over the run; sum = sum + (p * scales[m, b]) * gain[n // 128, b]`, every
    operation rounded to float32. `matmul(x, w)` computes the sums over runs: x `[..., M, k]` times the transpose of w `[..., N, k]`, in
    float32.
    """
    start, stop, _ = rows.indices(weight.shape[0])
    columns = weight.shape[1]
    whole = columns // RUN * RUN
    step = max(1, STRIP // columns)
    activations = leaves.decode(codes, "e4m3")
    values: np.ndarray = np.empty((min(step, stop - start), columns), np.float32)
    total = np.zeros((len(codes), stop - start), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(start, stop, step):
            here = slice(first, min(first + step, stop))
            decoded, sums = values[: here.stop - first], total[:, first - start : here.stop - start]
            leaves.decode_into(decoded, weight.planes["code"][here], "e4m3")
            gains = weight.planes["gain"][np.arange(first, here.stop) // RUN]
            products = [*matmul(_runs(activations[:, :whole]), _runs(decoded[:, :whole]))] if whole else []
            if whole < columns:
                products.append(matmul(activations[:, whole:], decoded[:, whole:]))
            for product, scale, gain in zip(products, scales.T, gains.T, strict=True):
                sums += (product * scale[:, None]) * gain
    return total


def runs_of(weight: Tensor) -> np.ndarray:
    """The values of the codes of a weight `[N, K]`, for `contract_runs`: float32 `[runs, RUN, N]`, zero past K."""
    rows, columns = weight.shape
    runs = np.zeros((-(-columns // RUN), RUN, rows), np.float32)
    flat = runs.reshape(-1, rows)
    step = max(1, STRIP // columns)
    for first in range(0, rows, step):
        flat[:columns, first : first + step] = leaves.decode(weight.planes["code"][first : first + step], "e4m3").T
    return runs


def contract_runs(codes: np.ndarray, scales: np.ndarray, runs: np.ndarray, gains: np.ndarray) -> np.ndarray:
    """What `contract` computes, from `runs_of` a weight and its gains, one for each tile. Sums inside a run take any order."""
    activations: np.ndarray = np.zeros((len(codes), len(runs) * RUN), np.float32)
    activations[:, : codes.shape[1]] = leaves.decode(codes, "e4m3")
    total = np.zeros((len(codes), runs.shape[2]), np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for run, values in enumerate(runs):
            product = activations[:, run * RUN : (run + 1) * RUN].dot(values)
            total += (product * scales[:, run, None]) * np.repeat(gains[:, run], RUN)[: runs.shape[2]]
    return total


def _runs(matrix: np.ndarray) -> np.ndarray:
    """[rows, runs * RUN] as [runs, rows, RUN]."""
    return matrix.reshape(len(matrix), matrix.shape[1] // RUN, RUN).swapaxes(0, 1)
