"""The conformance suite: examples of every op, round by round, on every device, until the time is up."""

import fnmatch
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from conformance.examples import Case, Example, Outcome, example, judge, session_of, shrunk
from conformance.metrics import ulp_distance
from conformance.strategies import strategies
from cupy_backend.devices import Device, open_device
from cupy_backend.errors import KernelError
from poem.dataclass import dataclass
from poem.errors import PoemError, UsageError

if TYPE_CHECKING:
    from cupy_backend.emulator import Schedule

INTERPRETER = "interp"
ORDERS: tuple[Literal["fifo", "lifo", "random"], ...] = ("fifo", "lifo", "random")
TIMINGS: tuple[Literal["late", "early", "random"], ...] = ("late", "early", "random")
DEVICES = (INTERPRETER, "emu", "emu-fast", "cuda")
Progress = Callable[[int, int, str], None]  # seconds that are over, seconds in all, what is at work
SHRINKING = 60.0  # seconds at most that a failing example is made simpler


@dataclass(frozen=True, slots=True)
class Cell:
    """A line of the support table on one device: an op with a dtype of its values and one of its weights."""

    name: str
    dtype: str
    weights: str
    device: str


@dataclass(slots=True)
class Support:
    """What is known of a cell. refusal: why the latest example that no kernel serves was refused."""

    examples: int = 0
    ulps: float = 0.0
    fraction: float = 0.0
    refused: int = 0
    refusal: str = ""
    failed: int = 0

    def add(self, outcome: Outcome) -> None:
        self.examples += 1
        self.ulps, self.fraction = max(self.ulps, outcome.ulps), max(self.fraction, outcome.fraction)
        self.failed += bool(outcome.fault)

    def merge(self, other: "Support") -> None:
        self.examples, self.refused, self.failed = self.examples + other.examples, self.refused + other.refused, self.failed + other.failed
        self.ulps, self.fraction = max(self.ulps, other.ulps), max(self.fraction, other.fraction)
        self.refusal = other.refusal or self.refusal


@dataclass(frozen=True, slots=True)
class Failure:
    """An example that is past its bound, in the simplest form that still fails.

    case: pastes back as an argument of `poem conformance`. op, line: of the graph. kernels: what ran. index, got, want, ulps, bound: where
    the fraction is largest; a launch that failed has an error instead.
    """

    case: str
    device: str
    fault: str
    kernels: tuple[str, ...] = ()
    index: tuple[int, ...] = ()
    got: float = 0.0
    want: float = 0.0
    ulps: int = 0
    bound: float = 0.0
    fraction: float = 0.0


