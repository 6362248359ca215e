"""ops.sampling: which token is the largest, whatever else a row holds."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from interp import evaluate
from tests.interp import cases
from tests.interp.cases import Case, given, value

NAN = np.nan


def greatest(x: Any) -> np.ndarray:
    """By a loop: the first entry that no other exceeds, NaN aside; 0 if there is none."""
    columns = []
    for array in x if isinstance(x, list) else [x]:
        best = []
        for row in array:
            place = 0
            for column, number in enumerate(row):
                if number > row[place] or (np.isnan(row[place]) and not np.isnan(number) and number > -np.inf):
                    place = column
            best.append(place)
        columns.append(best)
    return np.array(columns).T


CASES = [
    Case("sampling.argmax", lambda rng, rows, dtype: {"x": value(rng, rows, 17, dtype)}, greatest, "one"),
    Case("sampling.argmax", lambda rng, rows, dtype: {"x": [value(rng, rows, width, dtype) for width in (1, 5, 9)]}, greatest, "several"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_argmax_is_its_definition(case: Case) -> None:
    for seed in range(3):
        cases.agrees_with_its_definition(case, 9, seed)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_rows_give_no_rows(case: Case) -> None:
    cases.no_rows_give_no_rows(case)


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=12)
@drawn(data=st.data(), rows=st.integers(1, 40), seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["f32", "bf16", "f16"]))
def test_rows_do_not_know_each_other(case: Case, data: st.DataObject, rows: int, seed: int, dtype: str) -> None:
    kept = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=12))
    cases.rows_are_independent(case, rows, kept, seed, dtype)


@drawn(st.lists(st.sampled_from([NAN, -np.inf, -1.0, 0.0, -0.0, 2.0, np.inf]), min_size=1, max_size=6))
def test_ties_go_to_the_lower_column_and_nan_never_wins(row: list[float]) -> None:
    numbers = [number for number in row if not np.isnan(number)]
    want = row.index(max(numbers)) if numbers and max(numbers) > -np.inf else 0
    assert evaluate("sampling.argmax", given([row])).tolist() == [want], row


def test_argmax_at_known_points() -> None:
    rows = [[1, 3, 3], [NAN, -1, -2], [NAN, NAN, NAN]]
    for mode in ("exact", "native"):
        assert evaluate("sampling.argmax", given(rows), mode=mode).tolist() == [1, 1, 0]


def test_several_values_give_a_column_each() -> None:
    got = evaluate("sampling.argmax", [given([[1, 2]]), given([[3, 2, 1]])])
    assert got.dtype == np.int32
    assert got.tolist() == [[1, 0]]
