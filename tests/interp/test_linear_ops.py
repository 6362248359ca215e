"""ops.linear: hand-computed values, special values, products in groups, and bad routes."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from interp import evaluate
from interp.evaluate import Given
from poem.errors import PoemError
from poem.ops import REGISTRY
from tests.interp import cases
from tests.interp.cases import given, tensor, value, weight
from tests.interp.linear_cases import CASES, block_diagonal, exact, grouped


@pytest.mark.parametrize("rows", [0, 1, 6])
def test_a_grouped_product_is_block_diagonal(rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = value(rng, rows, 12), weight(rng, 9, 4)
    want = block_diagonal(cases.plain(x), cases.plain(w), None, 3) if rows else np.zeros((0, 9))
    cases.close(grouped(x, w, 3, mode="exact"), want, "matmul_grouped exact", 1e-12)
    cases.close(grouped(x, w, 3).astype(float), want, "matmul_grouped native", 16 * 2.0**-24)


def test_rows_of_a_grouped_product_do_not_know_each_other() -> None:
    rng = np.random.default_rng(5)
    x, w = value(rng, 31, 140), weight(rng, 30, 70)
    whole = grouped(x, w, 2)
    for kept in ([0], [30, 3, 3], list(range(7, 24))):
        assert grouped(x._replace(rows=x.rows[kept]), w, 2).tobytes() == np.ascontiguousarray(whole[kept]).tobytes()


def test_every_op_of_the_namespace_has_a_case() -> None:
    assert {name for name in REGISTRY if name.startswith("linear.")} == {case.op for case in CASES} | {"linear.matmul_grouped"}


# -- hand-computed values -------------------------------------------------------------------------------------------------
def agrees(got: np.ndarray, want: Any) -> None:
    np.testing.assert_allclose(got, np.array(want, float), rtol=0, atol=1e-6)


def routes_and_weights(found: Any, routes: Any, weights: Any) -> None:
    assert found[0].tolist() == routes
    agrees(found[1], weights)


LOGITS = given([[1, 3, 3, 0], [0, -1, 2, 2]])


def test_a_grouped_product_at_known_points() -> None:
    agrees(grouped(given([[1, 2, 3, 4]]), tensor([[1, 1], [2, 0], [0, 1], [1, -1]]), 2, mode="exact"), [[3, 2, 4, -1]])


def test_equal_logits_go_to_the_lower_expert() -> None:
    routes_and_weights(exact("moe_route", LOGITS, 4, 2), [[1, 2], [2, 3]], [[0.5, 0.5], [0.5, 0.5]])
    found = exact("moe_route", LOGITS, 4, 2, renormalize=False)
    routes_and_weights(found, [[1, 2], [2, 3]], [[0.45764, 0.45764], [0.45764, 0.45764]])


def test_a_bias_chooses_but_does_not_weigh() -> None:
    found = exact("moe_route", LOGITS, 4, 2, score="sigmoid", bias=tensor([0, 0, -5, 0.5]), scaling=2)
    routes_and_weights(found, [[3, 1], [3, 0]], [[0.688433, 1.311567], [1.275781, 0.724219]])


def test_groups_are_chosen_by_their_two_best() -> None:
    logits = given([[2, 1, 0, 1.5, 0.5, 3, -1, 0]])
    found = exact("moe_route", logits, 8, 2, score="sigmoid", groups=4, group_top_k=2)
    routes_and_weights(found, [[5, 0]], [[0.519575, 0.480425]])


def test_sinks_are_always_chosen() -> None:
    found = exact("moe_route", given([[1, 0, 2, -1, 0.5]]), 4, 2, score="sigmoid", sinks=1, scaling=1.5)
    routes_and_weights(found, [[2, 0, 4]], [[0.59132, 0.490794, 0.417886]])


def test_hashed_routes_are_read_from_the_table() -> None:
    table = tensor([[0, 1], [1, 2], [3, 0]], np.int32)
    options = {"score": "sqrt_softplus", "table": table}
    logits = given([[0, 1, -1, 25]])
    routes_and_weights(exact("moe_route", logits, 4, 2, ids=given([2], "i32"), **options), [[3, 0]], [[0.857257, 0.142743]])
    for outside in (-1, 3):  # reads row 0
        assert exact("moe_route", logits, 4, 2, ids=given([outside], "i32"), **options)[0].tolist() == [[0, 1]]


def test_an_expert_that_does_not_exist_weighs_nothing() -> None:
    table = tensor([[0, 9, -7]], np.int64)
    routes, weights = exact("moe_route", given([[0, 1, 2.0]]), 3, 3, score="sigmoid", ids=given([0], "i32"), table=table)
    assert routes.tolist() == [[0, 9, -1]]
    assert weights.tolist() == [[1, 0, 0]]


def test_expert_products_at_known_points() -> None:
    bank = tensor([[[1, 0], [0, 1]], [[2, 0], [1, 1]], [[0, 3], [-1, 0]]])
    bias = tensor([[0.5, 0], [0, 0], [1, 1]])
    agrees(exact("moe_matmul_select", given([[1, 2]]), bank, given([[2, -1]], "i32"), 2, bias), [[7, 0], [0, 0]])


def test_weighted_sums_at_known_points() -> None:
    slots, weights = Given([[1, 2], [3, -4]], "f32", "tokens*2"), given([[0.25, 0.75]])
    agrees(exact("moe_weighted_sum", slots, weights), [[2.5, -2.5]])
    agrees(exact("moe_weighted_sum", slots, weights, given([[0, 1]], "i32"), tensor([[4, 0], [0, 8]])), [[3.5, 3.5]])


def test_relative_biases_at_known_points() -> None:
    agrees(exact("rel_bias", given([[1, 2, 3, -1]]), tensor([[1, 0, 2], [0, 1, -1]]), 2, 2, 3), [[1, 2, 0, 3, -1, 7]])


def test_adapters_at_known_points() -> None:
    x, y = given([[1, 2], [1, 2]]), given([[10, 20], [10, 20]])
    bank_a, bank_b = tensor([[[1, 1]], [[2, 0]]]), tensor([[[1], [0]], [[3], [-1]]])
    agrees(exact("lora_correct", x, bank_a, bank_b, given([1, -1], "i32"), y), [[16, 18], [10, 20]])


def test_a_gated_shared_expert_at_a_known_point() -> None:
    agrees(exact("moe_sigmoid_gate_add", given([[1, 2]]), given([[4, -4]]), given([[0]])), [[3, 0]])


# -- special values ---------------------------------------------------------------------------------------------------------
def test_a_row_of_nan_goes_to_no_expert() -> None:
    for score in ("softmax", "sigmoid", "sqrt_softplus"):
        routes, weights = exact("moe_route", given([[np.nan] * 3, [1, 2, 3]]), 3, 2, score=score)
        assert routes[0].tolist() == [-1, -1]
        assert weights[0].tolist() == [0, 0]
        assert routes[1].tolist() == [2, 1]


def test_nan_and_minus_infinity_are_chosen_last_and_weigh_nothing() -> None:
    for bad in (np.nan, -np.inf):
        routes, weights = exact("moe_route", given([[bad, 1, 2]]), 3, 3)
        assert routes.tolist() == [[2, 1, -1]]
        agrees(weights, [[0.731059, 0.268941, 0]])


def test_logits_apart_by_less_than_scores_can_show_keep_their_order() -> None:
    logits = np.array([[-120.0, -119.0, 0.0]], np.float32)  # both scores underflow in float32
    assert evaluate("linear.moe_route", given(logits), 3, 3)[0].tolist() == [[2, 1, 0]]


def test_all_experts_may_be_chosen() -> None:
    assert exact("moe_route", LOGITS, 4, 4)[0].tolist() == [[1, 2, 0, 3], [2, 3, 0, 1]]


def test_without_routes_a_slot_of_weight_zero_still_carries_nan() -> None:
    slots, weights = Given([[np.nan], [1.0]], "f32", "tokens*2"), given([[0, 1]])
    assert np.isnan(exact("moe_weighted_sum", slots, weights)).all()
    agrees(exact("moe_weighted_sum", slots, weights, given([[-1, 0]], "i32")), [[1]])


ONE, ROUTE = given([[1.0]]), given([[5]], "i32")


@pytest.mark.parametrize(
    ("op", "arguments", "says"),
    [
        ("moe_matmul_select", (given([[1.0], [2]]), tensor([[[1]]]), given([[0], [1]], "i32"), 1), "row 1: routes is 1"),
        ("moe_bias_sum", (ONE, tensor([[1]]), ROUTE, ONE), "row 0: routes is 5, but there are 1 experts"),
        ("moe_weighted_sum", (ONE, ONE, ROUTE, tensor([[1]])), "row 0: routes is 5, but there are 1 experts"),
        ("lora_correct", (ONE, tensor([[[1]]]), tensor([[[1]]]), ROUTE, ONE), "row 0: routes is 5, but there are 1 adapters"),
    ],
)  # fmt: skip
def test_a_route_past_the_bank_is_named_with_its_row(op: str, arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(PoemError) as caught:
        exact(op, *arguments)
    assert caught.value.code == "run.index"
    assert says in str(caught.value)


def test_an_adapter_rounds_its_inner_product_to_the_dtype_of_x() -> None:
    x, y = given([[1, 2.0**-8]], "bf16"), given([[0]], "bf16")  # the inner product, 1 + 2^-8, rounds to 1
    bank_a, bank_b = tensor([[[1, 1]]], ml_dtypes.bfloat16), tensor([[[384]]], ml_dtypes.bfloat16)
    assert evaluate("linear.lora_correct", x, bank_a, bank_b, given([0], "i32"), y).tolist() == [[384]]
    agrees(exact("lora_correct", x, bank_a, bank_b, given([0], "i32"), y), [[385.5]])
