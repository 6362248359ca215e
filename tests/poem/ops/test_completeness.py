"""The registry holds the ops of the language, with these signatures, and nothing else.

The list was written from the published description of the language, not from the registry.
"""

import inspect
import re

import pytest

from poem.ops import NAMESPACES, REGISTRY, SPELLINGS
from poem.ops.record import Op
from poem.ops.spellings import spelled_today

LISTED = """
linear.matmul(x, w, out=None)
linear.lm_head(x, w, out=None)
linear.group_routes(x, groups)
linear.matmul_grouped(x, w, routes, groups)
linear.glu(x, inter, act="silu", up=None, limit=None, alpha=None, beta=None, up_cap=None)
linear.gelu_tanh(x)
linear.moe_route(logits, experts, top_k, score="softmax", bias=None, expert_scale=None, renormalize=True, scaling=1.0,
    groups=None, group_top_k=None, sinks=0, ids=None, table=None, group_score=None)
linear.moe_matmul_select(x, bank, routes, top_k, bias=None)
linear.moe_weighted_sum(routed, weights, routes=None, bias=None)
elemwise.add(x, y)
elemwise.mul(x, y)
elemwise.residual_add(x, y)
elemwise.mul_scalar(s, x)
elemwise.scale(s, x)
elemwise.clamp(x, lo, hi)
elemwise.copy(x)
elemwise.add_bias(bias, x)
elemwise.standardize(x, bias, scale)
elemwise.gate_sigmoid_mul(x, gate)
elemwise.silu(x)
elemwise.gelu(x, tanh=False)
elemwise.gated_residual_add(r, g, y, lane_of_row=None)
elemwise.modulate(x, m, lane_of_row=None, form="scale_shift")
elemwise.rmsnorm(x, w, eps)
elemwise.rmsnorm_plus_one(x, w, eps)
elemwise.rmsnorm_per_head(x, w, head_dim, eps)
elemwise.rmsnorm_per_head_plus_one(x, w, head_dim, eps)
elemwise.rmsnorm_no_scale(x, head_dim, eps)
elemwise.rmsnorm_grouped_plus_one(x, w, group, eps)
elemwise.rmsnorm_gated(x, gate, w, head_dim, eps, act="silu", gate_first=False)
elemwise.layernorm(x, w=None, b=None, eps=1e-5)
elemwise.rope(q, k, positions, head_dim, theta, rotary_dim=None, form="half", part="first", scaling=None, sections=None, inverse=False)
elemwise.rope_axes(x, positions, dims, thetas, form, rotary_dim, head_dim)
elemwise.sinusoid(t, dim, max_period=10000.0, flip_sin_cos=True, scale=1.0)
attn.attend(q, cache, inputs, head_dim, kv_heads, sm_scale, window=None, causal=True, softcap=None, mask=None, sinks=None, bias=None,
    selection=None, ratio=1, log_scaling=None, lse=False)
attn.plan_prefill(inputs, q_heads, kv_heads, head_dim, window=None)
attn.prefill(q, plan, cache, window, head_dim, kv_heads, sm_scale)
attn.kv_append(k, v, cache, write_page=None, write_offset=None)
attn.logit_softcap(x, cap)
attn.mla_latents(kv_a, norm, eps, kv_lora_rank)
attn.mla_kv_append(kv_c, k_pe, cache, write_page=None, write_offset=None)
attn.mla_absorb_q(q_nope, kv_b, heads, kv_lora_rank, nope_dim, v_head_dim)
attn.mla_absorb_out(latent, kv_b, heads, kv_lora_rank, nope_dim, v_head_dim)
attn.index_rope(q, positions, heads, head_dim, rope_dim, theta, form="interleaved")
attn.index_kv_append(k, keys, write_page=None, write_offset=None)
attn.index_topk(q, weights, keys, heads, head_dim, top_k, ratio=1)
attn.pool_gather(boundary_pos, boundary_req, cache, ape, head_dim, ratio, dtype)
attn.pool_kv_append(entries, boundary_pos, boundary_req, cache, write_page=None, write_offset=None)
ssm.gdn_gates(ba, dt_bias, a_log)
ssm.causal_conv1d(x, weight, state, conv_width, bias=None, act="silu", dilation=1)
ssm.causal_conv1d_chunked(x, weight, state, conv_width, bias=None, act="silu", dilation=1)
gather.embed(ids, table, vocab)
gather.embed_weighted(ids, weights, table, vocab)
gather.gather_rows(x, rows)
gather.split_rows(x, width)
gather.split_qkv(x, q_width, kv_width)
gather.split_q_gate(x, head_dim)
gather.concat_cols(values)
gather.pack_rows(x, perm)
gather.unpack_rows(x, perm)
gather.group_rows(x, side)
gather.scatter_live_rows(src, routes, y)
gather.pixels(x, mean, std, order="chw", temporal=1)
conv.conv3d(x, grid, w, bias, conv, cache=None)
conv.cells(grid, rule)
conv.patchify(x, grid, p, tgrid)
conv.unpatchify(x, tgrid, p, grid)
conv.pixel_shuffle(x, grid, r)
conv.upsample_nearest(x, grid, factor, keep_first_frame=False)
sampling.argmax(x)
"""

