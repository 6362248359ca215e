"""ops.linear: hand-computed values, definitions in float64, special values, quantised weights, and independent rows."""

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from interp import Session, evaluate
from interp.evaluate import Given
from poem.batch import Chunk
from poem.dtypes import Dtype
from poem.dtypes.slicing import select, stack
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.graph import ValueType
from poem.ops import REGISTRY
from poem.ops.operands import Weight
from poem.tracer import Tracer
from tests.interp import cases
from tests.interp.cases import Case, given, indices, tensor, value, weight
from tests.poem.dtypes.test_activation import product_by_loops

QUANTISED = ("e4m3row", "e4m3tile128", "nvfp4", "mxfp4", "u8g64", "u4g64", "u2g32")


# -- definitions: float64, plain loops ---------------------------------------------------------------------------------
def sigma(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def scored(z: np.ndarray, score: str, experts: int) -> np.ndarray:
    if score == "softmax":
        return np.exp(z[:experts]) / np.exp(z[:experts]).sum()
    return sigma(z) if score == "sigmoid" else np.sqrt(np.log1p(np.exp(z)))


def routed(
    logits, experts, top_k, score="softmax", bias=None, expert_scale=None, renormalize=True, scaling=1.0, groups=None, group_top_k=None,
    sinks=0, ids=None, table=None, group_score=None,
):  # fmt: skip
    """Row by row, by sorting Python lists."""
    routes, weights = [], []
    for n, z in enumerate(logits):
        f = scored(z, score, experts)
        if ids is not None:
            chosen = table[ids[n, 0]].tolist()
        else:
            c = list(f[:experts] + (0 if bias is None else bias))
            if groups:
                size = experts // groups
                runs = [sorted(c[g * size : (g + 1) * size], reverse=True) for g in range(groups)]
                two = group_score == "top2" or (group_score is None and score != "softmax")
                value = [run[0] + run[1] if two else run[0] for run in runs]
                best = sorted(range(groups), key=lambda g: (-value[g], g))[:group_top_k]
                c = [v if e // size in best else -math.inf for e, v in enumerate(c)]
            chosen = sorted(range(experts), key=lambda e: (-c[e], e))[:top_k]
        chosen = chosen + list(range(experts, experts + sinks))
        w = np.array([f[e] for e in chosen])
        if renormalize:
            w = w / w.sum()
        w = w * scaling
        if expert_scale is not None:
            w = w * [expert_scale[e if len(expert_scale) > 1 else 0] for e in chosen]
        routes.append(chosen)
        weights.append(w)
    return np.array(routes), np.array(weights)


def expert_products(x, bank, routes, top_k, bias=None):
    x = x if len(x) == len(routes) * top_k else np.repeat(x, top_k, axis=0)
    y = np.zeros((len(x), bank.shape[1]))
    for row, e in enumerate(routes.reshape(-1)):
        if e >= 0:
            y[row] = bank[e] @ x[row] + (0 if bias is None else bias[e])
    return y


def weighted(routed, weights, routes=None, bias=None):
    y = np.zeros((len(weights), routed.shape[1]))
    for a, s in np.ndindex(weights.shape):
        if routes is None or routes[a, s] >= 0:
            y[a] += weights[a, s] * (routed[a * weights.shape[1] + s] + (0 if bias is None else bias[routes[a, s]]))
    return y


def biased(x, bias, routes, weights):
    y = x.copy()
    for a, s in np.ndindex(weights.shape):
        if routes[a, s] >= 0:
            y[a] += weights[a, s] * bias[routes[a, s]]
    return y


def adapted(x, bank_a, bank_b, routes, y):
    y = y.copy()
    for n, a in enumerate(routes[:, 0]):
        if a >= 0:
            y[n] += bank_b[a] @ (bank_a[a] @ x[n])
    return y


def block_diagonal(x, w, routes, groups):
    blocks, height = x.reshape(len(x), groups, -1), len(w) // groups
    return np.concatenate([blocks[:, g] @ w[g * height : (g + 1) * height].T for g in range(groups)], 1)


def gated(x, inter, act="silu", up=None, limit=None, alpha=None, beta=None, up_cap=None):
    g, u = (x[:, :inter], x[:, inter:]) if up is None else (x, up)
    if limit is not None:
        g, u = np.minimum(g, limit), np.clip(u, -limit, limit)
    if alpha is not None:
        return (u + 1) * g * sigma(np.float32(alpha) * g)
    if act == "situ":
        return beta * np.tanh(g / beta) * sigma(g) * (u if up_cap is None else up_cap * np.tanh(u / up_cap))
    if act == "gelu":
        return 0.5 * g * (1 + np.vectorize(math.erf)(g / math.sqrt(2))) * u
    return (g * sigma(g) if act == "silu" else 0.5 * g * (1 + np.tanh(0.7978845608028654 * (g + 0.044715 * g**3)))) * u


# -- cases --------------------------------------------------------------------------------------------------------------
def route_case(form: str, experts: int = 8, sinks: int = 0, **options: Any) -> Case:
    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        logits = Given(rng.standard_normal((rows, experts + sinks)).astype(np.float32), "f32")
        made = {name: option(rng) if callable(option) else option for name, option in options.items()}
        if "table" in made:
            made["ids"] = indices(rng, rows, 1, 0, made["table"].shape[0])
        return {"logits": logits, "experts": experts, "top_k": 3, "sinks": sinks, **made}

    return Case("linear.moe_route", draw, routed, form)


def select_case(by_slot: bool, bias: bool, top_k: int = 3) -> Case:
    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        x = value(rng, rows * top_k, 5, dtype, f"tokens*{top_k}") if by_slot and top_k > 1 else value(rng, rows, 5, dtype)
        return {
            "x": x, "bank": weight(rng, 4, 6, 5), "routes": indices(rng, rows, top_k, -1, 4), "top_k": top_k,
            **({"bias": weight(rng, 4, 6)} if bias else {}),
        }  # fmt: skip

    return Case("linear.moe_matmul_select", draw, expert_products, f"{'slots' if by_slot else 'rows'}-{bias}-{top_k}")


def sum_case(form: str, slots: int = 3) -> Case:
    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if form != "plain":
            more["routes"] = indices(rng, rows, slots, -1, 4)
        if form == "bias":
            more["bias"] = weight(rng, 4, 5)
        axis = "tokens" if slots == 1 else f"tokens*{slots}"
        return {"routed": value(rng, rows * slots, 5, dtype, axis), "weights": value(rng, rows, slots), **more}

    return Case("linear.moe_weighted_sum", draw, weighted, f"{form}-{slots}")


def glu_case(form: str, split: bool, **options: Any) -> Case:
    def draw(rng: np.random.Generator, rows: int, dtype: str) -> dict[str, Any]:
        if split:
            return {"x": value(rng, rows, 6, dtype), "inter": 6, "up": value(rng, rows, 6, dtype), **options}
        return {"x": value(rng, rows, 12, dtype), "inter": 6, **options}

    return Case("linear.glu", draw, gated, f"{form}-{'split' if split else 'halves'}")


def drawn_case(op: str, define: Any, draw: Any, rounds_inside: bool = False) -> Case:
    return Case(f"linear.{op}", draw, define, rounds_inside=rounds_inside)


CASES = [
    drawn_case("matmul", lambda x, w: x @ w.T, lambda rng, rows, dtype: {"x": value(rng, rows, 70, dtype), "w": weight(rng, 9, 70)}),
    drawn_case("lm_head", lambda x, w: x @ w.T, lambda rng, rows, dtype: {"x": value(rng, rows, 33, dtype), "w": weight(rng, 50, 33)}),
    *[
        glu_case(form, split, **options)
        for split in (False, True)
        for form, options in {
            "silu": {}, "gelu_tanh": {"act": "gelu_tanh"}, "gelu": {"act": "gelu"}, "limit": {"limit": 0.5},
            "alpha": {"limit": 0.75, "alpha": 1.702}, "situ": {"act": "situ", "beta": 2.0},
            "capped": {"act": "situ", "beta": 2.0, "up_cap": 1.0},
        }.items()
    ],
    drawn_case(
        "gelu_tanh", lambda x: 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
        lambda rng, rows, dtype: {"x": value(rng, rows, 13, dtype)},
    ),
    drawn_case(
        "group_routes", lambda x, groups: np.tile(np.arange(groups), (len(x), 1)),
        lambda rng, rows, dtype: {"x": value(rng, rows, 2, dtype), "groups": 3},
    ),
    *[route_case(f"{score}-{renormalize}", score=score, renormalize=renormalize, scaling=2.5)
      for score in ("softmax", "sigmoid", "sqrt_softplus") for renormalize in (True, False)],
    route_case("bias", score="sigmoid", bias=lambda rng: weight(rng, 8)),
    route_case("softmax-bias", bias=lambda rng: weight(rng, 8)),
    route_case("groups-max", groups=4, group_top_k=2),
    route_case("groups-top2", score="sigmoid", groups=4, group_top_k=2, bias=lambda rng: weight(rng, 8)),
    route_case("groups-softmax-top2", groups=4, group_top_k=3, group_score="top2"),
    route_case("groups-sigmoid-max", score="sigmoid", groups=2, group_top_k=1, group_score="max"),
    route_case("sinks", score="sigmoid", sinks=2, scaling=1.5, expert_scale=lambda rng: weight(rng, 10)),
    route_case("one-scale", score="sigmoid", sinks=1, expert_scale=lambda rng: weight(rng, 1)),
    route_case("expert-scale", expert_scale=lambda rng: weight(rng, 8)),
    route_case("hash-i32", score="sqrt_softplus", table=lambda rng: Tensor.of(rng.integers(0, 8, (11, 3)).astype(np.int32))),
    route_case("hash-i64", score="sqrt_softplus", table=lambda rng: Tensor.of(rng.integers(0, 8, (11, 3)))),
    *[select_case(*form) for form in ((False, False), (False, True), (True, True), (True, False), (False, True, 1))],
    *[sum_case(form, slots) for form in ("plain", "routes", "bias") for slots in (1, 3)],
    drawn_case(
        "moe_bias_sum", biased,
        lambda rng, rows, dtype: {
            "x": value(rng, rows, 5, dtype), "bias": weight(rng, 4, 5), "routes": indices(rng, rows, 3, -1, 4),
            "weights": value(rng, rows, 3),
        },
    ),
    drawn_case(
        "moe_sigmoid_gate_add", lambda routed, shared, gate: routed + shared * sigma(gate),
        lambda rng, rows, dtype: {
            "routed": value(rng, rows, 5, dtype), "shared": value(rng, rows, 5, dtype), "gate": value(rng, rows, 1),
        },
    ),
    drawn_case(
        "rel_bias", lambda x, w, heads, d_rel, extent: (x.reshape(len(x), heads, d_rel) @ w).reshape(len(x), -1),
        lambda rng, rows, dtype: {"x": value(rng, rows, 12, dtype), "w": weight(rng, 4, 9), "heads": 3, "d_rel": 4, "extent": 9},
    ),
    drawn_case(
        "lora_correct", adapted,
        lambda rng, rows, dtype: {
            "x": value(rng, rows, 7, dtype), "bank_a": weight(rng, 3, 2, 7), "bank_b": weight(rng, 3, 6, 2),
            "routes": indices(rng, rows, 1, -1, 3), "y": value(rng, rows, 6, dtype),
        },
        rounds_inside=True,
    ),
]  # fmt: skip


def grouped(x: Any, w: Tensor, groups: int, **settings_: Any) -> np.ndarray:
    """matmul_grouped with the routes that group_routes makes, in one graph."""
    trace = Tracer("p", "m", "d")
    rows = np.asarray(x.rows)
    operand = trace.input("x", ValueType("tokens", rows.shape[1], x.dtype))
    made = Weight(w.shape, w.dtype)
    trace.add_param(made, "w")
    routes = trace.call("linear.group_routes", [operand, groups], {}, ())
    trace.output("y", trace.call("linear.matmul_grouped", [operand, made, routes, groups], {}, ()), ())
    session = Session(trace.graph(), {"w": w}, **settings_)
    return session.run([Chunk(session.add_sequence(), [0] * len(rows))], inputs={"x": rows})["y"]


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
def exact(op: str, *arguments: Any, **named: Any) -> Any:
    return evaluate(f"linear.{op}", *arguments, mode="exact", **named)


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


# -- quantised weights ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("op", ["matmul", "lm_head"])
def test_a_quantised_weight_stands_for_its_decoded_values(op: str, name: str) -> None:
    rng = np.random.default_rng(1)
    w = Tensor.encode(rng.standard_normal((150, 128)).astype(np.float32), Dtype(name))
    x = value(rng, 5, 128)
    cases.close(exact(op, x, w), cases.plain(x) @ w.decode(dtype=np.float64).T, f"{op} {name}", 1e-12)


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_bank_stands_for_its_decoded_values(name: str) -> None:
    rng = np.random.default_rng(2)
    bank = Tensor.encode(rng.standard_normal((3, 20, 128)).astype(np.float32), Dtype(name))
    x, routes = value(rng, 6, 128), indices(rng, 6, 2, -1, 3)
    want = expert_products(cases.plain(x), bank.decode(dtype=np.float64), cases.plain(routes), 2)
    cases.close(exact("moe_matmul_select", x, bank, routes, 2), want, name, 1e-12)


def rounding_of_runs(x: np.ndarray, w: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The a8 product by loops, and how far sums of float32 may take it."""
    want, magnitude = product_by_loops(x, w)
    return want.astype(float), (127 + 3 * -(-x.shape[1] // 128)) * 2.0**-24 * magnitude


def test_an_a8_weight_meets_activations_in_runs_of_128() -> None:
    rng = np.random.default_rng(3)
    w = Tensor.encode(rng.standard_normal((140, 300)).astype(np.float32), Dtype("e4m3tile128a8"))
    x = value(rng, 4, 300)
    want, bound = rounding_of_runs(np.asarray(x.rows), w)
    assert (np.abs(evaluate("linear.matmul", x, w) - want) <= bound).all()
    weight_only = cases.plain(x) @ w.decode(dtype=np.float64).T
    cases.close(exact("matmul", x, w), weight_only, "exact mode leaves activations alone", 1e-12)
    assert np.abs(evaluate("linear.matmul", x, w) - weight_only).max() > 1e-3


def test_every_expert_of_an_a8_bank_meets_the_same_codes() -> None:
    rng = np.random.default_rng(4)
    matrices = [Tensor.encode(rng.standard_normal((130, 160)).astype(np.float32), Dtype("e4m3tile128a8")) for _ in range(3)]
    x, routes = value(rng, 5, 160), indices(rng, 5, 2, 0, 3)
    got = evaluate("linear.moe_matmul_select", x, stack(matrices), routes, 2).reshape(5, 2, -1)
    for token, slot in np.ndindex(5, 2):
        want, bound = rounding_of_runs(np.asarray(x.rows)[token : token + 1], matrices[int(routes.rows[token, slot])])
        assert (np.abs(got[token, slot] - want[0]) <= bound[0]).all()


def test_runs_of_a_grouped_a8_product_start_afresh_in_each_group() -> None:
    rng = np.random.default_rng(5)
    w = Tensor.encode(rng.standard_normal((256, 200)).astype(np.float32), Dtype("e4m3tile128a8"))
    x = Given((rng.standard_normal((3, 400)) * np.geomspace(1e-3, 1e3, 400)).astype(np.float32), "f32")
    got = grouped(x, w, 2)
    for group in (0, 1):
        want, bound = rounding_of_runs(x.rows[:, 200 * group : 200 * (group + 1)], select(w, 0, range(128 * group, 128 * (group + 1))))
        assert (np.abs(got[:, 128 * group : 128 * (group + 1)] - want) <= bound).all()


@pytest.mark.parametrize("name", ["u4g64", "nvfp4", "e4m3tile128a8"])
def test_rows_of_a_product_with_a_quantised_weight_do_not_know_each_other(name: str) -> None:
    rng = np.random.default_rng(6)
    w = Tensor.encode(rng.standard_normal((70, 256)).astype(np.float32), Dtype(name))
    x = value(rng, 37, 256, "bf16")
    whole = evaluate("linear.matmul", x, w)
    for kept in ([0], [36, 2, 2], list(range(5, 22))):
        part = evaluate("linear.matmul", x._replace(rows=x.rows[kept]), w)
        assert part.tobytes() == np.ascontiguousarray(whole[kept]).tobytes(), f"rows {kept}"
