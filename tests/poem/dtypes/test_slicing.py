"""Cutting, joining and stacking stored weights is cutting, joining and stacking their values."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from poem.dtypes import NICKNAMES, Dtype
from poem.dtypes.slicing import cut_columns, cut_rows, join, stack
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


@given(st.data(), tensors(), st.sampled_from([-2, -1]))
def test_a_cut_on_a_group_border_is_a_cut_of_the_values(data: st.DataObject, tensor: Tensor, axis: int) -> None:
    extent, step = tensor.shape[axis], tensor.dtype.quantum[axis]
    borders = sorted({*range(0, extent, step), extent})
    start, stop = sorted(data.draw(st.lists(st.sampled_from(borders), min_size=2, max_size=2, unique=True)))
    cut = cut_rows(tensor, start, stop) if axis == -2 else cut_columns(tensor, start, stop)
    same(cut, np.take(tensor.decode(dtype=np.float64), range(start, stop), axis=axis))


@given(st.data(), tensors())
def test_joining_the_pieces_of_a_weight_gives_it_back(data: st.DataObject, tensor: Tensor) -> None:
    borders = range(tensor.dtype.quantum[0], tensor.shape[-2], tensor.dtype.quantum[0])
    cuts = sorted(data.draw(st.lists(st.sampled_from(borders), unique=True, max_size=3))) if len(borders) else []
    edges = [0, *cuts, tensor.shape[-2]]
    pieces = [cut_rows(tensor, start, stop) for start, stop in itertools.pairwise(edges)]
    same(join(pieces), tensor.decode(dtype=np.float64))


@given(st.data(), st.sampled_from(["bf16", *NICKNAMES, "gt_e4m3_f32_n"]), st.lists(SEEDS, min_size=1, max_size=3))
def test_joined_parts_keep_their_values(data: st.DataObject, name: str, seeds: list[int]) -> None:
    dtype = Dtype(name)
    first = data.draw(shapes(dtype, 130))
    step = dtype.quantum[0]
    heights = [step * data.draw(st.integers(1, 2)) for _ in seeds[:-1]] + [data.draw(st.integers(1, 5))]
    parts = [stored(name, (*first[:-2], height, first[-1]), seed) for height, seed in zip(heights, seeds, strict=True)]
    same(join(parts), np.concatenate([part.decode(dtype=np.float64) for part in parts], axis=-2))


@given(st.data(), st.sampled_from(["bf16", *NICKNAMES, "gt_e4m3_f32_n"]), st.lists(SEEDS, min_size=1, max_size=3))
def test_a_bank_holds_the_values_of_its_entries(data: st.DataObject, name: str, seeds: list[int]) -> None:
    shape = data.draw(shapes(Dtype(name), 130))
    entries = [stored(name, shape, seed) for seed in seeds]
    same(stack(entries), np.stack([entry.decode(dtype=np.float64) for entry in entries]))


def fused(seeds: tuple[int, ...], heights: tuple[int, ...]) -> Tensor:
    return join([stored("nvfp4", (height, 32), seed) for seed, height in zip(seeds, heights, strict=True)])


def test_joined_nvfp4_parts_keep_their_own_scales_in_segments() -> None:
    tensor = fused((1, 2, 3), (4, 2, 2))
    assert tensor.planes["gain.rows"].tolist() == [4, 2, 2]
    assert tensor.planes["gain.gain"].shape == (3,)


def test_equal_neighbouring_scales_are_merged() -> None:
    assert "gain.rows" not in fused((1, 1), (4, 4)).planes
    assert fused((1, 1, 2), (4, 4, 4)).planes["gain.rows"].tolist() == [8, 4]


def test_cutting_a_segmented_weight_cuts_its_segments() -> None:
    cut = cut_rows(fused((1, 2, 3), (4, 2, 2)), 3, 7)
    assert cut.planes["gain.rows"].tolist() == [1, 2, 1]
    assert cut_rows(fused((1, 2, 3), (4, 2, 2)), 4, 6).planes["gain.rows"].tolist() == [2]


def test_a_bank_of_differently_segmented_weights_has_the_borders_of_all() -> None:
    entries = [fused((1, 2), (6, 2)), fused((3, 4), (3, 5)), stored("nvfp4", (8, 32), 5)]
    bank = stack(entries)
    assert bank.planes["gain.rows"].tolist() == [3, 3, 2]
    same(bank, np.stack([entry.decode(dtype=np.float64) for entry in entries]))


def test_banks_are_joined_along_n_with_a_scale_for_every_entry_and_part() -> None:
    up = stack([stored("nvfp4", (4, 32), seed) for seed in (1, 2, 3)])
    gate = stack([stored("nvfp4", (6, 32), seed) for seed in (4, 5, 6)])
    both = join([gate, up])
    assert both.planes["gain.gain"].shape == (3, 2)
    assert both.planes["gain.rows"].tolist() == [6, 4]
    same(both, np.concatenate([gate.decode(dtype=np.float64), up.decode(dtype=np.float64)], axis=1))


def test_cuts_are_views_of_the_mapped_planes() -> None:
    tensor = stored("u4g64", (8, 128))
    assert np.shares_memory(cut_rows(tensor, 2, 5).planes["code"], tensor.planes["code"])
    assert np.shares_memory(cut_columns(tensor, 64, 128).planes["gain"], tensor.planes["gain"])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: cut_rows(stored("e4m3tile128", (300, 128)), 100, 256), "multiples of 128 rows, found 100"),
        (lambda: cut_columns(stored("nvfp4", (2, 64)), 8, 64), "multiples of 16 columns, found 8"),
        (lambda: cut_columns(stored("u4g64", (2, 128)), 0, 32), "multiples of 64 columns, found 32"),
        (lambda: cut_rows(stored("bf16", (4, 4)), 2, 5), "a cut 2:5 does not lie in the extent 4"),
        (lambda: cut_rows(stored("bf16", (4,)), 0, 2), "more axes than [4] has"),
        (lambda: join([stored("e4m3tile128", (100, 128)), stored("e4m3tile128", (128, 128))]), "multiples of 128"),
        (lambda: join([stored("bf16", (2, 8)), stored("bf16", (2, 16))]), "differ in N only"),
        (lambda: join([stored("bf16", (2, 64)), stored("u4g64", (2, 64))]), "one dtype, found bf16 and u4g64"),
        (lambda: join([stored("bf16", (2,)), stored("bf16", (2,))]), "needs two axes"),
        (lambda: join([]), "nothing to put together"),
        (lambda: stack([stored("bf16", (2, 8)), stored("bf16", (3, 8))]), "weights of one shape"),
        (lambda: stack([stored("e4m3tile128", (2, 8)), stored("e4m3tile128a8", (2, 8))]), "one dtype"),
    ],
)
def test_what_would_split_a_group_is_refused(call, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        call()
