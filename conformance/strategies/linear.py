"""Examples of ops.linear, and of the patterns that put products into one launch with what follows."""

from typing import Any

import numpy as np

from conformance.strategies.build import Build
from conformance.strategies.record import EXACT_PRODUCTS, QUANTISED, strategy
from poem.dtypes import Dtype
from poem.ops.operands import Value, Weight

# Widths that the tiles of kernels meet whole and in part; the groups and tiles of quantised weights divide the first ones.
INNER = (128, 64, 192, 1024, 1088)
ODD_INNER = (1040, 40)
OUTER = (16, 8, 24, 136, 13, 1)
BY_WARPGROUPS = (("bf16", ""), ("bf16", "e4m3tile128a8"))
NARROW, WIDE = 192, 2568  # so few columns by so many rows that warpgroups have several tiles each, of many rows of x
DECODING = "sm_80"  # whose tensor cores multiply no 8-bit floats: kernels decode activations too
GLU_FORMS: tuple[dict[str, Any], ...] = (
    {}, {"act": "gelu_tanh"}, {"act": "gelu"}, {"limit": 0.5}, {"limit": 0.75, "alpha": 1.702}, {"act": "situ", "beta": 2.0},
    {"act": "situ", "beta": 2.0, "up_cap": 1.5},
)  # fmt: skip
EXPERTS, SLOTS = 8, 3


def _operands(b: Build, *outer: int) -> tuple[Value, Weight]:
    """x and w. outer: rows of w to pick from, in place of all."""
    many = b.many_rows()
    if b.warpgroups and not b.batch_invariant and (b.dtype, b.weights) in BY_WARPGROUPS:
        k = b.pick(*INNER)
        rows = b.pick(*(outer or (*OUTER, *((WIDE,) if k <= NARROW else ()))))
    else:
        k = b.pick(*INNER[: 3 if many else None], *(() if b.weights else ODD_INNER))
        rows = b.pick(*(outer or OUTER))
        b.arch = b.pick(None, DECODING) if b.weights == "e4m3tile128a8" else None
    return b.value(k), b.weight(rows, k, dtype=b.weights or b.dtype)


@strategy("linear.matmul", weights=("", *QUANTISED), exact=EXACT_PRODUCTS)
def matmul(b: Build) -> None:
    b.call("linear.matmul", *_operands(b), out=b.pick(None, Dtype("f32")))


@strategy("linear.lm_head", weights=("", *QUANTISED), exact=EXACT_PRODUCTS)
def lm_head(b: Build) -> None:
    b.call("linear.lm_head", *_operands(b))


@strategy("matmul_bias", weights=("", *QUANTISED), exact=EXACT_PRODUCTS)
def matmul_bias(b: Build) -> None:
    x, w = _operands(b)
    b.call("elemwise.add_bias", b.gain(w.shape[0]), b.call("linear.matmul", x, w))


@strategy("matmul_glu", weights=("", *QUANTISED))
def matmul_glu(b: Build) -> None:
    inter = b.pick(16, 8, 144, 24)
    x, w = _operands(b, 2 * inter)
    form = b.pick(*GLU_FORMS[:3])
    b.call("linear.glu", b.call("linear.matmul", x, w, out=b.pick(None, Dtype("f32"))), inter, **form)


@strategy("joined_matmul", weights=("", *QUANTISED))
def joined_matmul(b: Build) -> None:
    """Three products of one operand that go to one cache, with biases or without."""
    k, head_dim, kv_heads = b.pick(*INNER[:3]), b.pick(64, 128), b.pick(1, 2)
    heads = kv_heads * b.pick(1, 2, 3)
    x, biased, order = b.value(k), b.pick(False, True), b.pick((0, 1, 2), (2, 0, 1), (1, 2, 0))

    def projected(width: int) -> Value:
        y = b.call("linear.matmul", x, b.weight(width, k, dtype=b.weights or b.dtype))
        return b.call("elemwise.add_bias", b.gain(width), y) if biased else y

    widths = [count * head_dim for count in (heads, kv_heads, kv_heads)]
    made = {which: projected(widths[which]) for which in order}
    q, key, value = (made[which] for which in range(3))
    width = kv_heads * head_dim
    cells = b.kv([width, width], head_dim, "bf16" if b.dtype == "bf16" else "f32")
    q, key = b.call("elemwise.rope", q, key, b.positions(), head_dim, 10000.0)
    b.call("attn.kv_append", key, value, cells)


@strategy("linear.glu")
def glu(b: Build) -> None:
    inter, form = b.pick(16, 5, 136, 96), b.pick(*GLU_FORMS)
    if b.pick(False, True):
        b.call("linear.glu", b.value(inter), inter, up=b.value(inter), **form)
    else:
        b.call("linear.glu", b.value(2 * inter), inter, **form)


@strategy("linear.gelu_tanh")
def gelu_tanh(b: Build) -> None:
    b.call("linear.gelu_tanh", b.value(b.pick(8, 13, 100)))


