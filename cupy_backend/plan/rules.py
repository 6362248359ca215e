"""One rule for each op and each fusion pattern: which launches compute it, and what they cost."""

import numpy as np

from cupy_backend.kernels import attn, elemwise, gather, linear, sampling
from cupy_backend.kernels.arrays import unsupported, updating
from cupy_backend.kernels.linear_tables import COUNTERS
from cupy_backend.launch import Array, Launch
from cupy_backend.plan.lowering import VALUE, Lowered, Lowering, Rule, elements
from cupy_backend.plan.patterns import Group, is_plain_glu, is_plain_rope, operand
from cupy_backend.plan.prepare import PRODUCT
from cupy_backend.plan.record import Columns
from cupy_backend.plan.tables import rotary_frequencies
from poem.dtypes import Dtype
from poem.dtypes.term import LEAF_BITS
from poem.graph import Cache, Node, Param

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


# -- sampling ----------------------------------------------------------------------------------
@rule("sampling.argmax")
def _argmax(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    given = node.operands["x"]
    refs = given if isinstance(given, list) else [operand(node, "x")]
    values, ids = [lowering.whole(ref.id) for ref in refs], lowering.new(node.results[0])
    launches: list[Launch] = []
    for column, x in enumerate(values):
        scratch = lowering.scratch(sampling.argmax_scratch(*x.shape))
        launches += sampling.argmax(x, ids, column=column, scratch=scratch, nodes=group.nodes)
    return Lowered(launches, sum(map(elements, values)))


# -- attention ---------------------------------------------------------------------------------
@rule("rope_append")
def _rope_append(lowering: Lowering, group: Group) -> Lowered:
    rope, append = _node(lowering, group, 0), _node(lowering, group, 1)
    cache, (k_cells, v_cells) = _two_planes(lowering, append)
    q, k, v = (lowering.columns(operand(node, name).id) for node, name in ((rope, "q"), (rope, "k"), (append, "v")))
    q_out, frequencies = lowering.new(rope.results[0]), _frequencies(lowering, rope)
    half = frequencies.shape[0]
    turn = attn.Turn(frequencies, distance=half, factor=_rope_factor(rope), inverse=rope.attributes["inverse"])
    launches = attn.rope_append(
        _columns(q), _columns(k), _columns(v), lowering.value(rope, "positions"), turn, q_out, k_cells, v_cells,
        lowering.inputs[f"write_page.{cache.space}"], lowering.inputs[f"write_offset.{cache.space}"],
        head_dim=rope.attributes["head_dim"], nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 3 * q_out.shape[0] * (q.width + k.width), _appended(q_out.shape[0], (q, k, v), (k_cells, v_cells)))


@rule("attn.kv_append")
def _kv_append(lowering: Lowering, group: Group) -> Lowered:
    node = _node(lowering, group)
    cache, (k_cells, v_cells) = _two_planes(lowering, node)
    k, v = (lowering.columns(operand(node, name).id) for name in ("k", "v"))
    slots = [
        lowering.value(node, name) if node.operands[name] is not None else lowering.inputs[f"{name}.{cache.space}"]
        for name in ("write_page", "write_offset")
    ]
    launches = attn.kv_append(_columns(k), _columns(v), k_cells, v_cells, slots[0], slots[1], nodes=group.nodes)
    return Lowered(launches, 0, _appended(k.array.shape[0], (k, v), (k_cells, v_cells)))


def _columns(where: Columns) -> attn.Columns:
    return attn.Columns(where.array, where.start, where.width)


def _two_planes(lowering: Lowering, node: Node) -> tuple[Cache, tuple[Array, Array]]:
    cache = lowering.cache(node)
    cells = lowering.cells(cache)
    if len(cells) != 2 or cache.scales is not None:
        raise unsupported("no kernel takes such a cache yet", expected="a plane for K and one for V, without scales", found=cache.name)
    return cache, (cells[0], cells[1])


def _appended(rows: int, parts: tuple[Columns, ...], cells: tuple[Array, ...]) -> dict[str, tuple[int, int]]:
    """Bytes that an append reads of its operands and writes into its cells."""
    touched: dict[str, tuple[int, int]] = {}
    for part in parts:
        before = touched.get(part.array.buffer, (0, 0))[0]
        touched[part.array.buffer] = (before + rows * part.width * LEAF_BITS[part.array.dtype] // 8, 0)
    return touched | {plane.buffer: (0, rows * plane.shape[2] * LEAF_BITS[plane.dtype] // 8) for plane in cells}


# Options of attend that no kernel has yet, and what they are without them.
_PLAIN_ATTEND = {"mask": None, "bias": None, "selection": None, "ratio": 1, "log_scaling": None}


@rule("attn.attend")
def _attend(lowering: Lowering, group: Group) -> Lowered:
    node, attributes = _node(lowering, group), _node(lowering, group).attributes
    for name, plain in _PLAIN_ATTEND.items():
        if (node.operands.get(name) if name in node.operands else attributes.get(name)) != plain:
            raise unsupported("no kernel has this option yet", expected=f"attend without {name}", found=name)
    cache, (k_cells, v_cells) = _two_planes(lowering, node)
    q, window = lowering.columns(operand(node, "q").id), attributes["window"]
    head_dim, kv_heads = attributes["head_dim"], attributes["kv_heads"]
    out = lowering.new(node.results[0])
    lse = lowering.new(node.results[1]) if attributes["lse"] else None
    bucket, options, space = lowering.bucket, lowering.options, cache.space
    heads, value_dim = q.width // head_dim, v_cells.shape[2] // kv_heads
    names = ("qo_indptr", "kv_len", f"kv_indptr.{space}", f"kv_indices.{space}")
    lanes = attn.Lanes(*(lowering.inputs[name] for name in names))
    sinks = None
    if node.operands["sinks"] is not None:
        if operand(node, "sinks").kind != "param":
            raise unsupported("no kernel has this option yet", expected="sinks of a weight", found="sinks of a value")
        sinks = lowering.weight(lowering.param(node, "sinks"))["data"]
    # A lane of few rows goes to the kernel for decoding, whatever the other lanes are.
    few = max(1, attn.shape_of(head_dim, value_dim, k_cells.dtype, decode=True).rows * kv_heads // heads)
    kinds = [kind for kind, present in ((True, bucket.shortest <= few), (False, bucket.longest > few)) if present]
    alone = len(kinds) == 1 and not bucket.padded
    launches: list[Launch] = []
    for decode in kinds:
        shape = attn.shape_of(head_dim, value_dim, k_cells.dtype, decode=decode)
        tiles = bucket.lanes if decode else bucket.rows * (heads // kv_heads) // shape.rows + bucket.lanes
        work = lowering.work_list(heads // kv_heads, shape, 1 if decode else few + 1, few if decode else None, tiles)
        pieces = attn.pieces_of(tiles, kv_heads, decode=decode, arch=options.arch, batch_invariant=options.batch_invariant)
        if not options.batch_invariant:
            pieces = min(pieces, -(-bucket.cells // attn.SHORTEST_PIECE))
        size = attn.attention_scratch(out.shape[0], heads, value_dim, pieces)
        launches += attn.attention(
            _columns(q), k_cells, v_cells, out if alone else updating(out), tiles=work, lanes=lanes, head_dim=head_dim, kv_heads=kv_heads,
            sm_scale=attributes["sm_scale"], decode=decode, pieces=pieces, window=window, causal=attributes["causal"],
            softcap=attributes["softcap"], sinks=sinks, lse=lse, scratch=lowering.scratch(size) if size else None, nodes=group.nodes,
        )  # fmt: skip
    cells = bucket.cells if window is None else min(bucket.cells, window + bucket.longest - 1)
    touched = {plane.buffer: (bucket.lanes * cells * plane.shape[2] * LEAF_BITS[plane.dtype] // 8, 0) for plane in (k_cells, v_cells)}
    return Lowered(launches, 2 * bucket.rows * heads * cells * (head_dim + value_dim), touched)
