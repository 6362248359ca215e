"""Bounds of ops against the interpreter: what native mode gives lies within its bound of what exact mode gives.

The operands are those of the strategies. The exact results are the op's own in float64; that they are right is tested with the interpreter.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conformance.arithmetic import F64_OF_F32, NATIVE, NATIVE_AND_ORIGINAL, ORIGINAL
from conformance.bounds import BOUNDS, Cells, local_bound
from conformance.examples import Case, Example, example
from conformance.operands import Operands, Weights
from conformance.running import Running
from conformance.strategies import strategies
from interp import Session
from poem.batch import Chunk, geometry
from poem.dtypes import FLOATS, Dtype
from poem.dtypes.tensor import Tensor
from poem.graph import Node

OPS = [op for op in strategies() if op in BOUNDS]
# What these give is chosen or decoded, and only rounded to its dtype.
CHOICES = {"elemwise.relu", "elemwise.clamp", "elemwise.clamp_learned", "elemwise.cast", "gather.embed", "gather.embed_concat"}
LOOSEST = 100.0  # a bound that no run in f32 comes within this factor of would say nothing
LEAST_SEEDS, MOST_SEEDS = 4, 30  # until a run does


def weight(array: np.ndarray, dtype: str = "f32") -> Tensor:
    return Tensor.encode(np.asarray(array, np.float32), Dtype(dtype))


def wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float64)


def float_results(made: Example) -> Iterator[tuple[Node, np.ndarray, np.ndarray, Running]]:
    """The results of the first pass, node by node: native ones, exact ones of the native operands, and their bounds."""
    graph, pass_ = made.graph, made.passes[0]
    native: dict[int, tuple[Any, ...]] = {}
    exact: dict[int, tuple[Any, ...]] = {}

    def keep(node: Node, results: tuple[Any, ...]) -> None:
        native[node.id] = results

    def feed(node: Node, results: tuple[Any, ...]) -> tuple[Any, ...]:
        exact[node.id] = results
        return tuple(wide(result) if isinstance(result, np.ndarray) and result.dtype.kind == "f" else result for result in native[node.id])

    for mode, observe in (("native", keep), ("exact", feed)):
        session = Session(graph, made.weights, mode=mode, page_size=made.page_size)  # type: ignore[arg-type]
        assert [session.add_sequence() for _ in pass_.batch] == [chunk.sequence for chunk in pass_.batch]
        session.run(pass_.batch, observe, pass_.inputs)
    rows = geometry(pass_.batch, {chunk.sequence: 0 for chunk in pass_.batch}, [])
    operands = Operands(graph, Weights(graph, made.weights), rows, NATIVE, given=pass_.inputs)
    for node in graph.nodes:
        bounds = operands.bounds(node, exact[node.id]) or [None] * len(node.results)
        for id, got, want, bound in zip(node.results, native[node.id], exact[node.id], bounds, strict=True):
            type = graph.values[id].type
            if bound is not None and type is not None and type.dtype in FLOATS:
                yield node, got, want, bound
        operands.keep(node, native[node.id])


def used(got: np.ndarray, want: np.ndarray, bound: Running, where: str) -> float:
    """The largest fraction of its bound that a result is off by. The bound's own value must be the exact one, but for float64."""
    assert (np.isnan(got) == np.isnan(want)).all(), where
    known = ~np.isnan(want)
    got, want, value, error = (np.broadcast_to(array, known.shape)[known] for array in (wide(got), want, bound.value, bound.error))
    wrong = np.abs(value - want) > 1e-12 * np.abs(want).max(initial=0.0) + 2.0 * F64_OF_F32 * error
    assert not wrong.any(), f"{where}: the bound is of {value[wrong][0]!r}, the result {want[wrong][0]!r}: another formula than the op's"
    off = np.abs(got - want)
    over = off > error
    assert not over.any(), f"{where}: got {got[over][0]!r}, want {want[over][0]!r}, which is past the bound {error[over][0]!r}"
    return float((off[off > 0] / error[off > 0]).max(initial=0.0))


def closest(op: str, dtype: str, weights: str) -> float:
    """The largest fraction of a bound that runs on examples of an op use."""
    found = 0.0
    for seed in range(MOST_SEEDS):
        made = example(Case(op, dtype, weights, "normal", seed))
        with np.errstate(invalid="ignore"):  # norms without eps of rows that are zeros
            results = [result for node, *result in float_results(made) if node.op == op]
        found = max([found, *(used(*result, f"{made.case} with picks {made.picks}") for result in results)])
        if seed + 1 >= LEAST_SEEDS and (found * LOOSEST > 1.0 or BOUNDS[op].copies or op in CHOICES):
            break
    return found


@pytest.mark.parametrize("op", OPS)
def test_native_results_lie_within_the_bound_of_exact_results_and_use_some_of_it(op: str) -> None:
    strategy = strategies()[op]
    for dtype in strategy.dtypes:
        for weights in strategy.weights[:2]:
            found = closest(op, dtype, weights)
            print(f"{op}, {dtype} {weights}: closest at {found:.3f} of the bound")
            if BOUNDS[op].copies:
                assert found == 0.0
            elif op not in CHOICES:
                assert found * LOOSEST > 1.0, f"{op} of {dtype}: no run comes within {found} of the bound"


