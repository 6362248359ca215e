"""Which nodes share a launch: named patterns, each with what it covers and where it rounds."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from cupy_backend.kernels import linear_plain
from cupy_backend.plan.formulas import FORMULAS
from cupy_backend.plan.prepare import is_joinable
from poem.dtypes import Dtype
from poem.graph import Graph, Node, Ref

APPENDS = ("attn.kv_append", "attn.kv_append_shared")
NORMS = ("elemwise.rmsnorm", "elemwise.rmsnorm_plus_one")
HEAD_NORMS = ("elemwise.rmsnorm_per_head", "elemwise.rmsnorm_per_head_plus_one")
PRODUCTS = ("linear.matmul", "linear.lm_head")
CODED = ("linear.glu", "elemwise.gelu")  # besides those of `FORMULAS`, what may be stored as codes
ACTIVATIONS = ("silu", "gelu_tanh", "gelu")


class Group(NamedTuple):
    """Nodes that become one step. pattern: its name, or the op of a single node. nodes: ids in ascending order."""

    pattern: str
    nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One way to cover several nodes.

    covers: the nodes, in words. rounds: where the launch rounds; always where the nodes do. match: the ids of the nodes, given the first of
    them, or None.
    """

    name: str
    covers: str
    rounds: str
    match: Callable[["Uses", Node], tuple[int, ...] | None]


