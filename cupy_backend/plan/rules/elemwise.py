"""Rules for the ops on rows and elements: norms, gated units, rotary positions."""

from typing import Any

from cupy_backend.kernels import elemwise, rope
from cupy_backend.kernels.arrays import unsupported
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import Lowered, Lowering, elements
from cupy_backend.plan.patterns import Group, is_plain_glu, operand
from cupy_backend.plan.rules.registry import node_of, rule
from cupy_backend.plan.rules.rotary import factor_of, pairs_of, table_arrays, table_of
from cupy_backend.plan.tables import Pairs, axes_pairs


@rule("elemwise.rmsnorm", "elemwise.rmsnorm_plus_one")
def _rmsnorm(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, gain = lowering.value(node, "x"), lowering.weight(lowering.param(node, "w"))["data"]
    launches = elemwise.rmsnorm(
        x, gain, lowering.new(node.results[0]), eps=node.attributes["eps"], plus_one=node.op.endswith("plus_one"), nodes=group.nodes
    )
    return Lowered(launches, 4 * elements(x))


@rule("elemwise.rmsnorm_per_head", "elemwise.rmsnorm_per_head_plus_one")
def _rmsnorm_per_head(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, gain = lowering.value(node, "x"), lowering.weight(lowering.param(node, "w"))["data"]
    launches = elemwise.rmsnorm_per_head(
        x, gain, lowering.new(node.results[0]), head_dim=node.attributes["head_dim"], eps=node.attributes["eps"],
        plus_one=node.op.endswith("plus_one"), nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 4 * elements(x))


@rule("add_rmsnorm")
def _add_rmsnorm(lowering: Lowering, group: Group) -> Lowered:
    add, norm = node_of(lowering, group, 0), node_of(lowering, group, 1)
    x, residual = lowering.value(add, "x"), lowering.value(add, "y")
    lowering.places[add.results[0]] = lowering.columns(operand(add, "y").id)
    launches = elemwise.rmsnorm(
        x, lowering.weight(lowering.param(norm, "w"))["data"], lowering.new(norm.results[0]), eps=norm.attributes["eps"],
        plus_one=norm.op.endswith("plus_one"), residual=residual, nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 5 * elements(x))


@rule("elemwise.add_bias")
def _add_bias(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, bias = lowering.value(node, "x"), lowering.weight(lowering.param(node, "bias"))["data"]
    launches = elemwise.add_bias(bias, x, lowering.new(node.results[0]), arch=lowering.options.arch, nodes=group.nodes)
    return Lowered(launches, elements(x))


@rule("linear.glu")
def _glu(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    if not is_plain_glu(node):
        raise unsupported("no kernel has this form yet", expected="silu, gelu_tanh or gelu of the first half times the second, no limits")
    x, out = lowering.value(node, "x"), lowering.new(node.results[0])
    launches = elemwise.glu(x, out, act=node.attributes["act"], arch=lowering.options.arch, nodes=group.nodes)
    return Lowered(launches, 4 * elements(out))


@rule("elemwise.rope")
def _rope(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    names = [name for name in ("q", "k") if node.operands[name] is not None]
    given, made = [lowering.value(node, name) for name in names], [lowering.new(value) for value in node.results]
    return _turned(
        lowering, group, given, made, pairs_of(node), head_dim=node.attributes["head_dim"], factor=factor_of(node),
        inverse=node.attributes["inverse"],
    )  # fmt: skip


@rule("elemwise.rope_axes")
def _rope_axes(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    attributes = {name: node.attributes[name] for name in ("dims", "thetas", "form", "rotary_dim")}
    if attributes["form"] == "split_ladder":
        raise unsupported("no kernel has this form yet", expected="interleaved, split or neox", found="split_ladder")
    x = lowering.value(node, "x")
    pairs = axes_pairs(axes=lowering.value(node, "positions").shape[-1], **attributes)
    return _turned(lowering, group, [x], [lowering.new(node.results[0])], pairs, head_dim=node.attributes["head_dim"])


def _turned(lowering: Lowering, group: Group, given: list[Array], made: list[Array], pairs: Pairs, *, head_dim: int, **how: Any) -> Lowered:
    """q, and perhaps k, with the pairs of each head turned."""
    packs = rope.packs(pairs.first, pairs.second, head_dim, given[0].dtype)
    frequencies, columns = table_arrays(lowering, pairs)
    launches = rope.rope(
        given, lowering.value(node_of(lowering, group), "positions"), frequencies, table_of(lowering, "packs", packs.table), made,
        head_dim=head_dim, vector=packs.vector, neighbours=packs.neighbours, columns=columns, nodes=group.nodes, **how,
    )  # fmt: skip
    return Lowered(launches, 3 * sum(map(elements, made)))
