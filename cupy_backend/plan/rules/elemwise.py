"""Rules for the ops on rows and elements: norms, gated units, rotary positions."""

from cupy_backend.kernels import elemwise
from cupy_backend.kernels.arrays import unsupported
from cupy_backend.plan.lowering import Lowered, Lowering, elements
from cupy_backend.plan.patterns import Group, is_plain_glu, operand
from cupy_backend.plan.rules.registry import node_of, rule
from cupy_backend.plan.rules.rotary import frequencies, rope_factor


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
    q, positions = lowering.value(node, "q"), lowering.value(node, "positions")
    k = lowering.value(node, "k") if node.operands["k"] is not None else None
    outs = [lowering.new(value) for value in node.results]
    launches = elemwise.rope_half(
        q, k, positions, frequencies(lowering, node), outs[0], outs[1] if k is not None else None, head_dim=node.attributes["head_dim"],
        factor=rope_factor(node), inverse=node.attributes["inverse"], nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 3 * sum(map(elements, outs)))
