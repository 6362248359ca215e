"""Calls of ops.attn."""

# ruff: noqa: C408  (arguments by name read like the calls that they describe)

from typing import Any

from poem.dtypes import Dtype
from tests.poem.ops.calls import INPUTS, MASK, calls, ids, kv, made_by, v, w

BF16 = Dtype("bf16")
SLOTS = dict(write_page=ids(), write_offset=ids())
LANES = "lanes"


def wrong_slots(rule: int) -> list[tuple[int, str, dict[str, Any]]]:
    return [
        (rule, "bad-attribute", dict(write_page=ids(), write_offset=None)),
        (rule, "bad-attribute", dict(write_page=None, write_offset=ids())),
        (rule, "axis", dict(write_page=ids(), write_offset=ids(rows=LANES))),
        (rule, "shape", dict(write_page=ids(2), write_offset=ids())),
    ]


ATTEND = dict(q=v(32), cache=kv(16, 16), inputs=INPUTS, head_dim=8, kv_heads=2, sm_scale=0.5)
calls(
    "attn.attend",
    ATTEND,
    "[tokens, 32] bf16",
    (1, "axis", dict(q=v(32, rows="readouts"))),
    (1, "shape", dict(q=v(33))),
    (2, "shape", dict(cache=kv(8, 8))),
    (2, "shape", dict(cache=kv(16, 15))),
    (2, "shape", dict(cache=kv(16, 16, 16))),
    (3, "bad-attribute", dict(cache=kv(24, 24), kv_heads=3)),
    (4, "window", dict(cache=kv(16, 16, window=8))),
    (4, "window", dict(cache=kv(16, 16, window=8), window=9)),
    (5, "bad-attribute", dict(softcap=0.0)),
    (6, "shape", dict(sinks=w(3))),
    (6, "shape", dict(sinks=v(3))),
    (6, "axis", dict(sinks=v(4, rows=LANES))),
    (7, "axis", dict(bias=v(8, "f32", LANES))),
    (7, "shape", dict(bias=v(9, "f32"))),
    (8, "axis", dict(selection=ids(3, LANES))),
    (8, "bad-attribute", dict(selection=ids(3), causal=False)),
    (9, "bad-attribute", dict(ratio=2)),
    (10, "bad-attribute", dict(log_scaling=[2.0])),
    (10, "bad-attribute", dict(log_scaling=[0.0, 0.5])),
    (11, "bad-attribute", dict(sinks=w(4), lse=True)),
)
calls("attn.attend", dict(ATTEND, cache=kv(16, 6), lse=True), "[tokens, 12] bf16; [tokens, 4] f32")
calls("attn.attend", dict(ATTEND, cache=kv(16), causal=False, mask=MASK, sinks=v(4, "f32")), "[tokens, 32] bf16")
calls("attn.attend", dict(ATTEND, cache=kv(16, 16, window=8), window=8, softcap=50.0, sinks=w(4)), "[tokens, 32] bf16")
calls("attn.attend", dict(ATTEND, bias=v(20, "f32"), selection=ids(3), ratio=4, log_scaling=[8.0, 0.1]), "[tokens, 32] bf16")

calls(
    "attn.plan_prefill",
    dict(inputs=INPUTS, q_heads=4, kv_heads=2, head_dim=8, window=5),
    "a plan",
    (1, "bad-attribute", dict(kv_heads=3)),
)
PREFILL = dict(
    q=v(32),
    plan=made_by("attn.plan_prefill", inputs=INPUTS, q_heads=4, kv_heads=2, head_dim=8),
    cache=kv(16, 16),
    window=None,
    head_dim=8,
    kv_heads=2,
    sm_scale=0.5,
)
calls(
    "attn.prefill",
    PREFILL,
    "[tokens, 32] bf16",
    (1, "bad-attribute", dict(head_dim=4)),
    (1, "bad-attribute", dict(kv_heads=4)),
    (1, "bad-attribute", dict(window=3)),
    (2, "axis", dict(q=v(32, rows=LANES))),
    (2, "shape", dict(q=v(16))),
    (3, "shape", dict(cache=kv(8, 8))),
    (4, "window", dict(cache=kv(16, 16, window=8))),
)
calls("attn.prefill", dict(PREFILL, cache=kv(16, 6)), "[tokens, 12] bf16")

