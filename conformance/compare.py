"""One deployment against one original: op by op, layer by layer, token by token."""

import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from conformance.align import Alignment, Landing, Point, align, first_value, head_of, layers_of
from conformance.arithmetic import EXACT_AND_STATED, NATIVE_AND_ORIGINAL, NATIVE_AND_STATED, ORIGINAL, PRECISION, half_spacing
from conformance.bounds import BOUNDS
from conformance.forced import Difference, Forced, run_forced
from conformance.golden import Golden
from conformance.greedy import Decoded, compare_ids, decode
from conformance.locate import locate
from conformance.metrics import fractions, measure, nmse, scaled_ulps, ulp_distance
from conformance.operands import Operands, Weights, one_lane
from conformance.perturbed import Perturbed, factor_for, run_perturbed
from conformance.report import Comparison, Cost, Fault, Greedy, Line, Op, Row, Verdict
from interp import Session
from poem.dtypes import FLOATS
from poem.dtypes.tensor import Tensor
from poem.errors import CheckpointError, Frame, UsageError
from poem.graph import Graph

CERTAIN = 1e-3  # one of two tensors is meant when its NMSE is smaller by this factor
LOCATED = 6  # how many differences are traced to an op; more follow from these or are the same line in other layers
Texts = Mapping[str, str]
_SINGLE = 2.0**-24


