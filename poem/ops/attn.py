"""ops.attn: attention over paged caches, and what it is built from.

Latent attention is in latent.py, indexed and pooled attention in indexed.py and pooled.py, block drafting in drafting.py.
"""

from poem import axes
from poem.graph import ValueType
from poem.ops.checks import (
    F32,
    has_planes,
    has_shape,
    has_width,
    holds,
    like,
    of_dtype,
    on_axis,
    reaches,
    refuse,
    width_divides,
    written_slots,
)
from poem.ops.operands import CacheHandle, Value
from poem.ops.record import (
    Activation,
    Count,
    F32Value,
    Flag,
    FloatWeight,
    IdLists,
    Ids,
    InputsHandle,
    KvCache,
    Mask,
    Number,
    Numbers,
    Plan,
    ValueOrWeight,
    op,
    result,
)


@op("attn")
def attend(
    q: Activation,
    cache: KvCache,
    inputs: InputsHandle,
    head_dim: Count,
    kv_heads: Count,
    sm_scale: Number,
    window: Count | None = None,
    causal: Flag = True,
    softcap: Number | None = None,
    mask: Mask | None = None,
    sinks: ValueOrWeight | None = None,
    bias: F32Value | None = None,
    selection: Ids | None = None,
    ratio: Count = 1,
    log_scaling: Numbers | None = None,
    lse: Flag = False,
) -> ValueType | list[ValueType]:
    """Grouped-query attention of the new rows over a cache row: any mix of prompt chunks and single tokens in one call.

    Shapes: q [N, Hq*D] on tokens, D = head_dim; cache with planes [Hkv*D, Hkv*Dv], Hkv = kv_heads, or one plane used as
        both K and V; mask of inputs.mask(); sinks a weight [Hq] or a value [N, Hq]; bias f32 [N, Hq*extent]; selection
        i32 [N, k]; log_scaling (floor, a) -> o [N, Hq*Dv], q's dtype; with lse also lse f32 [N, Hq]
    Formula: row t of lane r of inputs is at position p = kv_len[r] - n_r + (its index among the lane's n_r new rows); query head h
        reads key head g = h // (Hq/Hkv). The rows of this pass must already be appended.
        1. Allowed cells A: 0 <= j < kv_len[r], cut by j <= p (causal), p - j < window (the window counts the row itself
           and never limits cells after p), the mask, and the selection.
           mask: lane r holds n_r x kv_len[r] bits, row-major, least significant bit first, from a byte boundary;
           1 allows. With causal it narrows the causal set; without, it decides alone. causal = False without a mask
           allows every cell of the lane.
           selection: ids of blocks of ratio cells. With nb = (p+1)//ratio allowed are the cells of the listed blocks
           0 <= c < nb, plus the open tail nb*ratio .. p; other ids are skipped, repeats count once. With ratio 1 the ids
           are positions and there is no tail.
        2. s_j = sm_scale * <q[t,h], K[j,g]>; softcap: s_j = softcap * tanh(s_j / softcap); bias: s_j += bias[t, h*extent +
           (p-j)] for 0 <= p-j < extent; log_scaling with p+1 > floor: s_j *= 1 + a * ln((p+1) / floor).
        3. d = sum over A of e^s_j, plus e^z with a sink logit z (not scaled); o[t,h] = sum over A of (e^s_j / d) V[j,g].
           The maximum, sink included, is subtracted first.
        4. lse[t,h] = log2(d).
    Rounding: once, o; scores, probabilities and sums stay f32. K and V are read after the cast of the cache.
    Rules:
        1. q is on tokens, in whole heads of head_dim.
        2. cache has one plane of kv_heads * head_dim, or that and a second plane in whole heads.
        3. kv_heads divides q's heads.
        4. A cache whose space keeps w cells is read with a window <= w.
        5. softcap > 0.
        6. sinks is a weight [Hq], or a value [N, Hq] on tokens.
        7. bias is on tokens, with a multiple of Hq columns.
        8. selection is on tokens and goes with causal.
        9. ratio other than 1 goes with selection.
        10. log_scaling is two numbers, the first > 0.
        11. lse goes without sinks (use sink on the merged result).
    Edge: no allowed cell gives o = 0, also with a sink, and lse = -inf; reading a cell never written is a run-time error
    For: every text family; window gpt_oss, gemma_4, inkling, deepseek_v4, mistral; softcap gemma_2; sinks gpt_oss,
        mimo_v2_flash; bias and log_scaling inkling; selection qwen_4; mask block drafters, hunyuan_image_3; lse deepseek_v4
    Public: `eager_attention_forward` of transformers' families, which rounds probabilities to bf16 in a bf16 run; the sink is
        gpt-oss' extra softmax column; `Qwen4ExpTextAttention` (blocks and tail); FlashInfer's base-2 lse
    """
    on_axis(q, "tokens", 1, "q")
    heads = width_divides(q, head_dim, 1, "q")
    value_width = _value_width(cache, head_dim, kv_heads, 2)
    holds(heads % kv_heads == 0, 3, "kv_heads", f"a divisor of the {heads} query heads", kv_heads)
    reaches(cache, window, 4, "cache")
    holds(softcap is None or softcap > 0, 5, "softcap", "greater than 0", softcap)
    if isinstance(sinks, Value):
        on_axis(sinks, "tokens", 6, "sinks")
        has_width(sinks, heads, 6, "sinks")
    elif sinks is not None:
        has_shape(sinks, (heads,), 6, "sinks")
    if bias is not None:
        on_axis(bias, "tokens", 7, "bias")
        width_divides(bias, heads, 7, "bias")
    if selection is not None:
        on_axis(selection, "tokens", 8, "selection")
        holds(causal, 8, "causal", "True with a selection", causal)
    holds(ratio == 1 or selection is not None, 9, "ratio", "1 without a selection", ratio)
    if log_scaling is not None:
        holds(len(log_scaling) == 2 and log_scaling[0] > 0, 10, "log_scaling", "(floor, a) with floor > 0", log_scaling)
    holds(not lse or sinks is None, 11, "lse", "False with sinks", lse)
    o = result(q, width=heads * value_width)
    return [o, result(q, width=heads, dtype=F32)] if lse else o


