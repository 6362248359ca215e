"""ops.attn: choosing which cells to attend: index keys, their scores, and the top of them."""

from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import has_planes, has_shape, has_width, holds, on_axis, reaches, written_slots
from poem.ops.record import Activation, Count, FloatWeight, Ids, KvCache, Number, op, result


@op("attn")
def index_rope(
    q: Activation,
    positions: Ids,
    heads: Count,
    head_dim: Count,
    rope_dim: Count,
    theta: Number,
    form: Literal["half", "interleaved"] = "interleaved",
) -> ValueType:
    """Turn the first rope_dim channels of each index head.

    Shapes: q [N, H*D] on any axis, H = heads, D = head_dim, positions i32 [N] -> q' [N, H*D], q's dtype
    Formula: per head the pairs i < R/2, R = rope_dim, turn by t = pos * theta^(-2i/R):
        (a, b) -> (a cos t - b sin t, b cos t + a sin t); interleaved pairs (2i, 2i+1), half (i, i + R/2); the other channels
        are copied. It is rope(q, None, positions, head_dim, theta, rotary_dim = rope_dim, form = form).
    Rounding: once
    Rules:
        1. q is heads * head_dim wide.
        2. positions is one column on q's axis.
        3. rope_dim is even and at most head_dim.
        4. theta > 0.
    For: glm_5 (interleaved), DeepSeek-V3.2 (half). deepseek_v4 (interleaved) and HY-V4 (half) turn the last channels: use rope
        with part last. glm_5_next does not turn index keys.
    """
    has_width(q, heads * head_dim, 1, "q")
    on_axis(positions, q.rows, 2, "positions")
    has_width(positions, 1, 2, "positions")
    holds(rope_dim % 2 == 0 and rope_dim <= head_dim, 3, "rope_dim", f"even and at most head_dim, {head_dim}", rope_dim)
    holds(theta > 0, 4, "theta", "greater than 0", theta)
    return result(q)


@op("attn", extension=True)
def index_layernorm_rope(
    k: Activation,
    positions: Ids,
    norm: FloatWeight,
    eps: Number,
    bias: FloatWeight,
    rope_dim: Count,
    theta: Number,
    form: Literal["half", "interleaved"] = "interleaved",
) -> ValueType:
    """Layer norm of the index key, then the turn of its first rope_dim channels.

    Shapes: k [N, D] on tokens, one head, positions i32 [N], norm, bias [D] -> k' [N, D], k's dtype
    Formula: m = mean(k), v = mean((k - m)^2), y = (k - m) / sqrt(v + eps) * norm + bias; then the pairs i < R/2, R = rope_dim,
        of y turn by t = pos * theta^(-2i/R): (a, b) -> (a cos t - b sin t, b cos t + a sin t); by form, interleaved pairs
        (2i, 2i+1), half (i, i + R/2)
    Rounding: twice: y, then the turned row, as layernorm and index_rope
    Rules:
        1. k is on tokens.
        2. positions is one column on tokens.
        3. norm and bias are [k.width].
        4. eps >= 0.
        5. rope_dim is even and at most k.width.
        6. theta > 0.
    For: glm_5
    """
    on_axis(k, "tokens", 1, "k")
    on_axis(positions, "tokens", 2, "positions")
    has_width(positions, 1, 2, "positions")
    has_shape(norm, (k.width,), 3, "norm")
    has_shape(bias, (k.width,), 3, "bias")
    holds(eps >= 0, 4, "eps", "at least 0", eps)
    holds(rope_dim % 2 == 0 and rope_dim <= k.width, 5, "rope_dim", f"even and at most {k.width}", rope_dim)
    holds(theta > 0, 6, "theta", "greater than 0", theta)
    return result(k)


@op("attn", "cache")
def index_kv_append(k: Activation, keys: KvCache, write_page: Ids | None = None, write_offset: Ids | None = None) -> None:
    """Store the index keys of the new rows.

    Shapes: k [N, D] on tokens; keys with one plane of D; write_page and write_offset i32 [N] -> nothing
    Formula: row t is stored at cell p(t) of its lane. With write_page and write_offset it goes to that physical slot instead;
        an offset outside 0 .. page_size-1 skips the row. Two rows never share a slot.
    Rounding: the cast to the space's dtype: bf16, f16 and f32 to nearest even; e4m3 of x / scale to nearest even, saturating
        at +-448, NaN stays NaN; the scale is 1 unless the row declares one
    Rules:
        1. k is on tokens.
        2. keys has one plane, as wide as k.
        3. write_page and write_offset are given together, one column each, on tokens.
    Edge: takes effect in program order; exact mode stores without the cast
    For: glm_5, deepseek_v32, qwen_4 (raw keys)
    """
    on_axis(k, "tokens", 1, "k")
    has_planes(keys, (k.width,), 2, "keys")
    written_slots(write_page, write_offset, 3)


@op("attn")
def index_topk(
    q: Activation, weights: Activation | None, keys: KvCache, heads: Count, head_dim: Count, top_k: Count, ratio: Count = 1
) -> ValueType:
    """For each row, the cells (or blocks of cells) whose index keys score best.

    Shapes: q [N, H*D] on tokens, H = heads, D = head_dim; weights [N, H] of any activation dtype, or None (all 1); keys with
        one plane of D -> selection i32 [N, top_k]
    Formula: candidates of a row at position p: c = 0 .. n-1, n = (p+1)//ratio; the key of c is cell (c+1)*ratio - 1 of the
        row's lane. score_c = sum_h weights_h * max(<q_h, key_c>, 0), in f32, without softmax or scale.
        n <= top_k: the ids 0 .. n-1; else the top_k best. Ids come ascending, padded with -1.
    Rounding: none beyond f32
    Rules:
        1. q is on tokens, heads * head_dim wide.
        2. weights is on tokens, heads wide.
        3. keys has one plane of head_dim.
        4. A row whose space drops cells is refused: every key is read.
    Edge: ties go to the lower id; NaN scores come last
    For: glm_5, deepseek_v32 (ratio 1); qwen_4 (weights None, ratio = block); glm_5_next, deepseek_v4 (over pooled keys). The
        head weights are projected from the hidden row, not from the query latent.
    Public: transformers' `GlmMoeDsaIndexer`, `DeepseekV4Indexer`, `Glm5NextTextIndexer`, `Qwen4ExpTextQSAIndexer`, up to the
        order of ids and ties; DeepSeek's own code also applies a Hadamard rotation and fp8
    """
    on_axis(q, "tokens", 1, "q")
    has_width(q, heads * head_dim, 1, "q")
    if weights is not None:
        on_axis(weights, "tokens", 2, "weights")
        has_width(weights, heads, 2, "weights")
    has_planes(keys, (head_dim,), 3, "keys")
    reaches(keys, None, 4, "keys")
    return result(q, width=top_k, dtype="i32")
