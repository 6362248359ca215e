"""Rules for attention and its caches."""

import numpy as np

from cupy_backend.kernels import attn, attn_append
from cupy_backend.kernels.arrays import Columns, columns_of, unsupported, updating
from cupy_backend.kernels.linear_tables import COUNTERS
from cupy_backend.launch import Array, Launch
from cupy_backend.plan.lowering import Lowered, Lowering
from cupy_backend.plan.patterns import Group, operand
from cupy_backend.plan.rules.registry import node_of, rule
from cupy_backend.plan.rules.rotary import turn_of
from poem.dtypes.term import LEAF_BITS
from poem.graph import Cache, Node, Ref


@rule("rope_append", "norm_rope_append")
def _rope_append(lowering: Lowering, group: Group) -> Lowered:
    *listed, rope, append = (node_of(lowering, group, which) for which in range(len(group.nodes)))
    cache, (k_cells, v_cells), scales = _planes(lowering, append)
    norms = {norm.results[0]: norm for norm in listed}
    given = [operand(rope, name).id for name in ("q", "k")]
    q, k = (lowering.columns(operand(norms[value], "x").id if norms else value) for value in given)
    v, q_out, norm = lowering.columns(operand(append, "v").id), lowering.new(rope.results[0]), None
    if norms:
        q_gain, k_gain = (lowering.weight(lowering.param(norms[value], "w"))["data"] for value in given)
        norm = attn_append.HeadNorm(q_gain, k_gain, listed[0].attributes["eps"], listed[0].op.endswith("plus_one"))
    turn = turn_of(lowering, rope, q.array.dtype, attn_append.vector_of(q, k, v))
    launches = attn_append.rope_append(
        q, k, v, lowering.value(rope, "positions"), turn, q_out, k_cells, v_cells, _slots(lowering, append, cache),
        head_dim=rope.attributes["head_dim"], norm=norm, scales=scales, nodes=group.nodes,
    )  # fmt: skip
    flops = (7 if norms else 3) * q_out.shape[0] * (q.width + k.width)
    return Lowered(launches, flops, _appended(q_out.shape[0], (q, k, v), (k_cells, v_cells)))