calls(
    "attn.kv_append",
    dict(k=v(16), v=v(6, "f32"), cache=kv(16, 6), **SLOTS),
    "",
    (1, "axis", dict(k=v(16, rows=LANES))),
    (1, "axis", dict(v=v(6, rows=LANES))),
    (2, "shape", dict(cache=kv(16, 8))),
    (2, "shape", dict(cache=kv(16))),
    *wrong_slots(3),
)
calls("attn.kv_append", dict(k=v(16), v=v(16), cache=kv(16, 16)), "")
calls(
    "attn.kv_append_shared",
    dict(kv=v(16), cache=kv(16), **SLOTS),
    "",
    (1, "axis", dict(kv=v(16, rows=LANES))),
    (2, "shape", dict(cache=kv(16, 16))),
    *wrong_slots(3),
)
calls("attn.logit_softcap", dict(x=v(12, rows="readouts"), cap=30.0), "[readouts, 12] bf16", (1, "bad-attribute", dict(cap=0.0)))
calls(
    "attn.sink",
    dict(o=v(32), lse=v(4, "f32"), sinks=w(4), head_dim=8),
    "[tokens, 32] bf16",
    (1, "axis", dict(o=v(32, rows=LANES))),
    (1, "shape", dict(o=v(33))),
    (2, "axis", dict(lse=v(4, "f32", LANES))),
    (2, "shape", dict(lse=v(3, "f32"))),
    (3, "shape", dict(sinks=w(3))),
)
calls(
    "attn.merge_lse",
    dict(o1=v(32), lse1=v(4, "f32"), o2=v(32), lse2=v(4, "f32"), heads=4, head_dim=8),
    "[tokens, 32] bf16; [tokens, 4] f32",
    (1, "axis", dict(o1=v(32, rows=LANES))),
    (1, "shape", dict(o1=v(24))),
    (2, "axis", dict(o2=v(32, rows=LANES))),
    (2, "shape", dict(o2=v(24))),
    (2, "dtype", dict(o2=v(32, "f32"))),
    (3, "axis", dict(lse1=v(4, "f32", LANES))),
    (3, "shape", dict(lse2=v(3, "f32"))),
)
DENSE = dict(
    q=v(32, rows="patches"),
    k=v(16, rows="patches"),
    v=v(6, rows="patches"),
    q_indptr=ids(rows="images+1"),
    kv_indptr=ids(rows="images+1"),
    head_dim=8,
    kv_heads=2,
    sm_scale=1.0,
)
calls(
    "attn.dense",
    DENSE,
    "[patches, 12] bf16",
    (1, "shape", dict(q=v(33, rows="patches"))),
    (2, "shape", dict(k=v(8, rows="patches"))),
    (2, "dtype", dict(k=v(16, "f32", "patches"))),
    (3, "axis", dict(v=v(6))),
    (3, "dtype", dict(v=v(6, "f32", "patches"))),
    (3, "shape", dict(v=v(7, rows="patches"))),
    (4, "bad-attribute", dict(k=v(24, rows="patches"), kv_heads=3)),
    (5, "shape", dict(q_indptr=ids(2, "images+1"))),
    (5, "shape", dict(kv_indptr=ids(2, "images+1"))),
    (5, "axis", dict(q_indptr=ids(rows="images"), kv_indptr=ids(rows="images"))),
    (5, "axis", dict(kv_indptr=ids(rows="lanes+1"))),
    (6, "axis", dict(bias=v(9, "f32", 2))),
    (6, "shape", dict(bias=v(8, "f32", 4))),
    (7, "bad-attribute", dict(tags=[ids(rows="patches")])),
    (7, "axis", dict(tags=[ids(rows="patches"), ids()])),
    (7, "shape", dict(tags=[ids(2, "patches"), ids(rows="patches")])),
)
calls(
    "attn.dense",
    dict(DENSE, q=v(32), tags=(ids(), ids(rows="patches")), bias=v(9, "f32", 4), lse=True, causal=True),
    "[tokens, 12] bf16; [tokens, 4] f32",
)
calls("attn.dense", dict(DENSE, q_indptr=ids(rows=3), kv_indptr=ids(rows=3)), "[patches, 12] bf16")

