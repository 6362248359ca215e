"""Tensors as a file holds them, and stored weights: what one name of a format means."""

import math
from collections.abc import Callable, Mapping

import numpy as np

from poem.checkpoint.files import MappedFile
from poem.dataclass import dataclass
from poem.dtypes import LEAF_BITS, Dtype
from poem.dtypes.tensor import STORAGE, Tensor


@dataclass(frozen=True, slots=True)
class RawTensor:
    """One tensor of a checkpoint file: where its bytes are, and what the file calls their type.

    tag: the file's own word (`BF16`, `F8_E4M3`, `Q4_1`). leaf: ours for the same, or None for blocks and for types that
    Poem does not have. shape: extents, outermost first. nbytes has been checked against the file, and for a leaf
    against shape.
    """

    name: str
    tag: str
    leaf: str | None
    shape: tuple[int, ...]
    file: MappedFile
    offset: int
    nbytes: int

    def data(self, start: int = 0, stop: int | None = None) -> np.ndarray:
        """Rows start..stop of the first axis as an array of the leaf's storage type, packed along the last axis.

        A view of the file where its address allows, a copy where it does not. ValueError without a leaf.
        """
        if self.leaf is None:
            raise ValueError(f"{self.tag} is no leaf")
        storage, bits = STORAGE[self.leaf], LEAF_BITS[self.leaf]
        if not self.shape:
            return self._view(0, self.nbytes, storage).reshape(())
        stop = self.shape[0] if stop is None else stop
        inner = self.shape[1:] if bits >= 8 or len(self.shape) == 1 else (*self.shape[1:-1], self.shape[-1] * bits // 8)
        if len(self.shape) == 1:
            return self._view(start * bits // 8, stop * bits // 8, storage)
        row = math.prod(inner) * storage.itemsize
        return self._view(start * row, stop * row, storage).reshape(stop - start, *inner)

    def block_rows(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop of the flattened leading axes as bytes `[rows, bytes of a row]`."""
        rows = math.prod(self.shape[:-1])
        row = self.nbytes // max(1, rows)
        return self._view(start * row, stop * row, np.dtype(np.uint8)).reshape(stop - start, row)

    def raw(self) -> np.ndarray:
        """All bytes, flat."""
        return self.file.bytes[self.offset : self.offset + self.nbytes]

    def _view(self, begin: int, end: int, storage: np.dtype) -> np.ndarray:
        raw = self.file.bytes[self.offset + begin : self.offset + end]
        if (self.offset + begin) % storage.itemsize:
            raw = raw.copy()
        return raw.view(storage)

    def tensor(self, start: int = 0, stop: int | None = None) -> Tensor:
        """Rows start..stop as a leaf tensor."""
        shape = self.shape if stop is None else (stop - start, *self.shape[1:])
        return Tensor(Dtype(str(self.leaf)), shape, {"data": self.data(start, stop)})


Factors = Callable[[], Mapping[str, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Stored:
    """A stored weight: the tensor of a name together with the companions that its storage scheme defines.

    word: what `stored(name)` answers. dtype: of what `read` gives; the term in which codes and scales lie in the
    checkpoint, or f32 where `decoded` says that blocks are decoded. tensors: the names of all checkpoint tensors that
    count as read with it. problem: why it cannot be read, or "" (then `read` may be called).
    read: rows start..stop of the first axis, as views of the file where possible. factors: the planes of a quantised
    weight without its codes. check: looks at the data; raises CheckpointError for wrong scales and codes, and gives
    notes. note: what a user should know before the data is read.
    """

    name: str
    word: str
    shape: tuple[int, ...]
    dtype: Dtype
    tensors: tuple[str, ...]
    read: Callable[[int, int], Tensor]
    decoded: bool = False
    problem: str = ""
    factors: Factors = dict
    check: Callable[[], tuple[str, ...]] = tuple
    note: str = ""

    @property
    def quantised(self) -> bool:
        """The checkpoint keeps codes and scales, not the numbers themselves."""
        return self.decoded or self.dtype.is_quantised


Table = Mapping[str, RawTensor]
