"""Calls of ops.elemwise."""

# ruff: noqa: C408  (arguments by name read like the calls that they describe)

from poem.dtypes import Dtype
from poem.ops import scaling
from tests.poem.ops.calls import INPUTS, calls, ids, v, w

OTHER_TYPES = ((1, "axis", v(12, rows="lanes")), (1, "shape", v(11)), (1, "dtype", v(12, "f16")))

for name in ("add", "mul"):
    calls(
        f"elemwise.{name}",
        dict(x=v(12), y=v(12)),
        "[tokens, 12] bf16",
        *((rule, code, dict(y=given)) for rule, code, given in OTHER_TYPES),
        (1, "dtype", dict(y=v(12, "f32"))),
    )
calls(
    "elemwise.residual_add",
    dict(x=v(12, "f32"), y=v(12)),
    "[tokens, 12] bf16",
    *((rule, code, dict(x=given)) for rule, code, given in OTHER_TYPES),
    (1, "dtype", dict(x=v(12), y=v(12, "f32"))),
)
calls(
    "elemwise.gated_residual_add",
    dict(r=v(12), g=v(12, "f32", "lanes"), y=v(12), lane_of_row=ids()),
    "[tokens, 12] bf16",
    *((rule, code, dict(y=given)) for rule, code, given in OTHER_TYPES),
    (2, "shape", dict(g=v(24, rows="lanes"))),
    (2, "dtype", dict(g=v(12, "f16", "lanes"))),
    (3, "axis", dict(lane_of_row=None)),
    (3, "axis", dict(lane_of_row=ids(rows="lanes"))),
    (3, "shape", dict(lane_of_row=ids(2))),
)
calls("elemwise.gated_residual_add", dict(r=v(12), g=v(12), y=v(12)), "[tokens, 12] bf16")
calls(
    "elemwise.modulate",
    dict(x=v(12), m=v(24, "f32", "lanes"), lane_of_row=ids()),
    "[tokens, 12] bf16",
    (1, "shape", dict(m=v(12, "f32", "lanes"))),
    (1, "shape", dict(form="scale")),
    (1, "shape", dict(form="tanh_gate")),
    (2, "dtype", dict(m=v(24, "f16", "lanes"))),
    (3, "axis", dict(lane_of_row=None)),
    (3, "axis", dict(lane_of_row=ids(rows="lanes"))),
    (3, "shape", dict(lane_of_row=ids(2))),
)
calls("elemwise.modulate", dict(x=v(12), m=v(12), form="scale"), "[tokens, 12] bf16")
calls("elemwise.modulate", dict(x=v(12), m=v(12, "f32", 7), lane_of_row=ids(), form="tanh_gate"), "[tokens, 12] bf16")
calls("elemwise.mul_scalar", dict(s=0.5, x=v(12)), "[tokens, 12] bf16")
calls("elemwise.mul_scalar", dict(s=-2, x=v(12, "f32")), "[tokens, 12] f32")
calls("elemwise.silu_scaled", dict(s=0.25, x=v(12)), "[tokens, 12] bf16")
calls("elemwise.scale", dict(s=w(1, dtype="f32"), x=v(12)), "[tokens, 12] bf16", (1, "shape", dict(s=w(12))), (1, "shape", dict(s=w(1, 1))))
calls("elemwise.clamp", dict(x=v(12), lo=-1.0, hi=1.0), "[tokens, 12] bf16", (1, "bad-attribute", dict(lo=2.0)))
calls("elemwise.clamp", dict(x=v(12), lo=1, hi=1), "[tokens, 12] bf16")
calls(
    "elemwise.clamp_learned",
    dict(x=v(12), lo=w(1), hi=w(1)),
    "[tokens, 12] bf16",
    (1, "shape", dict(lo=w(12))),
    (1, "shape", dict(hi=w(12))),
)
calls("elemwise.copy", dict(x=ids(3, "images+1")), "[images+1, 3] i32")
calls(
    "elemwise.cast",
    dict(x=v(12, "f32"), dtype=Dtype("bf16")),
    "[tokens, 12] bf16",
    (1, "bad-attribute", dict(dtype=Dtype("i32"))),
    (1, "bad-attribute", dict(dtype=Dtype("e4m3"))),
)
calls("elemwise.add_bias", dict(bias=w(12, dtype="f32"), x=v(12)), "[tokens, 12] bf16", (1, "shape", dict(bias=w(11))))
calls(
    "elemwise.standardize",
    dict(x=v(12), bias=w(12), scale=w(12)),
    "[tokens, 12] bf16",
    (1, "shape", dict(bias=w(1))),
    (1, "shape", dict(scale=w(1))),
)
calls(
    "elemwise.gate_sigmoid_mul",
    dict(x=v(12), gate=v(12, "f32")),
    "[tokens, 12] bf16",
    *((rule, code, dict(gate=given)) for rule, code, given in OTHER_TYPES),
)
calls(
    "elemwise.gate_sigmoid_mul_heads",
    dict(x=v(12), gate=v(3), head_dim=4, scale=2.0),
    "[tokens, 12] bf16",
    (1, "shape", dict(x=v(13))),
    (2, "axis", dict(gate=v(3, rows="lanes"))),
    (2, "shape", dict(gate=v(4))),
    (2, "dtype", dict(gate=v(3, "f16"))),
)
for name in ("silu", "gelu", "tanh", "relu", "relu2"):
    calls(f"elemwise.{name}", dict(x=v(12, "f16", "voxels")), "[voxels, 12] f16")