calls(
    "attn.mla_split_q",
    dict(q=v(20), heads=2, nope_dim=6, rope_dim=4),
    "[tokens, 12] bf16; [tokens, 8] bf16",
    (1, "axis", dict(q=v(20, rows=LANES))),
    (1, "shape", dict(q=v(21))),
)
calls(
    "attn.mla_latents",
    dict(kv_a=v(20, rows="readouts"), norm=w(16), eps=1e-6, kv_lora_rank=16),
    "[readouts, 16] bf16; [readouts, 4] bf16",
    (1, "shape", dict(kv_a=v(16))),
    (2, "shape", dict(norm=w(20))),
    (3, "bad-attribute", dict(eps=-1.0)),
)
calls(
    "attn.mla_latents_rope",
    dict(kv_a=v(20), positions=ids(), norm=w(16), eps=1e-6, kv_lora_rank=16, rope_dim=4, theta=1e4, form="interleaved"),
    "[tokens, 16] bf16; [tokens, 4] bf16",
    (1, "axis", dict(kv_a=v(20, rows=LANES))),
    (1, "shape", dict(kv_a=v(21))),
    (2, "shape", dict(norm=w(20))),
    (3, "bad-attribute", dict(eps=-1.0)),
    (4, "axis", dict(positions=ids(rows=LANES))),
    (4, "shape", dict(positions=ids(3))),
    (5, "bad-attribute", dict(rope_dim=5, kv_a=v(21))),
    (6, "bad-attribute", dict(theta=0.0)),
)
calls(
    "attn.mla_kv_append",
    dict(kv_c=v(16), k_pe=v(4), cache=kv(16, 4), **SLOTS),
    "",
    (1, "axis", dict(kv_c=v(16, rows=LANES))),
    (1, "axis", dict(k_pe=v(4, rows=LANES))),
    (2, "shape", dict(cache=kv(16, 8))),
    *wrong_slots(3),
)
ABSORB = dict(kv_b=w(2 * (6 + 5), 16), heads=2, kv_lora_rank=16, nope_dim=6, v_head_dim=5)
calls(
    "attn.mla_absorb_q",
    dict(ABSORB, q_nope=v(12)),
    "[tokens, 32] bf16",
    (1, "shape", dict(q_nope=v(13))),
    (2, "shape", dict(kv_b=w(16, 22))),
)
calls(
    "attn.mla_absorb_out",
    dict(ABSORB, latent=v(32)),
    "[tokens, 10] bf16",
    (1, "shape", dict(latent=v(16))),
    (2, "shape", dict(kv_b=w(16, 22))),
)
MLA = dict(q_latent=v(32), q_pe=v(8), cache=kv(16, 4), inputs=INPUTS, heads=2, kv_lora_rank=16, sm_scale=0.3)
calls(
    "attn.mla_attend",
    MLA,
    "[tokens, 32] bf16",
    (1, "axis", dict(q_latent=v(32, rows=LANES))),
    (1, "shape", dict(q_latent=v(33))),
    (2, "shape", dict(cache=kv(16))),
    (2, "shape", dict(cache=kv(8, 4))),
    (3, "axis", dict(q_pe=v(8, rows=LANES))),
    (3, "dtype", dict(q_pe=v(8, "f32"))),
    (3, "shape", dict(q_pe=v(4))),
    (4, "window", dict(cache=kv(16, 4, window=1000))),
    (5, "axis", dict(selection=ids(3, LANES))),
    (6, "bad-attribute", dict(ratio=4)),
)
calls("attn.mla_attend", dict(MLA, selection=ids(3), ratio=4, lse=True), "[tokens, 32] bf16; [tokens, 2] f32")

