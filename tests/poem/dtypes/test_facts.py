"""What `poem dtypes` states of a format is what the format's codes do."""

import itertools

import numpy as np
import pytest

from poem.dtypes import NICKNAMES, WORDS, Dtype
from poem.dtypes.facts import LISTED, facts, rounding_error, worst_error
from tests.poem.dtypes.definition import finite_codes, value_of_code


def test_every_word_is_listed_or_reserved() -> None:
    assert {*LISTED} == {word for word in WORDS if not word.endswith("k")}


@pytest.mark.parametrize("name", LISTED)
def test_facts_are_stated_of_every_dtype(name: str) -> None:
    one = facts(Dtype(name))
    assert one.bits >= 2
    assert 0 < one.smallest < one.largest or name == "bool"
    assert one.planes == Dtype(name).planes(one.shape)


@pytest.mark.parametrize(("leaf", "error"), [("e4m3", 1 / 17), ("e5m2", 1 / 9), ("e2m1", 1 / 5), ("bf16", 1 / 257), ("f16", 1 / 2049)])
def test_the_worst_error_of_a_float_is_at_the_tie_above_a_power_of_two(leaf: str, error: float) -> None:
    assert rounding_error(leaf) == error
    assert worst_error(Dtype(leaf)) == error


@pytest.mark.parametrize("leaf", ["e4m3", "e5m2", "e2m1"])
def test_no_tie_between_normal_codes_has_a_larger_relative_error(leaf: str) -> None:
    bias = {"e4m3": 7, "e5m2": 15, "e2m1": 1}[leaf]
    normal = [float(value) for value, _ in finite_codes(leaf) if value >= 2 ** (1 - bias)]
    worst = max((high - low) / (high + low) for low, high in itertools.pairwise(normal))
    assert worst == pytest.approx(rounding_error(leaf))


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("e4m3row", 16 / 448),  # half of the step of 32 below the largest code
        ("mxfp4", 2 / 8),  # a largest magnitude just under 8 saturates at 6
        ("nvfp4", 1 / (6 / (1 + 1 / 17))),  # half of the step from 4 to 6, the scale being 1/17 too large
        ("u8g64", 2 / 256 + 3 / 257),
        ("u4g64", 2 / 16 + 3 / 257),
    ],
)
def test_the_worst_error_of_groups_is_derived_from_code_and_gain(name: str, error: float) -> None:
    assert worst_error(Dtype(name)) == pytest.approx(error, rel=1e-6)


def test_largest_and_smallest_of_minifloats() -> None:
    for leaf in ("e4m3", "e5m2", "e2m1"):
        one = facts(Dtype(leaf))
        positive = [value_of_code(leaf, code) for code in range(1, 128 if leaf != "e2m1" else 8)]
        assert one.largest == max(value for value in positive if np.isfinite(value))
        assert one.smallest == min(positive)


@pytest.mark.parametrize("name", NICKNAMES)
def test_the_formula_names_every_plane(name: str) -> None:
    one = facts(Dtype(name))
    for plane in one.planes:
        assert plane.leaf in one.formula
