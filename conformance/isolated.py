"""A backend's launches one by one: each is fed the interpreter's operands, and the first that is wrong is named.

Errors do not add up: after every launch its results, and the cells that it appended, are replaced by the interpreter's. A result is
compared with the exact one on the same operands. What stays inside a fused launch is the kernel's own: it is taken as the interpreter's
with the error that parts them at most, which later bounds carry on. Both round a number near the exact one to the result's dtype, and
so they differ only where there is a tie between two of its numbers that near.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.arithmetic import NATIVE, PRECISION
from conformance.bounds import Cells
from conformance.kernel_errors import kernel_error, takes_infinity_for_nan
from conformance.metrics import Distance, measure, overflowed
from conformance.operands import APPENDS, Operands, Weights
from conformance.running import Running
from interp import Session as Interpreter
from poem.batch import Chunk, Geometry, geometry
from poem.dataclass import dataclass
from poem.dtypes import FLOATS, Dtype
from poem.dtypes.cache import VOID, load, store
from poem.dtypes.leaves import STORAGE
from poem.dtypes.tensor import Tensor
from poem.graph import Graph, Node, Ref

if TYPE_CHECKING:
    from cupy_backend.session import Session

Scales = Mapping[int, tuple[np.float32, ...]]  # of the planes of each cache
# Cells are compared as they are cast, so reading them back adds no error.
ARITHMETIC = replace(NATIVE, cells="", special=True)


@dataclass(frozen=True, slots=True)
class Judged:
    """One result of one launch, or cells that it appended.

    step: its number in the plan. node: the op whose result it is. nodes: all that the launch stands for. kernels: what ran. what: the
    result, in words. want is the exact result on the interpreter's operands. reason: what most of the bound comes from, if it is passed.
    dtype: of the result; of cells as they are read, f32.
    """

    step: int
    node: int
    nodes: tuple[int, ...]
    kernels: tuple[str, ...]
    what: str
    distance: Distance
    got: np.ndarray
    want: np.ndarray
    bound: np.ndarray
    reason: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a run: its chunks, whose sequences are numbered from 0, and values of inputs that no batch holds, by their `key`."""

    batch: tuple[Chunk, ...]
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)


def prompt_alone(tokens: Sequence[int]) -> list[Pass]:
    """One prompt, every row read out."""
    return [Pass((Chunk(0, list(tokens), readouts="all"),))]


def run_isolated(
    graph: Graph, weights: Mapping[str, Tensor], session: "Session | None", passes: Sequence[Pass], page_size: int = 16
) -> list[Judged]:
    """Every result of some passes, in order of the launches. session: the backend's, for the same graph and weights, or None to judge
    the interpreter itself, whose operands are its own. page_size: the session's, for operands that name pages.

    PoemError (`check.no-bound`) for an op without a bound; KernelError for a launch that fails.
    """
    runs = _Runs(graph, weights, page_size)
    sequences = [session.add_sequence() for _ in range(_sequences(passes))] if session is not None else []
    operands, judged = None, []
    held: dict[int, list[np.ndarray]] = {}
    lengths = dict.fromkeys(range(_sequences(passes)), 0)
    for pass_ in passes:
        native, exact = runs.run(pass_)
        rows = geometry(pass_.batch, lengths, [])
        lengths.update(zip(rows.sequences, rows.kv_len.tolist(), strict=True))
        if operands is None:
            operands = Operands(graph, Weights(graph, weights), rows, ARITHMETIC, casts=True, given=pass_.inputs)
        else:
            operands.start(rows, pass_.inputs)
        if session is None:
            launched = _Launched.alone(graph, native)
        else:
            launched = _launched(graph, session, sequences, pass_, rows, native, runs.scales, held)
        judged += _judge_pass(graph, operands, native, exact, launched, runs.scales)
    for sequence in sequences:
        assert session is not None
        session.drop_sequence(sequence)
    return judged


def _sequences(passes: Sequence[Pass]) -> int:
    return 1 + max(chunk.sequence for pass_ in passes for chunk in pass_.batch)


