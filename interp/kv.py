"""Memory between passes: paged cache rows and state slabs."""

from collections.abc import Sequence

import numpy as np

from interp.numeric import Numeric
from poem.batch import Geometry, Pages
from poem.dtypes import Dtype
from poem.dtypes.cache import load, store
from poem.dtypes.tensor import STORAGE
from poem.graph import Cache


class KvRow:
    """One row of a kv space: for each token one cell of each plane, `[cells, width]`; a page is `page_size` cells that follow one another.

    Native mode stores the dtype of the space (the fast setting keeps the same values as float32, so that reading needs no
    decoding); exact mode stores float64, cast like the space's dtype only with `casts`. Reading gives `code * scale`.
    scales: one number a plane.
    """

    def __init__(self, cache: Cache, dtype: str, page_size: int, numeric: Numeric, scales: Sequence[float] | None = None) -> None:
        self.cache, self.dtype, self.page_size = cache, dtype, page_size
        self._numeric = numeric
        self._scales = tuple(np.float32(scale) for scale in scales or (1.0,) * len(cache.planes))
        self._decoded = numeric.exact or numeric.fast
        stored = np.dtype(numeric.real) if self._decoded else STORAGE[dtype]
        self.planes = [np.zeros((0, width), stored) for width in cache.planes]
        self.written = np.zeros(0, np.bool_)

    @property
    def page_count(self) -> int:
        """Pages that there is room for."""
        return len(self.written) // self.page_size

    def reserve(self, page_count: int) -> None:
        """Room for pages 0 .. page_count - 1; grows by half, so that adding pages one by one stays cheap."""
        have = self.page_count
        if have >= page_count:
            return
        more = max(page_count - have, have // 2) * self.page_size
        self.planes = [np.concatenate([plane, np.zeros((more, plane.shape[1]), plane.dtype)]) for plane in self.planes]
        self.written = np.concatenate([self.written, np.zeros(more, np.bool_)])

    def clear(self, pages: Sequence[int]) -> None:
        """The cells of these pages are void: they count as never written."""
        for array in (self.written, *self.planes):
            array.reshape(-1, self.page_size, *array.shape[1:])[pages] = 0

    def append(self, slots: slice | np.ndarray, values: Sequence[np.ndarray], dtypes: Sequence[str]) -> None:
        """Store row t of `values`, one [N, width] array of a dtype a plane, in the t-th of the cells `slots`."""
        for plane, value, scale, dtype in zip(self.planes, values, self._scales, dtypes, strict=True):
            plane[slots] = self._stored(value, scale, dtype)
        self.written[slots] = True

    def read(self, pages: Pages, lane: int, first: int, stop: int) -> tuple[list[np.ndarray], np.ndarray]:
        """Cells first .. stop - 1 of a lane: one [cells, width] array of `real` a plane, and bool [cells], which were written.

        Cells of dropped pages count as not written.
        """
        size = self.page_size
        run = pages.runs[lane]
        if run is not None:  # neighbouring pages are read where they lie
            cells: slice | np.ndarray = slice(run * size + first, run * size + stop)
            written = self.written[cells]
        else:
            j = np.arange(first, stop)
            page = pages.of_lane(lane)[j // size]
            cells = page * size + j % size
            written = self.written[cells] & (page >= 0)
        found = [plane[cells] for plane in self.planes]
        if not self._decoded:
            found = [self._read(stored, scale) for stored, scale in zip(found, self._scales, strict=True)]
        return found, written

    def _stored(self, value: np.ndarray, scale: np.float32, dtype: str) -> np.ndarray:
        """`value`, of a value of `dtype`, as the planes hold it."""
        if not self._numeric.casts or (self._decoded and dtype == self.dtype and not self._numeric.exact):
            return value
        stored = store(value.astype(np.float32, copy=False), Dtype(self.dtype), scale)
        return self._read(stored, scale) if self._decoded else stored

    def _read(self, stored: np.ndarray, scale: np.float32) -> np.ndarray:
        return load(stored, Dtype(self.dtype), scale).astype(self._numeric.real, copy=False)


class StateSlab:
    """One state: a block of a fixed shape for each sequence, zero when the sequence starts.

    What a pass writes is seen by later ops of the pass, and becomes lasting when the pass has run to its end.
    """

    def __init__(self, cache: Cache, numeric: Numeric) -> None:
        self.cache = cache
        self._numeric = numeric
        self._lasting: dict[int, np.ndarray] = {}
        self._pending: dict[int, np.ndarray] = {}

    def read(self, geometry: Geometry) -> np.ndarray:
        """The slabs of the pass's lanes: `[lanes, *slab]` of `real`, a copy."""
        zero: np.ndarray = np.zeros(self.cache.slab, self._numeric.real)
        slabs = [self._pending.get(name, self._lasting.get(name, zero)) for name in geometry.sequences]
        return np.array(slabs, self._numeric.real).reshape(len(slabs), *self.cache.slab)

    def write(self, geometry: Geometry, slabs: np.ndarray) -> None:
        """Store `[lanes, *slab]`: the slab of each lane after its first `commit_len` rows, rounded once to the state's dtype.

        Lanes that commit no rows keep their slab whatever is given for them.
        """
        if self._numeric.casts:
            slabs = self._numeric.cast(slabs, self.cache.dtype)
        for name, slab, commit in zip(geometry.sequences, slabs, geometry.commit_len.tolist(), strict=True):
            if commit:
                self._pending[name] = slab

    def settle(self, keep: bool) -> None:
        """End of a pass: what it wrote lasts, or is forgotten."""
        if keep:
            self._lasting.update(self._pending)
        self._pending.clear()

    def remove(self, sequence: int) -> None:
        """A sequence leaves."""
        self._lasting.pop(sequence, None)
