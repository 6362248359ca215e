"""`Session`: a graph, its weights and the memory of its sequences; `run` computes one pass."""

import importlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

import numpy as np

from interp.call import Call
from interp.kv import KvRow, StateSlab
from interp.numeric import Mode, Numeric, Setting
from interp.weights import WeightStore
from poem.batch import Batch, Geometry, PageTable, geometry
from poem.dtypes import FLOATS
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError, PoemErrors
from poem.graph import Graph, Input, Node, ValueType

Observer = Callable[[Node, tuple[np.ndarray, ...]], tuple[np.ndarray, ...] | None]
# Bytes of decoded weights kept between passes.
WEIGHT_MEMORY = {"reference": 1 << 30, "fast": 6 << 30}


@dataclass(frozen=True, slots=True)
class _Step:
    """A node, ready to run. Whatever it reads has a place in the table of a pass: values, weights and attributes alike."""

    node: Node
    call: Call
    function: Callable[..., Any]
    arguments: tuple[int, ...]  # places, in the order of the function's parameters
    lists: tuple[tuple[int, tuple[int, ...]], ...]  # places to fill with lists of what is at other places
    results: tuple[tuple[int, Callable[[np.ndarray], np.ndarray] | None], ...]  # places, and what makes a value of a result: rounding
    last_uses: tuple[int, ...]