class _Runs:
    """The interpreter's runs: natively, and exactly on the native operands."""

    def __init__(self, graph: Graph, weights: Mapping[str, Tensor], page_size: int) -> None:
        self.native = Interpreter(graph, weights, page_size=page_size)
        self.exact = Interpreter(graph, weights, mode="exact", casts=True, page_size=page_size)
        self._sequences: dict[int, tuple[int, int]] = {}
        self.scales = {
            cache.id: tuple(np.float32(weights[graph.params[id].name].decode().reshape(-1)[0]) for id in cache.scales or ())
            or (np.float32(1.0),) * len(cache.planes)
            for cache in graph.caches
        }  # fmt: skip

    def run(self, pass_: Pass) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
        """Every value as the interpreter has it natively, and exactly on those operands, by id."""
        given = {item.value: pass_.inputs[item.key] for item in self.native.graph.inputs if item.key in pass_.inputs}
        native: dict[int, np.ndarray] = dict(given)
        exact: dict[int, np.ndarray] = {}

        def keep(node: Node, results: tuple[np.ndarray, ...]) -> None:
            native.update(zip(node.results, results, strict=True))

        def feed(node: Node, results: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
            exact.update(zip(node.results, results, strict=True))
            return tuple(_like(native[id], exact[id]) for id in node.results)

        for chunk in pass_.batch:
            if chunk.sequence not in self._sequences:
                self._sequences[chunk.sequence] = self.native.add_sequence(), self.exact.add_sequence()
        for which, (session, observe) in enumerate(((self.native, keep), (self.exact, feed))):
            batch = [replace(chunk, sequence=self._sequences[chunk.sequence][which]) for chunk in pass_.batch]
            session.run(batch, observe, pass_.inputs)
        return native, exact


def _like(native: Any, exact: Any) -> Any:
    """A native result as exact mode holds it; plans as they are."""
    return native.astype(exact.dtype) if isinstance(native, np.ndarray) else native


@dataclass(frozen=True, slots=True)
class _Appended:
    """What an append did. rows: that it was to store; cells: what it stored of them, an array for each plane; elsewhere: for each plane,
    other cells that changed, and what they were."""

    rows: np.ndarray
    cells: list[np.ndarray]
    elsewhere: list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True, slots=True)
class _Launched:
    """What ran in a pass: results by value, what each append did, and of each node the step, all nodes of that and its kernels."""

    results: Mapping[int, np.ndarray]
    cells: Mapping[int, _Appended]
    steps: Mapping[int, tuple[int, tuple[int, ...], tuple[str, ...]]]

    @classmethod
    def alone(cls, graph: Graph, native: Mapping[int, np.ndarray]) -> "_Launched":
        """The interpreter's own results."""
        results = {id: result for id, result in native.items() if isinstance(result, np.ndarray)}
        return cls(results, {}, {node.id: (node.id, (node.id,), ()) for node in graph.nodes})


def _launched(
    graph: Graph, session: "Session", sequences: Sequence[int], pass_: Pass, rows: Geometry, native: Mapping[int, np.ndarray],
    scales: Scales, held: dict[int, list[np.ndarray]],
) -> _Launched:  # fmt: skip
    """held: all cells of each cache, as they are before the pass and then after it."""
    got: dict[int, np.ndarray] = {}
    cells: dict[int, _Appended] = {}

    def observe(node: Node, results: tuple[np.ndarray | None, ...]) -> tuple[np.ndarray, ...]:
        got.update({id: result for id, result in zip(node.results, results, strict=True) if result is not None})
        if node.op in APPENDS:
            rows_stored, slots = _destination(session, sequences, node, rows, native)
            right = [plane[rows_stored] for plane in _stored(graph, node, native, scales)]
            cells[node.id] = _replaced(session, _cache(node), slots, rows_stored, right, held)
        return tuple(native[id] for id in node.results)

    session.run([replace(chunk, sequence=sequences[chunk.sequence]) for chunk in pass_.batch], observe, pass_.inputs)
    return _Launched(got, cells, steps_of(session))


def steps_of(session: "Session") -> dict[int, tuple[int, tuple[int, ...], tuple[str, ...]]]:
    """Of each node, the number of its step in the session's plan, all nodes of that and its kernels."""
    return {
        id: (number, step.nodes, tuple(launch.kernel for launch in step.launches))
        for number, step in enumerate(session.plan.steps)
        for id in step.nodes
    }


