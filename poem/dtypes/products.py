"""Products of a few rows with a stored weight, which is never decoded as a whole.

The codes of a group are summed with x first, and the sums take the group's gain and offset:

    sum_k x_k (code_k * gain + offset)  =  gain * sum_k x_k code_k  +  offset * sum_k x_k

One multiplication for each group, where decoding needs one for each element. The rounding is that of another order: a result is within
`2 (K + 4) u sum_k |x_k| (|code_k * gain| + |offset|)` of the one from decoded values, u = 2^-24.
"""

import numpy as np

from poem.dtypes import leaves
from poem.dtypes.groups import EVERY, Factor, decode, factors_of, matrix_shape, product
from poem.dtypes.tensor import Tensor
from poem.dtypes.term import Grouped

STRIP = 1 << 17  # elements worked on at a time: as float32 they stay near the core until they are multiplied


def project(x: np.ndarray, weight: Tensor, rows: slice = EVERY) -> np.ndarray:
    """`x @ w[rows]^T` in float32: x [N, K] with few rows, `rows` of the matrix of a weight [..., K] -> [N, rows]."""
    count, columns = matrix_shape(weight.shape)
    start, stop, _ = rows.indices(count)
    y = np.empty((len(x), stop - start), np.float32)
    step = max(1, STRIP // max(1, columns))
    strips = [slice(first, min(first + step, stop)) for first in range(start, stop, step)]
    if not _by_groups(y, strips, x, weight):
        for strip in strips:
            values = decode(weight.dtype.term, weight.planes, weight.shape, rows=strip)
            y[:, strip.start - start : strip.stop - start] = np.dot(x, values.T)
    return y


def _by_groups(y: np.ndarray, strips: list[slice], x: np.ndarray, weight: Tensor) -> bool:
    """Fills y strip by strip from sums over groups. False, and nothing filled, where a weight or x has to be taken element by element:
    floats, groups that share a byte, and x or factors that are not finite (infinity times a sum of 0 would be NaN)."""
    term, stored, shape = weight.dtype.term, weight.planes, weight.shape
    if not isinstance(term, Grouped) or not strips or not np.isfinite(x).all():
        return False
    rows = slice(strips[0].start, strips[-1].stop)
    gain, offset = (
        product(factors_of(term, factor, name, stored, shape, rows, np.float32, "")) if factor is not None else None
        for name, factor in (("gain", term.gain), ("offset", term.offset))
    )
    assert gain is not None
    width, places = min(factor.width for factor in (gain, offset) if factor is not None), leaves.places(term.code)
    if width % places:
        return False
    columns = x.shape[1]
    gains = _of_groups(gain, width, y.shape[1], columns)
    offsets = None if offset is None else _of_groups(offset, width, y.shape[1], columns)
    if not (np.isfinite(gain.values).all() and (offset is None or np.isfinite(offset.values).all())):
        return False
    y[...] = 0
    if offsets is not None:
        sums_of_x = np.add.reduceat(x, np.arange(0, columns, width), axis=1)
        np.dot(sums_of_x, (offsets if term.tail == "b" else -offsets * gains).T, out=y)
    # Element k of x meets the number at place k % places, column k // places.
    by_place = np.ascontiguousarray(x.reshape(len(x), columns // places, places).transpose(2, 1, 0))
    codes = stored["code"].reshape(matrix_shape(shape)[0], -1)
    numbers: np.ndarray = np.empty((places, strips[0].stop - strips[0].start, columns // places), np.float32)
    for strip in strips:
        here, taken = slice(strip.start - rows.start, strip.stop - rows.start), numbers[:, : strip.stop - strip.start]
        leaves.numbers_by_place(taken, codes[strip], term.code)
        sums = _sums_of_runs(taken, by_place, width // places)
        y[:, here] += np.add.reduce(sums * gains[here].T[:, :, None], axis=0).T
    return True


def _of_groups(factor: Factor, width: int, rows: int, columns: int) -> np.ndarray:
    """The value of a factor for each group of `width` columns: [rows, groups]."""
    groups = -(-columns // width)
    values = factor.values
    if values.shape[1] > 1 and factor.width > width:
        values = np.repeat(values, factor.width // width, axis=1)[:, :groups]
    return np.broadcast_to(values, (rows, groups))


def _sums_of_runs(numbers: np.ndarray, x: np.ndarray, width: int) -> np.ndarray:
    """Products over runs of `width` columns: numbers [places, rows, C], x [places, C, N] -> [ceil(C / width), rows, N]."""
    places, rows, columns = numbers.shape
    whole = columns // width
    runs = numbers[:, :, : whole * width].reshape(places, rows, whole, width).transpose(0, 2, 1, 3)
    sums = np.matmul(runs, x[:, : whole * width].reshape(places, whole, width, x.shape[2]))
    if whole * width < columns:
        rest = np.matmul(numbers[:, :, whole * width :], x[:, whole * width :])
        sums = np.concatenate([sums, rest[:, None]], axis=1)
    return sums[0] if places == 1 else np.add.reduce(sums, axis=0)
