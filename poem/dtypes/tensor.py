"""`Tensor`: a stored weight, as planes of codes and factors, and its decoded values."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from poem.dataclass import dataclass
from poem.dtypes import groups
from poem.dtypes.dtype import Dtype
from poem.dtypes.leaves import STORAGE
from poem.dtypes.term import Grouped

__all__ = ["STORAGE", "Tensor"]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight as it is stored.

    dtype: its term. shape: the logical shape `[..., N, K]`. planes: arrays by plane path, each of the plane's packed shape and of
    `STORAGE[leaf]`; usually read-only views of a mapped file. A whole-tensor factor may be segmented: then it has the shape
    `[*lead, P]`, and a further plane `rows` beside it (`gain.rows` for nvfp4) holds the row counts of the P segments.
    ValueError if the planes are not those of the dtype and shape.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    planes: Mapping[str, np.ndarray]

    def __post_init__(self) -> None:
        segments = _segments(self.planes)
        expected = {plane.path: plane for plane in self.dtype.planes(self.shape, segments)}
        for path, plane in expected.items():
            found = self.planes.get(path)
            if found is None:
                raise ValueError(f"{self.dtype}: the plane `{path}` is missing")
            if found.shape != plane.packed_shape or found.dtype != STORAGE[plane.leaf]:
                raise ValueError(
                    f"{self.dtype} {list(self.shape)}: the plane `{path}` is {STORAGE[plane.leaf]} {list(plane.packed_shape)}, "
                    f"found {found.dtype} {list(found.shape)}"
                )
        unknown = sorted(set(self.planes) - set(expected))
        if unknown:
            raise ValueError(f"{self.dtype} has no plane `{unknown[0]}`")
        check_segments(self.dtype, self.shape, {path: self.planes[path] for path in segments})

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(plane.nbytes for plane in self.planes.values())

    @property
    def size(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)

    @staticmethod
    def of(array: np.ndarray) -> "Tensor":
        """A leaf tensor over an array, without a copy. ValueError for an array type that is no leaf."""
        for leaf, storage in STORAGE.items():
            if array.dtype == storage:
                return Tensor(Dtype(leaf), array.shape, {"data": array})
        raise ValueError(f"no dtype is stored as {array.dtype}")

    @staticmethod
    def encode(array: np.ndarray, dtype: Dtype) -> "Tensor":
        """`array` `[..., N, K]` in `dtype`, by the rules of `groups.encode` and `leaves.encode`.

        ValueError for a shape that the dtype does not take, and for values that it cannot hold (NaN or infinity in groups).
        """
        return _in_order(dtype, array.shape, groups.encode(dtype.term, array))

    @staticmethod
    def encode_rows(read: Callable[[slice], np.ndarray], shape: tuple[int, ...], dtype: Dtype) -> "Tensor":
        """As `encode`, for a dtype in groups and values too many to be held: `read(rows)` gives rows of the matrix `[..., K]`, floats.

        It is asked for all rows in order, twice, some 65536 values at a time.
        """
        assert isinstance(dtype.term, Grouped)
        return _in_order(dtype, shape, groups.encode_groups(dtype.term, read, shape))

    def decode(self, rows: slice | np.ndarray | None = None, dtype: type = np.float32) -> np.ndarray:
        """The values of `rows` of the first axis (a slice or an array of indices; None: all), as float32 or float64.

        float32 rounds after each step of the format's formula; float64 is exact for every named dtype but f64 sums of extreme
        affine factors. Only the planes of the wanted rows are touched.
        """
        if not self.shape:
            return groups.decode(self.dtype.term, self.planes, (), dtype=dtype).reshape(())
        if len(self.shape) == 1:  # the matrix of a vector is one row: the wanted elements are taken from it
            values = groups.decode(self.dtype.term, self.planes, self.shape, dtype=dtype)[0]
            return values if rows is None else values[rows]
        below = math.prod(self.shape[1:-1])
        if rows is None:
            kept: slice | np.ndarray = slice(None)
        elif below == 1:
            kept = rows
        elif isinstance(rows, slice) and rows.step in (None, 1):
            start, stop, _ = rows.indices(self.shape[0])
            kept = slice(start * below, max(start, stop) * below)
        else:
            kept = (np.arange(self.shape[0])[rows][:, None] * below + np.arange(below)).reshape(-1)
        values = groups.decode(self.dtype.term, self.planes, self.shape, rows=kept, dtype=dtype)
        return values.reshape(-1, *self.shape[1:])


def check_segments(dtype: Dtype, shape: tuple[int, ...], rows: Mapping[str, np.ndarray]) -> None:
    """ValueError if the planes of row counts of a weight, by path, do not add up to what they divide."""
    for path, plane in rows.items():
        counts, total = plane.tolist(), groups.segmented_rows(dtype.term, rows, shape, path)
        if min(counts, default=1) < 1 or sum(counts) != total:  # integers of Python: those of NumPy wrap around
            raise ValueError(f"{dtype}: `{path}` counts rows of segments, each 1 or more, {total} in all; found {counts}")


def _in_order(dtype: Dtype, shape: tuple[int, ...], planes: Mapping[str, np.ndarray]) -> Tensor:
    return Tensor(dtype, shape, {plane.path: planes[plane.path] for plane in dtype.planes(shape, _segments(planes))})


def _segments(planes: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {path: plane.size for path, plane in planes.items() if path.rpartition(".")[2] == "rows"}