EXTENSION = """
linear.moe_bias_sum(x, bias, routes, weights)
linear.moe_sigmoid_gate_add(routed, shared, gate)
linear.rel_bias(x, w, heads, d_rel, extent)
linear.lora_correct(x, bank_a, bank_b, routes, y)
elemwise.rmsnorm_gated_by(x, gate, w, heads, eps)
elemwise.layernorm_no_scale(x, eps)
elemwise.tanh(x)
elemwise.relu(x)
elemwise.relu2(x)
elemwise.silu_scaled(s, x)
elemwise.clamp_learned(x, lo, hi)
elemwise.cast(x, dtype)
elemwise.gate_sigmoid_mul_heads(x, gate, head_dim, scale)
elemwise.hadamard(x, block, signs=None)
elemwise.relative_bucket_bias(inputs, embedding, max_len, buckets, max_distance, bidirectional)
elemwise.res_blend(prefix, blocks, norm, eps, proj, scale=1.0, values="raw")
elemwise.hc_expand(x, stream_count)
elemwise.hc_rmsnorm_f32(streams, eps)
elemwise.hc_project(normed, dynamic, stream_count)
elemwise.hc_gates(mixes, streams, scale, base, stream_count, eps, alpha, sinkhorn)
elemwise.hc_fold(x, streams, post, comb)
elemwise.hc_collapse(mixes, streams, scale, base, stream_count, eps)
elemwise.hc_mean(streams, stream_count)
elemwise.hc_mix(gates, normed, stream_count)
elemwise.hc_inject(o, gates, stream_count, hyper)
elemwise.ple_gate(key, query, value, stream_count)
attn.dense(q, k, v, q_indptr, kv_indptr, head_dim, kv_heads, sm_scale, causal=False, bias=None, tags=None, lse=False)
attn.kv_append_shared(kv, cache, write_page=None, write_offset=None)
attn.sink(o, lse, sinks, head_dim)
attn.merge_lse(o1, lse1, o2, lse2, heads, head_dim)
attn.mla_split_q(q, heads, nope_dim, rope_dim)
attn.mla_latents_rope(kv_a, positions, norm, eps, kv_lora_rank, rope_dim, theta, form="half")
attn.mla_attend(q_latent, q_pe, cache, inputs, heads, kv_lora_rank, sm_scale, selection=None, ratio=1, lse=False)
attn.index_layernorm_rope(k, positions, norm, eps, bias, rope_dim, theta, form="interleaved")
attn.index_block_mean(boundary_pos, boundary_req, keys, head_dim, ratio, dtype)
attn.pool_boundary(positions, ratio, row_valid=None)
attn.pool_state_write(kv, score, cache, head_dim, ratio, write_page=None, write_offset=None)
attn.pool_lse(q, positions, request_of_token, entries, ratio, heads, head_dim, sm_scale, selection=None)
attn.block_dyn_conv(x, coeff, base, side, taps, group)
attn.selector_walk(cand, unary, hp, tokens, pred, succ, first)
ssm.gated_delta(qkv, gates, state, k_heads, v_heads, k_dim, v_dim)
ssm.kda(mixed, f, b, dt_bias, a_log, state, heads, head_dim, norm_eps, gate_floor)
ssm.ssd_scan(x, dt, a_log, d, dt_bias, state, heads, head_dim, groups, state_dim, dt_min=0.0, dt_max=None)
ssm.selective_scan(x, dt, b, c, a_log, d, dt_bias, state, gate=None)
ssm.short_conv(x, weight, state, conv_width)
ssm.short_conv_chunked(x, weight, state, conv_width)
ssm.ngram_ids(ids, state, eos, mults, primes, offsets, heads_per_ngram, map=None)
gather.embed_concat(ids, table, vocab)
gather.select(x, index, width)
gather.pool_rows(x, side)
gather.topk(x, k)
gather.grid_taps(positions, grids, segments, kind, side)
gather.scatter_rows(src, routes, y)
conv.group_norm(x, grid, groups, w, b, eps, silu=False)
conv.pixel_unshuffle(x, grid, r)
conv.pixel_shuffle_trimming(x, grid, r, trim_t)
conv.avg_down(x, grid, factor, group)
conv.attention(q, k, v, grid, sm_scale)
conv.attention_over(q, k, v, grid, segment, sm_scale)
conv.store_frames(x, grid, cache, frames)
collective.all_reduce(x)
collective.all_gather(x, world)
collective.reduce_scatter(x, world)
"""