class Uses:
    """Who reads what in a graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.outputs = frozenset(output.value for output in graph.outputs)
        self._of: dict[Ref, list[int]] = {}
        for node in graph.nodes:
            for ref in references(node):
                self._of.setdefault(ref, []).append(node.id)

    def of(self, kind: Literal["value", "param", "cache"], id: int) -> list[int]:
        """The nodes that refer to a value, weight or cache, in order."""
        return self._of.get(Ref(kind, id), [])

    def only_reader(self, value: int) -> Node | None:
        """The node that alone reads a value that is no output, or None."""
        readers = self.of("value", value)
        return self.graph.nodes[readers[0]] if len(readers) == 1 and value not in self.outputs else None

    def dies_at(self, value: int, node: Node) -> bool:
        """Whether no later node and no output reads a value."""
        return value not in self.outputs and self.of("value", value)[-1] == node.id and self.graph.values[value].producer[0] == "node"

    def dtype(self, value: int) -> str:
        type = self.graph.values[value].type
        return "" if type is None else type.dtype


def references(node: Node) -> list[Ref]:
    """All references of a node, lists included."""
    return [ref for operand in node.operands.values() for ref in (operand if isinstance(operand, list) else [operand]) if ref is not None]


def operand(node: Node, name: str) -> Ref:
    """A single operand that is given."""
    found = node.operands[name]
    assert isinstance(found, Ref), f"ops.{node.op} has no single operand {name}"
    return found


# -- the patterns ------------------------------------------------------------------------------
def _add_norm(uses: Uses, node: Node) -> tuple[int, ...] | None:
    if node.op != "elemwise.residual_add":
        return None
    x, y, total = operand(node, "x").id, operand(node, "y").id, node.results[0]
    norm = next((uses.graph.nodes[id] for id in uses.of("value", total) if uses.graph.nodes[id].op in NORMS), None)
    in_place = x != y and uses.dies_at(y, node)
    one_dtype = norm is not None and len({uses.dtype(value) for value in (x, y, total, norm.results[0])}) == 1
    return (node.id, norm.id) if norm is not None and in_place and one_dtype else None


def _norm_codes(uses: Uses, node: Node) -> tuple[int, ...] | None:
    alike = node.op in NORMS and uses.dtype(operand(node, "x").id) == uses.dtype(node.results[0])
    return (node.id,) if alike and _is_multiplied_as_codes(uses, node) else None


def _elementwise_codes(uses: Uses, node: Node) -> tuple[int, ...] | None:
    return (node.id,) if (node.op in FORMULAS or node.op in CODED) and _is_multiplied_as_codes(uses, node) else None


def _add_norm_codes(uses: Uses, node: Node) -> tuple[int, ...] | None:
    found = _add_norm(uses, node)
    return found if found is not None and _is_multiplied_as_codes(uses, uses.graph.nodes[found[1]]) else None


def _is_multiplied_as_codes(uses: Uses, node: Node) -> bool:
    """Whether products by weights with the rule a8, and nothing else, read the bf16 result of a node."""
    value = node.results[0]
    readers = [uses.graph.nodes[id] for id in uses.of("value", value)]
    products = all(reader.op in PRODUCTS and Dtype(_weight_dtype(uses, reader)).act == "a8" for reader in readers)
    return bool(readers) and products and value not in uses.outputs and uses.dtype(value) == "bf16"


def _product_glu(uses: Uses, node: Node) -> tuple[int, ...] | None:
    if node.op != "linear.matmul":
        return None
    gate = uses.only_reader(node.results[0])
    if gate is None or gate.op != "linear.glu" or not is_plain_glu(gate) or uses.dtype(node.results[0]) != uses.dtype(gate.results[0]):
        return None
    weight = uses.graph.params[operand(node, "w").id]
    types = uses.dtype(operand(node, "x").id), uses.dtype(node.results[0])
    return None if linear_plain.serves(*types, Dtype(weight.dtype), weight.shape[1]) else (node.id, gate.id)


def _product_bias(uses: Uses, node: Node) -> tuple[int, ...] | None:
    if node.op not in PRODUCTS:
        return None
    adding = uses.only_reader(node.results[0])
    return (node.id, adding.id) if adding is not None and adding.op == "elemwise.add_bias" and has_bias_alike(uses.graph, adding) else None


def has_bias_alike(graph: Graph, adding: Node) -> bool:
    """Whether the bias of an add_bias has the dtype of the result, as products add it."""
    type = graph.values[adding.results[0]].type
    return type is not None and graph.params[operand(adding, "bias").id].dtype == type.dtype


def is_plain_glu(node: Node) -> bool:
    """Whether a glu has its gate and up projection in one operand, an activation that kernels have, and no limits."""
    limits = [node.attributes[name] for name in ("limit", "alpha", "beta", "up_cap")]
    return node.operands["up"] is None and node.attributes["act"] in ACTIVATIONS and limits == [None] * 4


def _rope_append(uses: Uses, node: Node) -> tuple[int, ...] | None:
    if node.op != "elemwise.rope" or len(node.results) != 2:
        return None
    append = uses.only_reader(node.results[1])
    if append is None or append.op != "attn.kv_append" or operand(append, "k").id != node.results[1]:
        return None
    if append.operands["write_page"] is not None or append.operands["write_offset"] is not None:
        return None
    v = operand(append, "v")
    maker = uses.graph.producer_of(v.id)
    if maker is None or maker.id > node.id or uses.dtype(v.id) != uses.dtype(node.results[1]):
        return None
    return node.id, append.id


def _norm_rope_append(uses: Uses, node: Node) -> tuple[int, ...] | None:
    """Given the norm of q or that of k: both, each read only by a rope_append."""
    rope = uses.only_reader(node.results[0]) if node.op in HEAD_NORMS else None
    append = _rope_append(uses, rope) if rope is not None else None
    if rope is None or append is None or node.attributes["head_dim"] != rope.attributes["head_dim"]:
        return None
    norms = [uses.graph.producer_of(operand(rope, name).id) for name in ("q", "k")]
    alike = [norm for norm in norms if norm is not None and _normed_alike(uses, norm, node)]
    found = sorted(norm.id for norm in alike if uses.only_reader(norm.results[0]) == rope)
    return (*found, *append) if len(found) == 2 else None


def _normed_alike(uses: Uses, norm: Node, other: Node) -> bool:
    """Whether two norms of heads differ in nothing but what they norm, and by which gains."""
    if norm.op != other.op or norm.attributes != other.attributes:
        return False
    gains = {uses.graph.params[operand(each, "w").id].dtype for each in (norm, other)}
    return len(gains) == 1 and uses.dtype(operand(norm, "x").id) == uses.dtype(norm.results[0])


def _joined(uses: Uses, node: Node) -> tuple[int, ...] | None:
    """Products of one operand, each read only by a rope_append, by way of a bias or not."""
    if node.op != "linear.matmul" or not _is_joinable(uses, node):
        return None
    found: list[int] = []
    for id in uses.of("value", operand(node, "x").id):
        other = uses.graph.nodes[id]
        alike = other.op == node.op and _weight_dtype(uses, other) == _weight_dtype(uses, node)
        chain = _towards_append(uses, other) if alike and uses.dtype(other.results[0]) == uses.dtype(node.results[0]) else None
        if chain is not None and _is_joinable(uses, other):
            found += chain
    products = [id for id in found if uses.graph.nodes[id].op == node.op]
    biased = len(found) - len(products)
    return tuple(sorted(found)) if len(products) == 3 and biased in (0, 3) else None


def _is_joinable(uses: Uses, node: Node) -> bool:
    """Whether the rows of a product's weight may lie behind those of another's, and it is used here only."""
    weight = uses.graph.params[operand(node, "w").id]
    return len(uses.of("param", weight.id)) == 1 and is_joinable(Dtype(weight.dtype), [weight.shape[0]])


def _weight_dtype(uses: Uses, node: Node) -> str:
    return uses.graph.params[operand(node, "w").id].dtype


def _towards_append(uses: Uses, product: Node) -> list[int] | None:
    """A product and perhaps the addition of a bias, if a rope_append alone reads the result, or a norm that goes with it."""
    chain, reader = [product.id], uses.only_reader(product.results[0])
    if reader is not None and reader.op == "elemwise.add_bias":
        if len(uses.of("param", operand(reader, "bias").id)) != 1:
            return None
        chain.append(reader.id)
        reader = uses.only_reader(reader.results[0])
    if reader is not None and reader.op in HEAD_NORMS:
        return chain if _norm_rope_append(uses, reader) else None
    if reader is not None and reader.op == "elemwise.rope":
        return chain if _rope_append(uses, reader) else None
    if reader is not None and reader.op == "attn.kv_append":
        rope = uses.graph.producer_of(operand(reader, "k").id)
        return chain if rope is not None and _rope_append(uses, rope) else None
    return None


# The first that matches a node takes it.
PATTERNS = (
    Pattern(
        "add_rmsnorm_codes", "as add_rmsnorm, where only products by weights with the activation rule a8 read the norm",
        "the sum to its dtype; the norm to its dtype, and then to codes and scales", _add_norm_codes,
    ),
    Pattern(
        "rmsnorm_codes", "an rmsnorm that only products by weights with the activation rule a8 read",
        "the norm to its dtype, and then to codes and scales", _norm_codes,
    ),
    Pattern(
        "add_rmsnorm", "elemwise.residual_add whose residual is read no more, and an rmsnorm of the sum",
        "the sum to its dtype, which is what is normed; the norm to its dtype", _add_norm,
    ),
    Pattern(
        "joined_matmul", "the three linear.matmul of one operand, with or without elemwise.add_bias, whose results go to one rope_append",
        "each product to its dtype, and each sum with a bias", _joined,
    ),
    Pattern(
        "matmul_bias", "linear.matmul or linear.lm_head and the elemwise.add_bias of its result, by a bias of its dtype",
        "the product to its dtype, then the sum", _product_bias,
    ),
    Pattern(
        "matmul_glu", "linear.matmul and the linear.glu of its result", "gate and up to their dtype, then the result to its dtype",
        _product_glu,
    ),
    Pattern(
        "norm_rope_append", "elemwise.rmsnorm_per_head of q and of k, both alike, or with gains 1 + w, and the rope_append that reads them",
        "the norms to their dtype, then as rope_append", _norm_rope_append,
    ),
    Pattern(
        "rope_append", "elemwise.rope of q and k, and the attn.kv_append of k and v",
        "q and k to their dtype, then k and v as the cache casts them", _rope_append,
    ),
    Pattern(
        "elementwise_codes", "linear.glu, elemwise.gelu, or an op of plan/formulas.py, whose result only products by weights with the "
        "activation rule a8 read", "the result to its dtype, and then to codes and scales", _elementwise_codes,
    ),
)  # fmt: skip


def grouped(graph: Graph, patterns: Sequence[Pattern] = PATTERNS) -> list[Group]:
    """Every node in one group, in an order in which they can run.

    A group runs as early as what it reads allows; among those that can run, the one with the lowest node comes first. A pattern
    that would have to wait for its own result is left out.
    """
    uses = Uses(graph)
    groups: list[Group] = []
    taken: set[int] = set()
    for node in graph.nodes:
        if node.id in taken:
            continue
        matched = ((pattern.name, pattern.match(uses, node)) for pattern in patterns)
        found = next((Group(name, nodes) for name, nodes in matched if nodes is not None and not taken & set(nodes)), None)
        group = found or Group(node.op, (node.id,))
        groups.append(group)
        taken |= set(group.nodes)
    while True:
        order, stuck = _ordered(uses, groups)
        if not stuck:
            return order
        broken = next(group for group in stuck if len(group.nodes) > 1)
        groups = [group for group in groups if group != broken]
        groups += [Group(graph.nodes[id].op, (id,)) for id in broken.nodes]


def _ordered(uses: Uses, groups: Sequence[Group]) -> tuple[list[Group], list[Group]]:
    """The groups in order, and those that wait for each other."""
    owner = {id: number for number, group in enumerate(groups) for id in group.nodes}
    waits, followers = [0] * len(groups), [set[int]() for _ in groups]
    for number, group in enumerate(groups):
        for before in {owner[before] for id in group.nodes for before in _before(uses, uses.graph.nodes[id], group)} - {number}:
            followers[before].add(number)
            waits[number] += 1
    ready = [(group.nodes[0], number) for number, group in enumerate(groups) if not waits[number]]
    order = []
    while ready:
        _, number = heapq.heappop(ready)
        order.append(groups[number])
        for follower in followers[number]:
            waits[follower] -= 1
            if not waits[follower]:
                heapq.heappush(ready, (groups[follower].nodes[0], follower))
    return order, [group for number, group in enumerate(groups) if waits[number]]


def _before(uses: Uses, node: Node, group: Group) -> set[int]:
    """Nodes that must run before a node of a group: makers of operands, earlier ops on a cache, earlier readers of what is overwritten."""
    found = set()
    for ref in references(node):
        if ref.kind == "value" and (maker := uses.graph.producer_of(ref.id)) is not None:
            found.add(maker.id)
        elif ref.kind == "cache":
            found |= {id for id in uses.of("cache", ref.id) if id < node.id}
    if group.pattern in ("add_rmsnorm", "add_rmsnorm_codes") and node.op == "elemwise.residual_add":
        found |= {id for id in uses.of("value", operand(node, "y").id) if id != node.id}
    return found