@strategy("linear.group_routes", exact=True, flavours=("normal",))
def group_routes(b: Build) -> None:
    b.call("linear.group_routes", b.value(b.pick(8, 5)), b.pick(2, 3))


@strategy("linear.matmul_grouped", weights=("", *QUANTISED), exact=EXACT_PRODUCTS)
def matmul_grouped(b: Build) -> None:
    groups, k = b.pick(2, 3), b.pick(*INNER[:3])
    x, outer = b.value(groups * k), b.pick(8, 5) if not b.weights.startswith("e4m3tile") else 128
    w = b.weight(groups * outer, k, dtype=b.weights or b.dtype)
    b.call("linear.matmul_grouped", x, w, b.call("linear.group_routes", x, groups), groups)


@strategy("linear.moe_route", flavours=("normal", "integers"))
def moe_route(b: Build) -> None:
    """Logits on a grid, and biases that are far apart: a choice between scores that only rounding parts would tell nothing."""
    score, sinks = b.pick("softmax", "sigmoid", "sqrt_softplus"), 0
    options: dict[str, object] = {"renormalize": b.pick(True, False), "scaling": b.pick(1.0, 2.5)}
    form = b.pick("plain", "bias", "groups", "sinks", "expert_scale", "table")
    if form == "bias":
        options["bias"] = b.given_weight(2.0 * b.random.permutation(EXPERTS), "f32")
    elif form == "groups":
        options |= {"groups": 4, "group_top_k": 2, "group_score": b.pick(None, "max")}
    elif form == "sinks" and score != "softmax":
        options["sinks"] = sinks = 2
    elif form == "expert_scale":
        options["expert_scale"] = b.given_weight(b.random.uniform(0.5, 2.0, EXPERTS), "f32")
    elif form == "table":
        options |= {"table": b.given_weight(b.random.integers(0, EXPERTS, (11, SLOTS)), "i32"), "ids": b.ids(13, low=-1)}
    steps = np.arange(-24, 25) / 8
    logits = b.floats(lambda rows: np.array([b.random.permutation(steps)[: EXPERTS + sinks] for _ in range(rows)]), EXPERTS + sinks)
    b.call("linear.moe_route", logits, EXPERTS, SLOTS, score=score, **options)


@strategy("linear.moe_matmul_select", weights=("", *QUANTISED), exact=EXACT_PRODUCTS)
def moe_matmul_select(b: Build) -> None:
    k, outer, slots = b.pick(*INNER[:3]), b.pick(8, 5) if not b.weights.startswith("e4m3tile") else 128, b.pick(SLOTS, 1)
    x = b.value(k, b.pick("tokens", f"tokens*{slots}") if slots > 1 else "tokens")
    bank = b.weight(4, outer, k, dtype=b.weights or b.dtype)
    b.call("linear.moe_matmul_select", x, bank, b.ids(4, slots, low=-1), slots, bias=b.pick(None, 4) and b.gain(4, outer))


@strategy("linear.moe_weighted_sum", exact=True)
def moe_weighted_sum(b: Build) -> None:
    slots, width, form = b.pick(SLOTS, 1), b.pick(8, 5, 100), b.pick("plain", "routes", "bias")
    routes = None if form == "plain" else b.ids(4, slots, low=-1)
    bias = b.gain(4, width) if form == "bias" else None
    axis = f"tokens*{slots}" if slots > 1 else "tokens"
    b.call("linear.moe_weighted_sum", b.value(width, axis), b.value(slots, dtype="f32"), routes, bias)


@strategy("linear.moe_bias_sum", exact=True)
def moe_bias_sum(b: Build) -> None:
    width = b.pick(8, 5, 100)
    b.call("linear.moe_bias_sum", b.value(width), b.gain(4, width), b.ids(4, SLOTS, low=-1), b.value(SLOTS, dtype="f32"))


@strategy("linear.moe_sigmoid_gate_add")
def moe_sigmoid_gate_add(b: Build) -> None:
    width = b.pick(8, 5, 100)
    b.call("linear.moe_sigmoid_gate_add", b.value(width), b.value(width), b.value(1))


@strategy("linear.rel_bias", exact=True)
def rel_bias(b: Build) -> None:
    heads, d_rel, extent = b.pick(4, 3), b.pick(8, 5), b.pick(4, 9)
    b.call("linear.rel_bias", b.value(heads * d_rel), b.weight(d_rel, extent, dtype=b.dtype), heads, d_rel, extent)


@strategy("linear.lora_correct")
def lora_correct(b: Build) -> None:
    k, rank, outer = b.pick(16, 7), b.pick(4, 2), b.pick(8, 6)
    bank_a, bank_b = b.weight(3, rank, k, dtype=b.dtype), b.weight(3, outer, rank, dtype=b.dtype)
    b.call("linear.lora_correct", b.value(k), bank_a, bank_b, b.ids(3, low=-1), b.value(outer))
