"""ops.attn: pooled attention: blocks of `ratio` tokens condensed into one entry each.

A block closes at the row whose position p has (p + 1) % ratio == 0; the entry of block c is kept at cell (c+1)*ratio - 1.
"""

from poem.graph import ValueType
from poem.ops.checks import F32, has_planes, has_shape, has_width, holds, on_axis, reaches, refuse, written_slots
from poem.ops.operands import CacheHandle, Value
from poem.ops.record import Activation, Bytes, Count, DtypeWord, FloatWeight, Ids, KvCache, Number, op, result


def _boundary(boundary_pos: Value, boundary_req: Value, rule: int) -> None:
    for name, given in (("boundary_pos", boundary_pos), ("boundary_req", boundary_req)):
        on_axis(given, "tokens", rule, name)
        has_width(given, 1, rule, name)


def _blocks(cache: CacheHandle, head_dim: int, rule: int) -> int:
    """How many blocks an entry reads: 1 or 2, by the planes' width."""
    planes = cache.cache.planes
    if planes not in ((head_dim, head_dim), (2 * head_dim, 2 * head_dim)):
        wanted = f"two planes of {head_dim}, or two of {2 * head_dim}"
        refuse(rule, "cache", f"has planes {list(planes)}", expected=wanted, found=cache)
    return planes[0] // head_dim


def _float_word(dtype: object, rule: int) -> None:
    holds(getattr(dtype, "is_float", False), rule, "dtype", "bf16, f16 or f32", dtype)


@op("attn", extension=True)
def pool_boundary(positions: Ids, ratio: Count, row_valid: Bytes | None = None) -> list[ValueType]:
    """Which rows close a block.

    Shapes: positions i32 [N] on tokens, the positions p(t) in the lane; row_valid u8 [N] -> bpos, breq, brope i32 [N]
    Formula: a row with (p + 1) % ratio == 0, and row_valid not 0 if given, is a boundary: bpos = p, brope = p - ratio + 1 (the
        first token of the block); otherwise bpos = -1, brope = 0. breq = the row's lane.
    Rounding: none
    Rules:
        1. positions is one column on tokens.
        2. row_valid is one column on tokens.
    For: deepseek_v4, glm_5_next, qwen_4
    """
    on_axis(positions, "tokens", 1, "positions")
    has_width(positions, 1, 1, "positions")
    if row_valid is not None:
        on_axis(row_valid, "tokens", 2, "row_valid")
        has_width(row_valid, 1, 2, "row_valid")
    return [result(positions), result(positions), result(positions)]


@op("attn", "cache", extension=True)
def pool_state_write(
    kv: Activation,
    score: Activation,
    cache: KvCache,
    head_dim: Count,
    ratio: Count,
    write_page: Ids | None = None,
    write_offset: Ids | None = None,
) -> None:
    """Store the rows that pool_gather condenses, and their scores. It precedes pool_gather, which also reads earlier passes.

    Shapes: kv, score [N, c*D] on tokens, D = head_dim, c = 1 or 2; cache with planes [c*D, c*D]; write_page and write_offset
        i32 [N] -> nothing
    Formula: row t is stored at cell p(t) of its lane: kv in plane 0, score in plane 1. With write_page and write_offset it
        goes to that physical slot instead; an offset outside 0 .. page_size-1 skips the row. ratio is not read.
    Rounding: the cast to the space's dtype: bf16, f16 and f32 to nearest even; e4m3 of x / scale to nearest even, saturating
        at +-448, NaN stays NaN; the scale is 1 unless the row declares one
    Rules:
        1. kv and score are on tokens.
        2. cache has two planes, both head_dim or both 2 * head_dim wide.
        3. kv and score are as wide as the planes.
        4. write_page and write_offset are given together, one column each, on tokens.
    Edge: takes effect in program order; exact mode stores without the cast
    For: deepseek_v4, glm_5_next
    """
    on_axis(kv, "tokens", 1, "kv")
    on_axis(score, "tokens", 1, "score")
    width = _blocks(cache, head_dim, 2) * head_dim
    has_width(kv, width, 3, "kv")
    has_width(score, width, 3, "score")
    written_slots(write_page, write_offset, 4)


@op("attn")
def pool_gather(
    boundary_pos: Ids,
    boundary_req: Ids,
    cache: KvCache,
    ape: FloatWeight | None,
    head_dim: Count,
    ratio: Count,
    dtype: DtypeWord,
) -> ValueType:
    """Condense each block that closes in this pass: a softmax-weighted sum of its rows, channel by channel.

    Shapes: boundary_pos, boundary_req i32 [N] on tokens, from pool_boundary; cache with planes kv and score, both c*D wide,
        D = head_dim, c = 1 or 2; ape [ratio, c*D] or None (zeros) -> entries [N, D] of dtype
    Formula: for b = boundary_pos[n] >= 0 and i = 0 .. c*ratio - 1: position pos_i = b + i - (c*ratio - 1), those < 0 skipped, of
        lane boundary_req[n]. Channel d reads column col = d if c = 1 or i < ratio, else D + d.
        l_i = score[pos_i, col] + ape[pos_i % ratio, col]; entry[d] = sum_i softmax_i(l)[i] * kv[pos_i, col], a softmax for each
        channel. So with c = 2 the block before contributes through its first half of columns, the closing block through its
        second. b = -1: a zero row.
    Rounding: once; kv and score are read after the cast of the cache
    Rules:
        1. boundary_pos and boundary_req are one column each, on tokens.
        2. cache has two planes, both head_dim or both 2 * head_dim wide.
        3. ape is [ratio, the planes' width].
        4. dtype is bf16, f16 or f32.
        5. A cache whose space keeps w cells is read over c*ratio <= w.
    For: deepseek_v4 (ratio 4 with c = 2, larger ratios with c = 1), glm_5_next (index keys)
    Public: transformers' `DeepseekV4HCACompressor`, `DeepseekV4CSACompressor` before their norm and rope
    """
    _boundary(boundary_pos, boundary_req, 1)
    blocks = _blocks(cache, head_dim, 2)
    if ape is not None:
        has_shape(ape, (ratio, blocks * head_dim), 3, "ape")
    _float_word(dtype, 4)
    reaches(cache, blocks * ratio, 5, "cache")
    return result(boundary_pos, width=head_dim, dtype=dtype)