calls("elemwise.gelu", dict(x=v(12), tanh=True), "[tokens, 12] bf16")

for name in ("rmsnorm", "rmsnorm_plus_one"):
    calls(
        f"elemwise.{name}",
        dict(x=v(12), w=w(12, dtype="f32"), eps=1e-6),
        "[tokens, 12] bf16",
        (1, "shape", dict(w=w(11))),
        (2, "bad-attribute", dict(eps=-1e-6)),
    )
for name in ("rmsnorm_per_head", "rmsnorm_per_head_plus_one"):
    calls(
        f"elemwise.{name}",
        dict(x=v(12), w=w(4), head_dim=4, eps=0.0),
        "[tokens, 12] bf16",
        (1, "shape", dict(x=v(13))),
        (2, "shape", dict(w=w(12))),
        (3, "bad-attribute", dict(eps=-1.0)),
    )
calls(
    "elemwise.rmsnorm_no_scale",
    dict(x=v(12), head_dim=12, eps=1e-6),
    "[tokens, 12] bf16",
    (1, "shape", dict(head_dim=5)),
    (2, "bad-attribute", dict(eps=-1.0)),
)
calls(
    "elemwise.rmsnorm_grouped_plus_one",
    dict(x=v(12), w=w(12), group=4, eps=1e-6),
    "[tokens, 12] bf16",
    (1, "shape", dict(group=5)),
    (2, "shape", dict(w=w(4))),
    (3, "bad-attribute", dict(eps=-1.0)),
)
for weight in (w(4), w(12)):
    calls(
        "elemwise.rmsnorm_gated",
        dict(x=v(12, "f32"), gate=v(12), w=weight, head_dim=4, eps=1e-6),
        "[tokens, 12] bf16",
        *((rule, code, dict(x=given)) for rule, code, given in OTHER_TYPES),
        (1, "dtype", dict(x=v(12), gate=v(12, "f32"))),
        (2, "shape", dict(head_dim=5, w=w(5))),
        (3, "shape", dict(w=w(3))),
        (4, "bad-attribute", dict(eps=-1.0)),
    )
