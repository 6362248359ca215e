"""Rules for the ops that move rows and columns."""

from cupy_backend.kernels import gather
from cupy_backend.plan.lowering import Lowered, Lowering
from cupy_backend.plan.patterns import Group
from cupy_backend.plan.rules.registry import node_of, rule
from poem.dtypes import Dtype


@rule("gather.embed")
def _embed(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    param, ids, out = lowering.param(node, "table"), lowering.value(node, "ids"), lowering.new(node.results[0])
    table, dtype = lowering.weight(param), Dtype(param.dtype)
    launches = gather.embed(ids, table, out, dtype=dtype, vocab=node.attributes["vocab"], nodes=group.nodes)
    touched = {plane.buffer: (plane.nbytes * out.shape[0] // param.shape[0], 0) for plane in table.values()}
    return Lowered(launches, 0, touched)


@rule("gather.gather_rows")
def _gather_rows(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, rows, out = lowering.value(node, "x"), lowering.value(node, "rows"), lowering.new(node.results[0])
    return Lowered(gather.gather_rows(x, rows, out, nodes=group.nodes), 0, {x.buffer: (out.nbytes, 0)})


@rule("gather.split_rows", "gather.split_qkv")
def _split_columns(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, parts = lowering.value(node, "x"), [lowering.new(value) for value in node.results]
    return Lowered(gather.split_columns(x, parts, nodes=group.nodes), 0)


@rule("gather.split_q_gate")
def _split_q_gate(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    q, gate = (lowering.new(value) for value in node.results)
    return Lowered(gather.split_q_gate(lowering.value(node, "x"), q, gate, head_dim=node.attributes["head_dim"], nodes=group.nodes))