@rule("attn.kv_append")
def _kv_append(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    cache, (k_cells, v_cells), scales = _planes(lowering, node)
    k, v = (lowering.value(node, name) for name in ("k", "v"))
    launches = attn_append.kv_append(
        k, v, k_cells, v_cells, _slots(lowering, node, cache), rows=_named_rows(lowering, node), scales=scales, nodes=group.nodes
    )
    return Lowered(launches, 0, _appended(k.shape[0], (columns_of(k), columns_of(v)), (k_cells, v_cells)))


@rule("attn.kv_append_shared")
def _kv_append_shared(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    cache, (cells, _), scales = _planes(lowering, node)
    kv = lowering.value(node, "kv")
    launches = attn_append.append(
        kv, cells, _slots(lowering, node, cache), rows=_named_rows(lowering, node), scale=scales[0] if scales else None, nodes=group.nodes
    )
    return Lowered(launches, 0, _appended(kv.shape[0], (columns_of(kv),), (cells,)))


def _slots(lowering: Lowering, node: Node, cache: Cache) -> attn_append.Slots:
    """Page and offset of each row's cell: those that the node names, or the rows' own."""
    return attn_append.Slots(*(
        lowering.value(node, name) if node.operands[name] is not None else lowering.inputs[f"{name}.{cache.space}"]
        for name in ("write_page", "write_offset")
    ))  # fmt: skip


def _named_rows(lowering: Lowering, node: Node) -> Array | None:
    """How many rows of a padded pass there are where a node names their slots: the rows' own slots have no page behind these."""
    named = node.operands["write_page"]
    return lowering.live(operand(node, "write_page").id)[0] if named is not None else None


def _planes(lowering: Lowering, node: Node) -> tuple[Cache, tuple[Array, Array], tuple[Array, Array] | None]:
    """A cache, its planes for K and V, which may be one, and the scales of their cells."""
    cache = lowering.cache(node)
    cells = lowering.cells(cache)
    if len(cells) > 2:
        raise unsupported("no kernel takes such a cache yet", expected="a plane for K and one for V, or one for both", found=cache.name)
    if cache.scales is None:
        return cache, (cells[0], cells[-1]), None
    scales = [lowering.weight(lowering.graph.params[id])["data"] for id in cache.scales]
    if any(scale.dtype != "f32" for scale in scales):
        raise unsupported("the kernel takes scales of f32", expected="f32", found=", ".join(scale.dtype for scale in scales))
    return cache, (cells[0], cells[-1]), (scales[0], scales[-1])


def _appended(rows: int, parts: tuple[Columns, ...], cells: tuple[Array, ...]) -> dict[str, tuple[int, int]]:
    """Bytes that an append reads of its operands and writes into its cells."""
    touched: dict[str, tuple[int, int]] = {}
    for part in parts:
        before = touched.get(part.array.buffer, (0, 0))[0]
        touched[part.array.buffer] = (before + rows * part.width * LEAF_BITS[part.array.dtype] // 8, 0)
    return touched | {plane.buffer: (0, rows * plane.shape[2] * LEAF_BITS[plane.dtype] // 8) for plane in cells}


@rule("attn.plan_prefill")
def _plan_prefill(lowering: Lowering, group: Group) -> Lowered:
    """The geometry is among the integers of every pass."""
    return Lowered([])


@rule("attn.attend", "attn.prefill")
def _attend(lowering: Lowering, group: Group) -> Lowered:
    node, attributes = node_of(lowering, group), node_of(lowering, group).attributes
    if node.operands.get("selection") is not None:
        raise unsupported("no kernel has this option yet", expected="attend without selection", found="selection")
    cache, (k_cells, v_cells), scales = _planes(lowering, node)
    q, window = lowering.value(node, "q"), attributes["window"]
    head_dim, kv_heads = attributes["head_dim"], attributes["kv_heads"]
    out = lowering.new(node.results[0])
    lse = lowering.new(node.results[1]) if attributes.get("lse") else None
    bucket, options, space = lowering.bucket, lowering.options, cache.space
    heads, value_dim = q.shape[1] // head_dim, v_cells.shape[2] // kv_heads
    queries = heads // kv_heads
    names = ("qo_indptr", "kv_len", f"kv_indptr.{space}", f"kv_indices.{space}")
    lanes = attn.Lanes(*(lowering.inputs[name] for name in names))
    # A lane of few rows goes to the kernel for decoding, whatever the other lanes are.
    few = max(1, attn.shape_of(head_dim, value_dim, k_cells.dtype, decode=True).rows // queries)
    kinds = [kind for kind, present in ((True, bucket.shortest <= few), (False, bucket.longest > few)) if present]
    alone = len(kinds) == 1 and not bucket.padded
    launches: list[Launch] = []
    touched: dict[str, tuple[int, int]] = {}
    for decode in kinds:
        shape = attn.shape_of(head_dim, value_dim, k_cells.dtype, decode=decode)
        tiles = bucket.lanes * -(-few * queries // shape.rows) if decode else bucket.rows * queries // shape.rows + bucket.lanes
        work = lowering.work_list(queries, shape, 1 if decode else few + 1, few if decode else None, tiles)
        pieces = attn.pieces_of(tiles, kv_heads, decode=decode, arch=options.arch, batch_invariant=options.batch_invariant)
        if not options.batch_invariant:
            pieces = min(pieces, -(-bucket.cells // options.shortest_piece))
        size = attn.attention_scratch(out.shape[0], heads, value_dim, pieces)
        counters = _counters(lowering, tiles * kv_heads) if size else None
        if counters is not None:
            touched[counters.buffer] = (0, 0)
        launches += attn.attention(
            q, k_cells, v_cells, out if alone else updating(out), tiles=work, lanes=lanes, head_dim=head_dim, kv_heads=kv_heads,
            sm_scale=attributes["sm_scale"], decode=decode, pieces=pieces, shortest=options.shortest_piece, window=window,
            causal=attributes.get("causal", True), scores=_scores(lowering, node), sinks=_sinks(lowering, node), lse=lse, scales=scales,
            scratch=lowering.scratch(size) if size else None, counters=counters, nodes=group.nodes,
        )  # fmt: skip
    cells = bucket.cells if window is None else min(bucket.cells, window + bucket.longest - 1)
    touched |= {plane.buffer: (bucket.lanes * cells * plane.shape[2] * LEAF_BITS[plane.dtype] // 8, 0) for plane in (k_cells, v_cells)}
    return Lowered(launches, 2 * bucket.rows * heads * cells * (head_dim + value_dim), touched)


def _counters(lowering: Lowering, count: int) -> Array:
    """At least so many counters, which every launch leaves 0: those of products, or an array of their own."""
    size = max(COUNTERS, 1 << (count - 1).bit_length())
    return lowering.table("counters" if size == COUNTERS else f"counters {size}", "u32", lambda: np.zeros(size, np.uint32))


def _scores(lowering: Lowering, node: Node) -> attn.Scores:
    softcap, log_scaling = node.attributes.get("softcap"), node.attributes.get("log_scaling")
    bias = lowering.value(node, "bias") if node.operands.get("bias") is not None else None
    mask = lowering.masks() if node.operands.get("mask") is not None else None
    return attn.Scores(softcap, bias, None if log_scaling is None else (log_scaling[0], log_scaling[1]), mask)


def _sinks(lowering: Lowering, node: Node) -> Array | None:
    sinks = node.operands.get("sinks")
    if sinks is None:
        return None
    is_weight = isinstance(sinks, Ref) and sinks.kind == "param"
    return lowering.weight(lowering.param(node, "sinks"))["data"] if is_weight else lowering.value(node, "sinks")