calls(
    "elemwise.rmsnorm_gated", dict(x=v(12), gate=v(12), w=w(4), head_dim=4, eps=1e-6, act="sigmoid", gate_first=True), "[tokens, 12] bf16"
)
calls(
    "elemwise.rmsnorm_gated_by",
    dict(x=v(12, "f32"), gate=v(12), w=w(4), heads=3, eps=1e-6),
    "[tokens, 12] bf16",
    *((rule, code, dict(x=given)) for rule, code, given in OTHER_TYPES),
    (2, "shape", dict(heads=5)),
    (3, "shape", dict(w=w(3))),
    (4, "bad-attribute", dict(eps=-1.0)),
)
calls(
    "elemwise.layernorm",
    dict(x=v(12), w=w(12), b=w(12)),
    "[tokens, 12] bf16",
    (1, "shape", dict(w=w(11))),
    (1, "shape", dict(b=w(11))),
    (2, "bad-attribute", dict(eps=-1.0)),
)
calls("elemwise.layernorm", dict(x=v(12)), "[tokens, 12] bf16")
calls("elemwise.layernorm_no_scale", dict(x=v(12), eps=1e-6), "[tokens, 12] bf16", (1, "bad-attribute", dict(eps=-1.0)))

ROPE = dict(q=v(32), k=v(16), positions=ids(), head_dim=8, theta=1e4)
YARN = scaling.yarn(factor=4.0, original_max_position=64)
LONG = scaling.longrope([1.0, 1.5, 2.0, 4.0], [1.0, 2.0, 4.0, 8.0], 64, 1.2)
MROPE = dict(ROPE, positions=ids(3), sections=[2, 1, 1])
calls(
    "elemwise.rope",
    ROPE,
    "[tokens, 32] bf16; [tokens, 16] bf16",
    (1, "shape", dict(q=v(33))),
    (1, "shape", dict(k=v(12))),
    (2, "axis", dict(k=v(16, rows="lanes"))),
    (2, "dtype", dict(k=v(16, "f32"))),
    (3, "axis", dict(positions=ids(rows="lanes"))),
    (3, "shape", dict(positions=ids(3))),
    (4, "bad-attribute", dict(theta=0.0)),
    (4, "bad-attribute", dict(theta=1.0, scaling=YARN)),
    (5, "bad-attribute", dict(rotary_dim=3)),
    (5, "bad-attribute", dict(rotary_dim=10)),
    (5, "bad-attribute", dict(head_dim=1)),
    (6, "bad-attribute", dict(part="last", form="proportional")),
    (7, "bad-attribute", dict(sections=[2, 1, 1])),
    (10, "bad-attribute", dict(form="proportional", scaling=YARN)),
    (11, "bad-attribute", dict(scaling=LONG, rotary_dim=4)),
    (11, "axis", dict(scaling=LONG, q=v(32, rows="lanes"), k=None, positions=ids(rows="lanes"))),
)
calls("elemwise.rope", dict(ROPE, k=None, inverse=True, part="last", form="interleaved", rotary_dim=4), "[tokens, 32] bf16")
calls("elemwise.rope", dict(ROPE, form="proportional", rotary_dim=4, scaling=scaling.linear(2.0)), "[tokens, 32] bf16; [tokens, 16] bf16")
calls("elemwise.rope", dict(ROPE, scaling=LONG), "[tokens, 32] bf16; [tokens, 16] bf16")
calls(
    "elemwise.rope",
    dict(MROPE, form="mrope_interleaved", scaling=YARN),
    "[tokens, 32] bf16; [tokens, 16] bf16",
    (3, "shape", dict(positions=ids())),
    (6, "bad-attribute", dict(part="last")),
    (7, "bad-attribute", dict(sections=None)),
    (7, "bad-attribute", dict(sections=[2, 2])),
    (8, "bad-attribute", dict(sections=[2, 2, 1])),
    (8, "bad-attribute", dict(form="mrope_chunked", rotary_dim=4)),
)
for form in ("mrope_blocked", "mrope_split"):
    calls(
        "elemwise.rope",
        dict(MROPE, form=form, sections=[0, 2, 2]),
        "[tokens, 32] bf16; [tokens, 16] bf16",
        (5, "bad-attribute", dict(rotary_dim=8)),
        (9, "bad-attribute", dict(sections=[1, 2, 2])),
        (9, "bad-attribute", dict(sections=[0, 0, 0])),
        (10, "bad-attribute", dict(scaling=scaling.linear(2.0))),
    )