def test_errors_of_operands_are_carried_through_several_ops() -> None:
    """A product, a norm and an activation in f32, compared with float64 at the end only."""
    rng = np.random.default_rng(0)
    x, w, gain = rng.standard_normal((40, 64)), rng.standard_normal((48, 64)), rng.standard_normal(48)
    x, w, gain = (array.astype(np.float32) for array in (x, w, gain))

    def run(kind: Any) -> list[np.ndarray]:
        y = x.astype(kind) @ w.astype(kind).T
        n = y / np.sqrt(np.mean(y * y, -1, keepdims=True, dtype=kind) + kind(1e-5)) * gain.astype(kind)
        return [y, n, n / (1 + np.exp(-n))]

    exact, single = run(np.float64), run(np.float32)
    (product,) = local_bound("linear.matmul", {"x": wide(x), "w": w, "out": None}, exact[:1], ["f32"], ORIGINAL)
    (normed,) = local_bound("elemwise.rmsnorm", {"x": product, "w": gain, "eps": 1e-5}, exact[1:2], ["f32"], ORIGINAL)
    (opened,) = local_bound("elemwise.silu", {"x": normed}, exact[2:], ["f32"], ORIGINAL)
    errors = [np.abs(wide(got) - want) for got, want in zip(single, exact, strict=True)]
    for error, bound in zip(errors, (product, normed, opened), strict=True):
        assert (error <= bound.error).all()
    alone = local_bound("elemwise.silu", {"x": exact[1]}, exact[2:], ["f32"], ORIGINAL)[0].error
    assert (errors[2] > alone).any(), "the errors of operands matter here"


@pytest.mark.parametrize(("dtype", "worst"), [("bf16", 2.0**-8), ("f16", 2.0**-11), ("e4m3", 2.0**-4), ("e5m2", 2.0**-3)])
def test_cells_are_read_within_the_rounding_of_their_dtype(dtype: str, worst: float) -> None:
    cells = np.linspace(-3, 3, 999)[:, None]
    read = Cells([(cells,)], dtype).read(0, 0, NATIVE)
    stored = weight(cells, dtype).decode()
    error = np.abs(stored - cells.astype(np.float32))
    assert (error <= np.broadcast_to(read.error, cells.shape)).all()
    assert (np.broadcast_to(read.error, cells.shape) <= worst * np.maximum(np.abs(cells), 2.0**-6)).all()
    assert not Cells([(cells,)], dtype).read(0, 0, ORIGINAL).inexact, "an f32 original keeps its cells as they are"


def test_attention_over_rounded_cells_is_within_the_bound_that_counts_their_rounding() -> None:
    from poem.graph import ValueType
    from poem.tracer import Tracer

    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((5, width)).astype(np.float32) for width in (32, 16, 16))
    tracer = Tracer("t", "t", "t")
    cache = tracer.cache_handle(tracer.add_kv(tracer.add_space("e4m3"), "kv", [16, 16], 8))
    values = [tracer.input(name, ValueType("tokens", width, "f32")) for name, width in (("q", 32), ("k", 16), ("v", 16))]
    tracer.call("attn.kv_append", [values[1], values[2], cache], {}, ())
    tracer.output("o", tracer.call("attn.attend", [values[0], cache, tracer.handle, 8, 2, 0.35], {}, ()), ())
    from interp import Session

    found = {}
    for mode in ("exact", "native"):
        session = Session(tracer.graph(), {}, mode=mode)  # type: ignore[arg-type]
        found[mode] = session.run([Chunk(session.add_sequence(), [0] * 5)], inputs={"q": q, "k": k, "v": v})["o"]
    node = tracer.graph().nodes[-1]
    arguments: dict[str, Any] = {**node.attributes, "mask": None, "sinks": None, "bias": None, "selection": None}
    arguments |= {"q": wide(q), "cache": Cells([(wide(k), wide(v))], "e4m3"), "inputs": geometry([Chunk(0, [0] * 5)], {0: 0}, [])}
    error = np.abs(wide(found["native"]) - found["exact"])
    bound = local_bound("attn.attend", arguments, (found["exact"],), ["f32"], NATIVE)[0].error
    without = local_bound("attn.attend", arguments, (found["exact"],), ["f32"], NATIVE.only("steps"))[0].error
    assert (error <= bound).all()
    assert (error > without).any()
    assert (bound < 30 * error.max()).any(), "the bound is not vacuous"


def test_native_against_an_original_allows_both_their_errors() -> None:
    x = np.random.default_rng(0).standard_normal((4, 8))
    alone = [
        np.broadcast_to(local_bound("elemwise.silu", {"x": x}, (x,), ["bf16"], arithmetic)[0].error, x.shape)
        for arithmetic in (NATIVE, ORIGINAL, NATIVE_AND_ORIGINAL)
    ]
    np.testing.assert_allclose(alone[2], alone[0] + alone[1], rtol=1e-3)


def test_a_source_of_errors_can_be_asked_for_by_itself() -> None:
    x, w = np.ones((2, 64)), np.ones((3, 64), np.float32)
    parts = {
        source: float(
            np.max(local_bound("linear.matmul", {"x": x, "w": w, "out": None}, (x @ w.T,), ["bf16"], NATIVE.only(source))[0].error)
        )
        for source in ("steps", "functions", "results")
    }
    assert parts["functions"] == 0.0
    assert parts["results"] == 0.25, "half a spacing of bf16 at 64"
    assert 0 < parts["steps"] < 0.01 * parts["results"]


def test_running_values_stay_arrays_and_carry_their_arithmetic() -> None:
    made = np.ones(3) * Running(ORIGINAL, np.arange(3.0)) - 1.0
    assert isinstance(made, Running)
    np.testing.assert_array_equal(made.value, [-1.0, 0.0, 1.0])
    assert made.arithmetic is ORIGINAL