class Session:
    """Runs a graph.

    graph: any Graph. weights: `Tensor`s by weight name; those the graph uses are fetched here, and decoded when used.
    mode: "native" rounds each result to its dtype, "exact" computes in float64. setting: "reference" gives each row the same
    bits in any batch, "fast" gives that up for speed. page_size: cells of a cache page. casts: in exact mode, keep the casts
    that belong to the meaning of a dtype (activation codes, cache cells, slabs). weight_memory: bytes of decoded weights to
    keep; None takes the setting's default.
    Raises PoemError (`run.unsupported`) for ops that the interpreter lacks.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        *,
        mode: Mode = "native",
        setting: Setting = "reference",
        page_size: int = 16,
        casts: bool = False,
        weight_memory: int | None = None,
    ) -> None:
        check_supported(graph)
        if page_size < 1:
            raise PoemError("run.page-size", "a page holds at least one cell", phase="run", found=str(page_size))
        self.graph = graph
        self.numeric = Numeric(mode, setting, casts)
        memory = WEIGHT_MEMORY[setting] if weight_memory is None else weight_memory
        self._store = WeightStore(graph.params, weights, self.numeric, memory)
        self._tables = [PageTable(page_size, space.window) for space in graph.spaces]
        self._caches: list[KvRow | StateSlab] = [self._memory(cache, page_size) for cache in graph.caches]
        self._lengths: dict[int, int] = {}
        self._next = 0
        self._table: list[Any] = [None] * len(graph.values)  # of a pass that has not begun: after the values, what all passes share
        self._pass_place = self._place(None)
        self._steps = self._prepare(_side_by_side(graph) if self.numeric.fast else [(node,) for node in graph.nodes])

    # -- sequences -----------------------------------------------------------------------------
    def add_sequence(self) -> int:
        """A sequence joins, empty. Returns its id."""
        sequence, self._next = self._next, self._next + 1
        self._lengths[sequence] = 0
        for table in self._tables:
            table.add(sequence)
        return sequence

    def drop_sequence(self, sequence: int) -> None:
        """A sequence leaves; its pages and slabs are given back. KeyError for an unknown one."""
        del self._lengths[sequence]
        for table in self._tables:
            table.remove(sequence)
        for cache in self._caches:
            if isinstance(cache, StateSlab):
                cache.remove(sequence)

    def length(self, sequence: int) -> int:
        """How many tokens a sequence holds. KeyError for an unknown one."""
        return self._lengths[sequence]

    # -- one pass ------------------------------------------------------------------------------
    def run(self, batch: Batch, observe: Observer | None = None, inputs: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """One pass over the new tokens of `batch`. Returns the outputs by name: float32 (native) or float64 (exact), ints int32.

        observe: called after each node with its results; a tuple that it returns takes their place.
        inputs: values of graph inputs that a batch does not hold, by input method (of a port: `method(argument, ...)`).
        A pass that fails leaves the sequences as they were.
        Raises PoemError: `run.batch` for a bad batch, other `run.*` codes at the .poem line of the op that failed.
        """
        lengths = self._lengths
        for chunk in batch:
            if chunk.sequence in lengths:
                self._reserve(chunk.sequence, lengths[chunk.sequence] + len(chunk.tokens))
        committed = False
        try:
            pass_ = geometry(batch, lengths, self._tables)
            with np.errstate(all="ignore"):  # NaN and infinity are results, not accidents
                outputs = self._run_steps(pass_, observe, inputs or {})
            for chunk, commit in zip(batch, pass_.commit_len.tolist(), strict=True):
                lengths[chunk.sequence] += commit
            committed = True
        finally:
            for chunk in batch:
                if chunk.sequence in lengths:
                    for table in self._tables:
                        table.settle(chunk.sequence, lengths[chunk.sequence])
            for cache in self._caches:
                if isinstance(cache, StateSlab):
                    cache.settle(committed)
        return outputs

    # -- inside --------------------------------------------------------------------------------
    def _run_steps(self, pass_: Geometry, observe: Observer | None, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        steps = self._steps if observe is None else self._single_steps
        values = self._table.copy()
        values[self._pass_place] = pass_
        for input_ in self.graph.inputs:
            values[input_.value] = self._input(input_, pass_, given)
        memo: dict[Any, Any] = {}
        read = values.__getitem__
        for step in steps:
            call = step.call
            call.batch, call.memo = pass_, memo
            for place, members in step.lists:
                values[place] = [values[member] for member in members]
            found = step.function(call, *map(read, step.arguments))
            results = found if type(found) is tuple else () if found is None else (found,)
            for (place, finish), result in zip(step.results, results, strict=True):
                values[place] = result if finish is None else finish(result)
            if observe is not None:
                seen = tuple(values[place] for place, _ in step.results)
                for (place, _), result in zip(step.results, observe(step.node, seen) or seen, strict=True):
                    values[place] = result
            for place in step.last_uses:
                values[place] = None
        return {output.name: values[output.value] for output in self.graph.outputs}

    def _reserve(self, sequence: int, length: int) -> None:
        """Pages for `length` cells of a sequence, in every space."""
        for space, table in enumerate(self._tables):
            taken = table.grow(sequence, length)
            if taken:
                for row in self._caches:
                    if isinstance(row, KvRow) and row.cache.space == space:
                        row.reserve(table.page_count)
                        row.clear(taken)

    def _memory(self, cache: Any, page_size: int) -> KvRow | StateSlab:
        if cache.kind == "state":
            return StateSlab(cache, self.numeric)
        scales = None
        if cache.scales is not None:
            scales = [float(self._store.tensor(self.graph.params[id]).decode().reshape(-1)[0]) for id in cache.scales]
        return KvRow(cache, self.graph.spaces[cache.space].dtype, page_size, self.numeric, scales)

    @cached_property
    def _single_steps(self) -> list[_Step]:
        """A step for each node, for observers."""
        return self._prepare([(node,) for node in self.graph.nodes])

    def _prepare(self, groups: Sequence[tuple[Node, ...]]) -> list[_Step]:
        """The steps for all nodes: one for each group of them."""
        last: dict[int, int] = {}
        for index, group in enumerate(groups):
            for node in group:
                for id in (*(ref.id for ref in node.references if ref.kind == "value"), *node.results):
                    last[id] = index
        for output in self.graph.outputs:
            last.pop(output.value, None)
        dying: list[list[int]] = [[] for _ in groups]
        for id, index in last.items():
            dying[index].append(id)
        return [
            self._step(group[0], tuple(ids)) if len(group) == 1 else self._products(group, tuple(ids))
            for group, ids in zip(groups, dying, strict=True)
        ]

    def _products(self, nodes: tuple[Node, ...], last_uses: tuple[int, ...]) -> _Step:
        """Products of one value with several weights: computed and rounded as one, then cut."""
        weights = tuple(self._store.tensor(self.graph.params[node.operands["w"].id]) for node in nodes)  # type: ignore[union-attr]
        bounds = [0, *accumulate(w.shape[0] for w in weights)]
        columns = [(slice(None), slice(start, stop)) for start, stop in pairwise(bounds)]
        single = self._step(nodes[0], last_uses)
        ((_, rounded),) = single.results
        assert rounded is not None

        def products(call: Call, x: np.ndarray) -> tuple[np.ndarray, ...]:
            return tuple(map(rounded(call.project_all(x, weights)).__getitem__, columns))

        results = tuple((node.results[0], None) for node in nodes)
        return replace(single, function=products, arguments=(nodes[0].operands["x"].id,), results=results)  # type: ignore[union-attr]

    def _step(self, node: Node, last_uses: tuple[int, ...]) -> _Step:
        function = find_op(node.op)
        assert function is not None
        call = Call(self.graph, node, self.numeric, self._store, self._caches)
        places = {name: self._place(value) for name, value in node.attributes.items()}
        lists = []
        for name, operand in node.operands.items():
            if isinstance(operand, list):
                places[name] = self._place(None)
                lists.append((places[name], tuple(ref.id for ref in operand)))
            elif operand is None:
                places[name] = self._place(None)
            elif operand.kind == "value":
                places[name] = operand.id
            elif operand.kind == "param":
                places[name] = self._place(self._store.tensor(self.graph.params[operand.id]))
            elif operand.kind == "cache":
                places[name] = self._place(self.graph.caches[operand.id])
            else:
                places[name] = self._pass_place
        parameters = function.__code__.co_varnames[1 : function.__code__.co_argcount]
        assert set(parameters) == places.keys(), f"{node.op} takes {sorted(places)}, its function {parameters}"
        finishes = [self._finish(type, _only_copies(node.op)) for type in call.results]
        return _Step(
            node, call, function, tuple(places[name] for name in parameters), tuple(lists),
            tuple(zip(node.results, finishes, strict=True)), (*last_uses, *(place for place, _ in lists)),
        )  # fmt: skip

    def _finish(self, type: ValueType | None, copied: bool) -> Callable[[np.ndarray], np.ndarray] | None:
        """What makes a value of a result: floats are rounded, unless they were only copied; integers one wide become a list."""
        if type is not None and type.dtype in FLOATS:
            return None if copied else self.numeric.rounding(type.dtype)
        return _listed if type is not None and type.width == 1 else None

    def _place(self, value: Any) -> int:
        """A new place in the table of every pass, which holds `value`."""
        self._table.append(value)
        return len(self._table) - 1

    def _input(self, input_: Input, pass_: Geometry, given: Mapping[str, np.ndarray]) -> Any:
        """The value of a graph input in one pass."""
        method = input_.method
        if input_.key in given:
            return self._given(input_, given[input_.key])
        space = input_.arguments.get("space") or 0
        match method:
            case "tokens" | "positions" | "readout_rows" | "adapter_routes" | "mrope_positions":
                return getattr(pass_, method)
            case "request_of_token":
                return pass_.lane_of_row
            case "row_valid":
                return np.ones(pass_.rows, np.uint8)
            case "mask":
                return pass_.masks
            case "write_page" | "write_offset" | "last_page_len":
                return getattr(pass_.pages[space], method)
            case "kv_len":
                return pass_.kv_len
            case "kv_indptr":
                return pass_.pages[space].indptr
            case "lane_indptr":
                return pass_.qo_indptr
        raise PoemError("run.input", f"the pass needs values for the input `{input_.key}`", phase="run", hint="give them in inputs=")

    def _given(self, input_: Input, array: np.ndarray) -> np.ndarray:
        type = self.graph.values[input_.value].type
        assert type is not None
        array = np.asarray(array)
        shape = array.shape
        listed = type.width == 1 and type.dtype not in FLOATS
        if not (len(shape) == 2 and shape[1] == type.width) and not (listed and len(shape) == 1):
            raise PoemError(
                "run.input", f"the value given for `{input_.method}` does not fit", phase="run",
                expected=f"[rows, {type.width}] {type.dtype}", found=str(list(shape)),
            )  # fmt: skip
        if type.dtype in FLOATS:
            return self.numeric.round(np.ascontiguousarray(array), type.dtype)
        array = np.ascontiguousarray(array, np.uint8 if type.dtype == "u8" else np.int32)
        return array.reshape(-1) if listed else array


def check_supported(graph: Graph) -> None:
    """Raises PoemError (`run.unsupported`) for each op of the graph that the interpreter lacks, at its .poem line."""
    missing: dict[str, PoemError] = {}
    for node in graph.nodes:
        if node.op not in missing and find_op(node.op) is None:
            file, line = (node.where[-1].file, node.where[-1].line) if node.where else ("", 0)
            missing[node.op] = PoemError(
                "run.unsupported", f"the interpreter has no ops.{node.op} yet", phase="run", file=file, line=line, stack=node.where
            )
    if len(missing) == 1:
        raise next(iter(missing.values()))
    if missing:
        raise PoemErrors(list(missing.values()))


def find_op(name: str) -> Callable[..., Any] | None:
    """The function of an op, `linear.matmul`, or None."""
    namespace, _, short = name.partition(".")
    module = _module(namespace)
    found = getattr(module, short, None) or getattr(module, f"{short}_", None)
    return found if callable(found) else None


def _listed(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1)


def _only_copies(name: str) -> bool:
    namespace, _, short = name.partition(".")
    return short in getattr(_module(namespace), "COPIES", ())


def _module(namespace: str) -> ModuleType | None:
    try:
        return importlib.import_module(f"interp.ops.{namespace}")
    except ModuleNotFoundError as fault:
        if fault.name == f"interp.ops.{namespace}":
            return None
        raise


def _side_by_side(graph: Graph) -> list[tuple[Node, ...]]:
    """The nodes in order, but products of one value with several weights together, at the place of the first."""
    groups: dict[Hashable, list[Node]] = {}
    for node in graph.nodes:
        type = graph.values[node.results[0]].type if node.op == "linear.matmul" else None
        key = node.id if type is None else (node.operands["x"], type.dtype)
        groups.setdefault(key, []).append(node)
    return [tuple(group) for group in groups.values()]
