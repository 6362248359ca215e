"""Examples of single ops and of fused groups: made from a name, and judged on the interpreter or on a device."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from conformance.chosen import Choice, run_chosen
from conformance.invariance import differs_alone
from conformance.isolated import Judged, Pass, run_isolated
from conformance.metrics import scaled_ulps
from conformance.strategies import FLAVOURS, Build, Strategy, strategies
from poem.dataclass import dataclass
from poem.dtypes.leaves import STORAGE
from poem.dtypes.tensor import Tensor
from poem.errors import UsageError
from poem.graph import Graph

if TYPE_CHECKING:
    from cupy_backend.devices import Device
    from cupy_backend.session import Session


@dataclass(frozen=True, slots=True)
class Case:
    """What an example is made from: `linear.matmul:bf16:u4g64:cancelling:7`, and behind that the picks, if they do not follow from the
    seed: `:2.0.1`."""

    strategy: str
    dtype: str
    weights: str
    flavour: str
    seed: int
    picks: tuple[int, ...] | None = None

    def __str__(self) -> str:
        picks = "" if self.picks is None else ":" + ".".join(map(str, self.picks))
        return f"{self.strategy}:{self.dtype}:{self.weights or '-'}:{self.flavour}:{self.seed}{picks}"

    @classmethod
    def of(cls, text: str) -> "Case":
        """The case of a name. UsageError (`conformance.case`) for what is none."""
        name, dtype, weights, flavour, seed, *rest = (*text.split(":"), *[""] * 5)
        found = strategies().get(name)
        picks = tuple(int(pick) for pick in rest[0].split(".") if pick.isdecimal()) if rest[0] else None
        if found is None or dtype not in found.dtypes or flavour not in FLAVOURS or not seed.isdecimal():
            expected = "OP:DTYPE:WEIGHTS:FLAVOUR:SEED as a report prints it"
            raise UsageError("conformance.case", f"`{text}` names no example", phase="conformance", expected=expected)
        return cls(name, dtype, weights.replace("-", ""), flavour, int(seed), picks)


@dataclass(frozen=True, slots=True)
class Example:
    """A graph with its weights and passes, and how a backend is to plan it. choices: for each pass, how the tokens of its rows are chosen;
    empty if none are. arch: for which, on a device that has none of its own."""

    case: Case
    strategy: Strategy
    graph: Graph
    weights: Mapping[str, Tensor]
    passes: tuple[Pass, ...]
    choices: tuple[Sequence[Choice], ...]
    page_size: int
    fuse: bool
    batch_invariant: bool
    padded: bool
    warpgroups: bool
    arch: str | None
    shortest_piece: int
    picks: tuple[int, ...]  # that were made

    @property
    def exact(self) -> bool:
        """Whether results are to be compared bit by bit."""
        return self.case.flavour == "integers" and self.case.weights in self.strategy.exact


@dataclass(frozen=True, slots=True)
class Outcome:
    """How far an example's results are from the exact ones: the largest fraction of a bound, and the most units in the last place of the
    result's dtype (`metrics.scaled_ulps`).

    judged: the result where the fraction is largest. fault: in words, "" if all is well.
    """

    fraction: float
    ulps: float
    judged: Judged | None
    fault: str = ""


def example(case: Case, pick: Callable[[int], int] | None = None) -> Example:
    """The example of a case. pick: chooses the index of one of so many options, in place of the case's picks or its seed."""
    made: list[int] = []
    listed = None if case.picks is None else iter(case.picks)
    random = np.random.default_rng((case.seed, 1))

    def choose(count: int) -> int:
        index = pick(count) if pick is not None else next(listed, 0) if listed is not None else int(random.integers(count))
        made.append(min(index, count - 1))
        return made[-1]

    of = strategies()[case.strategy]
    build = Build(choose, case.seed, case.dtype, case.weights, case.flavour)
    of.build(build)
    passes = tuple(Pass(chunks, inputs) for chunks, inputs in zip(build.chunks(), build.inputs, strict=True))
    return Example(
        case, of, build.graph(), build.tensors, passes, tuple(build.choices), build.page_size, build.fuse, build.batch_invariant,
        build.padded, build.warpgroups, build.arch, build.shortest_piece, tuple(made)
    )  # fmt: skip


def session_of(found: Example, device: "Device") -> "Session":
    """The example on a device. KernelError (`kernel.unsupported`) for what no kernel serves."""
    from cupy_backend.plan import Options, nearest_arch
    from cupy_backend.session import Session

    arch = nearest_arch(getattr(device, "arch", found.arch or Options().arch))
    options = Options(arch, found.batch_invariant, found.fuse, found.warpgroups, found.shortest_piece)
    return Session(found.graph, found.weights, device, options=options, page_size=found.page_size, padded=found.padded)


def judge(found: Example, session: "Session | None") -> Outcome:
    """What an example gives, against the exact results. session: of `session_of`, or None for the interpreter.

    KernelError for a launch that fails.
    """
    with np.errstate(all="ignore"):  # NaN and infinity are operands here
        judged = run_isolated(found.graph, found.weights, session, found.passes, found.page_size)
        if found.choices and session is not None:
            judged += run_chosen(found.graph, found.weights, session, found.passes, found.choices)
    worst = max(judged, key=lambda item: item.distance.fraction, default=None)
    if worst is None:
        return Outcome(0.0, 0.0, None)
    ulps = max(map(_ulps, judged))
    if not worst.distance.agrees:
        return Outcome(worst.distance.fraction, ulps, worst, f"{worst.what} is past its bound: {worst.reason}")
    if session is not None and found.batch_invariant and (fault := differs_alone(found.graph, session, found.passes)):
        return Outcome(worst.distance.fraction, ulps, worst, fault)
    if found.exact:
        for item in judged:
            if not np.array_equal(item.got.astype(np.float32), rounded(item.want, item.dtype)):
                return Outcome(np.inf, ulps, item, f"{item.what} is not the exact result, rounded once")
    return Outcome(worst.distance.fraction, ulps, worst)


def shrunk(found: Example, fails: Callable[[Example], bool]) -> Example:
    """The example with the first picks for which it still fails."""
    picks = list(found.picks)
    for place in range(len(picks)):
        for index in range(picks[place]):
            tried = example(_with_picks(found.case, [*picks[:place], index, *picks[place + 1 :]]))
            if fails(tried):
                picks, found = list(tried.picks), tried
                break
        if place >= len(picks) - 1:
            break
    return example(_with_picks(found.case, found.picks))


def _with_picks(case: Case, picks: Sequence[int]) -> Case:
    return Case(case.strategy, case.dtype, case.weights, case.flavour, case.seed, tuple(picks))


def rounded(want: np.ndarray, dtype: str) -> np.ndarray:
    """The exact result as a value of `dtype` holds it."""
    if want.dtype.kind != "f":
        return want.astype(np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        return want.astype(STORAGE[dtype]).astype(np.float32)


def _ulps(item: Judged) -> float:
    return scaled_ulps(item.got, item.want, item.dtype) if item.want.dtype.kind == "f" and item.want.ndim == 2 else 0.0
