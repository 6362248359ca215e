"""Which graph value is which tensor of the original.

No names are matched: a module of the original owns checkpoint tensors, the import lands them in weights, and the node that
reads such a weight computes what the module computes. Its first operand is the module's input, its result (after the bias
of the module, if it has one) the module's output. Attention is aligned by the cache that its keys and values are appended
to, hidden states by what `fold_layers` carries.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from poem.dataclass import dataclass
from poem.graph import Graph, Node, Ref


@dataclass(frozen=True, slots=True)
class Landing:
    """A checkpoint tensor, or part of a join of them, landing in a weight.

    start: its first row there. whole: it lands as it is stored; False for an expression that may reorder or change it.
    """

    tensor: str
    param: str
    start: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Point:
    """One tensor of the original and the value that must equal it.

    value: the graph value; columns: which of its columns. consumer: None if the tensor is the result of the value's node; else
    the node that is handed it. decides: False where a package may rightly differ from the original as long as what follows
    agrees (order of heads or channels inside a block).
    """

    name: str
    value: int
    columns: slice
    consumer: int | None = None
    decides: bool = True


@dataclass(frozen=True, slots=True)
class Alignment:
    """The points of a graph, and the tensors of the original that no value was found for."""

    points: tuple[Point, ...]
    unaligned: tuple[str, ...]


def align(graph: Graph, landings: Sequence[Landing], shapes: Mapping[str, tuple[int, ...]]) -> Alignment:
    """Align a graph with the tensors of an original.

    landings: what the import does. shapes: of the recorded tensors by name: `logits`, `hidden.<i>`,
    `module.<name>.input/output`, `attention.<layer>.query/key/value/output`, each [rows, width].
    """
    aligner = _Aligner(graph, shapes)
    aligner.modules(landings)
    aligner.attention()
    aligner.hidden()
    aligner.by_analogy()
    aligner.logits()
    names = {point.name for point in aligner.points}
    return Alignment(tuple(aligner.points), tuple(name for name in shapes if name not in names))


class _Aligner:
    def __init__(self, graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self.graph, self.shapes = graph, shapes
        self.points: list[Point] = []
        self.readers: dict[tuple[str, int], list[Node]] = {}
        for node in graph.nodes:
            for operand in node.operands.values():
                for ref in operand if isinstance(operand, list) else [operand]:
                    if ref is not None:
                        self.readers.setdefault((ref.kind, ref.id), []).append(node)
        self.layers = layers_of(graph)

    def add(self, name: str, value: int | None, start: int = 0, consumer: int | None = None, decides: bool = True) -> None:
        """A point, if the tensor was recorded and fits the value."""
        shape = self.shapes.get(name)
        if value is None or shape is None or len(shape) != 2:
            return
        type = self.graph.values[value].type
        if type is None or type.rows not in ("tokens", "readouts"):
            return
        width = shape[1]
        if start + width > type.width or (start == 0 and width != type.width and consumer is not None):
            return
        self.points.append(Point(name, value, slice(start, start + width), consumer, decides))

    # -- modules -------------------------------------------------------------------------------
    def modules(self, landings: Sequence[Landing]) -> None:
        by_module: dict[str, list[Landing]] = {}
        for landing in landings:
            by_module.setdefault(landing.tensor.rpartition(".")[0], []).append(landing)
        for module, landed in by_module.items():
            self._module(module, landed)

    def _module(self, module: str, landed: Sequence[Landing]) -> None:
        reads_ids = f"module.{module}.input" not in self.shapes
        biases = {self.graph.param(item.param).id for item in landed if self._is_bias(item)}
        mains = [item for item in landed if not self._is_bias(item)]
        whole = [item for item in mains if item.whole]
        chosen = whole or mains
        nodes = [(item, node) for item in chosen for node in self._readers_of(item, reads_ids, module)]
        # A weight read twice does not say which of its readers is the module; but they may all be handed the same.
        if not reads_ids and len({first_value(node) for _, node in nodes}) == 1:
            for _, node in nodes:
                self.add(f"module.{module}.input", first_value(node), consumer=node.id)
        if len(nodes) == 1:
            item, node = nodes[0]
            start = item.start if self._result_width(node) == self.graph.param(item.param).shape[0] else 0
            self.add(f"module.{module}.output", self._after_bias(node, biases), start, decides=item.whole)

    def _is_bias(self, landing: Landing) -> bool:
        readers = self.readers.get(("param", self.graph.param(landing.param).id), [])
        return bool(readers) and all(node.op == "elemwise.add_bias" for node in readers)

    def _readers_of(self, landing: Landing, reads_ids: bool, module: str) -> list[Node]:
        """The nodes that may be the module: those that read the weight, of its kind, in its layer if that tells them apart."""
        readers = self.readers.get(("param", self.graph.param(landing.param).id), [])
        readers = [node for node in readers if node.op.startswith("gather.embed") == reads_ids]
        layer = layer_in(module)
        inside = [node for node in readers if self.layers.get(node.id) == layer]
        return inside or readers

    def _after_bias(self, node: Node, biases: set[int]) -> int:
        """The result of a node once the module's own bias is added."""
        value = node.results[0]
        for reader in self.readers.get(("value", value), []):
            bias = reader.operands.get("bias")
            if reader.op == "elemwise.add_bias" and isinstance(bias, Ref) and bias.id in biases:
                return self._after_bias(reader, biases)
        return value

    def _result_width(self, node: Node) -> int:
        type = self.graph.values[node.results[0]].type
        return type.width if type is not None else 0

    # -- attention, hidden states, logits ------------------------------------------------------
    def attention(self) -> None:
        """By layer: the query and the result of the node that attends, the operands of the append to its cache before it."""
        appends: dict[int, Node] = {}
        order = 0
        for node in self.graph.nodes:
            cache = node.operands.get("cache")
            if not isinstance(cache, Ref):
                continue
            if node.op == "attn.kv_append":
                appends[cache.id] = node
            elif node.op in ("attn.attend", "attn.prefill"):
                layer = self.layers.get(node.id, order)
                order += 1
                query = node.operands["q"]
                assert isinstance(query, Ref)
                self.add(f"attention.{layer}.query", query.id, consumer=node.id, decides=False)
                self.add(f"attention.{layer}.output", node.results[0])
                append = appends.get(cache.id)
                for name, parameter in (("key", "k"), ("value", "v")) if append is not None else ():
                    operand = append.operands[parameter]  # type: ignore[union-attr]
                    assert isinstance(operand, Ref)
                    self.add(f"attention.{layer}.{name}", operand.id, consumer=append.id, decides=False)  # type: ignore[union-attr]

    def hidden(self) -> None:
        """What each layer is handed, and what the head is: most classes of transformers put the last state after the final norm."""
        last = max((int(name[7:]) for name in self.shapes if re.fullmatch(r"hidden\.\d+", name)), default=-1)
        layer = 0
        for fold in self.graph.folds:
            for carried in fold.carried[:-1]:
                if layer < last:
                    self._hidden(f"hidden.{layer}", carried, layer)
                layer += 1
        head = head_of(self.graph)
        if head is not None and last >= 0:
            self.add(f"hidden.{last}", first_value(head), consumer=head.id)

    def _hidden(self, name: str, carried: Sequence[int], layer: int) -> None:
        for value in carried:
            readers = [node for node in self.readers.get(("value", value), []) if self.layers.get(node.id, -1) >= layer]
            if readers:
                self.add(name, value, consumer=readers[0].id)

    def logits(self) -> None:
        for output in self.graph.outputs:
            if output.name == "logits":
                self.add("logits", output.value)

    # -- layers alike --------------------------------------------------------------------------
    def by_analogy(self) -> None:
        """A module whose own weights no node reads is where the same module of another layer with the same ops is."""
        nodes: dict[int, list[Node]] = {}
        for node in self.graph.nodes:
            if node.id in self.layers:
                nodes.setdefault(self.layers[node.id], []).append(node)
        ops = {layer: [node.op for node in listed] for layer, listed in nodes.items()}
        known = {point.name for point in self.points}
        for point in list(self.points):
            own = layer_in(point.name)
            if own is None or not point.name.startswith("module.") or own not in nodes:
                continue
            for layer in nodes:
                name = re.sub(r"\.\d+\.", f".{layer}.", point.name, count=1)
                if name in known or name not in self.shapes or ops[layer] != ops[own]:
                    continue
                moved = self._moved(point, nodes[own], nodes[layer])
                if moved is not None:
                    known.add(name)
                    self.points.append(replace(moved, name=name))

    def _moved(self, point: Point, here: Sequence[Node], there: Sequence[Node]) -> Point | None:
        """A point of one layer, in another layer with the same ops."""
        places = {node.id: i for i, node in enumerate(here)}
        if point.consumer is not None:
            if point.consumer not in places:
                return None
            node = there[places[point.consumer]]
            value = first_value(node)
            return None if value is None else replace(point, value=value, consumer=node.id)
        made = self.graph.producer_of(point.value)
        if made is None or made.id not in places:
            return None
        return replace(point, value=there[places[made.id]].results[made.results.index(point.value)])


def layers_of(graph: Graph) -> dict[int, int]:
    """The layer of each node inside a fold, counted over all folds."""
    starts, total = [], 0
    for fold in graph.folds:
        starts.append(total)
        total += len(fold.carried) - 1
    return {node.id: starts[node.layer[0]] + node.layer[1] for node in graph.nodes if node.layer is not None}


def head_of(graph: Graph) -> Node | None:
    """The node that makes logits out of the last hidden state: the last product before the output."""
    named = [output.value for output in graph.outputs if output.name == "logits"]
    value = named[0] if named else None
    while value is not None:
        node = graph.producer_of(value)
        if node is None or node.op in ("linear.lm_head", "linear.matmul"):
            return node
        value = first_value(node)
    return None


def layer_in(name: str) -> int | None:
    """The first number between dots of a module's name: its layer."""
    found = re.search(r"\.(\d+)\.", name + ".")
    return int(found[1]) if found else None


def first_value(node: Node) -> int | None:
    """The first operand that is a value: what a module is handed."""
    for operand in node.operands.values():
        if isinstance(operand, Ref) and operand.kind == "value":
            return operand.id
    return None
