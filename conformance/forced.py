"""The first op that differs: the model is run once, and each value that agrees is replaced by the original's own.

So errors do not add up, every op is judged on the original's operands, and the first one whose result is wrong is where the
fault is. A package may order heads or scale differently than the original: a difference that disappears again is only noted,
if it has to be there for what follows to agree.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.align import Point
from conformance.arithmetic import half_spacing
from conformance.metrics import Distance, measure, worst_fraction
from conformance.operands import APPENDS, Operands, references
from conformance.running import Running
from interp import Session
from poem.batch import Chunk
from poem.dataclass import dataclass
from poem.graph import Graph, Node, Ref


@dataclass(slots=True)
class Difference:
    """A tensor that is not the original's.

    point: what was compared. node: the op blamed. handed: it was handed the wrong value; otherwise its result is wrong.
    got, want, bound: the compared columns. verified: the tensor of the original that the value is instead, or "".
    reason: what most of the bound at the worst element comes from.
    region: the ops since the last values known to be right, in order; one of them is at fault when it holds several.
    """

    point: Point
    node: int
    handed: bool
    got: np.ndarray
    want: np.ndarray
    bound: np.ndarray
    distance: Distance
    reason: str
    region: tuple[int, ...]
    verified: str = ""
    confirmed: bool = False
    healed: bool = False


@dataclass(slots=True)
class Forced:
    """What a forced run found.

    differences: by op in order. healed: those that came to nothing. compared: every comparison, with the node whose result it is
    and the fraction of the bound. own: the values that were not replaced, by id, each with the bound of its error.
    """

    differences: list[Difference]
    healed: list[Difference]
    compared: list[tuple[Point, int, float]]
    own: dict[int, tuple[np.ndarray, np.ndarray]]

    @property
    def wrong(self) -> set[str]:
        """The names of the tensors past their bounds."""
        return {point.name for point, _, fraction in self.compared if fraction > 1.0}

    def fraction(self, point: Point) -> float:
        """The fraction of the bound at one point."""
        return next((fraction for other, _, fraction in self.compared if other == point), 0.0)


class _Pass:
    """One forced run."""

    def __init__(
        self,
        graph: Graph,
        operands: Operands,
        points: Sequence[Point],
        expected: Mapping[str, np.ndarray],
        overrides: Mapping[int, np.ndarray],
        selected: Callable[[str], bool],
    ) -> None:
        self.graph, self.operands, self.expected, self.overrides = graph, operands, expected, overrides
        self.selected = selected
        self.points: dict[int, list[Point]] = {}
        for point in points:
            self.points.setdefault(point.value, []).append(point)
        self.suspects: list[Difference] = []
        self.compared: list[tuple[Point, int, float]] = []
        self.taints: dict[tuple[str, int], frozenset[int]] = {}  # by ("value" | "cache" | "handed to", id): suspects, by number
        self.known: set[int] = set()  # values that are the original's
        self.own: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # other values, with the bounds of their errors

    def observe(self, node: Node, results: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...] | None:
        """Called after each node: compare, replace."""
        taint = self.taints.get(("handed to", node.id), frozenset())
        for ref in references(node):
            taint |= self.taints.get((ref.kind, ref.id), frozenset())
        bounds = self.operands.bounds(node, results)
        if node.op in APPENDS:
            cache = node.operands["cache"]
            assert isinstance(cache, Ref)
            self.taints["cache", cache.id] = taint
            return None
        kept: list[Any] = []
        given: list[np.ndarray] = []
        for i, (value, result) in enumerate(zip(node.results, results, strict=True)):
            own: np.ndarray | None = None
            if value in self.overrides:
                own = self.overrides[value].astype(np.float64)
            elif value in self.points and isinstance(result, np.ndarray) and result.dtype.kind == "f":
                own = self._judge(node, i, results, bounds[i].errors, taint)
            else:
                self.taints["value", value] = taint
            given.append(result if own is None else own.astype(result.dtype))
            if own is not None:
                self.known.add(value)
                kept.append(self._within(value, own, bounds[i]))
            elif isinstance(result, np.ndarray) and result.dtype.kind == "f":
                self.own[value] = result, self._recorded(result, bounds[i].errors)
                kept.append(Running(bounds[i].arithmetic, result, bounds[i].error))
            else:
                kept.append(result)
        self.operands.keep(node, kept)
        return tuple(given)

    def _judge(
        self, node: Node, which: int, results: tuple[np.ndarray, ...], error: np.ndarray, taint: frozenset[int]
    ) -> np.ndarray | None:
        """Compare a result with its tensors. Returns the original's own value where it takes its place, else None."""
        value, result = node.results[which], results[which]
        good: list[Point] = []
        bad: list[Point] = []
        for point in self.points[value]:
            if not self.selected(point.name):
                good.append(point)
                continue
            fraction = worst_fraction(result[:, point.columns], self.expected[point.name], self._bound(point, error))
            self.compared.append((point, node.id, fraction))
            (good if fraction <= 1.0 else bad).append(point)
        if taint and good and not bad:
            self._mark(taint, healed=True)
        elif taint and any(point.decides for point in bad):
            self._mark(taint, confirmed=True)
            return self._replaced(value, result, bad)  # later faults show again once the right value is in place
        if not bad:
            self.taints["value", value] = frozenset()
            return self._replaced(value, result, good)
        own_bad = [point for point in bad if point.consumer is None]
        if own_bad or not good:
            number = self._suspect(node, False, (own_bad or bad)[0], which, results, error)
            self.taints["value", value] = taint | {number}
            return None
        for point in bad:  # the value itself is right, and handed to the wrong op
            assert point.consumer is not None
            number = self._suspect(node, True, point, which, results, error)
            self.suspects[number].verified = good[0].name
            self.taints["handed to", point.consumer] = self.taints.get(("handed to", point.consumer), frozenset()) | {number}
        self.taints["value", value] = frozenset()
        return self._replaced(value, result, good)

    def _replaced(self, value: int, result: np.ndarray, points: Sequence[Point]) -> np.ndarray:
        own = result.astype(np.float64)
        for point in points:
            own[:, point.columns] = self.expected[point.name]
        self.taints["value", value] = frozenset()
        return own

    def _bound(self, point: Point, error: np.ndarray) -> np.ndarray:
        """How far a result of this error may be from what was recorded."""
        return self._recorded(self.expected[point.name], error[:, point.columns])

    def _recorded(self, array: np.ndarray, error: np.ndarray) -> np.ndarray:
        """An error with that of recording `array`."""
        recorded = self.operands.arithmetic.recorded
        return error + half_spacing(np.abs(array).astype(np.float64), recorded) if recorded else error

    def _within(self, value: int, own: np.ndarray, bound: Running) -> np.ndarray | Running:
        """The original's value, as exact as it was recorded; columns that it does not show keep their errors."""
        shown = np.zeros(own.shape[1], bool)
        for point in self.points.get(value, ()):
            shown[point.columns] = True
        recorded = self.operands.arithmetic.recorded
        error = half_spacing(np.abs(own), recorded) if recorded else 0.0
        if shown.all() or value in self.overrides:
            return Running(bound.arithmetic, own, error) if recorded else own
        return Running(bound.arithmetic, own, np.where(shown, error, bound.error))

    def _suspect(self, node: Node, handed: bool, point: Point, which: int, results: tuple[np.ndarray, ...], error: np.ndarray) -> int:
        """Remember a tensor that differs; the op blamed is the value's own, or the one it is handed to. Returns its number."""
        got, want, bound = results[which][:, point.columns].copy(), self.expected[point.name], self._bound(point, error).copy()
        distance = measure(got, want, bound)
        at = (distance.index[0], distance.index[1] + point.columns.start)
        reason = self.operands.reason(node, results, which, at)
        blamed = point.consumer if handed and point.consumer is not None else node.id
        region = (blamed,) if handed else self._region(node.id)
        self.suspects.append(Difference(point, blamed, handed, got, want, bound, distance, reason, region))
        return len(self.suspects) - 1

    def _region(self, node: int) -> tuple[int, ...]:
        """The ops between a node and the values known to be the original's, in order."""
        found, todo = set(), [node]
        while todo:
            id = todo.pop()
            if id in found:
                continue
            found.add(id)
            for ref in references(self.graph.nodes[id]):
                producer = self.graph.producer_of(ref.id) if ref.kind == "value" and ref.id not in self.known else None
                if producer is not None:
                    todo.append(producer.id)
        return tuple(sorted(found))

    def result(self) -> Forced:
        faults = [suspect for suspect in self.suspects if suspect.confirmed or not suspect.healed]
        healed = [suspect for suspect in self.suspects if suspect.healed and not suspect.confirmed]
        return Forced(faults, healed, self.compared, self.own)

    def _mark(self, suspects: frozenset[int], *, healed: bool = False, confirmed: bool = False) -> None:
        for number in suspects:
            self.suspects[number].healed |= healed
            self.suspects[number].confirmed |= confirmed


