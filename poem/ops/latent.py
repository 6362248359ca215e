"""ops.attn: multi-head latent attention, over one compressed row per token.

H = heads, C = kv_lora_rank, Pn = nope_dim, Pr = the rope width, Dv = v_head_dim. `kv_b` is `[H*(Pn+Dv), C]`, head-major:
rows h*(Pn+Dv) .. +Pn are Wk_h, the next Dv are Wv_h (transformers' `kv_b_proj.weight`).
"""

from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import F32, has_planes, has_shape, has_width, holds, of_dtype, on_axis, reaches, refuse, written_slots
from poem.ops.operands import Value, Weight
from poem.ops.record import (
    Activation,
    AnyWeight,
    Count,
    Flag,
    FloatWeight,
    Ids,
    InputsHandle,
    KvCache,
    Number,
    op,
    result,
)


@op("attn", extension=True)
def mla_split_q(q: Activation, heads: Count, nope_dim: Count, rope_dim: Count) -> list[ValueType]:
    """Cut each query head into the part without and the part with rope.

    Shapes: q [N, H*(Pn+Pr)] on tokens, per head the Pn channels first -> q_nope [N, H*Pn], q_pe [N, H*Pr], q's dtype
    Formula: q_nope[n, h*Pn + i] = q[n, h*(Pn+Pr) + i], q_pe[n, h*Pr + i] = q[n, h*(Pn+Pr) + Pn + i]
    Rounding: none
    Rules:
        1. q is on tokens, heads * (nope_dim + rope_dim) wide.
    For: every family with latent attention
    """
    on_axis(q, "tokens", 1, "q")
    has_width(q, heads * (nope_dim + rope_dim), 1, "q")
    return [result(q, width=heads * nope_dim), result(q, width=heads * rope_dim)]


@op("attn")
def mla_latents(kv_a: Activation, norm: FloatWeight, eps: Number, kv_lora_rank: Count) -> list[ValueType]:
    """Cut the compressed row into the normed latent and the shared rope key.

    Shapes: kv_a [N, C+Pr] on any axis, C = kv_lora_rank, norm [C] -> kv_c [N, C], k_pe [N, Pr], kv_a's dtype
    Formula: kv_c = c / sqrt(mean(c^2) + eps) * norm, c the first C columns; k_pe the other columns, unchanged
    Rounding: once, kv_c
    Rules:
        1. kv_a is wider than kv_lora_rank.
        2. norm is [kv_lora_rank].
        3. eps >= 0.
    For: glm_5, glm_5_next, kimi_k3, deepseek_v3, kimi_linear; turn k_pe with rope
    """
    _latents(kv_a, norm, eps, kv_lora_rank)
    return [result(kv_a, width=kv_lora_rank), result(kv_a, width=kv_a.width - kv_lora_rank)]


def _latents(kv_a: Value, norm: Weight, eps: float, kv_lora_rank: int) -> None:
    if kv_a.width <= kv_lora_rank:
        refuse(1, "kv_a", f"is {kv_a.width} wide", expected=f"more than kv_lora_rank, {kv_lora_rank}", found=kv_a)
    has_shape(norm, (kv_lora_rank,), 2, "norm")
    holds(eps >= 0, 3, "eps", "at least 0", eps)