calls(
    "attn.index_rope",
    dict(q=v(32), positions=ids(), heads=4, head_dim=8, rope_dim=4, theta=1e4),
    "[tokens, 32] bf16",
    (1, "shape", dict(q=v(24))),
    (2, "axis", dict(positions=ids(rows=LANES))),
    (2, "shape", dict(positions=ids(3))),
    (3, "bad-attribute", dict(rope_dim=3)),
    (3, "bad-attribute", dict(rope_dim=10)),
    (4, "bad-attribute", dict(theta=-1.0)),
)
calls(
    "attn.index_layernorm_rope",
    dict(k=v(8), positions=ids(), norm=w(8), eps=1e-6, bias=w(8), rope_dim=4, theta=1e4),
    "[tokens, 8] bf16",
    (1, "axis", dict(k=v(8, rows=LANES))),
    (2, "axis", dict(positions=ids(rows=LANES))),
    (2, "shape", dict(positions=ids(3))),
    (3, "shape", dict(norm=w(7))),
    (3, "shape", dict(bias=w(7))),
    (4, "bad-attribute", dict(eps=-1.0)),
    (5, "bad-attribute", dict(rope_dim=3)),
    (5, "bad-attribute", dict(rope_dim=10)),
    (6, "bad-attribute", dict(theta=0.0)),
)
calls(
    "attn.index_kv_append",
    dict(k=v(8), keys=kv(8), **SLOTS),
    "",
    (1, "axis", dict(k=v(8, rows=LANES))),
    (2, "shape", dict(keys=kv(8, 8))),
    *wrong_slots(3),
)
calls(
    "attn.index_topk",
    dict(q=v(32), weights=v(4, "f32"), keys=kv(8), heads=4, head_dim=8, top_k=6, ratio=2),
    "[tokens, 6] i32",
    (1, "axis", dict(q=v(32, rows=LANES))),
    (1, "shape", dict(q=v(24))),
    (2, "axis", dict(weights=v(4, rows=LANES))),
    (2, "shape", dict(weights=v(3))),
    (3, "shape", dict(keys=kv(4))),
    (4, "window", dict(keys=kv(8, window=100))),
)
calls("attn.index_topk", dict(q=v(32), weights=None, keys=kv(8), heads=4, head_dim=8, top_k=6), "[tokens, 6] i32")

