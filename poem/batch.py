"""A pass and its ragged batch: what both backends are handed besides the Graph and the weights.

A `Batch` is a list of `Chunk`s, one per sequence that takes part in the pass; one sequence is a batch of one, and a
chunk without new tokens is legal. A `PageTable` says in which physical pages of a kv space the cells of each sequence
lie. `geometry` packs both into the integer arrays that ops read (`Geometry`).
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import accumulate
from typing import Literal

import numpy as np

from poem.dataclass import dataclass
from poem.errors import UsageError


@dataclass(frozen=True, slots=True)
class Chunk:
    """The new tokens of one sequence.

    sequence: the id that the runner gave when the sequence joined.
    tokens: token ids, in order; may be empty.
    readouts: which of the new rows are read out: the last, all, none, or indices into `tokens`.
    mask: bool [new rows, kv length after this pass], True where a row may attend; None without a mask.
    commit: how many of the new rows the sequence keeps, in its state slabs and its length (speculative rows are
        dropped: the next pass writes over their cells); None keeps all.
    adapters: adapter slot of each new row, -1 for none; None for none at all.
    positions: int [new rows, 3], time, height and width of each row; None where all three are the row's position.
    """

    sequence: int
    tokens: Sequence[int]
    readouts: Literal["last", "all", "none"] | Sequence[int] = "last"
    mask: np.ndarray | None = None
    commit: int | None = None
    adapters: Sequence[int] | None = None
    positions: np.ndarray | None = None

    def readout_indices(self) -> list[int]:
        """The indices of `readouts` inside this chunk."""
        count = len(self.tokens)
        if not isinstance(self.readouts, str):
            return [int(index) for index in self.readouts]
        return list({"last": range(count)[-1:], "all": range(count), "none": range(0)}[self.readouts])


Batch = Sequence[Chunk]

NO_PAGE = -1


@dataclass(slots=True)
class PageTable:
    """Which physical pages of one kv space hold the cells of each sequence.

    Cell j of a sequence is at offset `j % page_size` of page `pages[sequence][j // page_size]`. The lowest free pages
    are taken first. With a window, pages whose cells no later row can see are given back; their entries become
    `NO_PAGE`, so that later cells keep their places.
    """

    page_size: int
    window: int | None = None
    page_count: int = 0  # physical pages ever made
    pages: dict[int, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=list)
    dropped: dict[int, int] = field(default_factory=dict)  # how many leading pages each sequence has given back

    def add(self, sequence: int) -> None:
        """A sequence joins, without cells."""
        self.pages[sequence] = []
        self.dropped[sequence] = 0

    def remove(self, sequence: int) -> None:
        """A sequence leaves; its pages become free."""
        for page in self.pages.pop(sequence)[self.dropped.pop(sequence) :]:
            heapq.heappush(self.free, page)

    def grow(self, sequence: int, length: int) -> list[int]:
        """Take pages until there is room for `length` cells. Returns the pages taken: their old cells are void."""
        own = self.pages[sequence]
        taken = []
        while len(own) * self.page_size < length:
            if self.free:
                page = heapq.heappop(self.free)
            else:
                page, self.page_count = self.page_count, self.page_count + 1
            own.append(page)
            taken.append(page)
        return taken

    def settle(self, sequence: int, length: int) -> None:
        """After a pass, at `length` cells: give back pages beyond them, and pages behind the window of the next row."""
        own = self.pages[sequence]
        while (len(own) - 1) * self.page_size >= length and own:
            page = own.pop()
            if page != NO_PAGE:
                heapq.heappush(self.free, page)
        if self.window is None:
            return
        for index in range(self.dropped[sequence], max(0, length - self.window + 1) // self.page_size):
            heapq.heappush(self.free, own[index])
            own[index] = NO_PAGE
            self.dropped[sequence] = index + 1


@dataclass(frozen=True)
class Pages:
    """The cells of one kv space in one pass, as int32 arrays.

    indptr [lanes + 1] bounds each lane's part of `indices`, its physical pages. last_page_len [lanes] is in
    1..page_size, so that `kv_len = (pages - 1) * page_size + last_page_len`. write_page and write_offset [tokens] say
    where the cell of each new row is.
    """

    page_size: int
    indptr: np.ndarray
    indices: np.ndarray
    last_page_len: np.ndarray
    write_page: np.ndarray
    write_offset: np.ndarray

    @cached_property
    def write_slots(self) -> slice | np.ndarray:
        """The cell of each new row, counted from cell 0 of page 0; a slice where they follow one another."""
        slots = self.write_page * self.page_size + self.write_offset
        if len(slots) and np.count_nonzero(slots[1:] - slots[:-1] != 1) == 0:
            return slice(int(slots[0]), int(slots[0]) + len(slots))
        return slots

    def of_lane(self, lane: int) -> np.ndarray:
        """The physical pages of one lane, in order of its cells."""
        return self.indices[self.indptr[lane] : self.indptr[lane + 1]]

    @cached_property
    def runs(self) -> tuple[int | None, ...]:
        """For each lane the first physical page, if all its pages follow one another; else None."""
        found: list[int | None] = []
        for lane in range(len(self.last_page_len)):
            pages = self.of_lane(lane)
            first = int(pages[0]) if len(pages) else 0
            is_run = first >= 0 and bool((pages == np.arange(first, first + len(pages))).all())
            found.append(first if is_run else None)
        return tuple(found)


@dataclass(frozen=True)
class Geometry:
    """The integers of one pass. Lane r is the r-th chunk of the batch; its rows are `qo_indptr[r] .. qo_indptr[r+1]`.

    All arrays are int32. tokens, positions, lane_of_row, adapter_routes [tokens]; mrope_positions [tokens, 3];
    qo_indptr [lanes + 1]; kv_len [lanes] counts cells after this pass's appends; commit_len [lanes]; readout_rows
    [readouts]. masks holds bool [rows, kv_len] or None for each lane. pages holds one `Pages` for each space.
    """

    batch: Batch
    sequences: tuple[int, ...]
    tokens: np.ndarray
    positions: np.ndarray
    lane_of_row: np.ndarray
    qo_indptr: np.ndarray
    kv_len: np.ndarray
    commit_len: np.ndarray
    readout_rows: np.ndarray
    pages: tuple[Pages, ...]

    @property
    def rows(self) -> int:
        return len(self.tokens)

    @property
    def lanes(self) -> int:
        return len(self.sequences)

    @cached_property
    def lanes_with_rows(self) -> tuple[tuple[int, int, int], ...]:
        """(lane, first row, end row) of each lane that brings rows."""
        bounds = self.qo_indptr.tolist()
        return tuple((lane, bounds[lane], bounds[lane + 1]) for lane in range(self.lanes) if bounds[lane] < bounds[lane + 1])

    @cached_property
    def masks(self) -> tuple[np.ndarray | None, ...]:
        return tuple(chunk.mask for chunk in self.batch)

    @cached_property
    def adapter_routes(self) -> np.ndarray:
        routes = np.full(self.rows, -1, np.int32)
        for (_, start, end), chunk in zip(self.lanes_with_rows, filter(lambda chunk: len(chunk.tokens), self.batch), strict=True):
            if chunk.adapters is not None:
                routes[start:end] = chunk.adapters
        return routes

    @cached_property
    def mrope_positions(self) -> np.ndarray:
        positions = np.repeat(self.positions[:, None], 3, axis=1)
        for (_, start, end), chunk in zip(self.lanes_with_rows, filter(lambda chunk: len(chunk.tokens), self.batch), strict=True):
            if chunk.positions is not None:
                positions[start:end] = chunk.positions
        return positions

    @cached_property
    def packed_masks(self) -> tuple[np.ndarray, np.ndarray]:
        """Masks as kernels read them: (uint8 bits, int32 [lanes + 1] byte bounds).

        A lane's `rows x kv_len` bits are row-major, least significant bit first, from a byte boundary; a lane
        without a mask has no bytes.
        """
        packed = [np.zeros(0, np.uint8) if mask is None else np.packbits(mask, bitorder="little") for mask in self.masks]
        bounds = np.cumsum([0, *(len(part) for part in packed)], dtype=np.int32)
        return np.concatenate([np.zeros(0, np.uint8), *packed]), bounds


def geometry(batch: Batch, lengths: Mapping[int, int], tables: Sequence[PageTable]) -> Geometry:
    """The integers of a pass.

    lengths: the cells that each sequence holds before the pass. tables: one for each kv space; each must already have
    room for the new rows (`PageTable.grow`).
    Raises UsageError (`run.batch`) for a sequence that is unknown or named twice, or a chunk that contradicts itself.
    """
    known = lengths.keys()
    sequences = tuple(chunk.sequence for chunk in batch)
    if len(set(sequences)) != len(batch):
        raise UsageError("run.batch", "a batch names a sequence twice", phase="run", found=str(list(sequences)))
    counts, totals, commits = [], [], []
    tokens: list[int] = []
    readouts: list[int] = []
    for chunk in batch:
        if chunk.sequence not in known:
            raise UsageError("run.batch", f"there is no sequence {chunk.sequence}", phase="run", hint="add_sequence() gives ids")
        count = len(chunk.tokens)
        counts.append(count)
        totals.append(lengths[chunk.sequence] + count)
        commits.append(count if chunk.commit is None else chunk.commit)
        indices = chunk.readout_indices()
        _check(chunk, count, totals[-1], commits[-1], indices)
        readouts += [len(tokens) + index for index in indices]
        tokens += chunk.tokens
    if len(batch) == 1:  # decoding one sequence: as few calls as it takes
        lane_of_row = np.zeros(counts[0], np.int32)
        positions = np.arange(totals[0] - counts[0], totals[0], dtype=np.int32)
    else:
        lane_of_row = np.repeat(np.arange(len(batch), dtype=np.int32), counts)
        runs = [np.arange(total - count, total, dtype=np.int32) for total, count in zip(totals, counts, strict=True)]
        positions = np.concatenate([np.zeros(0, np.int32), *runs])
    return Geometry(
        batch, sequences, np.array(tokens, np.int32), positions, lane_of_row, np.array([0, *accumulate(counts)], np.int32),
        np.array(totals, np.int32), np.array(commits, np.int32), np.array(readouts, np.int32),
        tuple(_pages(table, sequences, totals, lane_of_row, positions) for table in tables),
    )  # fmt: skip


def _pages(table: PageTable, sequences: Sequence[int], totals: list[int], lane_of_row: np.ndarray, positions: np.ndarray) -> Pages:
    size = table.page_size
    owned = [table.pages[sequence][: -(-total // size)] for sequence, total in zip(sequences, totals, strict=True)]
    indptr = np.array([0, *accumulate(len(pages) for pages in owned)], np.int32)
    indices = np.array([page for pages in owned for page in pages], np.int32)
    last = np.array([total - (len(pages) - 1) * size for total, pages in zip(totals, owned, strict=True)], np.int32)
    page, offset = np.divmod(positions, size)
    if len(page):
        page = indices[page if len(owned) == 1 else indptr[lane_of_row] + page]
    return Pages(size, indptr, indices, last, page, offset)


def _check(chunk: Chunk, count: int, total: int, commit: int, readouts: list[int]) -> None:
    """Raises UsageError (`run.batch`) for the first part of a chunk that does not fit its tokens."""

    def refuse(what: str, expected: str, found: object) -> UsageError:
        return UsageError("run.batch", f"sequence {chunk.sequence}: {what}", phase="run", expected=expected, found=str(found))

    if not 0 <= commit <= count:
        raise refuse("commit does not fit the tokens", f"0 to {count}", commit)
    for index in readouts:
        if not 0 <= index < count:
            raise refuse("a readout is outside the tokens", f"indices 0 to {count - 1}", index)
    if chunk.mask is not None and (chunk.mask.shape != (count, total) or chunk.mask.dtype != np.bool_):
        raise refuse("the mask does not fit", f"bool [{count}, {total}]", f"{chunk.mask.dtype} {list(chunk.mask.shape)}")
    if chunk.adapters is not None and len(chunk.adapters) != count:
        raise refuse("adapters do not fit the tokens", f"{count} slots", len(chunk.adapters))
    if chunk.positions is not None and np.shape(chunk.positions) != (count, 3):
        raise refuse("positions do not fit the tokens", f"[{count}, 3]", list(np.shape(chunk.positions)))