@op("attn", extension=True)
def mla_latents_rope(
    kv_a: Activation,
    positions: Ids,
    norm: FloatWeight,
    eps: Number,
    kv_lora_rank: Count,
    rope_dim: Count,
    theta: Number,
    form: Literal["half", "interleaved"] = "half",
) -> list[ValueType]:
    """mla_latents, with the rope key already turned over its whole width.

    Shapes: kv_a [N, C+Pr] on tokens, C = kv_lora_rank, Pr = rope_dim, positions i32 [N], norm [C]
        -> kv_c [N, C], k_pe [N, Pr], kv_a's dtype
    Formula: kv_c = c / sqrt(mean(c^2) + eps) * norm, c the first C columns; the pairs of the other columns turn by
        pos * theta^(-2i/Pr): (a, b) -> (a cos t - b sin t, b cos t + a sin t); half pairs (i, i + Pr/2), interleaved
        (2i, 2i + 1)
    Rounding: once, kv_c and k_pe each
    Rules:
        1. kv_a is on tokens, kv_lora_rank + rope_dim wide.
        2. norm is [kv_lora_rank].
        3. eps >= 0.
        4. positions is one column on tokens.
        5. rope_dim is even.
        6. theta > 0.
    For: families with latent attention and no rope scaling (with one: mla_latents and rope). DeepSeek and GLM checkpoints pair
        channels interleaved: pass that form, here and for q_pe, or permute weight rows at import.
    """
    on_axis(kv_a, "tokens", 1, "kv_a")
    has_width(kv_a, kv_lora_rank + rope_dim, 1, "kv_a")
    _latents(kv_a, norm, eps, kv_lora_rank)
    on_axis(positions, "tokens", 4, "positions")
    has_width(positions, 1, 4, "positions")
    holds(rope_dim % 2 == 0, 5, "rope_dim", "even", rope_dim)
    holds(theta > 0, 6, "theta", "greater than 0", theta)
    return [result(kv_a, width=kv_lora_rank), result(kv_a, width=rope_dim)]


@op("attn", "cache")
def mla_kv_append(
    kv_c: Activation, k_pe: Activation, cache: KvCache, write_page: Ids | None = None, write_offset: Ids | None = None
) -> None:
    """Store the latent and the rope key of the new rows.

    Shapes: kv_c [N, C] and k_pe [N, Pr] on tokens; cache with planes [C, Pr]; write_page and write_offset i32 [N] -> nothing
    Formula: row t is stored at cell p(t) of its lane: kv_c in plane 0, k_pe in plane 1. With write_page and write_offset it
        goes to that physical slot instead; an offset outside 0 .. page_size-1 skips the row. Two rows never share a slot.
    Rounding: the cast to the space's dtype: bf16, f16 and f32 to nearest even; e4m3 of x / scale to nearest even, saturating
        at +-448, NaN stays NaN; the scale is 1 unless the row declares one
    Rules:
        1. kv_c and k_pe are on tokens.
        2. cache has two planes, as wide as kv_c and k_pe.
        3. write_page and write_offset are given together, one column each, on tokens.
    Edge: takes effect in program order; exact mode stores without the cast
    For: glm_5, glm_5_next, kimi_k3, deepseek_v3, kimi_linear
    """
    on_axis(kv_c, "tokens", 1, "kv_c")
    on_axis(k_pe, "tokens", 1, "k_pe")
    has_planes(cache, (kv_c.width, k_pe.width), 2, "cache")
    written_slots(write_page, write_offset, 3)


@op("attn")
def mla_absorb_q(q_nope: Activation, kv_b: AnyWeight, heads: Count, kv_lora_rank: Count, nope_dim: Count, v_head_dim: Count) -> ValueType:
    """Carry queries into the latent space, so that attention reads latents instead of expanded keys.

    Shapes: q_nope [N, H*Pn] on any axis, kv_b [H*(Pn+Dv), C] -> q_latent [N, H*C], q_nope's dtype
    Formula: q_latent[h] = Wk_h^T q_nope[h], Wk_h = rows h*(Pn+Dv) .. h*(Pn+Dv)+Pn-1 of kv_b
    Rounding: once. An a8 kv_b is read as plain weights: q_nope is not turned into codes.
    Rules:
        1. q_nope is heads * nope_dim wide.
        2. kv_b is [heads * (nope_dim + v_head_dim), kv_lora_rank].
    For: glm_5, glm_5_next, kimi_k3, deepseek_v3, kimi_linear
    Public: with mla_attend and mla_absorb_out equal to transformers' `DeepseekV3Attention`, which expands keys and values
        instead; in bf16 the two round at other places
    """
    has_width(q_nope, heads * nope_dim, 1, "q_nope")
    has_shape(kv_b, (heads * (nope_dim + v_head_dim), kv_lora_rank), 2, "kv_b")
    return result(q_nope, width=heads * kv_lora_rank)


