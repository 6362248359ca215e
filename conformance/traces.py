"""Tracing deployments that are not compared, in processes beside this one."""

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from conformance.report import Trace
from conformance.shared import shared
from poem.graph import Graph

if TYPE_CHECKING:
    from poem.language.declarations import Deployment
    from poem.package import Package

T = TypeVar("T")
WORTH_A_PROCESS = 4  # deployments; a process costs about as much as tracing one


def traced(graph: Graph) -> Trace:
    """What a report says of a graph."""
    return Trace(graph.deployment, graph.model, len(graph.nodes), len(graph.params))


def start_tracing(package: "Package", deployments: "Sequence[Deployment]") -> Callable[[], list[Trace]]:
    """Start tracing. The function returned gives the outcome, in order; it raises PackageError for a deployment that cannot be traced."""
    # What each of the processes would load for itself.
    import poem.formats.judge
    import poem.language.builtins.formats  # noqa: F401

    processes = min((os.cpu_count() or 1) // 2, len(deployments) // WORTH_A_PROCESS)  # others compare meanwhile
    outcome = shared([partial(noted, package, partial(_trace, package, deployment)) for deployment in deployments], processes)
    return lambda: told(package, outcome())


def _trace(package: "Package", deployment: "Deployment") -> Trace:
    return traced(package.check(deployment))


def noted(package: "Package", work: Callable[[], T]) -> tuple[T, list[str]]:
    """What a work gives, with the notes that it would leave with the package: some of them are left in other processes."""
    notes, package.notes = package.notes, []
    try:
        return work(), package.notes
    finally:
        package.notes = notes


def told(package: "Package", found: Sequence[tuple[T, list[str]]]) -> list[T]:
    """What works gave, whose notes the package now keeps, in the order of the works whoever did them."""
    for note in (note for _, notes in found for note in notes):
        package.note(note)
    return [result for result, _ in found]