def run_forced(
    session: Session,
    operands: Callable[[], Operands],
    points: Sequence[Point],
    expected: Mapping[str, np.ndarray],
    tokens: Sequence[int],
    overrides: Mapping[int, np.ndarray] | None = None,
    selected: Callable[[str], bool] = lambda name: True,
) -> Forced:
    """Run a prompt with every agreeing value replaced by the original's.

    operands: starts to follow a run, with the arithmetic that parts got from want. expected: the original's tensors by name.
    overrides: values by id to put in place of what the ops give. selected: which tensors are judged; the others only take their
    places.
    """

    def run(overrides: Mapping[int, np.ndarray]) -> _Pass:
        made = _Pass(session.graph, operands(), points, expected, overrides, selected)
        sequence = session.add_sequence()
        session.run([Chunk(sequence, list(tokens), readouts="all")], made.observe)
        session.drop_sequence(sequence)
        return made

    first = run(overrides or {})
    found = first.result()
    for suspect in list(found.healed):
        value = suspect.point.value
        own = first.own[value][0].astype(np.float64)
        own[:, suspect.point.columns] = suspect.want
        if run({**(overrides or {}), value: own}).result().wrong <= found.wrong:  # the original's value serves as well
            found.healed.remove(suspect)
            found.differences.append(suspect)
    found.differences.sort(key=lambda fault: fault.node)
    return found