@op("attn")
def mla_absorb_out(latent: Activation, kv_b: AnyWeight, heads: Count, kv_lora_rank: Count, nope_dim: Count, v_head_dim: Count) -> ValueType:
    """Carry attended latents out to the value heads.

    Shapes: latent [N, H*C] on any axis, kv_b [H*(Pn+Dv), C] -> o [N, H*Dv], latent's dtype
    Formula: o[h] = Wv_h latent[h], Wv_h = rows h*(Pn+Dv)+Pn .. (h+1)*(Pn+Dv)-1 of kv_b
    Rounding: once. An a8 kv_b is read as plain weights.
    Rules:
        1. latent is heads * kv_lora_rank wide.
        2. kv_b is [heads * (nope_dim + v_head_dim), kv_lora_rank].
    For: glm_5, glm_5_next, kimi_k3, deepseek_v3, kimi_linear
    Public: see mla_absorb_q
    """
    has_width(latent, heads * kv_lora_rank, 1, "latent")
    has_shape(kv_b, (heads * (nope_dim + v_head_dim), kv_lora_rank), 2, "kv_b")
    return result(latent, width=heads * v_head_dim)


@op("attn", extension=True)
def mla_attend(
    q_latent: Activation,
    q_pe: Activation,
    cache: KvCache,
    inputs: InputsHandle,
    heads: Count,
    kv_lora_rank: Count,
    sm_scale: Number,
    selection: Ids | None = None,
    ratio: Count = 1,
    lse: Flag = False,
) -> ValueType | list[ValueType]:
    """Causal attention over latents: every head reads the same row, as key and as value.

    Shapes: q_latent [N, H*C] and q_pe [N, H*Pr] of one dtype on tokens, H = heads, C = kv_lora_rank; cache with planes
        [C, Pr]; selection i32 [N, k] -> latent [N, H*C], q_latent's dtype; with lse also lse f32 [N, H]
    Formula: row t at position p of its lane of inputs sees the cells A: 0 <= j <= p of that lane, cut by the selection
        s_j = sm_scale * (<q_latent[h], ckv_j> + <q_pe[h], kpe_j>); latent[h] = sum over A of softmax(s)_j * ckv_j, the maximum
        subtracted first; lse[h] = log2(sum over A of e^s_j)
        selection: ids of blocks of ratio cells. With nb = (p+1)//ratio allowed are the cells of the listed blocks
        0 <= c < nb, plus the open tail nb*ratio .. p; other ids are skipped, repeats count once. With ratio 1 the ids are
        positions and there is no tail.
    Rounding: once, latent; scores, probabilities and sums stay f32. ckv and kpe are read after the cast of the cache.
    Rules:
        1. q_latent is on tokens, heads * kv_lora_rank wide.
        2. cache has two planes, the first kv_lora_rank wide.
        3. q_pe has q_latent's axis and dtype, and heads times the width of plane 1.
        4. A cache whose space drops cells is refused: every cell is read.
        5. selection is on tokens.
        6. ratio other than 1 goes with selection.
    Edge: no allowed cell gives 0 and lse -inf
    For: glm_5, glm_5_next (selection), kimi_k3, deepseek_v3. The package states sm_scale: (Pn+Pr)^-0.5, times mscale^2 where
        the model uses it. A sink follows as sink(.., head_dim = C).
    Public: transformers' `DeepseekV3Attention`, `GlmMoeDsaAttention`, `Glm5NextTextAttention` with
        `index_kpool_always_select_tail=True`; FlashInfer MLA
    """
    on_axis(q_latent, "tokens", 1, "q_latent")
    has_width(q_latent, heads * kv_lora_rank, 1, "q_latent")
    planes = cache.cache.planes
    if len(planes) != 2 or planes[0] != kv_lora_rank:
        refuse(2, "cache", f"has planes {list(planes)}", expected=f"[{kv_lora_rank}, rope width]", found=cache)
    on_axis(q_pe, "tokens", 3, "q_pe")
    of_dtype(q_pe, q_latent.dtype, 3, "q_pe")
    has_width(q_pe, heads * planes[1], 3, "q_pe")
    reaches(cache, None, 4, "cache")
    if selection is not None:
        on_axis(selection, "tokens", 5, "selection")
    holds(ratio == 1 or selection is not None, 6, "ratio", "1 without a selection", ratio)
    latent = result(q_latent)
    return [latent, result(q_latent, width=heads, dtype=F32)] if lse else latent
