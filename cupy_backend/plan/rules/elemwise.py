"""Rules for the ops on rows and elements: norms, gated units, rotary positions."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from cupy_backend.kernels import elemwise, linear, norms, rope
from cupy_backend.kernels.rope import Turn
from cupy_backend.launch import Array
from cupy_backend.plan.formulas import FORMULAS
from cupy_backend.plan.lowering import VALUE, Lowered, Lowering, elements
from cupy_backend.plan.patterns import Group, operand
from cupy_backend.plan.rules.registry import node_of, rule
from cupy_backend.plan.rules.rotary import turn_by, turn_of
from cupy_backend.plan.tables import axes_pairs, ladder_pairs
from poem.dtypes.leaves import STORAGE
from poem.graph import Node


# -- norms ---------------------------------------------------------------------------------------------------------------------
@rule(
    "elemwise.rmsnorm", "elemwise.rmsnorm_plus_one", "elemwise.rmsnorm_per_head", "elemwise.rmsnorm_per_head_plus_one",
    "elemwise.rmsnorm_no_scale", "elemwise.rmsnorm_grouped_plus_one",
)  # fmt: skip
def _rmsnorm(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, size = lowering.value(node, "x"), node.attributes.get("head_dim", node.attributes.get("group"))
    launches = norms.rmsnorm(
        x, _weight(lowering, node, "w"), lowering.new(node.results[0]), eps=node.attributes["eps"], size=size,
        plus_one=node.op.endswith("plus_one"), nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 4 * elements(x))


@rule("rmsnorm_codes", "add_rmsnorm_codes")
def _rmsnorm_codes(lowering: Lowering, group: Group) -> Lowered:
    """A norm that only a8 products read: stored as the codes that they multiply."""
    norm, add = node_of(lowering, group, -1), node_of(lowering, group) if len(group.nodes) > 1 else None
    x, residual = lowering.value(add or norm, "x"), None if add is None else lowering.value(add, "y")
    if add is not None:
        lowering.places[add.results[0]] = lowering.columns(operand(add, "y").id)
    codes, scales = _codes_of(lowering, norm.results[0])
    launches = norms.rmsnorm_codes(
        x, lowering.weight(lowering.param(norm, "w"))["data"], codes, scales, eps=norm.attributes["eps"],
        plus_one=norm.op.endswith("plus_one"), residual=residual, nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 7 * elements(x))


@rule("elemwise.rmsnorm_gated", "elemwise.rmsnorm_gated_by")
def _rmsnorm_gated(lowering: Lowering, group: Group) -> Lowered:
    node, attributes = node_of(lowering, group), node_of(lowering, group).attributes
    x, gate, gain = lowering.value(node, "x"), lowering.value(node, "gate"), lowering.weight(lowering.param(node, "w"))["data"]
    size = attributes["head_dim"] if "head_dim" in attributes else x.shape[1] // attributes["heads"]
    launches = norms.rmsnorm_gated(
        x, gate, gain, lowering.new(node.results[0]), size=size, eps=attributes["eps"], act=attributes.get("act", "sigmoid"),
        gate_first=attributes.get("gate_first", False), nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 8 * elements(x))


@rule("elemwise.layernorm", "elemwise.layernorm_no_scale")
def _layernorm(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, gain, bias = lowering.value(node, "x"), _weight(lowering, node, "w"), _weight(lowering, node, "b")
    launches = norms.layernorm(x, gain, bias, lowering.new(node.results[0]), eps=node.attributes["eps"], nodes=group.nodes)
    return Lowered(launches, 7 * elements(x))


def _weight(lowering: Lowering, node: Node, name: str) -> Array | None:
    """A plain weight that an op may be without."""
    return None if node.operands.get(name) is None else lowering.weight(lowering.param(node, name))["data"]


@rule("add_rmsnorm")
def _add_rmsnorm(lowering: Lowering, group: Group) -> Lowered:
    add, norm = node_of(lowering, group, 0), node_of(lowering, group, 1)
    x, residual = lowering.value(add, "x"), lowering.value(add, "y")
    lowering.places[add.results[0]] = lowering.columns(operand(add, "y").id)
    launches = norms.rmsnorm(
        x, lowering.weight(lowering.param(norm, "w"))["data"], lowering.new(norm.results[0]), eps=norm.attributes["eps"],
        plus_one=norm.op.endswith("plus_one"), residual=residual, nodes=group.nodes,
    )  # fmt: skip
    return Lowered(launches, 5 * elements(x))


# -- one element from one of each operand --------------------------------------------------------------------------------------
class Computed(NamedTuple):
    """What an op computes: a function of elemwise.cu, its operands, and the row of mapped parts that each row takes."""

    function: str
    operands: list[elemwise.Operand]
    rows_of: Array | None = None


def _formula(lowering: Lowering, node: Node) -> Computed:
    function, *names = FORMULAS[node.op].split()
    return Computed(function, [_operand(lowering, node, name) for name in names])


def _operand(lowering: Lowering, node: Node, name: str) -> elemwise.Operand:
    name, is_rounded = name.rstrip("'"), name.endswith("'")
    if name in node.attributes:
        type = lowering.graph.values[node.results[0]].type
        assert type is not None
        with np.errstate(over="ignore"):  # a bound beyond the dtype bounds nothing
            return float(np.array(node.attributes[name], STORAGE[type.dtype] if is_rounded else np.float32))
    if operand(node, name).kind == "param":
        return lowering.weight(lowering.param(node, name))["data"]
    return lowering.value(node, name)


def _glu(lowering: Lowering, node: Node) -> Computed:
    up = lowering.value(node, "up") if node.operands["up"] is not None else None
    options = {name: node.attributes[name] for name in ("act", "limit", "alpha", "beta", "up_cap")}
    return Computed(*elemwise.glu(lowering.value(node, "x"), up, **options))


def _gelu(lowering: Lowering, node: Node) -> Computed:
    return Computed(f"Activated<{'GELU_TANH' if node.attributes['tanh'] else 'GELU'}>", [lowering.value(node, "x")])


def _gate_sigmoid_mul_heads(lowering: Lowering, node: Node) -> Computed:
    gate = elemwise.PerRun(lowering.value(node, "gate"), node.attributes["head_dim"])
    return Computed("ScaledGate", [lowering.value(node, "x"), gate, float(node.attributes["scale"])])


def _gated_residual_add(lowering: Lowering, node: Node) -> Computed:
    rows_of = _rows_of(lowering, node)
    gate = elemwise.Part(lowering.value(node, "g"), 0, mapped=rows_of is not None)
    return Computed("AddGated", [lowering.value(node, "r"), gate, lowering.value(node, "y")], rows_of)


def _modulate(lowering: Lowering, node: Node) -> Computed:
    m, rows_of, form = lowering.value(node, "m"), _rows_of(lowering, node), node.attributes["form"]
    parts = [elemwise.Part(m, number, mapped=rows_of is not None) for number in range(2 if form == "scale_shift" else 1)]
    function = {"scale_shift": "ScaleShift", "scale": "ScaleByOneMore", "tanh_gate": "TanhGate"}[form]
    return Computed(function, [lowering.value(node, "x"), *parts], rows_of)


def _rows_of(lowering: Lowering, node: Node) -> Array | None:
    """The row of a table that each row of the result takes, if the op has such a map."""
    return lowering.value(node, "lane_of_row") if node.operands["lane_of_row"] is not None else None


COMPUTED: dict[str, Callable[[Lowering, Node], Computed]] = {
    **dict.fromkeys(FORMULAS, _formula), "linear.glu": _glu, "elemwise.gelu": _gelu,
    "elemwise.gate_sigmoid_mul_heads": _gate_sigmoid_mul_heads, "elemwise.gated_residual_add": _gated_residual_add,
    "elemwise.modulate": _modulate,
}  # fmt: skip


@rule(*COMPUTED)
def _elementwise(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    function, operands, rows_of = COMPUTED[node.op](lowering, node)
    out = lowering.new(node.results[0])
    launches = elemwise.elementwise(function, operands, out, arch=lowering.options.arch, rows_of=rows_of, nodes=group.nodes)
    return Lowered(launches, len(operands) * elements(out))


@rule("elementwise_codes")
def _elementwise_codes(lowering: Lowering, group: Group) -> Lowered:
    """A result that only a8 products read: stored as the codes that they multiply."""
    node = node_of(lowering, group)
    function, operands, rows_of = COMPUTED[node.op](lowering, node)
    codes, scales = _codes_of(lowering, node.results[0])
    launches = elemwise.elementwise_codes(function, operands, codes, scales, dtype="bf16", rows_of=rows_of, nodes=group.nodes)
    return Lowered(launches, (len(operands) + 3) * elements(codes))


def _codes_of(lowering: Lowering, value: int) -> tuple[Array, Array]:
    """Codes and scales in place of a value."""
    (codes, scales), name = linear.codes_shapes(*lowering.shape(value)), f"{VALUE}{value}"
    made = Array(f"{name}.codes", "write", codes, "u8"), Array(f"{name}.scales", "write", scales, "f32")
    lowering.codes[value] = made
    return made


# -- rotary positions ----------------------------------------------------------------------------------------------------------
@rule("elemwise.rope")
def _rope(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    names = [name for name in ("q", "k") if node.operands[name] is not None]
    given, made = [lowering.value(node, name) for name in names], [lowering.new(value) for value in node.results]
    return _turned(lowering, group, given, made, turn_of(lowering, node, given[0].dtype), node.attributes["head_dim"])


@rule("elemwise.rope_axes")
def _rope_axes(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    x, head_dim, form = lowering.value(node, "x"), node.attributes["head_dim"], node.attributes["form"]
    of = {"dims": node.attributes["dims"], "thetas": node.attributes["thetas"], "axes": lowering.value(node, "positions").shape[-1]}
    if form == "split_ladder":  # frequencies rise through all heads, so a row is one
        pairs, head_dim = ladder_pairs(**of, width=x.shape[1], head_dim=head_dim), x.shape[1]
    else:
        pairs = axes_pairs(**of, form=form, rotary_dim=node.attributes["rotary_dim"])
    return _turned(lowering, group, [x], [lowering.new(node.results[0])], turn_by(lowering, pairs, head_dim, x.dtype), head_dim)


def _turned(lowering: Lowering, group: Group, given: list[Array], made: list[Array], turn: Turn, head_dim: int) -> Lowered:
    """q, and perhaps k, with the pairs of each head turned."""
    positions = lowering.value(node_of(lowering, group), "positions")
    launches = rope.rope(given, positions, turn, made, head_dim=head_dim, nodes=group.nodes)
    return Lowered(launches, 3 * sum(map(elements, made)))