def _value_width(cache: CacheHandle, head_dim: int, kv_heads: int, rule: int) -> int:
    """The value width of one head of a cache row, checked against the head counts."""
    planes = cache.cache.planes
    wanted = kv_heads * head_dim
    if len(planes) > 2 or planes[0] != wanted or planes[-1] % kv_heads:
        refuse(
            rule, "cache", f"has planes {list(planes)}, which are not {kv_heads} heads of {head_dim}",
            expected=f"[{wanted}] or [{wanted}, {kv_heads} * value width]", found=cache,
        )  # fmt: skip
    return planes[-1] // kv_heads


@op("attn")
def plan_prefill(inputs: InputsHandle, q_heads: Count, kv_heads: Count, head_dim: Count, window: Count | None = None) -> str:
    """The geometry of plain causal attention, stated once for several layers. A plan is no value and no output.

    Shapes: -> a plan: the lanes and rows of inputs, head counts, head_dim and window
    Formula: none
    Rounding: none
    Rules:
        1. kv_heads divides q_heads.
    For: operand of prefill
    Public: FlashInfer's paged prefill plan
    """
    holds(q_heads % kv_heads == 0, 1, "kv_heads", f"a divisor of the {q_heads} query heads", kv_heads)
    return "plan"


@op("attn")
def prefill(
    q: Activation, plan: Plan, cache: KvCache, window: Count | None, head_dim: Count, kv_heads: Count, sm_scale: Number
) -> ValueType:
    """Causal attention by a plan, over any number of rows per lane.

    Shapes: q [N, Hq*D] on tokens, D = head_dim; cache with planes [Hkv*D, Hkv*Dv], or one plane used as K and V
        -> o [N, Hq*Dv], q's dtype
    Formula: attend(q, cache, inputs, head_dim, kv_heads, sm_scale, window = window): for a row at position p
        o[h] = sum_j softmax_j(sm_scale * <q[h], K[j, h // (Hq/Hkv)]>) V[j, h // (Hq/Hkv)] over the lane's cells j <= p
        with p - j < window
    Rounding: once, o; K and V are read after the cast of the cache
    Rules:
        1. plan comes from plan_prefill with this head_dim, kv_heads and window.
        2. q is on tokens, q_heads * head_dim wide, q_heads the plan's.
        3. cache has one plane of kv_heads * head_dim, or that and a second plane in whole heads.
        4. A cache whose space keeps w cells is read with a window <= w.
    For: plain causal layers; text encoders of flux_2, z_image, minimax_h3; drafters
    Public: FlashInfer paged prefill
    """
    planned = plan.made_by.attributes if plan.made_by else {}
    for name, given in (("head_dim", head_dim), ("kv_heads", kv_heads), ("window", window)):
        holds(planned.get(name) == given, 1, name, f"the plan's, {planned.get(name)}", given)
    heads = planned["q_heads"]
    on_axis(q, "tokens", 2, "q")
    has_width(q, heads * head_dim, 2, "q")
    value_width = _value_width(cache, head_dim, kv_heads, 3)
    reaches(cache, window, 4, "cache")
    return result(q, width=heads * value_width)


