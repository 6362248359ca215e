"""`Steps`: a graph made ready to run. Whatever a node reads or writes has a place in one table, and a step knows its places."""

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache, cached_property
from itertools import accumulate, pairwise
from operator import itemgetter
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from interp.call import Call, Pass
from interp.kv import KvRow, StateSlab
from interp.numeric import Numeric
from interp.weights import WeightStore
from poem.batch import Geometry
from poem.dtypes import FLOATS
from poem.graph import Graph, Node, Ref, ValueType

Observer = Callable[[Node, tuple[np.ndarray, ...]], tuple[np.ndarray, ...] | None]
Finish = Callable[[np.ndarray], np.ndarray] | None  # what makes a value of a result, if anything: rounding
Table = list[Any]


class Step(NamedTuple):
    """A node, ready to run.

    function: of the op. arguments: takes the function's arguments from the table. place, finish: of the result, where there is one.
    several: the same for none or several results. last_uses: places that no later step reads.
    """

    function: Callable[..., Any]
    call: Call
    arguments: Callable[[Table], Sequence[Any]]
    place: int
    finish: Finish
    several: tuple[tuple[int, Finish], ...] | None
    last_uses: tuple[int, ...]
    node: Node


class Steps:
    """The nodes of a graph, over the weights and the caches of a session.

    In the fast setting products of one value with several weights are one step.
    """

    def __init__(self, graph: Graph, numeric: Numeric, store: WeightStore, caches: list[KvRow | StateSlab]) -> None:
        self._graph, self._numeric, self._store, self._caches = graph, numeric, store, caches
        self._pass = Pass()
        # The table of a pass that has not begun: the graph's values by id, then what all passes share.
        self._table: Table = [None] * len(graph.values)
        self._inputs = self._place(None)
        self._steps = self._prepare(_side_by_side(graph)) if numeric.fast else self._single_steps

    def run(self, batch: Geometry, inputs: Mapping[int, Any], observe: Observer | None) -> dict[str, np.ndarray]:
        """One pass: the graph's outputs by name. inputs: values of the graph's inputs, by value id."""
        steps = self._steps if observe is None else self._single_steps
        table = self._table.copy()
        table[self._inputs] = batch
        for id, value in inputs.items():
            table[id] = value
        self._pass.batch, self._pass.memo = batch, {}
        for function, call, arguments, place, finish, several, last_uses, node in steps:
            found = function(call, *arguments(table))
            if several is None:
                table[place] = found if finish is None else finish(found)
            else:
                for (place, finish), result in zip(several, found or (), strict=True):
                    table[place] = result if finish is None else finish(result)
            if observe is not None:
                seen = tuple(table[id] for id in node.results)
                for id, result in zip(node.results, observe(node, seen) or seen, strict=True):
                    table[id] = result
            for place in last_uses:
                table[place] = None
        return {output.name: table[output.value] for output in self._graph.outputs}

    @cached_property
    def _single_steps(self) -> list[Step]:
        """A step for each node, for observers."""
        return self._prepare([(node,) for node in self._graph.nodes])

    def _prepare(self, groups: Sequence[tuple[Node, ...]]) -> list[Step]:
        """A step for each group of nodes."""
        last: dict[int, int] = {}
        for index, group in enumerate(groups):
            for node in group:
                for id in (*(ref.id for ref in node.references if ref.kind == "value"), *node.results):
                    last[id] = index
        for output in self._graph.outputs:
            last.pop(output.value, None)
        dying: list[list[int]] = [[] for _ in groups]
        for id, index in last.items():
            dying[index].append(id)
        return [
            self._step(group[0], tuple(ids)) if len(group) == 1 else self._products(group, tuple(ids))
            for group, ids in zip(groups, dying, strict=True)
        ]

    def _step(self, node: Node, last_uses: tuple[int, ...]) -> Step:
        function = find_op(node.op)
        assert function is not None
        call = Call(self._graph, node, self._numeric, self._store, self._caches, self._pass)
        places: dict[str, int | list[int]] = {name: self._place(value) for name, value in node.attributes.items()}
        for name, operand in node.operands.items():
            places[name] = [ref.id for ref in operand] if isinstance(operand, list) else self._place_of(operand)
        parameters = function.__code__.co_varnames[1 : function.__code__.co_argcount]
        assert set(parameters) == places.keys(), f"{node.op} takes {sorted(places)}, its function {parameters}"
        copies = _only_copies(node.op)
        results = tuple((id, self._finish(type, copies)) for id, type in zip(node.results, call.results, strict=True))
        (place, finish), several = (results[0], None) if len(results) == 1 else ((0, None), results)
        return Step(function, call, _taking([places[name] for name in parameters]), place, finish, several, last_uses, node)

    def _products(self, nodes: tuple[Node, ...], last_uses: tuple[int, ...]) -> Step:
        """Products of one value with several weights: computed and rounded as one, then cut."""
        weights = tuple(self._store.tensor(self._graph.params[node.operands["w"].id]) for node in nodes)  # type: ignore[union-attr]
        columns = [(slice(None), slice(start, stop)) for start, stop in pairwise([0, *accumulate(w.shape[0] for w in weights)])]
        single = self._step(nodes[0], last_uses)
        round_ = single.finish
        assert round_ is not None

        def products(call: Call, x: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(map(round_(call.project_all(x, weights)).__getitem__, columns))

        several = tuple((node.results[0], None) for node in nodes)
        return single._replace(function=products, arguments=_taking([nodes[0].operands["x"].id]), several=several)  # type: ignore[union-attr]

    def _finish(self, type: ValueType | None, copied: bool) -> Finish:
        """Floats are rounded, unless they were only copied; integers one wide become a list."""
        if type is not None and type.dtype in FLOATS:
            return None if copied else self._numeric.rounding(type.dtype)
        return _listed if type is not None and type.width == 1 else None

    def _place_of(self, operand: Ref | None) -> int:
        if operand is None:
            return self._place(None)
        match operand.kind:
            case "value":
                return operand.id
            case "param":
                return self._place(self._store.tensor(self._graph.params[operand.id]))
            case "cache":
                return self._place(self._graph.caches[operand.id])
            case "inputs":
                return self._inputs

    def _place(self, value: Any) -> int:
        """A new place in the table of every pass, which holds `value`."""
        self._table.append(value)
        return len(self._table) - 1


def _taking(places: Sequence[int | list[int]]) -> Callable[[Table], Sequence[Any]]:
    """What takes from a table the values at places, a list of them for a list of places."""
    if len(places) > 1 and all(isinstance(place, int) for place in places):
        return itemgetter(*places)
    return lambda table: [[table[member] for member in place] if isinstance(place, list) else table[place] for place in places]


def _side_by_side(graph: Graph) -> list[tuple[Node, ...]]:
    """The nodes in order, but products of one value with several weights together, at the place of the first."""
    groups: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        type = graph.values[node.results[0]].type if node.op == "linear.matmul" else None
        key = node.id if type is None else (node.operands["x"], type.dtype)
        groups.setdefault(key, []).append(node)
    return [tuple(group) for group in groups.values()]


def _listed(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)


def find_op(name: str) -> Callable[..., Any] | None:
    """The function of an op, `linear.matmul`, or None."""
    namespace, _, short = name.partition(".")
    module = _module(namespace)
    found = getattr(module, short, None) or getattr(module, f"{short}_", None)
    return found if callable(found) else None


def _only_copies(name: str) -> bool:
    namespace, _, short = name.partition(".")
    return short in getattr(_module(namespace), "COPIES", ())


@cache
def _module(namespace: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"interp.ops.{namespace}")
    except ModuleNotFoundError as fault:
        if fault.name == f"interp.ops.{namespace}":
            return None
        raise
