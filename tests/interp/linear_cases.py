"""ops.linear by definition: each op with random operands, and its formula in float64 and plain loops."""

import math
from typing import Any

import numpy as np

from interp import Session, evaluate
from interp.evaluate import Given
from poem.batch import Chunk
from poem.dtypes.tensor import Tensor
from poem.graph import ValueType
from poem.ops.operands import Weight
from poem.tracer import Tracer
from tests.interp.cases import Case, indices, value, weight


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


def exact(op: str, *arguments: Any, **named: Any) -> Any:
    return evaluate(f"linear.{op}", *arguments, mode="exact", **named)
