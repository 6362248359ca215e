"""Rules for the ops that move rows and columns."""

import math
from dataclasses import replace

from cupy_backend.kernels import gather
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import Lowered, Lowering
from cupy_backend.plan.patterns import Group, operand
from cupy_backend.plan.rules.registry import node_of, rule
from poem.dtypes import Dtype


@rule("gather.embed", "gather.embed_concat")
def _embed(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    param, ids, out = lowering.param(node, "table"), lowering.value(node, "ids"), lowering.new(node.results[0])
    table, dtype = lowering.weight(param), Dtype(param.dtype)
    rows = _as_rows(out, param.shape[1])  # ids of a row lie behind each other, and so do the rows that they name
    launches = gather.embed(ids, table, rows, dtype=dtype, vocab=node.attributes["vocab"], nodes=group.nodes)
    touched = {plane.buffer: (plane.nbytes * rows.shape[0] // param.shape[0], 0) for plane in table.values()}
    return Lowered(launches, 0, touched)


@rule("gather.embed_weighted")
def _embed_weighted(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    param, out = lowering.param(node, "table"), lowering.new(node.results[0])
    ids, weights, table = lowering.value(node, "ids"), lowering.value(node, "weights"), lowering.weight(param)
    launches = gather.embed_weighted(
        ids, weights, table, out, dtype=Dtype(param.dtype), vocab=node.attributes["vocab"], nodes=group.nodes
    )  # fmt: skip
    read = {plane.buffer: (plane.nbytes * math.prod(ids.shape) // param.shape[0], 0) for plane in table.values()}
    return Lowered(launches, 2 * math.prod(ids.shape) * out.shape[1], read)


@rule("gather.gather_rows")
def _gather_rows(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    rows, out = lowering.value(node, "rows"), lowering.new(node.results[0])
    x = _as_rows(lowering.value(node, "x"), out.shape[1])
    return Lowered(gather.gather_rows(x, rows, out, nodes=group.nodes), 0, {x.buffer: (out.nbytes, 0)})


@rule("gather.pack_rows")
def _pack_rows(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    rows, out = lowering.value(node, "perm"), lowering.new(node.results[0])
    return Lowered(gather.pack_rows(_as_rows(lowering.value(node, "x"), out.shape[1]), rows, out, nodes=group.nodes))


@rule("gather.unpack_rows")
def _unpack_rows(lowering: Lowering, group: Group) -> Lowered:
    return _scattered(lowering, group, "x", "perm", None)


@rule("gather.scatter_rows", "gather.scatter_live_rows")
def _scatter_rows(lowering: Lowering, group: Group) -> Lowered:
    return _scattered(lowering, group, "src", "routes", "y")


def _scattered(lowering: Lowering, group: Group, source: str, routes: str, y: str | None) -> Lowered:
    node = node_of(lowering, group)
    out = lowering.new(node.results[0])
    src, kept = (None if name is None else _as_rows(lowering.value(node, name), out.shape[1]) for name in (source, y))
    assert src is not None
    live, rows_of_live = lowering.live(operand(node, source).id)
    launches = gather.scatter_rows(
        src, lowering.value(node, routes), kept, out, live=live, rows_of_live=rows_of_live, nodes=group.nodes
    )  # fmt: skip
    return Lowered(launches)


@rule("gather.split_rows", "gather.split_qkv")
def _split_columns(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, parts = lowering.value(node, "x"), [lowering.new(value) for value in node.results]
    return Lowered(gather.split_columns(x, parts, nodes=group.nodes))


@rule("gather.split_q_gate")
def _split_q_gate(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    q, gate = (lowering.new(value) for value in node.results)
    return Lowered(gather.split_q_gate(lowering.value(node, "x"), q, gate, head_dim=node.attributes["head_dim"], nodes=group.nodes))


@rule("gather.concat_cols")
def _concat_columns(lowering: Lowering, group: Group) -> Lowered:
    node, out = node_of(lowering, group), lowering.new(node_of(lowering, group).results[0])
    given = node.operands["values"]
    assert isinstance(given, list)
    parts = [_as_rows(lowering.whole(ref.id), lowering.shape(ref.id)[1]) for ref in given]
    return Lowered(gather.concat_columns(parts, out, nodes=group.nodes))


@rule("gather.select")
def _select(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, out = lowering.value(node, "x"), lowering.new(node.results[0])
    first = node.attributes["index"] * node.attributes["width"]
    launches = gather.select_columns(_as_rows(x, x.shape[-1] if len(x.shape) > 1 else 1), first, out, nodes=group.nodes)
    return Lowered(launches, 0, {x.buffer: (out.nbytes, 0)})


@rule("elemwise.copy", "gather.group_rows")
def _copy(lowering: Lowering, group: Group) -> Lowered:
    """The same bytes in the same order."""
    node = node_of(lowering, group)
    out = lowering.new(node.results[0])
    return Lowered(gather.select_columns(_as_rows(lowering.value(node, "x"), out.shape[1]), 0, out, nodes=group.nodes))


@rule("gather.pool_rows")
def _pool_rows(lowering: Lowering, group: Group) -> Lowered:
    node, size = node_of(lowering, group), node_of(lowering, group).attributes["side"] ** 2
    x, out = lowering.value(node, "x"), lowering.new(node.results[0])
    return Lowered(gather.mean_rows(x, out, size=size, nodes=group.nodes), math.prod(x.shape))


def _as_rows(array: Array, width: int) -> Array:
    """The same memory as rows of `width`: of lists of integers, and of rows that lie end to end."""
    return replace(array, shape=(math.prod(array.shape) // width, width))
