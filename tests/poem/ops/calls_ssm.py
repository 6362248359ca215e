"""Calls of ops.ssm."""

# ruff: noqa: C408  (arguments by name read like the calls that they describe)

from tests.poem.ops.calls import calls, ids, slab, v, w

LANES = "lanes"
calls(
    "ssm.gdn_gates",
    dict(ba=v(8, rows=LANES), dt_bias=w(4), a_log=w(4)),
    "[lanes, 8] f32",
    (1, "shape", dict(ba=v(7))),
    (2, "shape", dict(dt_bias=w(8))),
    (2, "shape", dict(a_log=w(8))),
)
for name in ("causal_conv1d", "causal_conv1d_chunked"):
    for rows in (7, 6):
        calls(
            f"ssm.{name}",
            dict(x=v(12), weight=w(12, 4), state=slab(rows, 12, dtype="bf16"), conv_width=4, bias=w(12), act="none", dilation=2),
            "[tokens, 12] bf16",
            (1, "axis", dict(x=v(12, rows=LANES))),
            (2, "shape", dict(weight=w(4, 12))),
            (2, "shape", dict(conv_width=3)),
            (3, "shape", dict(state=slab(4, 12))),
            (3, "shape", dict(state=slab(12, rows))),
            (3, "dtype", dict(state=slab(rows, 12, dtype="i32"))),
            (4, "shape", dict(bias=w(4))),
        )
for name in ("short_conv", "short_conv_chunked"):
    calls(
        f"ssm.{name}",
        dict(x=v(12), weight=w(12, 4), state=slab(3, 12), conv_width=4),
        "[tokens, 12] bf16",
        (1, "axis", dict(x=v(12, rows=LANES))),
        (2, "shape", dict(weight=w(12, 3))),
        (3, "shape", dict(state=slab(2, 12))),
        (3, "dtype", dict(state=slab(3, 12, dtype="i32"))),
    )
calls(
    "ssm.gated_delta",
    dict(qkv=v(2 * 2 * 8 + 4 * 6), gates=v(8, "f32"), state=slab(4, 8, 6), k_heads=2, v_heads=4, k_dim=8, v_dim=6),
    "[tokens, 24] f32",
    (1, "axis", dict(qkv=v(56, rows=LANES))),
    (1, "shape", dict(qkv=v(57))),
    (2, "axis", dict(gates=v(8, "f32", LANES))),
    (2, "shape", dict(gates=v(4, "f32"))),
    (3, "shape", dict(state=slab(4, 6, 8))),
    (3, "dtype", dict(state=slab(4, 8, 6, dtype="i32"))),
    (4, "bad-attribute", dict(k_heads=3, qkv=v(2 * 3 * 8 + 4 * 6))),
)
calls(
    "ssm.kda",
    dict(mixed=v(48), f=v(16), b=v(2), dt_bias=w(16), a_log=w(2), state=slab(2, 8, 8), heads=2, head_dim=8, norm_eps=1e-6, gate_floor=-5.0),
    "[tokens, 16] f32",
    (1, "axis", dict(mixed=v(48, rows=LANES))),
    (1, "shape", dict(mixed=v(47))),
    (2, "axis", dict(f=v(16, rows=LANES))),
    (2, "dtype", dict(f=v(16, "f32"))),
    (2, "shape", dict(f=v(2))),
    (3, "axis", dict(b=v(2, rows=LANES))),
    (3, "dtype", dict(b=v(2, "f32"))),
    (3, "shape", dict(b=v(16))),
    (4, "shape", dict(dt_bias=w(2))),
    (4, "shape", dict(a_log=w(16))),
    (5, "shape", dict(state=slab(2, 8, 4))),
    (6, "bad-attribute", dict(norm_eps=-1.0)),
    (7, "bad-attribute", dict(gate_floor=1.0)),
)
SSD = dict(
    x=v(4 * 8 + 2 * 2 * 3),
    dt=v(4, "f32"),
    a_log=w(4),
    d=w(4),
    dt_bias=w(4),
    state=slab(4, 8, 3),
    heads=4,
    head_dim=8,
    groups=2,
    state_dim=3,
)
calls(
    "ssm.ssd_scan",
    SSD,
    "[tokens, 32] f32",
    (1, "axis", dict(x=v(44, rows=LANES))),
    (1, "shape", dict(x=v(43))),
    (2, "axis", dict(dt=v(4, rows=LANES))),
    (2, "shape", dict(dt=v(5))),
    (2, "dtype", dict(dt=v(4, "f16"))),
    (3, "shape", dict(a_log=w(3))),
    (3, "shape", dict(d=w(3))),
    (3, "shape", dict(dt_bias=w(3))),
    (4, "shape", dict(state=slab(4, 3, 8))),
    (5, "bad-attribute", dict(groups=3, x=v(4 * 8 + 2 * 3 * 3))),
    (6, "bad-attribute", dict(dt_min=-1.0)),
    (6, "bad-attribute", dict(dt_min=0.5, dt_max=0.5)),
)
calls("ssm.ssd_scan", dict(SSD, dt_min=0.001, dt_max=0.1), "[tokens, 32] f32")
calls(
    "ssm.selective_scan",
    dict(x=v(8), dt=v(8, "f32"), b=v(3, "f32"), c=v(3), a_log=w(8, 3), d=w(8), dt_bias=w(8), state=slab(8, 3), gate=v(8)),
    "[tokens, 8] bf16",
    (1, "axis", dict(x=v(8, rows=LANES))),
    (2, "axis", dict(dt=v(8, rows=LANES))),
    (2, "shape", dict(dt=v(7))),
    (2, "dtype", dict(dt=v(8, "f16"))),
    (3, "axis", dict(b=v(3, rows=LANES))),
    (3, "dtype", dict(c=v(3, "f16"))),
    (3, "shape", dict(c=v(4))),
    (4, "shape", dict(a_log=w(3, 8))),
    (5, "shape", dict(d=w(3))),
    (5, "shape", dict(dt_bias=w(3))),
    (6, "shape", dict(state=slab(3, 8))),
    (7, "axis", dict(gate=v(8, rows=LANES))),
    (7, "shape", dict(gate=v(7))),
    (7, "dtype", dict(gate=v(8, "f32"))),
)
calls(
    "ssm.ngram_ids",
    dict(
        ids=ids(),
        state=slab(2, dtype="i32"),
        eos=9,
        mults=[3, -5, 2**63 - 1],
        primes=[11, 13, 17, 19],
        offsets=[0, 11, 24, 41],
        heads_per_ngram=2,
        map=w(50, dtype="i32"),
    ),
    "[tokens, 4] i32",
    (1, "axis", dict(ids=ids(rows=LANES))),
    (1, "shape", dict(ids=ids(2))),
    (2, "bad-attribute", dict(mults=[3])),
    (2, "bad-attribute", dict(mults=[3, 5, 2**63])),
    (3, "bad-attribute", dict(primes=[11, 13])),
    (3, "bad-attribute", dict(offsets=[0, 11])),
    (4, "bad-attribute", dict(offsets=[0, 11, 24, 2**31 - 1])),
    (5, "shape", dict(state=slab(3, dtype="i32"))),
    (5, "shape", dict(state=slab(2))),
    (6, "shape", dict(map=w(5, 10, dtype="i32"))),
)