@op("attn", extension=True)
def index_block_mean(boundary_pos: Ids, boundary_req: Ids, keys: KvCache, head_dim: Count, ratio: Count, dtype: DtypeWord) -> ValueType:
    """The mean index key of each block that closes in this pass.

    Shapes: boundary_pos, boundary_req i32 [N] on tokens, from pool_boundary; keys with one plane of D = head_dim
        -> y [N, D] of dtype
    Formula: y[n] = mean of the cells boundary_pos[n] - ratio + 1 .. boundary_pos[n] of lane boundary_req[n];
        boundary_pos[n] = -1: a zero row
    Rounding: once; keys are read after the cast of the cache
    Rules:
        1. boundary_pos and boundary_req are one column each, on tokens.
        2. keys has one plane of head_dim.
        3. dtype is bf16, f16 or f32.
        4. A row whose space keeps w cells is read over ratio <= w.
    For: qwen_4 (raw keys; norm, rope at brope and pool_kv_append into another row follow)
    """
    _boundary(boundary_pos, boundary_req, 1)
    has_planes(keys, (head_dim,), 2, "keys")
    _float_word(dtype, 3)
    reaches(keys, ratio, 4, "keys")
    return result(boundary_pos, width=head_dim, dtype=dtype)


@op("attn", "cache")
def pool_kv_append(
    entries: Activation,
    boundary_pos: Ids,
    boundary_req: Ids,
    cache: KvCache,
    write_page: Ids | None = None,
    write_offset: Ids | None = None,
) -> None:
    """Store the entries of the blocks that close in this pass.

    Shapes: entries [N, D] on tokens; boundary_pos, boundary_req i32 [N] on tokens; cache with one plane of D -> nothing
    Formula: a row with boundary_pos >= 0 is stored at cell boundary_pos of lane boundary_req: entry c at cell (c+1)*ratio - 1.
        write_page and write_offset are accepted and not read.
    Rounding: the cast to the space's dtype: bf16, f16 and f32 to nearest even; e4m3 of x / scale to nearest even, saturating
        at +-448, NaN stays NaN; the scale is 1 unless the row declares one
    Rules:
        1. entries is on tokens.
        2. boundary_pos and boundary_req are one column each, on tokens.
        3. cache has one plane, as wide as entries.
    Edge: takes effect in program order; exact mode stores without the cast
    For: deepseek_v4, glm_5_next, qwen_4
    """
    on_axis(entries, "tokens", 1, "entries")
    _boundary(boundary_pos, boundary_req, 2)
    has_planes(cache, (entries.width,), 3, "cache")


@op("attn", extension=True)
def pool_lse(
    q: Activation,
    positions: Ids,
    request_of_token: Ids,
    entries: KvCache,
    ratio: Count,
    heads: Count,
    head_dim: Count,
    sm_scale: Number,
    selection: Ids | None = None,
) -> list[ValueType]:
    """Attention over the entries of closed blocks, with its log-sum-exp for merge_lse.

    Shapes: q [N, H*D] on tokens, H = heads, D = head_dim; positions, request_of_token i32 [N]; entries with one plane of D;
        selection i32 [N, k] -> o [N, H*D], q's dtype; lse f32 [N, H], base 2
    Formula: a row at position p sees the entries c < (p+1)//ratio of lane request_of_token, entry c being cell (c+1)*ratio - 1,
        key and value alike; with a selection only the listed ids (others skipped, repeats count once)
        s_c = sm_scale * <q[h], entry_c>; o[h] = sum_c softmax(s)_c * entry_c; lse[h] = log2(sum_c e^s_c)
    Rounding: once, o; entries are read after the cast of the cache
    Rules:
        1. q is on tokens, heads * head_dim wide.
        2. positions and request_of_token are one column each, on tokens.
        3. entries has one plane of head_dim.
        4. A row whose space drops cells is refused: every entry is read.
        5. selection is on tokens.
    Edge: nothing visible gives o = 0 and lse = -inf
    For: deepseek_v4: merged with the window's part by merge_lse, then sink
    """
    on_axis(q, "tokens", 1, "q")
    has_width(q, heads * head_dim, 1, "q")
    for name, given in (("positions", positions), ("request_of_token", request_of_token)):
        on_axis(given, "tokens", 2, name)
        has_width(given, 1, 2, name)
    has_planes(entries, (head_dim,), 3, "entries")
    reaches(entries, None, 4, "entries")
    if selection is not None:
        on_axis(selection, "tokens", 5, "selection")
    return [result(q), result(q, width=heads, dtype=F32)]
