"""The algebra of row axes: an axis with its factor behaves as the number of rows that it stands for."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.axes import AXES, bounds, count, is_bounds, over, times

FACTORS = st.integers(1, 64)
WORDS = st.sampled_from(AXES)


@st.composite
def axes(draw: st.DrawFn) -> str | int:
    """A constant, or a word with at most one factor."""
    if draw(st.booleans()):
        return draw(st.integers(0, 1000))
    word, mark, factor = draw(WORDS), draw(st.sampled_from("*/")), draw(FACTORS)
    return word if factor == 1 else f"{word}{mark}{factor}"


def rows(axis: str | int) -> tuple[str, Fraction]:
    """The word, and rows for each of its rows: read off the text."""
    if isinstance(axis, int):
        return "", Fraction(axis)
    for mark in "*/":
        word, found, count = axis.partition(mark)
        if found:
            return word, Fraction(int(count)) if mark == "*" else Fraction(1, int(count))
    return axis, Fraction(1)


@given(axes(), FACTORS)
def test_times_multiplies_the_rows(axis: str | int, factor: int) -> None:
    word, count = rows(axis)
    wanted = count * factor
    if isinstance(axis, str) and 1 not in (wanted.numerator, wanted.denominator):
        with pytest.raises(ValueError, match="cannot be multiplied"):
            times(axis, factor)
    else:
        assert rows(times(axis, factor)) == (word, wanted)


@given(axes(), FACTORS)
def test_over_divides_the_rows(axis: str | int, factor: int) -> None:
    word, count = rows(axis)
    wanted = count / factor
    refused = wanted.denominator != 1 if isinstance(axis, int) else 1 not in (wanted.numerator, wanted.denominator)
    if refused:
        with pytest.raises(ValueError, match=r"cannot be divided|no multiple"):
            over(axis, factor)
    else:
        assert rows(over(axis, factor)) == (word, wanted)


@given(WORDS, FACTORS, FACTORS)
def test_over_undoes_times_and_times_undoes_over(word: str, first: int, second: int) -> None:
    assert over(times(word, first), first) == word
    assert times(over(word, first), first) == word
    assert times(times(word, first), second) == times(word, first * second) == times(times(word, second), first)
    assert over(over(word, first), second) == over(word, first * second)


@given(axes())
def test_a_factor_of_one_changes_nothing(axis: str | int) -> None:
    assert times(axis, 1) == over(axis, 1) == axis


@given(axes(), st.integers(2, 64))
def test_bounds_have_one_entry_more_and_take_no_factor(axis: str | int, factor: int) -> None:
    assert is_bounds(bounds(axis))
    if isinstance(axis, int):
        assert bounds(axis) == axis + 1
    else:
        assert bounds(axis) == f"{axis}+1"
        for change in (times, over):
            with pytest.raises(ValueError, match="axis of bounds"):
                change(bounds(axis), factor)


@given(WORDS)
def test_a_plain_axis_is_no_bounds(word: str) -> None:
    assert not is_bounds(word)
    assert not is_bounds(times(word, 4))


@given(axes(), st.integers(0, 50))
def test_rows_are_counted_by_the_size_of_the_word(axis: str | int, groups: int) -> None:
    word, factor = rows(axis)
    wanted = axis if isinstance(axis, int) else groups * factor.numerator
    sizes = {word: groups * factor.denominator}  # one of the two is 1
    assert (count(axis, sizes), count(bounds(axis), sizes)) == (wanted, wanted + 1)


@given(WORDS, FACTORS)
def test_rows_of_a_word_of_no_size_are_not_known(word: str, factor: int) -> None:
    assert count(times(word, factor), {}) is count(bounds(word), {"voxel": 1}) is None
