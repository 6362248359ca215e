"""Calls of ops.linear."""

# ruff: noqa: C408  (arguments by name read like the calls that they describe)

from poem.dtypes import Dtype
from tests.poem.ops.calls import calls, ids, made_by, v, w

F32, F16 = Dtype("f32"), Dtype("f16")

calls(
    "linear.matmul",
    dict(x=v(64), w=w(32, 64)),
    "[tokens, 32] bf16",
    (1, "shape", dict(w=w(2, 32, 64))),
    (1, "shape", dict(w=w(64))),
    (2, "shape", dict(w=w(64, 32))),
    (3, "bad-attribute", dict(out=F16)),
    (3, "bad-attribute", dict(out=Dtype("nvfp4"))),
)
calls("linear.matmul", dict(x=v(64, "f16", "lanes"), w=w(32, 64, dtype="u4g64"), out=F32), "[lanes, 32] f32")
calls(
    "linear.lm_head",
    dict(x=v(64, rows="readouts"), w=w(256, 64)),
    "[readouts, 256] bf16",
    (1, "shape", dict(w=w(256))),
    (2, "shape", dict(w=w(256, 63))),
    (3, "bad-attribute", dict(out=F16)),
)
calls("linear.lm_head", dict(x=v(64), w=w(256, 64, dtype="mxfp4"), out=F32), "[tokens, 256] f32")
calls("linear.group_routes", dict(x=ids(3, "patches"), groups=4), "[patches, 4] i32")
ROUTES = made_by("linear.group_routes", x=v(8), groups=2)
calls(
    "linear.matmul_grouped",
    dict(x=v(8), w=w(6, 4), routes=ROUTES, groups=2),
    "[tokens, 6] bf16",
    (1, "bad-attribute", dict(routes=ids(2))),
    (1, "bad-attribute", dict(routes=made_by("linear.group_routes", x=v(8), groups=4))),
    (1, "axis", dict(routes=made_by("linear.group_routes", x=v(8, rows="lanes"), groups=2))),
    (2, "shape", dict(x=v(7))),
    (2, "shape", dict(w=w(5, 4))),
    (3, "shape", dict(w=w(6, 8))),
    (3, "shape", dict(w=w(6, 4, 1))),
)
calls(
    "linear.glu",
    dict(x=v(24), inter=12),
    "[tokens, 12] bf16",
    (1, "shape", dict(x=v(12))),
    (1, "shape", dict(up=v(12))),
    (3, "bad-attribute", dict(alpha=1.7, act="gelu")),
    (4, "bad-attribute", dict(act="situ")),
    (4, "bad-attribute", dict(act="situ", beta=0.0)),
    (4, "bad-attribute", dict(beta=2.0)),
    (5, "bad-attribute", dict(up_cap=1.0)),
    (5, "bad-attribute", dict(up_cap=-1.0, act="situ", beta=2.0)),
    (6, "bad-attribute", dict(limit=0.0)),
    (6, "bad-attribute", dict(limit=-7.0)),
)
calls("linear.glu", dict(x=v(24, "f32"), inter=12, act="situ", beta=2.0, up_cap=1.0), "[tokens, 12] f32")
calls("linear.glu", dict(x=v(24), inter=12, limit=7.0, alpha=1.702), "[tokens, 12] bf16")
calls(
    "linear.glu",
    dict(x=v(12, rows="tokens*4"), inter=12, act="gelu_tanh", up=v(12, "f32", "tokens*4")),
    "[tokens*4, 12] bf16",
    (2, "axis", dict(up=v(12))),
    (2, "shape", dict(up=v(11, rows="tokens*4"))),
    (2, "dtype", dict(up=v(12, "f16", "tokens*4"))),
)
calls("linear.gelu_tanh", dict(x=v(12, "f16", "patches")), "[patches, 12] f16")
calls(
    "linear.rel_bias",
    dict(x=v(8), w=w(2, 5), heads=4, d_rel=2, extent=5),
    "[tokens, 20] f32",
    (1, "shape", dict(x=v(9))),
    (2, "shape", dict(w=w(5, 2))),
)
calls(
    "linear.lora_correct",
    dict(x=v(16), bank_a=w(3, 4, 16), bank_b=w(3, 8, 4), routes=ids(), y=v(8)),
    "[tokens, 8] bf16",
    (1, "axis", dict(y=v(8, rows="readouts"))),
    (1, "dtype", dict(y=v(8, "f32"))),
    (2, "axis", dict(routes=ids(rows="lanes"))),
    (2, "shape", dict(routes=ids(2))),
    (3, "shape", dict(bank_a=w(3, 4, 15))),
    (3, "shape", dict(bank_a=w(4, 16))),
    (4, "shape", dict(bank_b=w(3, 8, 5))),
    (4, "shape", dict(bank_b=w(2, 8, 4))),
)
calls(
    "linear.moe_route",
    dict(logits=v(8, "f32"), experts=8, top_k=2),
    "[tokens, 2] i32; [tokens, 2] f32",
    (1, "shape", dict(logits=v(9, "f32"))),
    (2, "bad-attribute", dict(top_k=9)),
    (3, "bad-attribute", dict(groups=3, group_top_k=1)),
    (4, "bad-attribute", dict(group_top_k=2)),
    (4, "bad-attribute", dict(groups=4)),
    (4, "bad-attribute", dict(groups=4, group_top_k=5)),
    (4, "bad-attribute", dict(groups=4, group_top_k=1, top_k=3)),
    (5, "bad-attribute", dict(group_score="max")),
    (5, "bad-attribute", dict(groups=8, group_top_k=4, group_score="top2")),
    (5, "bad-attribute", dict(groups=8, group_top_k=4, score="sigmoid")),
    (6, "bad-attribute", dict(logits=v(9, "f32"), sinks=1)),
    (7, "bad-attribute", dict(ids=ids())),
    (7, "bad-attribute", dict(table=w(100, 2, dtype="i32"))),
    (8, "shape", dict(bias=w(7))),
    (9, "shape", dict(expert_scale=w(2))),
)
calls(
    "linear.moe_route", dict(logits=v(8), experts=8, top_k=8, bias=w(8, dtype="f32"), expert_scale=w(8)), "[tokens, 8] i32; [tokens, 8] f32"
)
calls("linear.moe_route", dict(logits=v(8), experts=8, top_k=2, groups=8, group_top_k=2), "[tokens, 2] i32; [tokens, 2] f32")
calls(
    "linear.moe_route",
    dict(logits=v(10, "bf16", "lanes"), experts=8, top_k=2, score="sigmoid", sinks=2, expert_scale=w(1), renormalize=False, scaling=2.5),
    "[lanes, 4] i32; [lanes, 4] f32",
    (9, "shape", dict(expert_scale=w(8))),
)
calls(
    "linear.moe_route",
    dict(logits=v(8, "f32"), experts=8, top_k=2, score="sqrt_softplus", ids=ids(), table=w(100, 2, dtype="i64")),
    "[tokens, 2] i32; [tokens, 2] f32",
    (7, "bad-attribute", dict(bias=w(8))),
    (7, "bad-attribute", dict(groups=2, group_top_k=1)),
    (7, "bad-attribute", dict(logits=v(9, "f32"), sinks=1)),
    (10, "axis", dict(ids=ids(rows="lanes"))),
    (10, "shape", dict(ids=ids(2))),
    (10, "shape", dict(table=w(100, 3, dtype="i32"))),
    (10, "shape", dict(table=w(100, dtype="i32"))),
)
calls(
    "linear.moe_matmul_select",
    dict(x=v(16), bank=w(8, 32, 16), routes=ids(2), top_k=2),
    "[tokens*2, 32] bf16",
    (1, "shape", dict(routes=ids(3))),
    (2, "axis", dict(x=v(16, rows="tokens*3"))),
    (2, "axis", dict(x=v(16, rows="readouts"))),
    (2, "axis", dict(routes=ids(2, "lanes+1"), x=v(16, rows="lanes+1"))),
    (3, "shape", dict(bank=w(8, 32, 15))),
    (3, "shape", dict(bank=w(32, 16))),
    (4, "shape", dict(bias=w(8, 31))),
)
calls(
    "linear.moe_matmul_select",
    dict(x=v(64, rows="tokens*2"), bank=w(8, 32, 64, dtype="nvfp4"), routes=ids(2), top_k=2, bias=w(8, 32)),
    "[tokens*2, 32] bf16",
)
calls(
    "linear.moe_weighted_sum",
    dict(routed=v(16, rows="tokens*2"), weights=v(2, "f32"), routes=ids(2), bias=w(8, 16)),
    "[tokens, 16] bf16",
    (1, "axis", dict(routed=v(16))),
    (2, "axis", dict(routes=ids(2, "lanes"))),
    (2, "shape", dict(routes=ids(3))),
    (3, "bad-attribute", dict(routes=None)),
    (3, "shape", dict(bias=w(8, 15))),
    (3, "shape", dict(bias=w(16))),
)
calls("linear.moe_weighted_sum", dict(routed=v(16, rows=12), weights=v(2, "f32", 6)), "[6, 16] bf16")
calls(
    "linear.moe_bias_sum",
    dict(x=v(16), bias=w(8, 16), routes=ids(2), weights=v(2, "f32")),
    "[tokens, 16] bf16",
    (1, "axis", dict(routes=ids(2, "lanes"))),
    (1, "axis", dict(weights=v(2, "f32", "lanes"))),
    (1, "shape", dict(weights=v(3, "f32"))),
    (2, "shape", dict(bias=w(8, 15))),
)
calls(
    "linear.moe_sigmoid_gate_add",
    dict(routed=v(16), shared=v(16), gate=v(1, "f32")),
    "[tokens, 16] bf16",
    (1, "axis", dict(shared=v(16, rows="lanes"))),
    (1, "shape", dict(shared=v(15))),
    (1, "dtype", dict(shared=v(16, "f32"))),
    (2, "axis", dict(gate=v(1, rows="lanes"))),
    (2, "shape", dict(gate=v(2))),
    (2, "dtype", dict(gate=v(1, "f16"))),
)
