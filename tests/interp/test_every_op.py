"""What holds of every op whose rows depend on their own row only: its definition, no rows, one rounding, independent rows."""

import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from tests.interp import cases, elemwise_cases, linear_cases, test_gather_ops
from tests.interp.cases import Case

CASES = [*elemwise_cases.CASES, *linear_cases.CASES, *test_gather_ops.CASES]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("rows", [1, 9])
def test_an_op_is_its_definition(case: Case, rows: int) -> None:
    for seed in range(3):
        cases.agrees_with_its_definition(case, rows, seed)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_no_rows_give_no_rows(case: Case) -> None:
    cases.no_rows_give_no_rows(case)


@pytest.mark.parametrize("case", [case for case in CASES if not case.rounds_inside], ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_a_result_is_rounded_once(case: Case, dtype: str) -> None:
    cases.rounds_once(case, dtype, 1)


@pytest.mark.parametrize("case", CASES, ids=str)
@settings(max_examples=12)
@drawn(data=st.data(), rows=st.integers(1, 40), seed=st.integers(0, 2**32 - 1), dtype=st.sampled_from(["f32", "bf16"]))
def test_rows_do_not_know_each_other(case: Case, data: st.DataObject, rows: int, seed: int, dtype: str) -> None:
    kept = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=12))
    cases.rows_are_independent(case, rows, kept, seed, dtype)
