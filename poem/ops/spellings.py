"""Spellings that older packages use, and what to write instead. Names are without the `ops.` prefix."""

from poem.ops.record import REGISTRY

_ROUTE = "ops.linear.moe_route(logits, experts, top_k"
_ATTEND = "ops.attn.attend(q, cache, inputs, head_dim, kv_heads, sm_scale"
_ROPE = "ops.elemwise.rope(q, k, positions, head_dim, theta"
_MLA = "ops.attn.mla_attend(q_latent, q_pe, cache, inputs, heads, kv_lora_rank, sm_scale"
_CONV1D = "ops.ssm.causal_conv1d(x, weight, state, conv_width"
_DELTA = "ops.ssm.gated_delta(qkv, gates, state, k_heads, v_heads, k_dim, v_dim)"
_KDA = "ops.ssm.kda(mixed, f, b, dt_bias, a_log, state, heads, head_dim, norm_eps, gate_floor)"
_NGRAM = "ops.ssm.ngram_ids(ids, state, eos, mults, primes, offsets, heads_per_ngram)"
_SELECT = "ops.linear.moe_matmul_select(x, bank, routes, top_k"

_ROUTES = {
    "moe_topk_softmax": f"{_ROUTE})",
    "moe_topk_softmax_scaled": f"{_ROUTE}, expert_scale = expert_scale)",
    "moe_topk_sigmoid": f'{_ROUTE}, score = "sigmoid")',
    "moe_topk_sigmoid_biased": f'{_ROUTE}, score = "sigmoid", bias = bias)',
    "moe_topk_sigmoid_sink": f'{_ROUTE}, score = "sigmoid", sinks = sinks)',
    "moe_topk_sqrt_softplus": f'{_ROUTE}, score = "sqrt_softplus")',
    "moe_hash_route": f'{_ROUTE}, score = "sqrt_softplus", ids = ids, table = table)',
}

