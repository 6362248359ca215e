"""How far a whole run may be from another arithmetic: Monte Carlo arithmetic on the graph.

Local errors of the ops travel through the layers, grow, cancel and meet again; no formula follows that without becoming
vacuous. So the run is repeated with every result moved at random within the bound of its own op, and the spread of what
comes out is measured (Parker, "Monte Carlo arithmetic", 1997, with the errors of this project's bounds in place of a random
last bit). A value at the end is moved by very many small independent amounts, so its error is close to normal, and
the number of runs and the stated risk give the factor on the measured spread: Student's t.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count, cycle
from typing import Any

import numpy as np

from conformance.arithmetic import F64_OF_F32, ORIGINAL, PRECISION, RISK, half_spacing
from conformance.bounds import BOUNDS
from conformance.operands import APPENDS, Operands, Weights, one_lane
from conformance.running import Number as Error
from interp import Session
from poem.batch import Chunk
from poem.dataclass import dataclass
from poem.graph import Graph, Node, Ref

RUNS = 12
# Of float64 a few runs do: even a large factor on their spread is far below the f32 that an original is recorded in. Where casts
# are kept, flipped codes dominate; fewer runs widen the bound by a factor of 2, and exact mode is there to see what is smaller.
RUNS_OF = {"original": RUNS, "native": RUNS, "stated": 2, "cast": 8}
POOL, PLACES = 1 << 18, 1 << 12  # random numbers, and the places that runs of them are taken from


@dataclass(slots=True)
class Perturbed:
    """One exact run and what perturbation does to it.

    exact: values by id, [rows, width]. spread: by source and value id, the root mean square of the moves. Sources: "original", f32
    steps; "native", results and cells rounded to their dtypes besides; "cast", the same where the run itself casts cells;
    "stated", float64 steps.
    """

    exact: dict[int, np.ndarray]
    spread: dict[str, dict[int, np.ndarray]]

    def bound(self, value: int, elements: int, sources: Sequence[str]) -> np.ndarray:
        """How far two runs that err by these sources may be apart, in each of `elements` elements that are compared."""
        return sum(factor_for(elements, RUNS_OF[source]) * self.spread[source][value] for source in sources)  # type: ignore[return-value]


Added = Callable[[Node, Mapping[str, Any]], Error]  # what a node's first result errs besides, from its operands by name


def run_perturbed(
    session: Session, weights: Weights, tokens: Sequence[int], watched: Collection[int], *, sources: Sequence[str], seed: int,
    added: Added = lambda node, given: 0.0,
) -> Perturbed:  # fmt: skip
    """Run tokens once exactly and RUNS times for each source with perturbed results, all as lanes of one pass.

    session: in exact mode; where it keeps casts, moved values are cast, so codes flip as often as the errors make them.
    watched: the values to keep. sources: keys of RUNS_OF. added: one deviation of what an implementation errs besides.
    """
    run = _Run(session.graph, weights, tokens, frozenset(watched), sources, seed, session.numeric.casts, added)
    sequences = [session.add_sequence() for _ in range(run.lanes)]
    session.run([Chunk(sequence, list(tokens), readouts="all") for sequence in sequences], run.observe)
    for sequence in sequences:
        session.drop_sequence(sequence)
    return Perturbed(run.exact, run.spread)


class _Run:
    def __init__(
        self, graph: Graph, weights: Weights, tokens: Sequence[int], watched: frozenset[int], sources: Sequence[str], seed: int,
        casts: bool, added: Added,
    ) -> None:  # fmt: skip
        self.graph, self.watched, self.sources, self.added = graph, watched, sources, added
        # A rounding error is uniform within its bound, so n of them move a sum by sqrt(n) bounds' worth: one deviation. How many
        # deviations an error may reach is for `factor_for` to say, once.
        self.operands = Operands(graph, weights, one_lane(tokens), replace(ORIGINAL, deviations=1.0), casts)
        self.pool, self.places, self.seeds = pool(seed), cycle(uniform(seed + 1, PLACES).tolist()), count(seed + 2)
        self.lanes = 1 + sum(RUNS_OF[source] for source in sources)
        self.exact: dict[int, np.ndarray] = {}
        self.spread: dict[str, dict[int, np.ndarray]] = {source: {} for source in sources}
        self.appended = {} if casts else _appended(graph)

    def observe(self, node: Node, results: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...] | None:
        mine = [result[: len(result) // self.lanes] if _by_lane(result, self.lanes) else result for result in results]
        bounds = self.operands.bounds(node, mine)
        if node.op in APPENDS:
            return None
        added = self.added(node, self.operands.of(node))
        self.operands.keep(node, mine)
        for which, (value, result, bound) in enumerate(zip(node.results, results, bounds, strict=True)):
            if not _by_lane(result, self.lanes):
                continue
            lanes = result.reshape(self.lanes, -1, result.shape[1])
            if not np.shares_memory(lanes, result):
                raise AssertionError(f"ops.{node.op} gives a result that is not contiguous")
            exact, first = lanes[0], 1
            for source in self.sources:
                error = self._error(source, value, exact, bound.error + (0.0 if which else added), BOUNDS[node.op].copies)
                moved = lanes[first : first + RUNS_OF[source]]
                first += RUNS_OF[source]
                if np.any(error):
                    moved += self._noise(moved.shape) * error
                if value in self.watched:
                    moves = moved - exact
                    self.spread[source][value] = np.sqrt(np.mean(moves * moves, axis=0))
            if value in self.watched:
                self.exact[value] = exact.copy()
        return results

    def _noise(self, shape: tuple[int, ...]) -> np.ndarray:
        """Uniform numbers in -1..1: a run of the pool from a place drawn anew."""
        size = math.prod(shape)
        if size > len(self.pool):
            return uniform(next(self.seeds), size).reshape(shape)
        start = int((0.5 + 0.5 * next(self.places)) * (len(self.pool) - size))
        return self.pool[start : start + size].reshape(shape)

    def _error(self, source: str, value: int, exact: np.ndarray, error: Error, copies: bool) -> Error:
        """The error of a result. error: that of f32 steps. A native result is rounded to its dtype too, and to that of the cells it
        is stored in, where casts do not do that."""
        if source == "original":
            return error
        if source == "stated":
            return error * F64_OF_F32
        type = self.graph.values[value].type
        assert type is not None
        dtypes = [self.appended.get(value, "f32"), "f32" if copies else type.dtype]
        magnitude = np.abs(exact) + error
        return sum((half_spacing(magnitude, dtype) for dtype in dtypes if PRECISION[dtype][0] < 24), error)


def _by_lane(result: np.ndarray, lanes: int) -> bool:
    """Whether a result is a float matrix that holds every lane's rows."""
    return isinstance(result, np.ndarray) and result.dtype.kind == "f" and result.ndim == 2 and len(result) % lanes == 0