@op("attn", "cache")
def kv_append(k: Activation, v: Activation, cache: KvCache, write_page: Ids | None = None, write_offset: Ids | None = None) -> None:
    """Store the keys and values of the new rows.

    Shapes: k [N, Hkv*D] and v [N, Hkv*Dv] on tokens, of any activation dtypes; cache with planes [Hkv*D, Hkv*Dv];
        write_page and write_offset i32 [N] -> nothing
    Formula: row t is stored at cell p(t) of its lane: k in plane 0, v in plane 1. With write_page and write_offset it goes to
        that physical slot instead; an offset outside 0 .. page_size-1 skips the row. Two rows never share a slot.
    Rounding: the cast to the space's dtype: bf16, f16 and f32 to nearest even; e4m3 of x / scale to nearest even, saturating
        at +-448, NaN stays NaN; the scale is 1 unless the row declares one
    Rules:
        1. k and v are on tokens.
        2. cache has two planes, as wide as k and v.
        3. write_page and write_offset are given together, one column each, on tokens.
    Edge: takes effect in program order; exact mode stores without the cast
    For: all attention families; K is stored after norm and rope
    Public: transformers' `cache.update`
    """
    on_axis(k, "tokens", 1, "k")
    on_axis(v, "tokens", 1, "v")
    has_planes(cache, (k.width, v.width), 2, "cache")
    written_slots(write_page, write_offset, 3)


@op("attn", "cache", extension=True)
def kv_append_shared(kv: Activation, cache: KvCache, write_page: Ids | None = None, write_offset: Ids | None = None) -> None:
    """Store one row that attention uses as key and as value.

    Shapes: kv [N, Hkv*D] on tokens; cache with one plane of that width; write_page and write_offset i32 [N] -> nothing
    Formula: row t is stored at cell p(t) of its lane. With write_page and write_offset it goes to that physical slot instead;
        an offset outside 0 .. page_size-1 skips the row. Two rows never share a slot.
    Rounding: the cast to the space's dtype: bf16, f16 and f32 to nearest even; e4m3 of x / scale to nearest even, saturating
        at +-448, NaN stays NaN; the scale is 1 unless the row declares one
    Rules:
        1. kv is on tokens.
        2. cache has one plane, as wide as kv.
        3. write_page and write_offset are given together, one column each, on tokens.
    Edge: takes effect in program order; exact mode stores without the cast
    For: deepseek_v4 (one key head)
    """
    on_axis(kv, "tokens", 1, "kv")
    has_planes(cache, (kv.width,), 2, "cache")
    written_slots(write_page, write_offset, 3)


@op("attn")
def logit_softcap(x: Activation, cap: Number) -> ValueType:
    """Squash logits smoothly into (-cap, cap).

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: cap * tanh(x / cap)
    Rounding: once; on bf16 logits one rounding more than a float32 model makes
    Rules:
        1. cap > 0.
    For: gemma_2, gemma_4 (30), muse_glimmer
    """
    holds(cap > 0, 1, "cap", "greater than 0", cap)
    return result(x)


@op("attn", extension=True)
def sink(o: Activation, lse: F32Value, sinks: FloatWeight, head_dim: Count) -> ValueType:
    """Give attention that is already made a sink: a learned logit that takes a share of the softmax and adds no value.

    Shapes: o [N, H*D] on tokens, D = head_dim, lse f32 [N, H], base 2, sinks [H] -> o' [N, H*D], o's dtype
    Formula: o'[h] = o[h] / (1 + e^(sinks[h] - lse[h] * ln 2)); an lse that is not finite leaves o[h] unchanged
    Rounding: once; attend(sinks=) is the same function with one rounding less
    Rules:
        1. o is on tokens, in whole heads of head_dim.
        2. lse is on tokens, one column a head.
        3. sinks is [heads].
    For: sinks over merged attention (deepseek_v4)
    """
    on_axis(o, "tokens", 1, "o")
    heads = width_divides(o, head_dim, 1, "o")
    on_axis(lse, "tokens", 2, "lse")
    has_width(lse, heads, 2, "lse")
    has_shape(sinks, (heads,), 3, "sinks")
    return result(o)


@op("attn", extension=True)
def merge_lse(o1: Activation, lse1: F32Value, o2: Activation, lse2: F32Value, heads: Count, head_dim: Count) -> list[ValueType]:
    """Merge attention over two disjoint sets of keys.

    Shapes: o1, o2 [N, H*D] of one dtype on tokens, H = heads, D = head_dim, lse1, lse2 f32 [N, H], base 2
        -> o [N, H*D], o1's dtype; lse f32 [N, H]
    Formula: per row and head: m = max(lse1, lse2), w_i = 2^(lse_i - m), o = (o1 w1 + o2 w2) / (w1 + w2),
        lse = m + log2(w1 + w2). lse2 not finite: side 1 as it is; else lse1 not finite: side 2.
    Rounding: once, o
    Rules:
        1. o1 is on tokens, heads * head_dim wide.
        2. o2 has o1's axis, width and dtype.
        3. lse1 and lse2 are on tokens, heads wide.
    Edge: that the key sets are disjoint is not checked
    For: deepseek_v4
    Public: FlashInfer `merge_state`
    """
    on_axis(o1, "tokens", 1, "o1")
    has_width(o1, heads * head_dim, 1, "o1")
    like(o2, o1, 2, "o2")
    for name, lse in (("lse1", lse1), ("lse2", lse2)):
        on_axis(lse, "tokens", 3, name)
        has_width(lse, heads, 3, name)
    return [result(o1), result(lse1)]


