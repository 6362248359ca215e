"""Tracing the deployments that are not compared: in processes beside this one, where there are cores for them."""

import os
import pickle
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from conformance.report import Trace
from poem.graph import Graph

if TYPE_CHECKING:
    from poem.language.declarations import Deployment
    from poem.package import Package

WORTH_A_PROCESS = 4  # deployments; a process costs about as much as tracing one


def traced(graph: Graph) -> Trace:
    """What a report says of a graph."""
    return Trace(graph.deployment, graph.model, len(graph.nodes), len(graph.params))


def trace_beside(package: "Package", deployments: "Sequence[Deployment]") -> Callable[[], list[Trace]]:
    """Start tracing. The function returned gives the outcome, in order; it raises PackageError for a deployment that cannot be
    traced."""
    cores = os.cpu_count() or 1
    if cores < 2 or not hasattr(os, "fork") or len(deployments) < WORTH_A_PROCESS:
        return lambda: _here(package, deployments)
    count = min(cores, len(deployments) // WORTH_A_PROCESS)
    parts = [_Part(package, deployments[place::count]) for place in range(count)]

    def outcome() -> list[Trace]:
        by_name = {trace.deployment: trace for part in parts for trace in part.outcome()}
        return [by_name[deployment.name] for deployment in deployments]

    return outcome


def _here(package: "Package", deployments: "Sequence[Deployment]") -> list[Trace]:
    return [traced(package.trace(deployment)) for deployment in deployments]


class _Part:
    """Some deployments, traced by a forked process."""

    def __init__(self, package: "Package", deployments: "Sequence[Deployment]") -> None:
        self.package, self.deployments = package, deployments
        self.reading, writing = os.pipe()
        self.child = os.fork()
        if self.child:
            os.close(writing)
            return
        # Only Starlark and Python run here, and nothing is left behind: no handler, no buffer of the parent is touched. Where this
        # fails the pipe stays empty, and the parent meets the fault itself, with its place.
        try:
            found = pickle.dumps((_here(package, deployments), package.notes))
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(found)
        finally:
            os._exit(0)

    def outcome(self) -> list[Trace]:
        """Wait for the process."""
        with os.fdopen(self.reading, "rb") as pipe:
            found = pipe.read()
        os.waitpid(self.child, 0)
        try:
            traces, notes = pickle.loads(found)
        except (EOFError, pickle.UnpicklingError):
            return _here(self.package, self.deployments)
        for note in notes:
            self.package.note(note)
        return list(traces)