# Names of older packages, by namespace.
OLDER = {
    "linear": """mlp_swiglu mlp_swiglu_clamp mlp_swiglu_clamp_split mlp_swiglu_clamp_alpha mlp_geglu_tanh mlp_geglu_tanh_packed mlp_situ
        mlp_gelu_tanh moe_topk_softmax moe_topk_softmax_scaled moe_topk_sigmoid moe_topk_sigmoid_biased moe_topk_sigmoid_sink
        moe_topk_sqrt_softplus moe_hash_route moe_predict_route moe_matmul_select_bias moe_matmul_select_quant moe_hash_route_hinted""",
    "elemwise": """rope_full rope_partial rope_partial_q rope_partial_last rope_partial_last_yarn rope_yarn rope_mrope hadamard_plain
        hadamard_signed""",
    "attn": """decode decode_lse prefill_lse masked masked_lse decode_rel prefill_rel decode_selected prefill_selected plan_decode ragged
        mla_split_q_b mla_plan mla_decode mla_prefill mla_decode_selected mla_prefill_selected pool_boundary_decode
        pool_boundary_prefill pool_lse_selected ssm_gdn_prep ssm_causal_conv1d ssm_causal_conv1d_chunked ssm_causal_conv1d_dilated
        ssm_causal_conv1d_chunked_dilated ssm_gated_delta ssm_gated_delta_chunked ssm_kda_step ssm_kda_chunked short_conv
        short_conv_chunked ple_ngram_ids ple_ngram_ids_chunked""",
    "layout": "merge_rows argmax",
    "spatial": "grid",
}


def signatures(text: str) -> dict[str, str]:
    """Name -> the whole signature on one line."""
    lines = re.sub(r"\n {4}", " ", text.strip()).splitlines()
    return {line.split("(")[0]: line for line in lines}


def written(op: Op) -> str:
    """The signature as the list writes it."""
    return op.signature().removeprefix("ops.").replace("'", '"').replace("1e-05", "1e-5")


def test_the_registry_has_these_ops_and_no_others() -> None:
    assert set(REGISTRY) == set(signatures(LISTED)) | set(signatures(EXTENSION))


@pytest.mark.parametrize("text", [LISTED, EXTENSION], ids=["listed", "extension"])
def test_signatures_have_this_order_and_these_defaults(text: str) -> None:
    assert {name: written(REGISTRY[name]) for name in signatures(text)} == signatures(text)


def test_extension_ops_are_marked() -> None:
    assert {name for name, op in REGISTRY.items() if op.extension} == set(signatures(EXTENSION))


def test_namespaces_are_those_of_the_language() -> None:
    assert {op.namespace for op in REGISTRY.values()} == set(NAMESPACES)


@pytest.mark.parametrize("op", REGISTRY.values(), ids=lambda op: op.full_name)
def test_an_op_says_what_a_reader_must_know(op: Op) -> None:
    assert op.rule.__module__.startswith("poem.ops."), op.rule.__module__
    for section in ("", "Shapes", "Formula", "Rounding", "For"):
        assert op.documentation.get(section), f"no {section or 'summary'}"
    assert "\n\n" not in op.documentation[""], "the summary is one paragraph"
    described = " ".join(op.documentation.values())
    for parameter in op.parameters:
        assert re.search(rf"\b{parameter.name}\b", described), f"{parameter.name} is not described"


def test_second_names_share_the_rule() -> None:
    seconds = {name: f"{op.namespace}.{op.same_as}" for name, op in REGISTRY.items() if op.same_as}
    assert seconds == {"ssm.causal_conv1d_chunked": "ssm.causal_conv1d", "ssm.short_conv_chunked": "ssm.short_conv"}
    for second, first in seconds.items():
        assert REGISTRY[second].rule is REGISTRY[first].rule


def test_every_older_spelling_is_known() -> None:
    wanted = {f"{namespace}.{name}" for namespace, names in OLDER.items() for name in names.split()}
    assert not wanted - set(SPELLINGS)


def test_an_older_spelling_is_no_op_and_names_one_with_its_parameters() -> None:
    for old, new in SPELLINGS.items():
        assert old not in REGISTRY, old
        match = re.match(r"ops\.(\w+\.\w+)\((.*)\)", new)
        if match is None:
            assert new.removeprefix("ops.") in NAMESPACES, f"{old} -> {new}"
            continue
        parameters = {parameter.name for parameter in REGISTRY[match[1]].parameters}
        named = re.findall(r"(\w+) = ", match[2])
        assert set(named) <= parameters, f"{old} -> {new}"


def test_older_namespaces_point_to_the_op_of_that_name() -> None:
    assert spelled_today("layout.embed") == "ops.gather.embed(ids, table, vocab)"
    assert spelled_today("layout.no_such") == "ops.gather"
    assert spelled_today("layout") == "ops.gather"
    assert spelled_today("spatial.patchify") == "ops.conv.patchify(x, grid, p, tgrid)"
    assert spelled_today("linear.matmul") == ""
    assert spelled_today("linear.no_such") == ""


def test_rules_of_ops_are_found_where_they_are_written() -> None:
    source = inspect.getsource(REGISTRY["linear.matmul"].rule)
    assert all(rule in " ".join(source.split()) for rule in REGISTRY["linear.matmul"].rules.values())