@op("attn", extension=True)
def dense(
    q: Activation,
    k: Activation,
    v: Activation,
    q_indptr: Ids,
    kv_indptr: Ids,
    head_dim: Count,
    kv_heads: Count,
    sm_scale: Number,
    causal: Flag = False,
    bias: F32Value | None = None,
    tags: IdLists | None = None,
    lse: Flag = False,
) -> ValueType | list[ValueType]:
    """Attention between packed rows, segment by segment, without a cache.

    Shapes: q [Nq, Hq*D] on any axis, D = head_dim; k [Nk, Hkv*D], v [Nk, Hkv*Dv] on any one axis, Hkv = kv_heads, all of one
        dtype; q_indptr, kv_indptr i32 with the same S+1 entries; bias f32 [Hq, 2m-1]; tags (q_tags i32 [Nq],
        kv_tags i32 [Nk]) -> o [Nq, Hq*Dv], q's dtype; with lse also lse f32 [Nq, Hq]
    Formula: query segment s, rows q_indptr[s] .. q_indptr[s+1]-1, sees key segment s. Inside them, with row indices i and j
        that count from 0 in their segments, query head h reads key head g = h // (Hq/Hkv):
        allowed keys A: all of the segment; causal: j <= i + (nk - nq), the segments' lengths; tags: a query tag t >= 0 sees
        only keys with tag t, -1 sees its whole segment
        s_j = sm_scale * <q[i,h], k[j,g]>; bias: s_j += bias[h, clip(j - i + m - 1, 0, 2m - 2)]
        o[i,h] = sum over A of softmax(s)_j * v[j,g], the maximum subtracted first; lse[i,h] = log2(sum over A of e^s_j)
    Rounding: once, o; scores, probabilities and sums stay f32
    Rules:
        1. q is whole heads of head_dim.
        2. k is kv_heads * head_dim wide, of q's dtype.
        3. v is on k's axis, of q's dtype, in kv_heads whole heads.
        4. kv_heads divides q's heads.
        5. q_indptr and kv_indptr are one column each of bounds, with equally many entries.
        6. bias has one row a query head and an odd width.
        7. tags are two lists of one column: q_tags on q's axis, kv_tags on k's.
    Edge: query rows outside all segments, and those without an allowed key, give 0 and lse -inf. Key rows outside all segments
        are never read. A decreasing indptr, or one past the rows, is a run-time error.
    For: vision towers (segments are images), umT5 and BERT encoders, diffusion transformers (after pack_rows, with
        group_indptr), cross attention
    Public: block-diagonal `scaled_dot_product_attention`; FlashInfer ragged prefill
    """
    heads = width_divides(q, head_dim, 1, "q")
    has_width(k, kv_heads * head_dim, 2, "k")
    of_dtype(k, q.dtype, 2, "k")
    on_axis(v, k.rows, 3, "v")
    of_dtype(v, q.dtype, 3, "v")
    value_width = width_divides(v, kv_heads, 3, "v")
    holds(heads % kv_heads == 0, 4, "kv_heads", f"a divisor of the {heads} query heads", kv_heads)
    has_width(q_indptr, 1, 5, "q_indptr")
    has_width(kv_indptr, 1, 5, "kv_indptr")
    if not axes.is_bounds(q_indptr.rows):
        refuse(
            5, "q_indptr", f"is on the axis {q_indptr.rows}, no bounds", code="forward.axis", expected="lanes+1 or the like", found=q_indptr
        )
    on_axis(kv_indptr, q_indptr.rows, 5, "kv_indptr")
    if bias is not None:
        on_axis(bias, heads, 6, "bias")
        if bias.width % 2 == 0:
            refuse(6, "bias", f"is {bias.width} wide", expected="an odd width, 2m - 1", found=bias)
    if tags is not None:
        holds(len(tags) == 2, 7, "tags", "two lists, q_tags and kv_tags", f"{len(tags)} lists")
        for given, operand in zip(tags, (q, k), strict=True):
            on_axis(given, operand.rows, 7, "tags")
            has_width(given, 1, 7, "tags")
    o = result(q, width=heads * value_width)
    return [o, result(q, width=heads, dtype=F32)] if lse else o
