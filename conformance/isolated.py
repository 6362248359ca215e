"""A backend's launches one by one: each is fed the interpreter's operands, and the first that is wrong is named.

Errors do not add up: after every launch its results, and the cells that it appended, are replaced by the interpreter's. A result is
compared with the exact one on the same operands. What stays inside a fused launch is the kernel's own: both it and the interpreter's
lie within a bound of the exact value, so it is taken as the interpreter's with twice that error, which later bounds carry on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.arithmetic import NATIVE, PRECISION
from conformance.bounds import Cells
from conformance.kernel_errors import kernel_error
from conformance.metrics import Distance, measure
from conformance.operands import APPENDS, Operands, Weights
from conformance.running import Running
from interp import Session as Interpreter
from poem.batch import Chunk
from poem.dtypes import Dtype
from poem.dtypes.cache import load, store
from poem.dtypes.leaves import STORAGE
from poem.dtypes.tensor import Tensor
from poem.graph import Graph, Node, Ref

if TYPE_CHECKING:
    from cupy_backend.session import Session

# Cells are compared as they are cast, so reading them back adds no error.
ARITHMETIC = replace(NATIVE, cells="")


@dataclass(frozen=True, slots=True)
class Judged:
    """One result of one launch, or cells that it appended.

    step: its number in the plan. node: the op whose result it is. nodes: all that the launch stands for. kernels: what ran. what: the
    result, in words. want is the exact result on the interpreter's operands. reason: what most of the bound comes from, if it is passed.
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


def run_isolated(graph: Graph, weights: Mapping[str, Tensor], session: "Session", tokens: Sequence[int]) -> list[Judged]:
    """Every result of a pass over a prompt, in order of the launches. session: the backend's, for the same graph and weights.

    PoemError (`check.no-bound`) for an op without a bound; KernelError for a launch that fails.
    """
    native, exact = _interpreted(graph, weights, tokens)
    got: dict[int, np.ndarray] = {}
    cells: dict[int, list[np.ndarray]] = {}
    sequence = session.add_sequence()

    def observe(node: Node, results: tuple[np.ndarray | None, ...]) -> tuple[np.ndarray, ...]:
        got.update({id: result for id, result in zip(node.results, results, strict=True) if result is not None})
        if node.op in APPENDS:
            cells[node.id] = [plane[: len(tokens)] for plane in session.cells(_cache(node), sequence)]
            session.store_cells(_cache(node), sequence, _stored(graph, node, native))
        return tuple(native[id] for id in node.results)

    session.run([Chunk(sequence, list(tokens), readouts="all")], observe)
    session.drop_sequence(sequence)
    judged = []
    operands = Operands(graph, Weights(graph, weights), tokens, ARITHMETIC)
    steps = {id: (number, step) for number, step in enumerate(session.plan.steps) for id in step.nodes}
    for node in graph.nodes:
        number, step = steps[node.id]
        kernels = tuple(launch.kernel for launch in step.launches)
        extra = kernel_error(graph, node, kernels, operands.of(node))
        bounds = [
            Running(ARITHMETIC, bound.value, bound.error + extra) for bound in operands.bounds(node, [exact[id] for id in node.results])
        ]
        if node.op in APPENDS:
            found = _judge_cells(graph, node, operands, cells[node.id], native)
            operands.store(_cache(node), [load(plane, Dtype(_dtype(graph, node))) for plane in _stored(graph, node, native)])
        else:
            found = [_judge(graph, node, operands, i, got, exact, bounds) for i, id in enumerate(node.results) if id in got]
        judged += [
            Judged(number, node.id, step.nodes, kernels, what, distance, *arrays, reason) for what, distance, arrays, reason in found
        ]  # fmt: skip
        operands.keep(
            node, [native[id] if id in got else Running(ARITHMETIC, native[id], 2.0 * bound.error)
                   for id, bound in zip(node.results, bounds, strict=True)],
        )  # fmt: skip
    return sorted(judged, key=lambda item: (item.step, item.node))


