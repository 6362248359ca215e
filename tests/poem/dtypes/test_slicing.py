"""Selecting from stored weights, joining and stacking them is selecting from, joining and stacking their values, codes untouched."""

import itertools
import re
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from poem.dtypes import NICKNAMES, Dtype
from poem.dtypes.slicing import Chosen, GroupSplit, TileBoundary, join, select, stack
from poem.dtypes.tensor import Tensor
from tests.poem.dtypes.strategies import fits, planes, shapes, terms, weight

SEEDS = st.integers(0, 2**32 - 1)


def stored(name: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return Tensor.encode(weight(shape, seed), Dtype(name))


def same(got: Tensor, want: np.ndarray) -> None:
    np.testing.assert_array_equal(got.decode(dtype=np.float64), want)


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Random planes of any term, or a weight encoded in a nickname."""
    dtype = draw(st.one_of(st.sampled_from(["bf16", "e4m3", *NICKNAMES]).map(Dtype), terms().map(str).map(Dtype)))
    shape = draw(shapes(dtype))
    assume(fits(dtype, shape))
    return Tensor(dtype, shape, planes(dtype, shape, draw(SEEDS)))


def quantum(tensor: Tensor, axis: int) -> int:
    """Entries of an axis that share a factor or a byte."""
    from_last = axis - len(tensor.shape)
    return tensor.dtype.quantum[from_last] if from_last >= -2 else 1


@given(st.data(), tensors())
def test_any_allowed_selection_decodes_to_the_selected_values(data: st.DataObject, tensor: Tensor) -> None:
    axis = data.draw(st.integers(0, len(tensor.shape) - 1))
    extent, step = tensor.shape[axis], data.draw(st.integers(1, 3))
    borders = sorted({*range(0, extent, quantum(tensor, axis)), extent})
    whole = data.draw(st.booleans())
    edges = st.lists(st.sampled_from(borders) if whole else st.integers(0, extent), min_size=2, max_size=2, unique=True)
    start, stop = sorted(data.draw(edges))
    run = range(start, stop) if whole else range(start, stop, step)
    chosen: Chosen = run if whole else data.draw(st.sampled_from([run, tuple(run)]))
    try:
        found = select(tensor, axis, chosen)
    except GroupSplit:
        assert not whole, f"{tensor.dtype} {tensor.shape} axis {axis}: {chosen} covers whole groups"
        assert quantum(tensor, axis) > 1
        return
    same(found, np.take(tensor.decode(dtype=np.float64), list(chosen), axis))


@given(st.data(), tensors())
def test_joining_the_pieces_of_a_weight_gives_it_back(data: st.DataObject, tensor: Tensor) -> None:
    axis = data.draw(st.integers(0, len(tensor.shape) - 1))
    borders = range(quantum(tensor, axis), tensor.shape[axis], quantum(tensor, axis))
    cuts = sorted(data.draw(st.lists(st.sampled_from(borders), unique=True, max_size=3))) if len(borders) else []
    pieces = [select(tensor, axis, range(start, stop)) for start, stop in itertools.pairwise([0, *cuts, tensor.shape[axis]])]
    whole = join(axis, pieces)
    same(whole, tensor.decode(dtype=np.float64))
    codes = "data" if tensor.dtype.is_leaf else "code"
    np.testing.assert_array_equal(whole.planes[codes], tensor.planes[codes])


@given(st.data(), st.sampled_from(["bf16", *NICKNAMES, "gt_e4m3_f32_n"]), st.lists(SEEDS, min_size=1, max_size=3))
def test_joined_parts_keep_their_values(data: st.DataObject, name: str, seeds: list[int]) -> None:
    dtype = Dtype(name)
    first = data.draw(shapes(dtype, 130))
    step = dtype.quantum[0]
    heights = [step * data.draw(st.integers(1, 2)) for _ in seeds[:-1]] + [data.draw(st.integers(1, 5))]
    parts = [stored(name, (*first[:-2], height, first[-1]), seed) for height, seed in zip(heights, seeds, strict=True)]
    same(join(len(first) - 2, parts), np.concatenate([part.decode(dtype=np.float64) for part in parts], axis=-2))


@given(st.data(), st.sampled_from(["bf16", *NICKNAMES, "gt_e4m3_f32_n"]), st.lists(SEEDS, min_size=1, max_size=3))
def test_a_bank_holds_the_values_of_its_entries(data: st.DataObject, name: str, seeds: list[int]) -> None:
    shape = data.draw(shapes(Dtype(name), 130))
    entries = [stored(name, shape, seed) for seed in seeds]
    same(stack(entries), np.stack([entry.decode(dtype=np.float64) for entry in entries]))


def fused(seeds: tuple[int, ...], heights: tuple[int, ...]) -> Tensor:
    return join(0, [stored("nvfp4", (height, 32), seed) for seed, height in zip(seeds, heights, strict=True)])


def test_joined_nvfp4_parts_keep_their_own_scales_in_segments() -> None:
    tensor = fused((1, 2, 3), (4, 2, 2))
    assert tensor.planes["gain.rows"].tolist() == [4, 2, 2]
    assert tensor.planes["gain.gain"].shape == (3,)


def test_equal_neighbouring_scales_are_merged() -> None:
    assert "gain.rows" not in fused((1, 1), (4, 4)).planes
    assert fused((1, 1, 2), (4, 4, 4)).planes["gain.rows"].tolist() == [8, 4]


@pytest.mark.parametrize(
    ("chosen", "rows"), [(range(3, 7), [1, 2, 1]), (range(4, 6), [2]), (range(0, 8, 2), [2, 1, 1]), ((7, 0, 5), [1, 1, 1])]
)  # fmt: skip
def test_segments_of_a_whole_tensor_scale_follow_a_selection_of_rows(chosen: Chosen, rows: list[int]) -> None:
    whole = fused((1, 2, 3), (4, 2, 2))
    found = select(whole, 0, chosen)
    assert found.planes["gain.rows"].tolist() == rows
    same(found, whole.decode(dtype=np.float64)[list(chosen)])


def test_a_bank_of_differently_segmented_weights_has_the_borders_of_all() -> None:
    entries = [fused((1, 2), (6, 2)), fused((3, 4), (3, 5)), stored("nvfp4", (8, 32), 5)]
    bank = stack(entries)
    assert bank.planes["gain.rows"].tolist() == [3, 3, 2]
    same(bank, np.stack([entry.decode(dtype=np.float64) for entry in entries]))


def test_banks_are_joined_along_n_with_a_scale_for_every_entry_and_part() -> None:
    up = stack([stored("nvfp4", (4, 32), seed) for seed in (1, 2, 3)])
    gate = stack([stored("nvfp4", (6, 32), seed) for seed in (4, 5, 6)])
    both = join(1, [gate, up])
    assert both.planes["gain.gain"].shape == (3, 2)
    assert both.planes["gain.rows"].tolist() == [6, 4]
    same(both, np.concatenate([gate.decode(dtype=np.float64), up.decode(dtype=np.float64)], axis=1))


def test_selections_by_range_are_views_of_the_mapped_planes() -> None:
    tensor = stored("u4g64", (8, 128))
    assert np.shares_memory(select(tensor, 0, range(2, 5)).planes["code"], tensor.planes["code"])
    assert np.shares_memory(select(tensor, 1, range(64, 128)).planes["gain"], tensor.planes["gain"])


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda: select(stored("e4m3tile128", (300, 128)), 0, range(100, 256)), GroupSplit, "no whole groups of 128"),
        (lambda: select(stored("nvfp4", (2, 64)), 1, range(8, 64)), GroupSplit, "entries 8 to 64 are no whole groups of 16"),
        (lambda: select(stored("u4g64", (2, 128)), 1, range(32)), GroupSplit, "no whole groups of 64"),
        (lambda: select(stored("u4g64", (2, 128)), 1, tuple(range(64))), GroupSplit, "only a run of whole groups of 64"),
        (lambda: join(0, [stored("e4m3tile128", (100, 128)), stored("e4m3tile128", (128, 128))]), TileBoundary, "multiples of 128"),
        (lambda: join(1, [stored("e4m3row", (4, 32), 1), stored("e4m3row", (4, 32), 2)]), GroupSplit, "share `gain`"),
        (lambda: join(1, [stored("nvfp4", (4, 32), 1), stored("nvfp4", (4, 32), 2)]), GroupSplit, "share `gain.gain`"),
        (lambda: join(0, [stack([fused((1, 2), (4, 4))]), stack([fused((3, 4), (2, 6))])]), GroupSplit, "different segments"),
        (lambda: join(0, [stored("bf16", (2, 8)), stored("bf16", (2, 16))]), ValueError, "differ in axis 0 only"),
        (lambda: join(0, [stored("bf16", (2, 64)), stored("u4g64", (2, 64))]), ValueError, "one dtype, found bf16 and u4g64"),
        (lambda: join(0, []), ValueError, "nothing to put together"),
        (lambda: stack([stored("bf16", (2, 8)), stored("bf16", (3, 8))]), ValueError, "weights of one shape"),
        (lambda: stack([stored("e4m3tile128", (2, 8)), stored("e4m3tile128a8", (2, 8))]), ValueError, "one dtype"),
    ],
)
def test_what_would_split_a_group_is_refused(call: Callable[[], Tensor], error: type[ValueError], says: str) -> None:
    with pytest.raises(error, match=re.escape(says)):
        call()
