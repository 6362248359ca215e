"""Rules for matrix products."""

import numpy as np

from cupy_backend.kernels import elemwise, linear
from cupy_backend.kernels.linear_tables import COUNTERS
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import VALUE, Lowered, Lowering
from cupy_backend.plan.patterns import Group, has_bias_alike, operand
from cupy_backend.plan.prepare import PRODUCT
from cupy_backend.plan.record import Columns
from cupy_backend.plan.rules.registry import node_of, rule
from poem.dtypes import Dtype
from poem.graph import Node, Param


@rule("linear.matmul", "linear.lm_head")
def _matmul(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    return _product(lowering, group, _activations(lowering, node), [lowering.param(node, "w")], lowering.new(node.results[0]))


@rule("matmul_bias")
def _matmul_bias(lowering: Lowering, group: Group) -> Lowered:
    product, adding = node_of(lowering, group, 0), node_of(lowering, group, 1)
    bias, out = lowering.weight(lowering.param(adding, "bias"))["data"], lowering.new(adding.results[0])
    return _product(lowering, group, _activations(lowering, product), [lowering.param(product, "w")], out, bias=bias)


@rule("matmul_glu")
def _matmul_glu(lowering: Lowering, group: Group) -> Lowered:
    product, gate = node_of(lowering, group, 0), node_of(lowering, group, 1)
    x, out = _activations(lowering, product), lowering.new(gate.results[0])
    return _product(lowering, group, x, [lowering.param(product, "w")], out, act=gate.attributes["act"])


def _activations(lowering: Lowering, node: Node) -> Array | linear.Codes:
    """The operand of a product: a value, or the codes that its maker stored in place of it."""
    coded = lowering.codes.get(operand(node, "x").id)
    return lowering.value(node, "x") if coded is None else linear.Codes(*coded)


@rule("joined_matmul")
def _joined_matmul(lowering: Lowering, group: Group) -> Lowered:
    nodes = [lowering.graph.nodes[id] for id in group.nodes]
    products = [node for node in nodes if node.op == "linear.matmul"]
    x, weights = _activations(lowering, products[0]), [lowering.param(node, "w") for node in products]
    biases = {operand(node, "x").id: node for node in nodes if node.op == "elemwise.add_bias"}
    biased = [biases[product.results[0]] for product in products if product.results[0] in biases]
    if not biased:
        return _product(lowering, group, x, weights, _side_by_side(lowering, products))
    bias = lowering.weight(*(lowering.param(node, "bias") for node in biased))["data"]
    if all(has_bias_alike(lowering.graph, node) for node in biased):
        return _product(lowering, group, x, weights, _side_by_side(lowering, biased), bias=bias)
    made = _side_by_side(lowering, products)
    found = _product(lowering, group, x, weights, made)
    launches = elemwise.elementwise("Add", [made, bias], _side_by_side(lowering, biased), arch=lowering.options.arch, nodes=group.nodes)
    return Lowered([*found.launches, *launches], found.flops, found.touched)


def _side_by_side(lowering: Lowering, nodes: list[Node]) -> Array:
    """One array for the results of several nodes, each as some of its columns."""
    values = [node.results[0] for node in nodes]
    shapes = [lowering.shape(value) for value in values]
    type = lowering.graph.values[values[0]].type
    assert type is not None
    array = Array(f"{VALUE}{values[0]}", "write", (shapes[0][0], sum(width for _, width in shapes)), type.dtype)
    start = 0
    for value, (_, width) in zip(values, shapes, strict=True):
        lowering.places[value] = Columns(array, start, width)
        start += width
    return array


def _product(
    lowering: Lowering, group: Group, x: Array | linear.Codes, params: list[Param], out: Array, act: str | None = None,
    bias: Array | None = None,
) -> Lowered:  # fmt: skip
    """out = x times the joined rows of the params, plus a bias, or the gated unit of the product."""
    options, dtype = lowering.options, Dtype(params[0].dtype)
    arch, batch_invariant = options.arch, options.batch_invariant
    size = linear.matmul_scratch(
        x.shape[0], out.shape[1], x.shape[1], dtype=dtype, arch=arch, batch_invariant=batch_invariant, act=act,
        coded=isinstance(x, linear.Codes),
    )  # fmt: skip
    counters = lowering.table("counters", "u32", lambda: np.zeros(COUNTERS, np.uint32))
    launches = linear.matmul(
        x, lowering.weight(*params, prepare=PRODUCT), out, dtype=dtype, arch=arch, batch_invariant=batch_invariant, act=act, bias=bias,
        warpgroups=options.warpgroups, scratch=lowering.scratch(size) if size else None, counters=counters, nodes=group.nodes,
    )  # fmt: skip
    rows = sum(param.shape[0] for param in params)
    return Lowered(launches, 2 * x.shape[0] * rows * x.shape[1], {counters.buffer: (0, 0)})