def _destination(
    session: "Session", sequences: Sequence[int], node: Node, rows: Geometry, native: Mapping[int, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Which rows of a pass an append stores, and in which cells, counted from cell 0 of page 0."""
    if node.operands["write_page"] is not None:
        page, offset = (native[_operand(node, name)].reshape(-1) for name in ("write_page", "write_offset"))
        stored = np.flatnonzero((offset >= 0) & (offset < session.page_size))
        return stored, page[stored] * session.page_size + offset[stored]
    parts = [np.zeros(0, np.intp)]
    for lane, first, end in rows.lanes_with_rows:
        length = int(rows.kv_len[lane])
        parts.append(session.slots(_cache(node), sequences[rows.sequences[lane]])[length - (end - first) : length])
    return np.arange(rows.rows), np.concatenate(parts)


def _replaced(
    session: "Session", cache: int, slots: np.ndarray, rows: np.ndarray, right: Sequence[np.ndarray], held: dict[int, list[np.ndarray]]
) -> _Appended:
    """What an append has made of a cache, whose cells are then the right ones."""
    found = _Appended(rows, [], [])
    planes = session.cells(cache)
    before = held.get(cache, [plane[:0] for plane in planes])
    held[cache] = []
    for plane, had, values in zip(planes, before, right, strict=True):
        want = np.full(plane.nbytes, VOID, np.uint8).view(plane.dtype).reshape(plane.shape)
        want[: len(had)] = had
        changed = (plane.view(np.uint8) != want.view(np.uint8)).any(1)
        changed[slots] = False
        found.cells.append(plane[slots])
        found.elsewhere.append((plane[changed], want[changed]))
        want[slots] = values
        held[cache].append(want)
    session.store_cells(cache, held[cache])
    return found


def _judge_pass(
    graph: Graph, operands: Operands, native: Mapping[int, np.ndarray], exact: Mapping[int, np.ndarray], launched: _Launched, scales: Scales
) -> list[Judged]:  # fmt: skip
    judged = []
    got = launched.results
    shown = got.keys() | {id for id, value in native.items() if not isinstance(value, np.ndarray)}
    for node in graph.nodes:
        number, nodes, kernels = launched.steps[node.id]
        extra = kernel_error(graph, node, kernels, operands.of(node))
        bounds = _bounds(operands, node, exact, extra)
        if node.op in APPENDS:
            written = launched.cells.get(node.id)
            found = _judge_cells(graph, node, operands, written, native, scales) if written is not None else []
            operands.store(_cache(node), _loaded(graph, node, _stored(graph, node, native, scales), scales))
        else:
            unsure = _unsure(graph, node, nodes, kernels, exact)
            found = [_judge(graph, node, operands, i, got, exact, bounds, unsure) for i, id in enumerate(node.results) if id in got]
        judged += [Judged(number, node.id, nodes, kernels, what, distance, *arrays, *rest) for what, distance, arrays, *rest in found]
        kept: list[np.ndarray | Running] = [native[id] for id in node.results]
        if not shown.issuperset(node.results):
            before = zip(node.results, _bounds(operands, node, exact, extra, rounded=False), strict=True)
            kept = [native[id] if id in shown else _inside(graph, id, native[id], bound) for id, bound in before]
        operands.keep(node, kept)
    return sorted(judged, key=lambda item: (item.step, item.node))


def _unsure(
    graph: Graph, node: Node, nodes: Sequence[int], kernels: Sequence[str], exact: Mapping[int, np.ndarray]
) -> np.ndarray | bool:  # fmt: skip
    """Where a launch may give NaN on account of an infinity: where a product is infinite, and of what follows in the launch in rows where
    it is."""
    products = [id for other in nodes if takes_infinity_for_nan(graph, graph.nodes[other], kernels) for id in graph.nodes[other].results]
    if not products:
        return False
    if node.results[0] in products:
        return np.isinf(exact[node.results[0]])
    return np.any([np.isinf(exact[id]).any(1, keepdims=True) for id in products], axis=0)


def _bounds(
    operands: Operands, node: Node, exact: Mapping[int, np.ndarray], extra: np.ndarray | float, *, rounded: bool = True
) -> list[Running]:
    """Of what a launch makes of a node. extra: the kernel's own error, of the first result."""
    bounds = operands.bounds(node, [exact[id] for id in node.results], rounded=rounded)
    return [Running(ARITHMETIC, bound.value, bound.error + (0.0 if which else extra)) for which, bound in enumerate(bounds)]


def _inside(graph: Graph, id: int, native: np.ndarray, before: Running) -> Running:
    """A result that stays inside a launch, which rounds it as the graph says: rounding keeps the order of numbers, so it lies between
    those that the ends of `before`, the bound without that rounding, become."""
    type = graph.values[id].type
    if type is None or type.dtype not in FLOATS or type.dtype == "f32":
        return Running(ARITHMETIC, native, 2.0 * before.error)
    low, high = (_as_stored(before.value + sign * before.error, type.dtype) for sign in (-1.0, 1.0))
    with np.errstate(invalid="ignore"):
        error = np.maximum(high - native, native - low)
    return Running(ARITHMETIC, native, np.where(np.isfinite(native), error, 0.0))


def _as_stored(numbers: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(np.float32).astype(STORAGE[dtype]).astype(np.float64)


Found = tuple[str, Distance, tuple[np.ndarray, np.ndarray, np.ndarray], str, str]


def _judge(
    graph: Graph, node: Node, operands: Operands, which: int, got: Mapping[int, np.ndarray], exact: Mapping[int, np.ndarray],
    bounds: Sequence[Running], unsure: np.ndarray | bool,
) -> Found:  # fmt: skip
    id = node.results[which]
    want = exact[id]
    bound = np.broadcast_to(np.asarray(bounds[which].error, np.float64), want.shape)
    type = graph.values[id].type
    mine = got[id].reshape(want.shape)
    if type is not None and type.dtype in FLOATS:
        mine = overflowed(mine, want, bound, type.dtype)
    mine = np.where(np.isnan(mine) & unsure, want, mine)
    distance = measure(mine, want, bound)
    reason = ""
    if not distance.agrees:
        reason = operands.reason(node, [exact[id] for id in node.results], which, distance.index) if want.dtype.kind == "f" else "integers"
    what = f"result {which} of ops.{node.op}" if len(node.results) > 1 else f"the result of ops.{node.op}"
    return what, distance, (mine, want, bound), reason, type.dtype if type is not None else ""


def _judge_cells(
    graph: Graph, node: Node, operands: Operands, got: _Appended, native: Mapping[int, np.ndarray], scales: Scales
) -> list[Found]:  # fmt: skip
    """Appended cells against the casts of the operands: the same bits, but for operands that stayed inside the launch. Others are as they
    were."""
    dtype, found = _dtype(graph, node), []
    given, scale = operands.of(node), scales[_cache(node)]
    right = _loaded(graph, node, _stored(graph, node, native, scales), scales)
    for plane, (name, codes) in enumerate(zip(APPENDS[node.op], _loaded(graph, node, got.cells, scales), strict=True)):
        value, want = given[name][got.rows], right[plane][got.rows].astype(np.float64)
        bound, reason = np.zeros(want.shape), "cells hold the cast of their operand"
        if isinstance(value, Running):
            own = graph.values[_operand(node, name)].type
            cast = own is not None and PRECISION[dtype][0] < PRECISION[own.dtype][0]
            read = Cells([(value,)], dtype if cast else "", (float(scale[plane]),)).read(0, 0, NATIVE if cast else ARITHMETIC)
            finite, reason = np.isfinite(value.value), "the launch's own operand and its cast"
            want, bound = np.where(finite, value.value, want), np.where(finite, read.error, 0.0)  # e4m3 has no infinity
        distance = measure(codes, want, bound)
        found.append((f"plane {plane} of the cells of ops.{node.op}", distance, (codes, want, bound), reason, "f32"))
    now, before = (_loaded(graph, node, planes, scales) for planes in zip(*got.elsewhere, strict=True))
    for plane, (codes, was) in enumerate(zip(now, before, strict=True)):
        if len(codes):
            bound, reason = np.zeros(was.shape), "no row is stored there"
            distance = measure(codes, was.astype(np.float64), bound)
            found.append((f"plane {plane} of cells that ops.{node.op} leaves", distance, (codes, was, bound), reason, "f32"))
    return found


def _stored(graph: Graph, node: Node, native: Mapping[int, np.ndarray], scales: Scales) -> list[np.ndarray]:
    """The cells that an append stores of the interpreter's values."""
    planes = []
    for name, scale in zip(APPENDS[node.op], scales[_cache(node)], strict=True):
        id = _operand(node, name)
        type = graph.values[id].type
        assert type is not None
        planes.append(store(native[id].astype(STORAGE[type.dtype]), Dtype(_dtype(graph, node)), scale))
    return planes


def _loaded(graph: Graph, node: Node, stored: Sequence[np.ndarray], scales: Scales) -> list[np.ndarray]:
    """Cells as attention reads them."""
    return [load(plane, Dtype(_dtype(graph, node)), scale) for plane, scale in zip(stored, scales[_cache(node)], strict=True)]


def _operand(node: Node, name: str) -> int:
    found = node.operands[name]
    assert isinstance(found, Ref)
    return found.id


def _cache(node: Node) -> int:
    return _operand(node, "cache")


def _dtype(graph: Graph, node: Node) -> str:
    """What the cells are stored in."""
    return graph.spaces[graph.caches[_cache(node)].space].dtype
