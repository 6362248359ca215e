"""Calls of ops.gather, ops.sampling and ops.collective."""

# ruff: noqa: C408  (arguments by name read like the calls that they describe)

from tests.poem.ops.calls import calls, ids, v, w

LANES = "lanes"
calls(
    "gather.embed",
    dict(ids=ids(rows=LANES), table=w(100, 64), vocab=90),
    "[lanes, 64] bf16",
    (1, "shape", dict(ids=ids(2))),
    (2, "shape", dict(table=w(100))),
    (3, "bad-attribute", dict(vocab=101)),
)
calls("gather.embed", dict(ids=ids(), table=w(100, 64, dtype="f32"), vocab=100), "[tokens, 64] f32")
calls("gather.embed", dict(ids=ids(), table=w(100, 64, dtype="u4g64"), vocab=100), "[tokens, 64] bf16")
calls(
    "gather.embed_weighted",
    dict(ids=ids(4, "patches"), weights=v(4, "f32", "patches"), table=w(100, 64, dtype="f16"), vocab=100),
    "[patches, 64] f16",
    (1, "axis", dict(weights=v(4, "f32"))),
    (1, "shape", dict(weights=v(3, "f32", "patches"))),
    (2, "shape", dict(table=w(100))),
    (3, "bad-attribute", dict(vocab=101)),
)
calls(
    "gather.embed_concat",
    dict(ids=ids(4), table=w(100, 64), vocab=100),
    "[tokens, 256] bf16",
    (1, "shape", dict(table=w(100))),
    (2, "bad-attribute", dict(vocab=101)),
)
calls("gather.gather_rows", dict(x=v(12), rows=ids(rows="readouts")), "[readouts, 12] bf16", (1, "shape", dict(rows=ids(2))))
calls("gather.gather_rows", dict(x=ids(3, LANES), rows=ids()), "[tokens, 3] i32")
calls(
    "gather.split_rows",
    dict(x=ids(12), width=5),
    "[tokens, 5] i32; [tokens, 7] i32",
    (1, "bad-attribute", dict(width=12)),
)
calls(
    "gather.split_qkv",
    dict(x=v(12), q_width=8, kv_width=2),
    "[tokens, 8] bf16; [tokens, 2] bf16; [tokens, 2] bf16",
    (1, "shape", dict(x=v(13))),
)
calls("gather.split_q_gate", dict(x=v(24), head_dim=4), "[tokens, 12] bf16; [tokens, 12] bf16", (1, "shape", dict(x=v(20))))
calls(
    "gather.concat_cols",
    dict(values=[v(12), v(5), v(1)]),
    "[tokens, 18] bf16",
    (1, "shape", dict(values=[])),
    (2, "axis", dict(values=[v(12), v(5, rows=LANES)])),
    (2, "dtype", dict(values=[v(12), v(5, "f32")])),
)
calls("gather.select", dict(x=ids(12), index=2, width=4), "[tokens, 4] i32", (1, "bad-attribute", dict(index=3)))
calls("gather.select", dict(x=v(13), index=0, width=4), "[tokens, 4] bf16", (1, "bad-attribute", dict(index=3)))
for name in ("pack_rows", "unpack_rows"):
    calls(
        f"gather.{name}",
        dict(x=v(12), perm=ids()),
        "[tokens, 12] bf16",
        (1, "axis", dict(perm=ids(rows=LANES))),
        (1, "shape", dict(perm=ids(2))),
    )
calls("gather.group_rows", dict(x=v(12, rows="patches"), side=2), "[patches/4, 48] bf16", (1, "axis", dict(x=v(12, rows="images+1"))))
calls("gather.group_rows", dict(x=v(12, rows=8), side=2), "[2, 48] bf16", (1, "axis", dict(x=v(12, rows=6))))
calls("gather.pool_rows", dict(x=v(12, rows="patches"), side=3), "[patches/9, 12] bf16", (1, "axis", dict(x=v(12, rows="images+1"))))
for name in ("scatter_live_rows", "scatter_rows"):
    calls(
        f"gather.{name}",
        dict(src=v(12, rows="patches/4"), routes=ids(rows="patches"), y=v(12)),
        "[tokens, 12] bf16",
        (1, "shape", dict(src=v(13, rows="patches"))),
        (1, "dtype", dict(src=v(12, "f32", "patches"))),
        (2, "shape", dict(routes=ids(2, "patches"))),
    )
calls("gather.topk", dict(x=v(12), k=12), "[tokens, 12] f32; [tokens, 12] i32", (1, "bad-attribute", dict(k=13)))
for kind, taps in (("bilinear", 4), ("axes", 2)):
    calls(
        "gather.grid_taps",
        dict(positions=ids(3, "patches"), grids=ids(3, "images"), segments=ids(rows="images+1"), kind=kind, side=24),
        f"[patches, {taps}] i32; [patches, {taps}] f32",
        (1, "shape", dict(positions=ids(2, "patches"))),
        (2, "shape", dict(grids=ids(4, "images"))),
        (3, "axis", dict(segments=ids(rows="images"))),
        (3, "shape", dict(segments=ids(2, "images+1"))),
    )
calls(
    "gather.grid_taps",
    dict(positions=ids(3), grids=ids(3, 2), segments=ids(rows=3), kind="axes", side=4),
    "[tokens, 2] i32; [tokens, 2] f32",
)
calls(
    "gather.pixels",
    dict(x=v(12, "u8", "patches"), mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5], temporal=2),
    "[patches, 24] bf16",
    (1, "axis", dict(x=v(12, "u8"))),
    (1, "shape", dict(x=v(6, "u8", "patches"))),
    (1, "shape", dict(x=v(16, "u8", "patches"))),
    (2, "bad-attribute", dict(mean=[0.5])),
    (2, "bad-attribute", dict(std=[0.5, 0.5])),
    (2, "bad-attribute", dict(std=[0.5, 0.5, 0.0])),
)

calls("sampling.argmax", dict(x=v(256, "f32", "readouts")), "[readouts, 1] i32")
calls(
    "sampling.argmax",
    dict(x=[v(256), v(128, "f32")]),
    "[tokens, 2] i32",
    (1, "shape", dict(x=[])),
    (2, "axis", dict(x=[v(256), v(256, rows=LANES)])),
)

calls("collective.all_reduce", dict(x=v(12)), "[tokens, 12] bf16")
calls("collective.all_gather", dict(x=v(12), world=4), "[tokens, 48] bf16")
calls("collective.reduce_scatter", dict(x=v(12), world=4), "[tokens, 3] bf16", (1, "shape", dict(world=5)))