class Subject:
    """A deployment with its weights, and an original to compare it with.

    landings: says which checkpoint tensor lands where. texts: the `.poem` files by name. selected: which tensors are judged.
    seed: of the perturbed runs. twin: a subject whose ops are the same in exact mode, so that its exact runs serve here too.
    plain: a golden of the model with nothing quantised, to tell what quantising costs.

    Where the golden states the meaning of the dtypes (`Golden.stated`), exact mode keeps their casts, its whole run is the exact lane
    of the perturbed one, and its ops are judged one by one only to locate a difference: float64 leaves nothing else to see.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor],
        landings: Callable[[], Sequence[Landing]],
        golden: Golden,
        texts: Texts,
        *,
        seed: int = 0,
        selected: Callable[[str], bool] = lambda name: True,
        twin: "Subject | None" = None,
        plain: Golden | None = None,
    ) -> None:
        self.graph, self.golden, self.texts, self.seed, self.selected = graph, golden, texts, seed, selected
        self.tensors, self._landings, self._plain = tensors, landings, plain
        self._twin = twin if twin is not None and same_ops(graph, twin.graph) else None
        self._compared: dict[str, Comparison] = {}
        self.layers = layers_of(graph)

    # -- runs, each made once ------------------------------------------------------------------
    @cached_property
    def alignment(self) -> Alignment:
        if self._twin is not None:
            return self._twin.alignment
        shapes = {name: shape for name, shape in self.golden.shapes.items() if not name.startswith("greedy.")}
        found = align(self.graph, self._landings(), shapes)
        return replace(found, points=tuple(self._before_norm(point) for point in found.points))

    def _before_norm(self, point: Point) -> Point:
        """The last hidden state of a class that keeps it before the final norm, which the exact run tells."""
        if point.name != f"hidden.{self.golden.layers}" or not self.graph.folds:
            return point
        before = self.graph.folds[-1].carried[-1][0]
        want = self.golden.expected[point.name]
        after, early = (self.perturbed.exact[value][: len(want)] for value in (point.value, before))
        if early.shape == want.shape and nmse(early, want) < CERTAIN * nmse(after, want):
            return replace(point, value=before, consumer=None)
        return point

    @cached_property
    def weights(self) -> Weights:
        return self._twin.weights if self._twin is not None else Weights(self.graph, self.tensors)

    @cached_property
    def _exact(self) -> Session:
        return Session(self.graph, self.tensors, mode="exact", casts=self.golden.stated)

    @cached_property
    def _native(self) -> Session:
        return Session(self.graph, self.tensors, mode="native")

    @cached_property
    def ids(self) -> list[int]:
        """The prompt and the original's continuation."""
        return self.golden.expected["greedy.ids"].tolist() if "greedy.ids" in self.golden.expected else list(self.golden.tokens)

    @cached_property
    def rounds(self) -> bool:
        """Whether native mode rounds to anything narrower than f32."""
        dtypes = [value.type.dtype for value in self.graph.values if value.type is not None] + [space.dtype for space in self.graph.spaces]
        return any(PRECISION[dtype][0] < 24 for dtype in dtypes if dtype in PRECISION)

    @property
    def sources(self) -> tuple[str, str]:
        """What parts the golden from the exact run, and what parts the native run from it (`perturbed.RUNS_OF`)."""
        return ("stated", "cast") if self.golden.stated else ("original", "native")

    def counted_in(self, native: bool) -> str:
        """The dtype whose last place errors are counted in."""
        return "bf16" if native and self.rounds else "f32"

    @cached_property
    def perturbed(self) -> Perturbed:
        """Exact run and spreads of everything the original shows."""
        if self._twin is not None and (self._twin.rounds or not self.rounds):
            found = self._twin.perturbed
            steps = found.spread["original"]
            return found if self.rounds else Perturbed(found.exact, {"original": steps, "native": steps})
        tokens = self.ids[:-1] if len(self.ids) > len(self.golden.tokens) else self.ids
        sources = self.sources if self.rounds else self.sources[:1]
        found = run_perturbed(self._exact, self.weights, tokens, self._watched, sources=sources, seed=self.seed)
        found.spread.setdefault(self.sources[1], found.spread[self.sources[0]])
        return found

    @cached_property
    def _shown(self) -> list[Point]:
        """The points of the whole run: hidden states and logits, in order."""
        whole = {name: shape for name, shape in self.golden.shapes.items() if re.fullmatch(r"hidden\.\d+|logits", name)}
        found = align(self.graph, (), whole) if self.golden.stated else self.alignment
        shown = [point for point in found.points if point.name in whole]
        return sorted(shown, key=lambda point: (point.name == "logits", int(point.name[7:]) if point.name != "logits" else 0))

    @cached_property
    def _watched(self) -> frozenset[int]:
        """What the whole run shows: what layers carry, what the head is handed, the logits."""
        carried = {values[0] for fold in self.graph.folds for values in fold.carried if values}
        head = head_of(self.graph)
        handed = first_value(head) if head is not None else None
        return frozenset(carried | {self.logits} | ({handed} if handed is not None else set()))

    @cached_property
    def logits(self) -> int:
        """The value of the output `logits`.

        UsageError (`check.no-logits`) for a graph without one, CheckpointError (`check.golden`) where the golden's are of another width.
        """
        named = [output.value for output in self.graph.outputs if output.name == "logits"]
        if not named:
            raise UsageError(
                "check.no-logits", f"{self.graph.deployment} has no output `logits`", phase="check",
                found=", ".join(output.name for output in self.graph.outputs),
            )  # fmt: skip
        type = self.graph.values[named[0]].type
        assert type is not None
        width = self.golden.shapes.get("logits", (0, type.width))[1]
        if width != type.width:
            raise CheckpointError(
                "check.golden", f"{self.graph.deployment} does not give logits as wide as the original's", phase="check",
                file=self.golden.place, expected=f"logits {width} wide", found=f"{type.width} wide",
            )  # fmt: skip
        return named[0]

    @cached_property
    def _elements(self) -> int:
        """How many elements the whole run is compared in."""
        compared = re.compile(r"hidden\.\d+|logits|greedy\.logits")
        return sum(array.size for name, array in self.golden.expected.items() if compared.fullmatch(name))

    def _bound(self, value: int, at: slice | tuple[slice, slice], want: np.ndarray, native: bool) -> np.ndarray:
        """How far a value may be, at some of its rows and columns, from `want`, which the golden holds."""
        bound = self.perturbed.bound(value, self._elements, self.sources if native else self.sources[:1])[at]
        return bound + half_spacing(np.abs(want).astype(np.float64), "f32") if self.golden.stated else bound

    def _decoded(self, session: Session) -> Decoded:
        prompt = len(self.golden.tokens)
        if self.golden.stated and session is self._exact:
            exact = self.perturbed.exact
            return Decoded(exact[self.logits][prompt - 1 :], {value: rows[:prompt] for value, rows in exact.items()})
        return decode(session, self.ids, prompt, self._watched, together=True)

    # -- one comparison ------------------------------------------------------------------------
    def compared(self, mode: str) -> Comparison:
        """Everything about one mode, "exact" or "native", found once."""
        if mode not in self._compared:
            self._compared[mode] = self._compare(mode)
        return self._compared[mode]

    def _compare(self, mode: str) -> Comparison:
        start = time.perf_counter()
        native = mode == "native"
        if self._twin is not None and not native:
            return replace(self._twin.compared("exact"), deployment=self.graph.deployment, seconds=0.0)
        session = self._native if native else self._exact
        forced = self._forced(session, native) if self.golden.fine and (native or not self.golden.stated) else None
        decoded = self._decoded(session)
        rows = [self._row(point, decoded.watched[point.value], native) for point in self._shown if self.selected(point.name)]
        greedy, tokens = self._greedy(decoded, native)
        if greedy is not None:
            rows.append(greedy)
        if forced is None and self.golden.fine and any(not row.fraction <= 1.0 for row in rows):
            forced = self._forced(session, native)
        faults = self._faults(forced, session, native) if forced is not None else []
        faults = faults or self._coarse(rows, tokens, native, forced is not None)
        ops = [self._op(point, node, fraction) for point, node, fraction in forced.compared] if forced is not None else []
        worst, where, reason = self._worst(ops, rows, native)
        differs = bool(faults) or (tokens is not None and bool(tokens.differ))
        return Comparison(
            deployment=self.graph.deployment, model=self.graph.model, mode=mode, golden=self.golden.place,
            verdict="differs" if differs else "agrees", worst=worst, where=where, reason=reason, faults=faults, rows=rows, ops=ops,
            greedy=tokens, cost=self._cost(decoded), notes=self._notes(forced), seconds=time.perf_counter() - start,
        )  # fmt: skip

    def compare_modes(self) -> Comparison:
        """Native mode against exact mode, where there is no original: what rounding alone may do."""
        start = time.perf_counter()
        values = [carried[0] for fold in self.graph.folds for carried in fold.carried if carried]
        run = run_perturbed(self._exact, self.weights, self.golden.tokens, {*values, self.logits}, sources=["native"], seed=self.seed)
        native = decode(self._native, self.golden.tokens, len(self.golden.tokens), frozenset(run.exact)).watched
        factor = factor_for(sum(array.size for array in run.exact.values()))
        rows = []
        for name, value in [*((f"hidden.{i}", value) for i, value in enumerate(values)), ("logits", self.logits)]:
            if self.selected(name):
                bound = factor * run.spread["native"][value]
                want = run.exact[value].astype(np.float32)
                rows.append(row_of(name, native[value], want, bound + _SINGLE * np.abs(want), self.counted_in(True)))
        worst = max(rows, key=lambda row: row.fraction, default=None)
        fraction = worst.fraction if worst is not None else 0.0
        verdict: Verdict = "agrees" if fraction <= 1.0 else "differs"
        where = worst.tensor if worst is not None else ""
        return Comparison(
            deployment=self.graph.deployment, model=self.graph.model, mode="native", golden=self.golden.place, verdict=verdict,
            worst=fraction, where=where, reason="rounding of the whole run", rows=rows, seconds=time.perf_counter() - start,
        )  # fmt: skip

    def _forced(self, session: Session, native: bool, overrides: Mapping[int, np.ndarray] | None = None) -> Forced:
        if self.golden.stated:
            arithmetic = NATIVE_AND_STATED if native else EXACT_AND_STATED
        else:
            arithmetic = NATIVE_AND_ORIGINAL if native else ORIGINAL

        def operands() -> Operands:
            return Operands(self.graph, self.weights, one_lane(self.golden.tokens), arithmetic, self.golden.stated)

        return run_forced(session, operands, self.alignment.points, self.golden.expected, self.golden.tokens, overrides, self.selected)

    def _row(self, point: Point, got: np.ndarray, native: bool) -> Row:
        """One tensor of the whole run."""
        want = self.golden.expected[point.name]
        at = slice(len(want)), point.columns
        return row_of(point.name, got[at], want, self._bound(point.value, at, want, native), self.counted_in(native))

    def _greedy(self, decoded: Decoded, native: bool) -> tuple[Row | None, Greedy | None]:
        expected = self.golden.expected
        if "greedy.ids" not in expected or not self.selected("greedy"):
            return None, None
        start, want = len(self.golden.tokens), expected["greedy.logits"]
        bound = self._bound(self.logits, slice(start - 1, start - 1 + len(want)), want, native)
        steps = compare_ids(decoded.logits, want, expected["greedy.ids"][start:].tolist(), bound, start)
        return row_of("greedy.logits", decoded.logits, want, bound, self.counted_in(native)), Greedy(
            len(steps), sum(step.got == step.want for step in steps),
            [[step.position, step.got, step.want] for step in steps if step.tie],
            [[step.position, step.got, step.want] for step in steps if not step.agrees],
        )  # fmt: skip

    def _cost(self, decoded: Decoded) -> Cost | None:
        """How far the logits are from those of the model with nothing quantised, for the same tokens."""
        plain, got = self._plain, decoded.watched[self.logits]
        rows = len(self.golden.tokens)
        if plain is None or plain.tokens[:rows] != self.golden.tokens:
            return None
        want = plain.expected["logits"][:rows]
        return Cost(nmse(got, want), int((got.argmax(-1) == want.argmax(-1)).sum()), rows)

    # -- faults --------------------------------------------------------------------------------
    def _faults(self, forced: Forced, session: Session, native: bool) -> list[Fault]:
        """The differences of a forced run as faults, first op first, one for each line."""
        located = forced.differences[:LOCATED]
        for difference in located:
            locate(
                difference, forced, self.graph, self.alignment, self.golden.expected,
                lambda overrides: self._forced(session, native, overrides),
            )  # fmt: skip
        faults: dict[tuple[str, int], Fault] = {}
        for difference in sorted([*located, *forced.differences[LOCATED:]], key=lambda found: found.node):
            fault = self._fault(difference)
            first = faults.setdefault((fault.line.file, fault.line.line), fault)
            if first is not fault and fault.layer is not None and fault.layer != first.layer and fault.layer not in first.again:
                first.again.append(fault.layer)
        return list(faults.values())

    def _fault(self, found: Difference) -> Fault:
        node = self.graph.nodes[found.node]
        at = found.distance.index
        heat, _ = fractions(found.got, found.want, found.bound)
        return Fault(
            node.op, self.layers.get(node.id), self.line_of(node.where), found.handed, found.verified, found.point.name, list(at),
            float(found.got[at]), float(found.want[at]), _ulps(found.got[at], found.want[at]), float(found.bound[at]), found.reason,
            found.distance.fraction, found.distance.special,
            [self.line_of(self.graph.nodes[id].where) for id in found.region if id != found.node], heat=heat,
        )  # fmt: skip

    def _coarse(self, rows: Sequence[Row], tokens: Greedy | None, native: bool, fine: bool) -> list[Fault]:
        """Where no op can be named: the first tensor of the whole run that is past its bound, and the lines that lead to it."""
        bad = next((row for row in rows if not row.fraction <= 1.0), None)
        if bad is None:
            return []
        point = next((point for point in self._shown if point.name == bad.tensor), None)
        value = point.value if point is not None else self.logits
        want = self.golden.expected[bad.tensor]
        first = 0 if point is not None else len(self.golden.tokens) - 1
        got = self._decoded(self._native if native else self._exact)
        mine = got.watched[value] if point is not None else got.logits
        bound = self._bound(value, slice(first, first + len(want)), want, native)
        at = tuple(bad.index)
        lines = self._lines_before(value, bad.layer)
        heat, special = fractions(mine, want, bound)
        reason = f"{'bf16 and f32' if native and self.rounds else 'f32'} rounding of every op before it, spread by perturbed runs"
        op = "the caches" if point is None else "this layer" if bad.layer is not None else "the ops"
        fault = Fault(
            op, bad.layer, lines[0], False, "", bad.tensor, list(at), float(mine[at]), float(want[at]), _ulps(mine[at], want[at]),
            float(bound[at]), reason, bad.fraction, int(special.sum()), lines[1:], heat=heat,
        )  # fmt: skip
        return [fault]

    def _lines_before(self, value: int, layer: int | None) -> list[Line]:
        """The lines of a layer; outside the layers, those of the ops outside that lead to a value."""
        last = self.graph.producer_of(value)
        nodes = [
            node for node in self.graph.nodes
            if self.layers.get(node.id) == layer and (layer is not None or last is None or node.id <= last.id)
        ]  # fmt: skip
        lines: dict[tuple[str, int], Line] = {}
        for node in nodes or self.graph.nodes:
            line = self.line_of(node.where)
            lines.setdefault((line.file, line.line), line)
        return list(lines.values())

    def line_of(self, where: Sequence[Frame]) -> Line:
        """The innermost line of an op with its text."""
        if not where:
            return Line("", 0, "", [])
        frame = where[-1]
        lines = self.texts.get(frame.file, "").splitlines()
        text = lines[frame.line - 1].strip() if 0 < frame.line <= len(lines) else ""
        return Line(frame.file, frame.line, text, [f"{caller.file}:{caller.line}" for caller in where[:-1]])

    # -- the rest ------------------------------------------------------------------------------
    def _op(self, point: Point, node: int, fraction: float) -> Op:
        frame = self.graph.nodes[node].where[-1] if self.graph.nodes[node].where else Frame("", 0, "")
        return Op(self.graph.nodes[node].op, self.layers.get(node), point.name, frame.file, frame.line, fraction)

    def _worst(self, ops: Sequence[Op], rows: Sequence[Row], native: bool) -> tuple[float, str, str]:
        """The largest fraction of a bound anywhere, its tensor and what the bound comes from."""
        op = max(ops, key=lambda op: op.fraction, default=None)
        row = max(rows, key=lambda row: row.fraction, default=None)
        if row is not None and (op is None or row.fraction > op.fraction):
            return row.fraction, row.tensor, "rounding of the whole run" if native or not self.golden.stated else "f32 of the golden"
        if op is None:
            return 0.0, "", ""
        rounded = "rounding to bf16" if native and self.rounds else ""
        return op.fraction, op.tensor, rounded or f"f32 {BOUNDS[op.op].reduces.replace('of {} ', 'of ') or 'rounding'}"

    def _shown_as(self, name: str) -> bool:
        """Whether a tensor is a hidden state or the logits once more: what a tied head is handed and gives."""
        array = self.golden.expected[name]
        return any(np.array_equal(array, self.golden.expected[point.name]) for point in self._shown)

    def _notes(self, forced: Forced | None) -> list[str]:
        notes = []
        if forced is not None:
            notes += [
                f"{found.point.name} is not what {self.graph.nodes[found.node].op} gives, and what follows agrees"
                for found in forced.healed
            ]  # fmt: skip
        if forced is not None or not self.golden.stated:
            left = [name for name in self.alignment.unaligned if not self._shown_as(name)]
            if left:
                some = ", ".join(left[:3]) + (" ..." if len(left) > 3 else "")
                are = "tensor of the original has" if len(left) == 1 else "tensors of the original have"
                notes.append(f"{len(left)} {are} no counterpart here: {some}")
        return notes


def same_ops(graph: Graph, other: Graph) -> bool:
    """Whether two graphs compute the same in exact mode: they differ in dtypes only."""

    def float_like(dtypes: Sequence[str]) -> bool:
        return all(dtype in FLOATS or not dtype.startswith(("g", "u2", "u4", "e4m3", "nvfp4", "mxfp4")) for dtype in dtypes)

    return (
        graph.nodes == other.nodes
        and [(param.name, param.shape) for param in graph.params] == [(param.name, param.shape) for param in other.params]
        and float_like([param.dtype for param in (*graph.params, *other.params)])
    )


def row_of(name: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray, dtype: str) -> Row:
    """The distance of one tensor of the whole run; units in the last place are those of `dtype`."""
    found = measure(got, want, bound)
    layer = int(name[7:]) - 1 if name.startswith("hidden.") else -1
    return Row(
        name, layer if layer >= 0 else None, scaled_ulps(got, want, dtype), found.nmse, found.cosine, found.fraction,
        float(bound.max(initial=0.0)), list(found.index),
    )  # fmt: skip


def _ulps(got: float, want: float) -> int:
    return int(ulp_distance(np.array([got]), np.array([want]))[0])
