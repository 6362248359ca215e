"""Terms: names and terms correspond one to one, and sizes follow from the term."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.dtypes import NICKNAMES, RESERVED, Dtype
from poem.dtypes.term import CODES, LEAF_BITS, Group, Grouped, Leaf, Term, parse_term
from tests.poem.dtypes.strategies import terms


@pytest.mark.parametrize("name", NICKNAMES)
def test_a_nickname_and_its_term_are_one_dtype(name: str) -> None:
    assert Dtype(NICKNAMES[name]) is Dtype(name)
    assert str(Dtype(NICKNAMES[name])) == name


@pytest.mark.parametrize("leaf", LEAF_BITS)
def test_every_leaf_is_a_term(leaf: str) -> None:
    assert Dtype(leaf).term == Leaf(leaf)
    assert Dtype(leaf).is_leaf
    assert not Dtype(leaf).is_quantised


@given(terms())
def test_printing_and_parsing_a_term_is_the_identity(term: Term) -> None:
    assert parse_term(str(term)) == term


def test_nvfp4_is_groups_of_16_whose_gain_is_coded_under_a_gain_of_the_whole_tensor() -> None:
    inner = Grouped(Group("tensor"), "e4m3", Leaf("f32"))
    assert Dtype("nvfp4").term == Grouped(Group("run", 1, 16), "e2m1", inner)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "`` is neither a leaf nor a group"),
        ("float32", "`float32` is neither a leaf nor a group"),
        ("g64", "after `g64` a code is expected"),
        ("g64_f32_f32_n", "after `g64` a code is expected"),
        ("g0_u4_f32_n", "`g0` is neither"),
        ("g1x4_u4_f32_n", "at least 2 rows"),
        ("g64_u4", "a term is missing at the end"),
        ("g64_u4_bf16", "a tail is expected"),
        ("g64_u4_bf16_b", "a term is missing at the end"),
        ("g64_u4_bf16_n_n", "nothing may follow the term"),
        ("bf16_bf16", "nothing may follow the term"),
        ("bf16+a16", "the only activation rule is a8"),
        ("g2_e4m3_" * 8 + "f32" + "_n" * 8, "nest at most 8 deep"),
    ],
)
def test_what_is_no_term_is_refused_with_the_word_at_fault(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Dtype(text)


@pytest.mark.parametrize("word", RESERVED)
def test_reserved_words_are_not_dtypes_yet(word: str) -> None:
    with pytest.raises(ValueError, match=word):
        Dtype(word)


def test_seven_levels_of_groups_over_a_leaf_are_allowed() -> None:
    assert Dtype("g2_e4m3_" * 7 + "f32" + "_n" * 7).planes((1, 128))[-1].shape == (1, 1)


PLANES_OF_576_BY_512 = {
    "bf16": [("data", "bf16", (576, 512), 589824)],
    "u4g64": [("code", "u4", (576, 512), 147456), ("gain", "bf16", (576, 8), 9216), ("offset", "bf16", (576, 8), 9216)],
    "u8g64": [("code", "u8", (576, 512), 294912), ("gain", "bf16", (576, 8), 9216), ("offset", "bf16", (576, 8), 9216)],
    "u4g32": [("code", "u4", (576, 512), 147456), ("gain", "bf16", (576, 16), 18432), ("offset", "bf16", (576, 16), 18432)],
    "u2g64": [("code", "u2", (576, 512), 73728), ("gain", "bf16", (576, 8), 9216), ("offset", "bf16", (576, 8), 9216)],
    "mxfp4": [("code", "e2m1", (576, 512), 147456), ("gain", "e8m0", (576, 16), 9216)],
    "nvfp4": [("code", "e2m1", (576, 512), 147456), ("gain.code", "e4m3", (576, 32), 18432), ("gain.gain", "f32", (), 4)],
    "e4m3row": [("code", "e4m3", (576, 512), 294912), ("gain", "f32", (576,), 2304)],
    "e4m3tile128": [("code", "e4m3", (576, 512), 294912), ("gain", "f32", (5, 4), 80)],
    "e4m3tile128a8": [("code", "e4m3", (576, 512), 294912), ("gain", "f32", (5, 4), 80)],
}


@pytest.mark.parametrize("name", PLANES_OF_576_BY_512)
def test_planes_of_a_weight_have_these_paths_shapes_and_bytes(name: str) -> None:
    found = [(plane.path, plane.leaf, plane.shape, plane.nbytes) for plane in Dtype(name).planes((576, 512))]
    assert found == PLANES_OF_576_BY_512[name]


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("bf16", 16),
        ("e4m3", 8),
        ("e4m3row", 8.0078125),
        ("e4m3tile128", 8.001953125),
        ("u8g64", 8.5),
        ("u4g64", 4.5),
        ("u4g32", 5.0),
        ("mxfp4", 4.25),
        ("u2g32", 3.0),
        ("u2g64", 2.5),
        ("u2g128", 2.25),
    ],
)
def test_bits_a_weight_are_those_of_the_planes(name: str, bits: float) -> None:
    assert Dtype(name).bits_per_weight((4096, 4096)) == bits


@pytest.mark.parametrize(
    ("group", "shape", "factors"),
    [
        ("g16", (4, 64), (4, 4)),
        ("g16", (3, 4, 64), (3, 4, 4)),
        ("g16", (2, 3, 4, 64), (2, 3, 4, 4)),
        ("g128x128", (576, 512), (5, 4)),
        ("g128x128", (3, 130, 129), (3, 2, 2)),
        ("g2x3", (2, 3, 5, 7), (2, 3, 3, 3)),
        ("gr", (4, 64), (4,)),
        ("gr", (3, 4, 64), (3, 4)),
        ("gr", (2, 3, 4, 64), (2, 3, 4)),
        ("gt", (4, 64), ()),
        ("gt", (2, 3, 4, 64), ()),
    ],
)
def test_factor_shapes_for_ranks_two_to_four(group: str, shape: tuple[int, ...], factors: tuple[int, ...]) -> None:
    assert Dtype(f"{group}_e4m3_f32_n").planes(shape)[1].shape == factors


@pytest.mark.parametrize(
    ("name", "shape", "says"),
    [
        ("u4g64", (64, 100), "100 is no multiple of 64"),
        ("mxfp4", (4, 48), "48 is no multiple of 32"),
        ("nvfp4", (4, 24), "24 is no multiple of 16"),
        ("nvfp4", (4096,), "needs two axes or more"),
        ("e4m3row", (), "needs two axes or more"),
        ("gr_u4_f32_n", (4, 7), "a row of 7 u4 codes is no whole number of bytes"),
        ("u2", (4, 6), "a row of 6 u2 codes is no whole number of bytes"),
    ],
)
def test_a_shape_that_does_not_fit_is_refused(name: str, shape: tuple[int, ...], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        Dtype(name).planes(shape)


@pytest.mark.parametrize(
    ("name", "quantum"),
    [
        ("bf16", (1, 1)),
        ("u4", (1, 2)),
        ("u2", (1, 4)),
        ("e4m3row", (1, 1)),
        ("e4m3tile128", (128, 128)),
        ("nvfp4", (1, 16)),
        ("mxfp4", (1, 32)),
        ("u4g64", (1, 64)),
        ("u2g32", (1, 32)),
        ("gr_u4_f32_n", (1, 2)),
        ("g4_u4_g8_u4_f32_n_n", (1, 32)),
    ],
)
def test_weights_are_cut_at_whole_groups_and_bytes(name: str, quantum: tuple[int, int]) -> None:
    assert Dtype(name).quantum == quantum


def test_segments_add_a_plane_of_row_counts() -> None:
    planes = Dtype("nvfp4").planes((8, 576, 512), {"gain.rows": 3})
    assert [(plane.path, plane.shape) for plane in planes[2:]] == [("gain.gain", (8, 3)), ("gain.rows", (3,))]


@given(st.sampled_from(CODES))
def test_equal_dtypes_are_one_object(code: str) -> None:
    assert Dtype(f"g8_{code}_f32_n") is Dtype(f"g8_{code}_f32_n")
