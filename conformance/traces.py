"""Tracing the deployments that are not compared: in a process beside this one where there is a core for it."""

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
    if len(deployments) < WORTH_A_PROCESS or not hasattr(os, "fork") or (os.cpu_count() or 1) < 2:
        return lambda: _here(package, deployments)
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Only Starlark and Python run here, and nothing outlives the pipe: no handler, no buffer of the parent is touched.
        os.close(reading)
        try:
            found = pickle.dumps((_here(package, deployments), package.notes))
        except BaseException:
            found = b""  # the parent meets the fault itself, with its traceback
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(found)
        os._exit(0)
    os.close(writing)

    def outcome() -> list[Trace]:
        with os.fdopen(reading, "rb") as pipe:
            found = pipe.read()
        os.waitpid(child, 0)
        if not found:
            return _here(package, deployments)
        traces, notes = pickle.loads(found)
        for note in notes:
            package.note(note)
        return list(traces)

    return outcome


def _here(package: "Package", deployments: "Sequence[Deployment]") -> list[Trace]:
    return [traced(package.trace(deployment)) for deployment in deployments]