def _appended(graph: Graph) -> dict[int, str]:
    """The dtype of the space that a value is appended to."""
    found = {}
    for node in graph.nodes:
        for name in APPENDS.get(node.op, ()):
            operand, cache = node.operands[name], node.operands["cache"]
            assert isinstance(operand, Ref)
            assert isinstance(cache, Ref)
            found[operand.id] = graph.spaces[graph.caches[cache.id].space].dtype
    return found


@cache
def pool(seed: int) -> np.ndarray:
    """The random numbers that runs are perturbed by."""
    return uniform(seed, POOL)


def uniform(seed: int, count: int) -> np.ndarray:
    """Numbers in -1..1: SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014) from `seed << 32` on.

    NumPy's own generators take as long to import as a deployment takes to compare.
    """
    z = np.arange(1, count + 1, dtype=np.uint64)
    z += np.uint64((seed << 32) % 2**64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(11)).astype(np.float64) * 2.0**-52 - 1.0


@cache
def factor_for(elements: int, runs: int = RUNS) -> float:
    """How many measured spreads an error may reach: P(|error| > factor * spread) = RISK / elements for each of `elements`.

    The spread is the root mean square of `runs` moves, so error / spread has Student's t distribution of `runs` degrees of
    freedom. Its two-sided tail for an even number n of them is 1 - sin(a) (1 + 1/2 cos^2(a) + 1*3/(2*4) cos^4(a) + ... up to
    cos^(n-2)), a = atan(t / sqrt(n)) (Abramowitz and Stegun, 26.7.4).
    """
    wanted = RISK / max(elements, 1)
    low, high = 0.0, 1e6
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if student_tail(middle, runs) > wanted else (low, middle)
    return high


def student_tail(t: float, freedom: int) -> float:
    """P(|T| > t) of Student's t with an even number of degrees of freedom; accurate to 1e-16 of 1."""
    angle = math.atan2(t, math.sqrt(freedom))
    square, term, total = math.cos(angle) ** 2, 1.0, 1.0
    for k in range(1, freedom // 2):
        term *= (2 * k - 1) / (2 * k) * square
        total += term
    return max(1.0 - math.sin(angle) * total, 0.0)