calls(
    "attn.pool_boundary",
    dict(positions=ids(), ratio=4, row_valid=v(1, "u8")),
    "[tokens, 1] i32; [tokens, 1] i32; [tokens, 1] i32",
    (1, "axis", dict(positions=ids(rows=LANES))),
    (1, "shape", dict(positions=ids(3))),
    (2, "axis", dict(row_valid=v(1, "u8", LANES))),
    (2, "shape", dict(row_valid=v(2, "u8"))),
)
for planes in ((8, 8), (16, 16)):
    calls(
        "attn.pool_state_write",
        dict(kv=v(planes[0]), score=v(planes[1], "f32"), cache=kv(*planes), head_dim=8, ratio=4, **SLOTS),
        "",
        (1, "axis", dict(kv=v(planes[0], rows=LANES))),
        (1, "axis", dict(score=v(planes[1], rows=LANES))),
        (2, "shape", dict(cache=kv(24, 24))),
        (2, "shape", dict(cache=kv(8, 16))),
        (3, "shape", dict(kv=v(4))),
        (3, "shape", dict(score=v(4))),
        *wrong_slots(4),
    )
    calls(
        "attn.pool_gather",
        dict(boundary_pos=ids(), boundary_req=ids(), cache=kv(*planes), ape=w(4, planes[0]), head_dim=8, ratio=4, dtype=BF16),
        "[tokens, 8] bf16",
        (1, "axis", dict(boundary_pos=ids(rows=LANES))),
        (1, "shape", dict(boundary_req=ids(2))),
        (2, "shape", dict(cache=kv(24, 24))),
        (2, "shape", dict(cache=kv(8, 16))),
        (3, "shape", dict(ape=w(4, 9))),
        (3, "shape", dict(ape=w(3, planes[0]))),
        (4, "bad-attribute", dict(dtype=Dtype("e4m3"))),
        (5, "window", dict(cache=kv(*planes, window=4 * planes[0] // 8 - 1))),
    )
calls(
    "attn.pool_gather",
    dict(boundary_pos=ids(), boundary_req=ids(), cache=kv(8, 8, window=4), ape=None, head_dim=8, ratio=4, dtype=Dtype("f32")),
    "[tokens, 8] f32",
)
calls(
    "attn.index_block_mean",
    dict(boundary_pos=ids(), boundary_req=ids(), keys=kv(8), head_dim=8, ratio=4, dtype=BF16),
    "[tokens, 8] bf16",
    (1, "axis", dict(boundary_req=ids(rows=LANES))),
    (1, "shape", dict(boundary_pos=ids(2))),
    (2, "shape", dict(keys=kv(8, 8))),
    (3, "bad-attribute", dict(dtype=Dtype("i32"))),
    (4, "window", dict(keys=kv(8, window=3))),
)
calls(
    "attn.pool_kv_append",
    dict(entries=v(8), boundary_pos=ids(), boundary_req=ids(), cache=kv(8)),
    "",
    (1, "axis", dict(entries=v(8, rows=LANES))),
    (2, "axis", dict(boundary_pos=ids(rows=LANES))),
    (2, "shape", dict(boundary_req=ids(2))),
    (3, "shape", dict(cache=kv(4))),
)
calls(
    "attn.pool_lse",
    dict(q=v(32), positions=ids(), request_of_token=ids(), entries=kv(8), ratio=4, heads=4, head_dim=8, sm_scale=1.0, selection=ids(3)),
    "[tokens, 32] bf16; [tokens, 4] f32",
    (1, "axis", dict(q=v(32, rows=LANES))),
    (1, "shape", dict(q=v(24))),
    (2, "axis", dict(positions=ids(rows=LANES))),
    (2, "shape", dict(request_of_token=ids(2))),
    (3, "shape", dict(entries=kv(16))),
    (4, "window", dict(entries=kv(8, window=100))),
    (5, "axis", dict(selection=ids(3, LANES))),
)
calls(
    "attn.block_dyn_conv",
    dict(x=v(12), coeff=v(18), base=w(6, 12), side=1, taps=3, group=4),
    "[tokens, 12] bf16",
    (1, "axis", dict(x=v(12, rows=LANES))),
    (2, "shape", dict(group=5)),
    (3, "axis", dict(coeff=v(18, rows=LANES))),
    (3, "dtype", dict(coeff=v(18, "f32"))),
    (3, "shape", dict(coeff=v(9))),
    (4, "shape", dict(base=w(3, 12))),
    (5, "bad-attribute", dict(side=2)),
)
calls("attn.block_dyn_conv", dict(x=v(12), coeff=v(18), base=w(6, 12), side=0, taps=3, group=4), "[tokens, 12] bf16")
calls(
    "attn.selector_walk",
    dict(cand=ids(5), unary=v(5, "f32"), hp=v(3), tokens=ids(), pred=w(100, 3), succ=w(100, 3), first=0),
    "[tokens, 1] i32",
    (1, "axis", dict(cand=ids(5, LANES))),
    (2, "axis", dict(unary=v(5, "f32", LANES))),
    (2, "shape", dict(unary=v(4, "f32"))),
    (3, "axis", dict(tokens=ids(rows=LANES))),
    (3, "shape", dict(tokens=ids(2))),
    (4, "shape", dict(pred=w(100))),
    (4, "shape", dict(succ=w(100, 4))),
    (5, "axis", dict(hp=v(3, rows=LANES))),
    (5, "shape", dict(hp=v(4))),
    (6, "bad-attribute", dict(first=2)),
)
calls(
    "attn.selector_walk",
    dict(cand=ids(5), unary=v(5, "f32"), hp=None, tokens=ids(), pred=w(9, 3), succ=w(9, 3), first=1),
    "[tokens, 1] i32",
)