@dataclass
class SuiteReport:
    """The outcome of a run. missed: cells that the time did not suffice for."""

    seed: int
    seconds: float = 0.0
    cells: dict[Cell, Support] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)
    missed: int = 0

    @property
    def examples(self) -> int:
        return sum(support.examples for support in self.cells.values())

    def as_json(self) -> dict[str, Any]:
        return {
            "verdict": "differs" if self.failures else "agrees", "seed": self.seed, "seconds": self.seconds, "examples": self.examples,
            "missed": self.missed, "support": [{**asdict(cell), **asdict(support)} for cell, support in self.cells.items()],
            "failures": [asdict(failure) for failure in self.failures],
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run is to do.

    patterns: names of cases or how they begin, with wildcards: `linear.*`, `linear.matmul:bf16:u4g64`, `*:*:*:special`. op, dtype:
    wildcards; a dtype is that of values or of weights. rounds: at most so many examples a cell, None until the time is up. budget:
    seconds. processes: how many work at once.
    """

    devices: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    op: str | None = None
    dtype: str | None = None
    seed: int = 0
    rounds: int | None = None
    budget: float = 60.0
    processes: int = field(default_factory=lambda: os.cpu_count() or 1)


def run_suite(plan: Plan, progress: Progress | None = None) -> SuiteReport:
    """Runs examples round by round, a flavour each, so that every cell is met early.

    UsageError (`conformance.case`) if nothing is asked for; KernelError if a device is not to be had.
    """
    start = time.monotonic()
    report = SuiteReport(plan.seed)
    exact = [Case.of(pattern) for pattern in plan.patterns if pattern.count(":") >= 4]
    cells = list(_cells(plan))
    if not cells and not exact:
        raise UsageError(
            "conformance.case", "no op or example is called that", phase="conformance",
            found=" ".join(filter(None, (*plan.patterns, plan.op, plan.dtype))), hint="`poem ops` lists the ops",
        )  # fmt: skip
    for name in {*plan.devices} - {INTERPRETER}:
        open_device(name)  # what is missing is told at once, not by every process
    for case in exact:
        for name in plan.devices:
            _try(case, name, _Devices(), report)
    if cells and not (exact and len(exact) == len(plan.patterns)):
        _run_cells(plan, cells, start + plan.budget, report, progress)
    report.seconds = time.monotonic() - start
    return report


def _cells(plan: Plan) -> Iterator[Cell]:
    """The cells asked for, by shelf and name."""
    partial = [pattern for pattern in plan.patterns if pattern.count(":") < 4]
    if plan.patterns and not partial:
        return
    for name, found in sorted(strategies().items()):
        for dtype in found.dtypes:
            for weights in found.weights:
                named = not partial or any(_matches(pattern, name, dtype, weights or "-") for pattern in partial)
                typed = plan.dtype is None or any(fnmatch.fnmatchcase(each, plan.dtype) for each in (dtype, weights))
                if named and typed and (plan.op is None or fnmatch.fnmatchcase(name, plan.op)):
                    for cell in (Cell(name, dtype, weights, device) for device in plan.devices):
                        if _flavours(plan, cell):
                            yield cell


def _matches(pattern: str, *fields: str) -> bool:
    """Whether the fields of a name are those of a pattern, as far as it goes."""
    return all(fnmatch.fnmatchcase(field_, part) for field_, part in zip(fields, pattern.split(":"), strict=False))


def _flavours(plan: Plan, cell: Cell) -> tuple[str, ...]:
    """The flavours that are asked for."""
    flavours, name = strategies()[cell.name].flavours, (cell.name, cell.dtype, cell.weights or "-")
    partial = [pattern for pattern in plan.patterns if pattern.count(":") < 4]
    return tuple(flavour for flavour in flavours if not partial or any(_matches(pattern, *name, flavour) for pattern in partial))


def _run_cells(plan: Plan, cells: Sequence[Cell], deadline: float, report: SuiteReport, progress: Progress | None) -> None:
    """Cells are dealt out to processes like cards; each works on its own until the time is up. On a GPU there is one process."""
    count = 1 if "cuda" in plan.devices else max(1, min(plan.processes, len(cells)))
    if count == 1:
        parts = [_work(plan, cells, deadline, progress)]
    else:
        context = multiprocessing.get_context("fork")
        with context.Pool(count) as pool:
            jobs = [pool.apply_async(_work, (plan, cells[i::count], deadline, None)) for i in range(count)]
            while not all(job.ready() for job in jobs):
                if progress is not None:
                    progress(_elapsed(plan, deadline), round(plan.budget), f"{count} processes")
                jobs[0].wait(1.0)
            parts = [job.get() for job in jobs]
    for part in parts:
        report.failures += part.failures
        for cell, support in part.cells.items():
            report.cells.setdefault(cell, Support()).merge(support)
    report.cells = {cell: report.cells[cell] for cell in cells if cell in report.cells}
    report.missed = len(cells) - len(report.cells)


def _work(plan: Plan, cells: Sequence[Cell], deadline: float, progress: Progress | None) -> SuiteReport:
    """The part of one process."""
    report, devices, round_ = SuiteReport(plan.seed), _Devices(), 0
    while plan.rounds is None or round_ < plan.rounds:
        for cell in cells:
            if time.monotonic() > deadline:
                return report
            if progress is not None:
                progress(_elapsed(plan, deadline), round(plan.budget), f"{cell.name} on {cell.device}")
            flavours = _flavours(plan, cell)
            case = Case(cell.name, cell.dtype, cell.weights, flavours[round_ % len(flavours)], plan.seed + round_)
            if report.cells.get(cell, Support()).failed == 0:  # one failure tells enough of a cell
                _try(case, cell.device, devices, report)
        round_ += 1
    return report


def _elapsed(plan: Plan, deadline: float) -> int:
    return round(min(plan.budget, plan.budget - (deadline - time.monotonic())))


class _Devices:
    """Devices by name, each opened once; the emulated one takes its turns in an order that follows from the example's seed."""

    def __init__(self) -> None:
        self._open: dict[str, Device] = {}

    def of(self, name: str, seed: int) -> Device | None:
        if name == INTERPRETER:
            return None
        device = self._open.get(name)
        if device is None:
            device = self._open[name] = open_device(name)
        if name.startswith("emu"):
            from cupy_backend.emulator import EmulatedDevice

            assert isinstance(device, EmulatedDevice)
            device.schedule = schedule_of(seed)
        return device


def schedule_of(seed: int) -> "Schedule":
    """The order in which the emulated device takes its turns in an example of this seed."""
    from cupy_backend.emulator import Schedule

    return Schedule(ORDERS[seed % 3], TIMINGS[seed // 3 % 3], seed + 1)


def _try(case: Case, name: str, devices: _Devices, report: SuiteReport) -> None:
    support = report.cells.setdefault(Cell(case.strategy, case.dtype, case.weights, name), Support())
    found = example(case)
    try:
        outcome = _outcome(found, name, devices)
    except PoemError as refusal:
        if refusal.code != "kernel.unsupported":
            raise
        support.refused, support.refusal = support.refused + 1, refusal.message
        return
    support.add(outcome)
    if outcome.fault:
        report.failures.append(_failure(found, name, devices))


def _outcome(found: Example, name: str, devices: _Devices) -> Outcome:
    """What an example gives. A launch that fails is a fault; a refusal is raised."""
    device = devices.of(name, found.case.seed)
    try:
        return judge(found, None if device is None else session_of(found, device))
    except KernelError as fault:
        if fault.code == "kernel.unsupported" or not fault.code.startswith(("emu.", "kernel.launch", "cuda.launch")):
            raise
        return Outcome(np.inf, np.inf, None, fault.render())


def _failure(found: Example, name: str, devices: _Devices) -> Failure:
    """The simplest example that fails too."""
    deadline = time.monotonic() + SHRINKING

    def fails(tried: Example) -> bool:
        if time.monotonic() > deadline:
            return False
        try:
            return bool(_outcome(tried, name, devices).fault)
        except PoemError:
            return False

    least = shrunk(found, fails)
    outcome = _outcome(least, name, devices)
    item = outcome.judged
    if item is None:
        return Failure(str(least.case), name, outcome.fault, fraction=outcome.fraction)
    at = item.distance.index
    got, want = float(item.got[at]), float(item.want[at])
    ulps = int(ulp_distance(np.array([got]), np.array([want]))[0])
    bound = float(np.broadcast_to(item.bound, item.want.shape)[at])
    return Failure(str(least.case), name, outcome.fault, item.kernels, at, got, want, ulps, bound, outcome.fraction)
