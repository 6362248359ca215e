"""Page tables and the integers of a pass."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from poem.batch import NO_PAGE, Chunk, PageTable, geometry


def test_pages_are_taken_from_the_lowest_free_one() -> None:
    table = PageTable(4)
    for sequence in (0, 1):
        table.add(sequence)
    assert table.grow(0, 5) == [0, 1]
    assert table.grow(1, 4) == [2]
    assert table.grow(0, 8) == []
    table.remove(0)
    table.add(2)
    assert table.grow(2, 9) == [0, 1, 3]
    assert table.page_count == 4


def test_a_window_gives_back_pages_that_no_later_row_sees() -> None:
    """The next row, at position 10, sees cells 7 .. 10 with a window of 4: pages 0 .. 2 of two cells are behind it."""
    table = PageTable(2, window=4)
    table.add(0)
    table.grow(0, 10)
    table.settle(0, 10)
    assert table.pages[0] == [NO_PAGE, NO_PAGE, NO_PAGE, 3, 4]
    assert sorted(table.free) == [0, 1, 2]
    assert table.grow(0, 12) == [0]
    table.remove(0)
    assert sorted(table.free) == [0, 1, 2, 3, 4]


def test_settling_at_a_shorter_length_gives_back_the_rest() -> None:
    table = PageTable(2)
    table.add(0)
    table.grow(0, 9)
    table.settle(0, 3)
    assert table.pages[0] == [0, 1]
    table.settle(0, 0)
    assert table.pages[0] == []
    assert sorted(table.free) == [0, 1, 2, 3, 4]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 5), st.one_of(st.none(), st.integers(1, 9)), st.integers(0, 2**32 - 1))
def test_no_page_is_ever_owned_twice_or_lost(page_size: int, window: int | None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    table, lengths = PageTable(page_size, window), dict[int, int]()
    for step in range(60):
        action = rng.integers(0, 4)
        if action == 0 or not lengths:
            table.add(step)
            lengths[step] = 0
        elif action == 1:
            gone = int(rng.choice(list(lengths)))
            table.remove(gone)
            del lengths[gone]
        else:
            sequence = int(rng.choice(list(lengths)))
            grown = lengths[sequence] + int(rng.integers(0, 9))
            table.grow(sequence, grown)
            kept = int(rng.integers(lengths[sequence], grown + 1))
            table.settle(sequence, kept)
            lengths[sequence] = kept
        owned = [page for pages in table.pages.values() for page in pages if page != NO_PAGE]
        assert sorted([*owned, *table.free]) == list(range(table.page_count)), f"seed {seed}, step {step}"
        for sequence, length in lengths.items():
            pages = table.pages[sequence]
            assert len(pages) == -(-length // page_size)
            seen = range(0 if window is None else max(0, length - window + 1), length)
            assert all(pages[cell // page_size] != NO_PAGE for cell in seen), f"seed {seed}, step {step}: a visible cell was dropped"


def test_the_geometry_of_a_ragged_pass() -> None:
    table = PageTable(2)
    lengths = {10: 3, 11: 0, 12: 2}
    for sequence, length in lengths.items():
        table.add(sequence)
        table.grow(sequence, length)
    table.grow(10, 5)
    table.grow(12, 3)
    chunks = [Chunk(12, [7]), Chunk(11, []), Chunk(10, [8, 9], readouts="all", commit=1)]
    got = geometry(chunks, lengths, [table])
    assert got.sequences == (12, 11, 10)
    assert (got.rows, got.lanes) == (3, 3)
    assert got.lanes_with_rows == ((0, 0, 1), (2, 1, 3))
    assert got.tokens.tolist() == [7, 8, 9]
    assert got.positions.tolist() == [2, 3, 4]
    assert got.lane_of_row.tolist() == [0, 2, 2]
    assert got.qo_indptr.tolist() == [0, 1, 1, 3]
    assert got.kv_len.tolist() == [3, 0, 5]
    assert got.commit_len.tolist() == [1, 0, 1]
    assert got.readout_rows.tolist() == [0, 1, 2]
    pages = got.pages[0]
    assert pages.indptr.tolist() == [0, 2, 2, 5]
    assert pages.indices.tolist() == [2, 4, 0, 1, 3]
    assert pages.last_page_len.tolist() == [1, 2, 1]
    assert pages.write_page.tolist() == [4, 1, 3]
    assert pages.write_offset.tolist() == [0, 1, 0]
    assert pages.runs == (None, 0, None)
    assert {array.dtype for array in (got.tokens, got.positions, got.kv_len, pages.indices, pages.write_page)} == {np.dtype(np.int32)}


def test_slots_of_new_rows_that_follow_one_another_are_a_slice() -> None:
    table = PageTable(4)
    for sequence in (0, 1):
        table.add(sequence)
        table.grow(sequence, 3)
    lengths = {0: 2, 1: 1}

    def slots(*chunks: Chunk) -> slice | list[int]:
        found = geometry(chunks, lengths, [table]).pages[0].write_slots
        return found if isinstance(found, slice) else found.tolist()

    assert slots(Chunk(0, [7])) == slice(2, 3)
    assert slots(Chunk(1, [7, 7])) == slice(5, 7)
    assert slots(Chunk(0, [7]), Chunk(1, [7, 7])) == [2, 5, 6]
    assert slots(Chunk(1, [7]), Chunk(0, [7])) == [5, 2]
    assert slots(Chunk(0, [])) == []


def test_readouts_are_words_or_indices() -> None:
    assert Chunk(0, [5, 6, 7]).readout_indices() == [2]
    assert Chunk(0, []).readout_indices() == []
    assert Chunk(0, [5, 6], readouts="all").readout_indices() == [0, 1]
    assert Chunk(0, [5, 6], readouts="none").readout_indices() == []
    assert Chunk(0, [5, 6], readouts=np.array([1, 0, 1])).readout_indices() == [1, 0, 1]


def test_masks_are_packed_lane_by_lane_from_byte_boundaries() -> None:
    table = PageTable(4)
    lengths = {0: 0, 1: 2, 2: 0}
    for sequence in lengths:
        table.add(sequence)
        table.grow(sequence, 4)
    mask = np.array([[1, 0, 1], [0, 1, 1], [1, 1, 1]], bool)
    chunks = [Chunk(0, [1, 2, 3], mask=mask), Chunk(1, [4]), Chunk(2, [5], mask=np.array([[True]]))]
    bits, bounds = geometry(chunks, lengths, [table]).packed_masks
    assert bounds.tolist() == [0, 2, 2, 3]
    assert bits.tolist() == [0b11110101, 0b1, 0b1]
