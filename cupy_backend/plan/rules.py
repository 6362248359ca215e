"""One rule for each op and each fusion pattern: which launches compute it, and what they cost."""

import numpy as np

from cupy_backend.kernels import elemwise, gather, linear, rope_append
from cupy_backend.kernels.arrays import unsupported
from cupy_backend.kernels.linear_tables import COUNTERS
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import VALUE, Lowered, Lowering, Rule, elements
from cupy_backend.plan.patterns import Group, is_plain_glu, is_plain_rope, operand
from cupy_backend.plan.prepare import PRODUCT
from cupy_backend.plan.record import Columns
from cupy_backend.plan.tables import rotary_frequencies
from poem.dtypes import Dtype
from poem.dtypes.term import LEAF_BITS
from poem.graph import Node, Param

RULES: dict[str, Rule] = {}


def rule(*names: str):  # type: ignore[no-untyped-def]
    """Registers the decorated function for ops, or for patterns by name."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def _node(lowering: Lowering, group: Group, which: int = 0) -> Node:
    return lowering.graph.nodes[group.nodes[which]]


# -- elemwise ----------------------------------------------------------------------------------
@rule("elemwise.rmsnorm", "elemwise.rmsnorm_plus_one")
def _rmsnorm(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    x, gain = lowering.value(node, "x"), lowering.weight(lowering.param(node, "w"))["data"]
    launches = elemwise.rmsnorm(
        x, gain, lowering.new(node.results[0]), eps=node.attributes["eps"], plus_one=node.op.endswith("plus_one"), nodes=group.nodes
    )
    return Lowered(launches, 4 * elements(x))


@rule("elemwise.rmsnorm_per_head", "elemwise.rmsnorm_per_head_plus_one")
def _rmsnorm_per_head(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    x, gain = lowering.value(node, "x"), lowering.weight(lowering.param(node, "w"))["data"]
    launches = elemwise.rmsnorm_per_head(
        x, gain, lowering.new(node.results[0]), head_dim=node.attributes["head_dim"], eps=node.attributes["eps"],
        plus_one=node.op.endswith("plus_one"), nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 4 * elements(x))


@rule("add_rmsnorm")
def _add_rmsnorm(lowering: Lowering, group: Group) -> Lowered:
    add, norm = _node(lowering, group, 0), _node(lowering, group, 1)
    x, residual = lowering.value(add, "x"), lowering.value(add, "y")
    lowering.places[add.results[0]] = lowering.columns(operand(add, "y").id)
    launches = elemwise.rmsnorm(
        x, lowering.weight(lowering.param(norm, "w"))["data"], lowering.new(norm.results[0]), eps=norm.attributes["eps"],
        plus_one=norm.op.endswith("plus_one"), residual=residual, nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 5 * elements(x))


@rule("elemwise.add_bias")
def _add_bias(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    x, bias = lowering.value(node, "x"), lowering.weight(lowering.param(node, "bias"))["data"]
    launches = elemwise.add_bias(bias, x, lowering.new(node.results[0]), arch=lowering.options.arch, nodes=group.nodes)
    return Lowered(launches, elements(x))


@rule("linear.glu")
def _glu(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    if not is_plain_glu(node):
        raise unsupported("no kernel has this form yet", expected="silu, gelu_tanh or gelu of the first half times the second, no limits")
    x, out = lowering.value(node, "x"), lowering.new(node.results[0])
    launches = elemwise.glu(x, out, act=node.attributes["act"], arch=lowering.options.arch, nodes=group.nodes)
    return Lowered(launches, 4 * elements(out))


@rule("elemwise.rope")
def _rope(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    q, positions = lowering.value(node, "q"), lowering.value(node, "positions")
    k = lowering.value(node, "k") if node.operands["k"] is not None else None
    outs = [lowering.new(value) for value in node.results]
    launches = elemwise.rope_half(
        q, k, positions, _frequencies(lowering, node), outs[0], outs[1] if k is not None else None, head_dim=node.attributes["head_dim"],
        factor=_rope_factor(node), inverse=node.attributes["inverse"], nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 3 * sum(map(elements, outs)))


def _frequencies(lowering: Lowering, node: Node) -> Array:
    if not is_plain_rope(node):
        raise unsupported(
            "no kernel turns channels in this way yet", expected="form half, part first, no longrope with use auto",
            found=f"form {node.attributes['form']}, part {node.attributes['part']}",
        )  # fmt: skip
    scaling, theta = node.attributes["scaling"], node.attributes["theta"]
    rotary = node.attributes["rotary_dim"] or node.attributes["head_dim"]
    settings = "" if scaling is None else " " + " ".join(f"{name}={value}" for name, value in sorted(scaling.items()))
    return lowering.table(f"rotary {theta} {rotary}{settings}", "f32", lambda: rotary_frequencies(theta, rotary, scaling))


def _rope_factor(node: Node) -> float:
    return float((node.attributes["scaling"] or {}).get("attention_factor", 1.0))


# -- linear ------------------------------------------------------------------------------------
@rule("linear.matmul", "linear.lm_head")
def _matmul(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    return _product(lowering, group, lowering.value(node, "x"), [lowering.param(node, "w")], lowering.new(node.results[0]))


@rule("matmul_glu")
def _matmul_glu(lowering: Lowering, group: Group) -> Lowered:
    product, gate = _node(lowering, group, 0), _node(lowering, group, 1)
    x, out = lowering.value(product, "x"), lowering.new(gate.results[0])
    return _product(lowering, group, x, [lowering.param(product, "w")], out, act=gate.attributes["act"])


@rule("joined_matmul")
def _joined_matmul(lowering: Lowering, group: Group) -> Lowered:
    nodes = [lowering.graph.nodes[id] for id in group.nodes]
    products = [node for node in nodes if node.op == "linear.matmul"]
    made = _side_by_side(lowering, products)
    found = _product(lowering, group, lowering.value(products[0], "x"), [lowering.param(node, "w") for node in products], made)
    biases = {operand(node, "x").id: node for node in nodes if node.op == "elemwise.add_bias"}
    biased = [biases[product.results[0]] for product in products if product.results[0] in biases]
    if not biased:
        return found
    bias = lowering.weight(*(lowering.param(node, "bias") for node in biased))["data"]
    launches = elemwise.add_bias(bias, made, _side_by_side(lowering, biased), arch=lowering.options.arch, nodes=group.nodes)
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


def _product(lowering: Lowering, group: Group, x: Array, params: list[Param], out: Array, act: str | None = None) -> Lowered:
    """out = x times the joined rows of the params, or the gated unit of that."""
    arch, batch_invariant, dtype = lowering.options.arch, lowering.options.batch_invariant, Dtype(params[0].dtype)
    size = linear.matmul_scratch(x.shape[0], out.shape[1], x.shape[1], dtype=dtype, arch=arch, batch_invariant=batch_invariant, act=act)
    counters = lowering.table("counters", "u32", lambda: np.zeros(COUNTERS, np.uint32))
    launches = linear.matmul(
        x, lowering.weight(*params, prepare=PRODUCT), out, dtype=dtype, arch=arch, batch_invariant=batch_invariant, act=act,
        scratch=lowering.scratch(size) if size else None, counters=counters, nodes=group.nodes,
    )  # fmt: skip
    rows = sum(param.shape[0] for param in params)
    return Lowered(launches, 2 * x.shape[0] * rows * x.shape[1], {counters.buffer: (0, 0)})


# -- gather ------------------------------------------------------------------------------------
@rule("gather.embed")
def _embed(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    param, ids, out = lowering.param(node, "table"), lowering.value(node, "ids"), lowering.new(node.results[0])
    table, dtype = lowering.weight(param), Dtype(param.dtype)
    launches = gather.embed(ids, table, out, dtype=dtype, vocab=node.attributes["vocab"], nodes=group.nodes)
    touched = {plane.buffer: (plane.nbytes * out.shape[0] // param.shape[0], 0) for plane in table.values()}
    return Lowered(launches, 0, touched)


@rule("gather.gather_rows")
def _gather_rows(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    x, rows, out = lowering.value(node, "x"), lowering.value(node, "rows"), lowering.new(node.results[0])
    return Lowered(gather.gather_rows(x, rows, out, nodes=group.nodes), 0, {x.buffer: (out.nbytes, 0)})


@rule("gather.split_rows", "gather.split_qkv")
def _split_columns(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    x, parts = lowering.value(node, "x"), [lowering.new(value) for value in node.results]
    return Lowered(gather.split_columns(x, parts, nodes=group.nodes), 0)


@rule("gather.split_q_gate")
def _split_q_gate(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    q, gate = (lowering.new(value) for value in node.results)
    return Lowered(gather.split_q_gate(lowering.value(node, "x"), q, gate, head_dim=node.attributes["head_dim"], nodes=group.nodes))


# -- attention ---------------------------------------------------------------------------------
@rule("rope_append")
def _rope_append(lowering: Lowering, group: Group) -> Lowered:
    rope, append = _node(lowering, group, 0), _node(lowering, group, 1)
    cache = lowering.cache(append)
    parts = [lowering.columns(operand(node, name).id) for node, name in ((rope, "q"), (rope, "k"), (append, "v"))]
    arrays = tuple(_run(part.array, part.start, part.width) for part in parts)
    q_out, cells = lowering.new(rope.results[0]), lowering.cells(cache)
    if len(cells) != 2 or cache.scales is not None:
        raise unsupported("no kernel appends to such a cache yet", expected="a plane for K and one for V, without scales", found=cache.name)
    space, rows = cache.space, q_out.shape[0]
    launches = rope_append.rope_append(
        (arrays[0], arrays[1], arrays[2]), (parts[0].array.shape[1], parts[1].array.shape[1], parts[2].array.shape[1]),
        lowering.value(rope, "positions"), _frequencies(lowering, rope), lowering.inputs[f"write_page.{space}"],
        lowering.inputs[f"write_offset.{space}"], q_out, (cells[0], cells[1]), widths=(parts[0].width, parts[1].width, parts[2].width),
        head_dim=rope.attributes["head_dim"], factor=_rope_factor(rope), inverse=rope.attributes["inverse"], nodes=group.nodes,
    )  # fmt: skip
    touched = {part.array.buffer: (0, 0) for part in parts}
    for part in parts:
        touched[part.array.buffer] = (touched[part.array.buffer][0] + rows * part.width * LEAF_BITS[part.array.dtype] // 8, 0)
    touched |= {plane.buffer: (0, rows * plane.shape[2] * LEAF_BITS[plane.dtype] // 8) for plane in cells}
    return Lowered(launches, 3 * rows * (parts[0].width + parts[1].width), touched)


def _run(array: Array, start: int, width: int) -> Array:
    """The elements from column `start` of the first row to the end of those columns in the last row."""
    rows, stride = array.shape
    step = LEAF_BITS[array.dtype] // 8
    return Array(array.buffer, "read", ((rows - 1) * stride + width,), array.dtype, array.offset + start * step)