calls(
    "elemwise.rope_axes",
    dict(x=v(32), positions=v(2, "f32"), dims=[4, 2], thetas=[100.0, 1e4], form="neox", rotary_dim=6, head_dim=8),
    "[tokens, 32] bf16",
    (1, "shape", dict(x=v(33))),
    (2, "axis", dict(positions=v(2, "f32", "lanes"))),
    (2, "shape", dict(positions=v(5, "f32"))),
    (3, "bad-attribute", dict(dims=[4, 2, 0])),
    (3, "bad-attribute", dict(dims=[2, 2, 2, 0])),
    (3, "bad-attribute", dict(dims=[3, 3])),
    (3, "bad-attribute", dict(thetas=[100.0])),
    (3, "bad-attribute", dict(thetas=[100.0, 0.0])),
    (4, "bad-attribute", dict(rotary_dim=8)),
    (4, "bad-attribute", dict(dims=[8, 2], rotary_dim=10)),
)
calls(
    "elemwise.rope_axes",
    dict(x=v(32), positions=v(2, "f32"), dims=[4, 4, 0, 0], thetas=[9.0, 9.0, 0.0, 0.0], form="split_ladder", rotary_dim=8, head_dim=8),
    "[tokens, 32] bf16",
    (5, "bad-attribute", dict(rotary_dim=4)),
    (5, "bad-attribute", dict(dims=[4, 2])),
    (5, "bad-attribute", dict(dims=[0, 0])),
    (5, "bad-attribute", dict(dims=[18, 18])),
)
calls(
    "elemwise.sinusoid",
    dict(t=v(1, "f32", "lanes"), dim=16),
    "[lanes, 16] f32",
    (1, "shape", dict(t=v(2, "f32"))),
    (2, "bad-attribute", dict(dim=15)),
    (3, "bad-attribute", dict(max_period=0.0)),
)

calls(
    "elemwise.hadamard",
    dict(x=v(12), block=4, signs=w(6)),
    "[tokens, 12] bf16",
    (1, "bad-attribute", dict(block=6)),
    (2, "shape", dict(block=8)),
    (3, "shape", dict(signs=w(2, 6))),
)
calls(
    "elemwise.relative_bucket_bias",
    dict(inputs=INPUTS, embedding=w(8, 3), max_len=10, buckets=8, max_distance=16, bidirectional=True),
    "[3, 19] f32",
    (1, "shape", dict(embedding=w(9, 3))),
    (1, "shape", dict(embedding=w(8))),
    (2, "bad-attribute", dict(buckets=7, embedding=w(7, 3))),
    (2, "bad-attribute", dict(buckets=2, embedding=w(2, 3))),
    (2, "bad-attribute", dict(buckets=1, embedding=w(1, 3), bidirectional=False)),
    (3, "bad-attribute", dict(max_distance=2)),
    (3, "bad-attribute", dict(max_distance=4, bidirectional=False)),
)
calls(
    "elemwise.res_blend",
    dict(prefix=v(12), blocks=[v(12), v(12)], norm=w(12), eps=1e-6, proj=w(12)),
    "[tokens, 12] bf16",
    *((rule, code, dict(blocks=[v(12), given])) for rule, code, given in OTHER_TYPES),
    (2, "shape", dict(norm=w(11))),
    (2, "shape", dict(proj=w(11))),
    (3, "bad-attribute", dict(eps=-1.0)),
)
calls("elemwise.res_blend", dict(prefix=v(12), blocks=[], norm=w(12), eps=0.0, proj=w(12), scale=0.5, values="normed"), "[tokens, 12] bf16")