Found = tuple[str, Distance, tuple[np.ndarray, np.ndarray, np.ndarray], str]


def _interpreted(graph: Graph, weights: Mapping[str, Tensor], tokens: Sequence[int]) -> tuple[dict[int, np.ndarray], dict[int, np.ndarray]]:
    """Every value as the interpreter has it natively, and exactly on those operands, by id."""
    native: dict[int, np.ndarray] = {}
    exact: dict[int, np.ndarray] = {}

    def keep(node: Node, results: tuple[np.ndarray, ...]) -> None:
        native.update(zip(node.results, results, strict=True))

    def feed(node: Node, results: tuple[np.ndarray, ...]) -> tuple[Any, ...]:
        exact.update(zip(node.results, results, strict=True))
        return tuple(native[id].astype(exact[id].dtype) for id in node.results)

    for session, observe in ((Interpreter(graph, weights), keep), (Interpreter(graph, weights, mode="exact", casts=True), feed)):
        session.run([Chunk(session.add_sequence(), list(tokens), readouts="all")], observe)
    return native, exact


def _judge(
    graph: Graph, node: Node, operands: Operands, which: int, got: Mapping[int, np.ndarray], exact: Mapping[int, np.ndarray],
    bounds: Sequence[Running],
) -> Found:  # fmt: skip
    id = node.results[which]
    want = exact[id]
    bound = np.broadcast_to(np.asarray(bounds[which].error, np.float64), want.shape)
    distance = measure(got[id].reshape(want.shape), want, bound)
    reason = ""
    if not distance.agrees:
        reason = operands.reason(node, [exact[id] for id in node.results], which, distance.index) if want.dtype.kind == "f" else "integers"
    what = f"result {which} of ops.{node.op}" if len(node.results) > 1 else f"the result of ops.{node.op}"
    return what, distance, (got[id].reshape(want.shape), want, bound), reason


def _judge_cells(graph: Graph, node: Node, operands: Operands, got: list[np.ndarray], native: Mapping[int, np.ndarray]) -> list[Found]:
    """Appended cells against the casts of the operands: the same bits, but for operands that stayed inside the launch."""
    dtype, found = _dtype(graph, node), []
    given = operands.of(node)
    for plane, (name, codes, stored) in enumerate(zip(APPENDS[node.op], got, _stored(graph, node, native), strict=True)):
        value, want = given[name], load(stored, Dtype(dtype)).astype(np.float64)
        bound, reason = np.zeros(want.shape), "cells hold the cast of their operand"
        if isinstance(value, Running):
            own = graph.values[_operand(node, name)].type
            cast = own is not None and PRECISION[dtype][0] < PRECISION[own.dtype][0]
            read = Cells([(value,)], dtype if cast else "").read(0, 0, NATIVE if cast else ARITHMETIC)
            want, bound, reason = value.value, np.broadcast_to(read.error, want.shape), "the launch's own operand and its cast"
        distance = measure(load(codes, Dtype(dtype)), want, bound)
        found.append((f"plane {plane} of the cells of ops.{node.op}", distance, (load(codes, Dtype(dtype)), want, bound), reason))
    return found


def _stored(graph: Graph, node: Node, native: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """The cells that an append stores of the interpreter's values."""
    planes = []
    for name in APPENDS[node.op]:
        id = _operand(node, name)
        type = graph.values[id].type
        assert type is not None
        planes.append(store(native[id].astype(STORAGE[type.dtype]), Dtype(_dtype(graph, node))))
    return planes


def _operand(node: Node, name: str) -> int:
    found = node.operands[name]
    assert isinstance(found, Ref)
    return found.id


def _cache(node: Node) -> int:
    return _operand(node, "cache")


def _dtype(graph: Graph, node: Node) -> str:
    """What the cells are stored in."""
    return graph.spaces[graph.caches[_cache(node)].space].dtype
