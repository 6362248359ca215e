"""The numeric context: what one op function needs to serve both modes and both settings.

Modes. Native: float arrays are float32 holding values already rounded to their dtype; an op computes in float32 and its
results are rounded once, by the session. Exact: float64, and nothing is rounded, except, with `casts`, what belongs to
the meaning of a dtype (activation codes of an a8 weight, cells of a cache, state slabs).

Settings. Reference: the result of a row is bitwise the same whatever other rows are in the pass. Fast: products may use
quicker BLAS calls that differ in the last bits of float32.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Literal

import numpy as np

from poem.dtypes.tensor import STORAGE

Mode = Literal["native", "exact"]
Setting = Literal["reference", "fast"]
Real = type[np.float32] | type[np.float64]

FLOAT32 = np.dtype(np.float32)
# A BLAS may sum a row in another order when there are more rows, or when the row is at another place. Products of tiles of
# one fixed size, the last one padded, leave only the place; the first of these sizes whose places agree is taken.
ROW_TILES = (16, 8, 4, 2)


class Numeric:
    """Mode, setting and casts, and the arithmetic that depends on them.

    real: np.float32 or np.float64, the type of every float array. exact, fast, casts: what the session was made with.
    """

    __slots__ = ("casts", "exact", "fast", "real")

    def __init__(self, mode: Mode = "native", setting: Setting = "reference", casts: bool = False) -> None:
        self.exact = mode == "exact"
        self.fast = setting == "fast"
        self.casts = casts or not self.exact
        self.real: Real = np.float64 if self.exact else np.float32

    def round(self, array: np.ndarray, word: str) -> np.ndarray:
        """`array` as an op stores it in a value of dtype `word`: rounded to nearest even. Exact mode rounds nothing."""
        return self.rounding(word)(array)

    def rounding(self, word: str) -> Callable[[np.ndarray], np.ndarray]:
        """`round` for one dtype word."""
        return _as_float64 if self.exact else _rounding_to(word)

    def cast(self, array: np.ndarray, word: str) -> np.ndarray:
        """`array` rounded through float32 to the float dtype `word`, in either mode, as an array of `real`."""
        return _rounding_to(word)(array).astype(self.real, copy=False)

    def matmul(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """`x @ w^T` over the last two axes: x [..., N, K], w [..., M, K] -> [..., N, M]; leading axes broadcast.

        In the reference setting of native mode a row of x gives the same bits whatever the other rows are.
        """
        if self.exact or self.fast:
            return np.matmul(x, w.swapaxes(-1, -2))
        rows, k = x.shape[-2:]
        tile = row_tile(*w.shape[-2:])
        padding = -rows % tile
        if padding:
            x = np.concatenate([x, np.zeros((*x.shape[:-2], padding, k), x.dtype)], axis=-2)
        tiles = x.reshape(*x.shape[:-2], -1, tile, k)
        # w is the left factor: the rows of a tile then lie in the lanes of a vector register, which are all alike.
        y = np.matmul(w[..., None, :, :], tiles.swapaxes(-1, -2)).swapaxes(-1, -2)
        # Contiguous, whatever the number of tiles: NumPy reduces along strides in another order.
        return np.ascontiguousarray(y.reshape(*y.shape[:-3], -1, y.shape[-1])[..., :rows, :])


@cache
def row_tile(m: int, k: int) -> int:
    """Rows of a tile for products with a matrix [m, k]: the most for which equal rows at all places gave equal bits."""
    multiples = np.arange((m + 1) * k, dtype=np.uint32)
    multiples *= np.uint32(2654435769)  # 2**32 by the golden ratio: their fractions spread evenly, and need no random numbers
    numbers = (multiples.astype(np.float32) * 2.0**-32 - 0.5).reshape(m + 1, k)
    return next(tile for tile in (*ROW_TILES, 1) if _places_agree(numbers[:m], numbers[m:].T, tile))


def _as_float64(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64, copy=False)


@lru_cache
def _rounding_to(word: str) -> Callable[[np.ndarray], np.ndarray]:
    """What rounds an array through float32 to a float dtype, and gives it back as float32."""
    float32, stored = FLOAT32, STORAGE[word]

    def rounded(array: np.ndarray) -> np.ndarray:
        if array.dtype is not float32:
            array = array.astype(float32)
        return array.astype(stored).astype(float32)

    return rounded if word != "f32" else lambda array: array.astype(float32, copy=False)


def _places_agree(matrix: np.ndarray, row: np.ndarray, tile: int) -> bool:
    """Whether `row` [K, 1] gives the same bits at every place of a tile."""
    y = matrix @ np.repeat(row.T, tile, axis=0).T
    return bool((y == y[:, :1]).all())
