"""A pass over paged caches for tests of kernels: ragged lanes, pages in random order, cells that nobody wrote full of NaN."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from cupy_backend.kernels.attn import Lanes
from poem.batch import NO_PAGE, Chunk, Geometry, PageTable, geometry
from tests.cupy_backend.launching import Memory


class Pass(NamedTuple):
    """The geometry of a pass, and how many pages there are."""

    geometry: Geometry
    page_count: int
    page_size: int


def ragged(
    lanes: Sequence[tuple[int, int]], page_size: int, seed: int, window: int | None = None, masks: Sequence[np.ndarray | None] | None = None
) -> Pass:
    """A pass of lanes (cells before, new rows). Pages lie in random order, some belong to nobody; with a window old ones are gone."""
    table = PageTable(page_size, window)
    for sequence, (before, _) in enumerate(lanes):
        table.add(sequence)
        table.grow(sequence, before)
        table.settle(sequence, before)
    for sequence, (before, new) in enumerate(lanes):
        table.grow(sequence, before + new)
    count = table.page_count + 2
    order = np.random.default_rng(seed).permutation(count)
    for own in table.pages.values():
        own[:] = [NO_PAGE if page == NO_PAGE else int(order[page]) for page in own]
    batch = [Chunk(sequence, [0] * new, mask=None if masks is None else masks[sequence]) for sequence, (_, new) in enumerate(lanes)]
    return Pass(geometry(batch, {n: before for n, (before, _) in enumerate(lanes)}, [table]), count, page_size)


def give_lanes(memory: Memory, given: Geometry) -> Lanes:
    """The integers of a pass in device memory."""
    pages = given.pages[0]
    return Lanes(
        memory.give("qo_indptr", given.qo_indptr), memory.give("kv_len", given.kv_len), memory.give("page_indptr", pages.indptr),
        memory.give("page_indices", pages.indices if len(pages.indices) else np.zeros(1, np.int32)),
    )  # fmt: skip


def filled(given: Pass, cells: Sequence[np.ndarray]) -> np.ndarray:
    """A cache plane `[pages, page_size, width]` with the cells `[kv_len, width]` of each lane in place, and NaN (0xff) elsewhere."""
    width, dtype = cells[0].shape[1], cells[0].dtype
    cache = np.full((given.page_count, given.page_size, width * dtype.itemsize), 0xFF, np.uint8).view(dtype)
    for lane, values in enumerate(cells):
        for page, start in zip(given.geometry.pages[0].of_lane(lane), range(0, len(values), given.page_size), strict=False):
            if page != NO_PAGE:
                part = values[start : start + given.page_size]
                cache[page, : len(part)] = part
    return cache
