"""Work in processes beside this one, where there are cores for it: tracing what is not compared, comparing further models."""

import os
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from conformance.report import Trace
from poem.graph import Graph

if TYPE_CHECKING:
    from poem.language.declarations import Deployment
    from poem.package import Package

T = TypeVar("T")
WORTH_A_PROCESS = 4  # deployments; a process costs about as much as tracing one


def traced(graph: Graph) -> Trace:
    """What a report says of a graph."""
    return Trace(graph.deployment, graph.model, len(graph.nodes), len(graph.params))


def trace_beside(package: "Package", deployments: "Sequence[Deployment]", busy: int) -> Callable[[], list[Trace]]:
    """Start tracing, on the cores that `busy` other processes leave. The function returned gives the outcome, in order; it raises
    PackageError for a deployment that cannot be traced."""
    cores = os.cpu_count() or 1
    if cores < 2 or not hasattr(os, "fork") or len(deployments) < WORTH_A_PROCESS:
        return lambda: _here(package, deployments)
    # What each of the processes would load for itself.
    import poem.formats.judge
    import poem.language.builtins.formats  # noqa: F401

    count = max(1, min(cores - busy, len(deployments) // WORTH_A_PROCESS))
    parts = [beside(partial(_noted, package, deployments[place::count])) for place in range(count)]

    def outcome() -> list[Trace]:
        by_name = {}
        for traces, notes in (part() for part in parts):
            by_name.update({trace.deployment: trace for trace in traces})
            for note in notes:
                package.note(note)
        return [by_name[deployment.name] for deployment in deployments]

    return outcome


def _here(package: "Package", deployments: "Sequence[Deployment]") -> list[Trace]:
    return [traced(package.check(deployment)) for deployment in deployments]


def _noted(package: "Package", deployments: "Sequence[Deployment]") -> tuple[list[Trace], list[str]]:
    return _here(package, deployments), package.notes


def beside(work: Callable[[], T]) -> Callable[[], T]:
    """Start `work` in a forked process, where there is a core for it. The function returned waits and gives the result; what the
    process could not do is done here, so that it raises what `work` raises."""
    if (os.cpu_count() or 1) < 2 or not hasattr(os, "fork"):
        return work
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return lambda: _outcome(work, reading, child)
    # Nothing is left behind: no handler, no buffer of the parent is touched. Where the work fails the pipe stays empty, and the
    # parent meets the fault itself, with its place.
    try:
        found = pickle.dumps(work())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(found)
    finally:
        os._exit(0)


def _outcome(work: Callable[[], T], reading: int, child: int) -> T:
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    try:
        return pickle.loads(found)
    except (EOFError, pickle.UnpicklingError):
        return work()
