"""`Tensor`: a stored weight, as planes of codes and factors, and its decoded values."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from poem.dtypes.dtype import Dtype

# How a plane of a leaf lies in memory. 8-bit floats stay codes; sub-byte leaves are packed, low bits first.
STORAGE: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64), "i32": np.dtype(np.int32), "i16": np.dtype(np.int16), "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64), "u32": np.dtype(np.uint32), "u16": np.dtype(np.uint16), "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    "e4m3": np.dtype(np.uint8), "e5m2": np.dtype(np.uint8), "e8m0": np.dtype(np.uint8),
    "e2m1": np.dtype(np.uint8), "u4": np.dtype(np.uint8), "u2": np.dtype(np.uint8),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tensor:
    """A weight as it is stored.

    dtype: its term. shape: the logical shape `[..., N, K]`. planes: arrays by plane path, each of the plane's
    packed shape and of `STORAGE[leaf]`; usually read-only views of a mapped file.
    """

    dtype: Dtype
    shape: tuple[int, ...]
    planes: Mapping[str, np.ndarray]

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

    def decode(self, rows: slice | None = None, dtype: type = np.float32) -> np.ndarray:
        """The values of rows (of the first axis) as float32 or float64. Exact for bf16, f16 and f32 leaves."""
        if not self.dtype.is_leaf:
            raise ValueError(f"{self.dtype} is not a leaf")
        data = self.planes["data"]
        return (data if rows is None else data[rows]).astype(dtype)
