"""A backend against the interpreter: every launch on the interpreter's operands, and the whole run, prefill and decode."""

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from conformance.compare import Subject, row_of
from conformance.greedy import decode
from conformance.isolated import Judged, prompt_alone, run_isolated, steps_of
from conformance.kernel_errors import kernel_error
from conformance.metrics import fractions, ulp_distance
from conformance.perturbed import factor_for, run_perturbed
from conformance.report import Comparison, Fault, Op, Row
from interp import Session as Interpreter
from poem.graph import Node

if TYPE_CHECKING:
    from cupy_backend.session import Session

_SINGLE = 2.0**-24
SHOWN = 6  # wrong launches that are reported


def compare_on_backend(subject: Subject, name: Literal["emu", "cuda"]) -> Comparison:
    """`compare_backend` in a new session on a device.

    KernelError for what no kernel serves, and for a launch that fails.
    """
    from cupy_backend.devices import open_device
    from cupy_backend.session import Session

    return compare_backend(subject, name, Session(subject.graph, subject.tensors, open_device(name)))


def compare_backend(subject: Subject, name: str, session: "Session") -> Comparison:
    """What a backend does with a deployment.

    Isolated, each launch gets the interpreter's operands: the first whose result is past its bound is named with its nodes and line.
    Accumulated, the whole run is compared with the exact one, within the spread of perturbed native runs.
    """
    start = time.perf_counter()
    graph = subject.graph
    judged = [
        item for item in run_isolated(graph, subject.tensors, session, prompt_alone(subject.golden.tokens)) if subject.selected(item.what)
    ]
    rows = [row for row in accumulated(subject, session) if subject.selected(row.tensor)]
    wrong = [item for item in judged if not item.distance.agrees]
    worst_row = max(rows, key=lambda row: row.fraction, default=None)
    worst_launch = max(judged, key=lambda item: item.distance.fraction, default=None)
    worst, where, reason = 0.0, "", ""
    if worst_launch is not None:
        worst, where, reason = worst_launch.distance.fraction, worst_launch.what, "one launch"
    if worst_row is not None and worst_row.fraction > worst:
        worst, where, reason = worst_row.fraction, worst_row.tensor, "rounding of the whole run"
    return Comparison(
        deployment=graph.deployment, model=graph.model, mode=name, golden="the interpreter",
        verdict="agrees" if worst <= 1.0 else "differs", worst=worst, where=where, reason=reason,
        faults=[_fault(subject, item) for item in _first_of_each_step(wrong)[:SHOWN]], rows=rows,
        ops=[_op(subject, item) for item in judged], seconds=time.perf_counter() - start,
    )  # fmt: skip


def accumulated(subject: Subject, session: "Session") -> list[Row]:
    """Hidden states and logits of the prompt, and the logits of each decoded token, against the exact run."""
    graph, ids, prompt = subject.graph, subject.ids, len(subject.golden.tokens)
    hidden = [value for fold in graph.folds for carried in fold.carried for value in carried[:1]]
    watched = frozenset({*hidden, subject.logits})
    exact = Interpreter(graph, subject.tensors, mode="exact", casts=True)
    tokens = ids[:-1] if len(ids) > prompt else ids
    decoded = decode(session, ids, prompt, watched)
    steps = steps_of(session)

    def added(node: Node, given: Mapping[str, Any]) -> np.ndarray | float:
        return kernel_error(graph, node, steps[node.id][2], given, deviations=1.0)

    run = run_perturbed(exact, subject.weights, tokens, watched, sources=["native"], seed=subject.seed, added=added)
    factor = factor_for(sum(array.size for array in run.exact.values()))
    rows = []
    for name, value in [*((f"hidden.{i}", value) for i, value in enumerate(hidden)), ("logits", subject.logits)]:
        if value in decoded.watched:
            want, spread = run.exact[value][:prompt], run.spread["native"][value][:prompt]
            rows.append(_row(subject, name, decoded.watched[value], want, factor * spread))
    if len(tokens) > prompt:
        want, spread = run.exact[subject.logits][prompt:], run.spread["native"][subject.logits][prompt:]
        rows.append(_row(subject, "decoding", decoded.logits[1:], want, factor * spread))
    return rows


def _row(subject: Subject, name: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> Row:
    single = want.astype(np.float32)
    return row_of(name, got, single, bound + _SINGLE * np.abs(single), subject.counted_in(True))


def _first_of_each_step(wrong: Sequence[Judged]) -> list[Judged]:
    """What follows from a wrong launch's first wrong result is not told twice."""
    found: dict[int, Judged] = {}
    for item in wrong:
        found.setdefault(item.step, item)
    return list(found.values())


def _fault(subject: Subject, item: Judged) -> Fault:
    node, at = subject.graph.nodes[item.node], item.distance.index
    heat, _ = fractions(item.got, item.want, item.bound)
    ops = ", ".join(f"ops.{subject.graph.nodes[id].op}" for id in item.nodes)
    name = f"launch {' and '.join(item.kernels)} for {ops} (nodes {', '.join(map(str, item.nodes))})"
    got, want = float(item.got[at]), float(item.want[at])
    ulps = int(ulp_distance(np.array([got]), np.array([want]))[0])
    return Fault(
        name, subject.layers.get(node.id), subject.line_of(node.where), False, "", item.what, list(at), got, want, ulps,
        float(item.bound[at]), item.reason, item.distance.fraction, item.distance.special, [], heat=heat, whose="the interpreter",
    )  # fmt: skip


def _op(subject: Subject, item: Judged) -> Op:
    node = subject.graph.nodes[item.node]
    file, line = (node.where[-1].file, node.where[-1].line) if node.where else ("", 0)
    return Op(node.op, subject.layers.get(node.id), item.what, file, line, item.distance.fraction)