# A namespace that older packages use stands for the one named.
SPELLINGS = {
    "layout": "ops.gather",
    "spatial": "ops.conv",
    "linear.mlp_swiglu": "ops.linear.glu(x, inter)",
    "linear.mlp_swiglu_clamp": "ops.linear.glu(x, inter, limit = limit)",
    "linear.mlp_swiglu_clamp_split": "ops.linear.glu(x, inter, up = up, limit = limit)",
    "linear.mlp_swiglu_clamp_alpha": "ops.linear.glu(x, inter, limit = limit, alpha = alpha)",
    "linear.mlp_geglu_tanh": 'ops.linear.glu(x, inter, "gelu_tanh", up = up)',
    "linear.mlp_geglu_tanh_packed": 'ops.linear.glu(x, inter, "gelu_tanh")',
    "linear.mlp_situ": 'ops.linear.glu(x, inter, "situ", beta = beta, up_cap = up_cap)',
    "linear.mlp_gelu_tanh": "ops.linear.gelu_tanh(x)",
    **{f"linear.{name}": call for name, call in _ROUTES.items()},
    **{f"linear.{name}_hinted": f"{call} without the hint" for name, call in _ROUTES.items()},
    "linear.moe_predict_route": f'{_ROUTE}, score = "sqrt_softplus"), whose weights are not used',
    "linear.moe_matmul_select_bias": f"{_SELECT}, bias = bias)",
    "linear.moe_matmul_select_quant": f"{_SELECT})",
    "elemwise.rope_full": f"{_ROPE})",
    "elemwise.rope_partial": f'{_ROPE}, rotary_dim = rotary_dim); Gemma 4\'s global layers take form = "proportional" as well',
    "elemwise.rope_partial_q": "ops.elemwise.rope(q, None, positions, head_dim, theta, rotary_dim = rotary_dim)",
    "elemwise.rope_partial_last": f'{_ROPE}, rotary_dim = rotary_dim, part = "last", form = form)',
    "elemwise.rope_partial_last_yarn": f'{_ROPE}, rotary_dim = rotary_dim, part = "last", form = form, scaling = yarn(...))',
    "elemwise.rope_yarn": f"{_ROPE}, scaling = yarn(...))",
    "elemwise.rope_mrope": f"{_ROPE}, form = form, sections = sections)",
    "elemwise.hadamard_plain": "ops.elemwise.hadamard(x, block)",
    "elemwise.hadamard_signed": "ops.elemwise.hadamard(x, block, signs)",
    "attn.decode": f"{_ATTEND})",
    "attn.decode_lse": f"{_ATTEND}, lse = True)",
    "attn.prefill_lse": f"{_ATTEND}, lse = True)",
    "attn.masked": f"{_ATTEND}, mask = inputs.mask())",
    "attn.masked_lse": f"{_ATTEND}, mask = inputs.mask(), lse = True)",
    "attn.decode_rel": f"{_ATTEND}, bias = bias)",
    "attn.prefill_rel": f"{_ATTEND}, bias = bias)",
    "attn.decode_selected": f"{_ATTEND}, selection = selection)",
    "attn.prefill_selected": f"{_ATTEND}, selection = selection)",
    "attn.plan_decode": "ops.attn.plan_prefill(inputs, q_heads, kv_heads, head_dim)",
    "attn.ragged": "ops.attn.dense(q, k, v, q_indptr, kv_indptr, head_dim, kv_heads, sm_scale)",
    "attn.mla_split_q_b": "ops.attn.mla_split_q(q, heads, nope_dim, rope_dim)",
    "attn.mla_plan": f"{_MLA}), which needs no plan",
    "attn.mla_decode": f"{_MLA})",
    "attn.mla_prefill": f"{_MLA})",
    "attn.mla_decode_selected": f"{_MLA}, selection = selection)",
    "attn.mla_prefill_selected": f"{_MLA}, selection = selection)",
    "attn.pool_boundary_decode": "ops.attn.pool_boundary(positions, ratio)",
    "attn.pool_boundary_prefill": "ops.attn.pool_boundary(positions, ratio, row_valid)",
    "attn.pool_lse_selected": (
        "ops.attn.pool_lse(q, positions, request_of_token, entries, ratio, heads, head_dim, sm_scale, selection = selection)"
    ),
    "attn.ssm_gdn_prep": "ops.ssm.gdn_gates(ba, dt_bias, a_log)",
    "attn.ssm_causal_conv1d": f"{_CONV1D})",
    "attn.ssm_causal_conv1d_chunked": f"{_CONV1D})",
    "attn.ssm_causal_conv1d_dilated": f"{_CONV1D}, dilation = dilation)",
    "attn.ssm_causal_conv1d_chunked_dilated": f"{_CONV1D}, dilation = dilation)",
    "attn.ssm_gated_delta": f"{_DELTA} without z",
    "attn.ssm_gated_delta_chunked": f"{_DELTA} without z",
    "attn.ssm_kda_step": _KDA,
    "attn.ssm_kda_chunked": _KDA,
    "attn.short_conv": "ops.ssm.short_conv(x, weight, state, conv_width)",
    "attn.short_conv_chunked": "ops.ssm.short_conv(x, weight, state, conv_width)",
    "attn.ple_ngram_ids": _NGRAM,
    "attn.ple_ngram_ids_chunked": _NGRAM,
    "layout.merge_rows": "ops.gather.group_rows(x, side)",
    "layout.argmax": "ops.sampling.argmax(x)",
    "spatial.grid": "ops.conv.cells(grid, rule)",
}


def spelled_today(name: str) -> str:
    """What to write instead of `ops.<name>`, or "" if that is no known older spelling."""
    known = SPELLINGS.get(name)
    if known is not None:
        return known
    namespace, _, short = name.partition(".")
    instead = SPELLINGS.get(namespace, "")
    op = REGISTRY.get(f"{instead.removeprefix('ops.')}.{short}")
    return op.signature() if op is not None else instead