calls("elemwise.hc_expand", dict(x=v(6), stream_count=4), "[tokens, 24] bf16")
calls("elemwise.hc_rmsnorm_f32", dict(streams=v(24), eps=1e-6), "[tokens, 24] f32", (1, "bad-attribute", dict(eps=-1.0)))
for rows, mixes in ((24, 24), (4, 4)):
    calls(
        "elemwise.hc_project",
        dict(normed=v(24, "f32"), dynamic=w(rows, 24), stream_count=4),
        f"[tokens, {mixes}] f32",
        (1, "shape", dict(normed=v(23, "f32"))),
        (2, "shape", dict(dynamic=w(5, 24))),
        (2, "shape", dict(dynamic=w(rows, 23))),
    )
calls(
    "elemwise.hc_gates",
    dict(mixes=v(24, "f32"), streams=v(24), scale=w(3), base=w(24), stream_count=4, eps=1e-6, alpha=2.0, sinkhorn=20),
    "[tokens, 6] bf16; [tokens, 4] f32; [tokens, 16] f32",
    (1, "shape", dict(streams=v(23))),
    (2, "axis", dict(mixes=v(24, "f32", "lanes"))),
    (2, "shape", dict(mixes=v(23, "f32"))),
    (3, "shape", dict(scale=w(1))),
    (4, "shape", dict(base=w(4))),
    (5, "bad-attribute", dict(eps=-1.0)),
)
calls(
    "elemwise.hc_fold",
    dict(x=v(6), streams=v(24), post=v(4, "f32"), comb=v(16, "f32")),
    "[tokens, 24] bf16",
    (1, "axis", dict(streams=v(24, rows="lanes"))),
    (1, "dtype", dict(streams=v(24, "f32"))),
    (1, "shape", dict(streams=v(23))),
    (2, "axis", dict(post=v(4, "f32", "lanes"))),
    (2, "shape", dict(post=v(5, "f32"))),
    (3, "axis", dict(comb=v(16, "f32", "lanes"))),
    (3, "shape", dict(comb=v(4, "f32"))),
)
calls(
    "elemwise.hc_collapse",
    dict(mixes=v(4, "f32"), streams=v(24), scale=w(1), base=w(4), stream_count=4, eps=1e-6),
    "[tokens, 6] bf16",
    (1, "shape", dict(streams=v(23))),
    (2, "axis", dict(mixes=v(4, "f32", "lanes"))),
    (2, "shape", dict(mixes=v(5, "f32"))),
    (3, "shape", dict(scale=w(3))),
    (4, "shape", dict(base=w(5))),
    (5, "bad-attribute", dict(eps=-1.0)),
)
calls("elemwise.hc_mean", dict(streams=v(24), stream_count=4), "[tokens, 6] bf16", (1, "shape", dict(streams=v(23))))
calls(
    "elemwise.hc_mix",
    dict(gates=v(24), normed=v(24), stream_count=4),
    "[tokens, 6] bf16",
    (1, "axis", dict(normed=v(24, rows="lanes"))),
    (1, "shape", dict(normed=v(23))),
    (1, "dtype", dict(normed=v(24, "f32"))),
    (2, "shape", dict(stream_count=5)),
)
calls(
    "elemwise.hc_inject",
    dict(o=v(6), gates=v(4), stream_count=4, hyper=v(24)),
    "[tokens, 24] bf16",
    (1, "axis", dict(gates=v(4, rows="lanes"))),
    (1, "dtype", dict(gates=v(4, "f32"))),
    (1, "shape", dict(gates=v(5))),
    (2, "axis", dict(hyper=v(24, rows="lanes"))),
    (2, "dtype", dict(hyper=v(24, "f32"))),
    (2, "shape", dict(hyper=v(23))),
)
calls(
    "elemwise.ple_gate",
    dict(key=v(24), query=v(24), value=v(6), stream_count=4),
    "[tokens, 24] bf16",
    (1, "shape", dict(key=v(23))),
    (2, "axis", dict(query=v(24, rows="lanes"))),
    (2, "shape", dict(query=v(23))),
    (2, "dtype", dict(query=v(24, "f32"))),
    (3, "axis", dict(value=v(6, rows="lanes"))),
    (3, "dtype", dict(value=v(6, "f32"))),
    (3, "shape", dict(value=v(7))),
)
