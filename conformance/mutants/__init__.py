"""Mutants of the CUDA sources: small mistakes planted everywhere, each of which the examples must find (docs/mutants.md)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic

from conformance.mutants.engine import Engine, FalseAlarm, Progress, until
from conformance.mutants.equivalent import LIST, sorted_out
from conformance.mutants.generate import all_mutants, files_of
from conformance.mutants.report import MutantReport, as_text
from conformance.mutants.trials import ExampleTrial
from cupy_backend import sources
from poem.errors import UsageError

__all__ = ["MutantReport", "as_text", "run"]

SUITE = Path(__file__).with_name("suite.txt")


def rounds(text: str) -> Iterator[list[ExampleTrial]]:
    """The examples that mutants are tried on, a paragraph for each round."""
    for paragraph in text.split("\n\n"):
        names = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if names:
            yield [ExampleTrial(name) for name in names]


def run(budget: float | None = None, files: Sequence[str] = (), progress: Progress = lambda what, done, of: None) -> MutantReport:
    """Tries every mutant on the examples of `suite.txt`, round by round, until it is killed.

    budget: seconds. files: of the sources, all if there are none. UsageError (`conformance.file`) for a file that is not mutated.
    """
    start, folder = monotonic(), sources.folder()
    paths = {path.name: path for path in files_of(folder)}
    if unknown := [name for name in files if name not in paths]:
        raise UsageError(
            "conformance.file", "no kernel file is called that", phase="conformance", expected=" ".join(paths), found=" ".join(unknown)
        )  # fmt: skip
    mutants = all_mutants(folder, files)
    reasons, stale = sorted_out(mutants, LIST.read_text())
    engine = Engine(mutants, frozenset(reasons), progress, until(budget))
    try:
        for trials in rounds(SUITE.read_text()):
            if engine.alive and monotonic() < engine.deadline:
                engine.round(trials)
    except FalseAlarm as alarm:
        return MutantReport(false_alarm=str(alarm), seconds=monotonic() - start)
    late = monotonic() >= engine.deadline
    return MutantReport(
        list(engine.results.values()), {number: why for number, why in reasons.items() if number in engine.results}, stale,
        frozenset(engine.remaining.keys() - engine.equivalent) if late else frozenset(), len(engine.uncompilable), "", monotonic() - start,
        {str(path.relative_to(folder)): path.read_text() for path in paths.values()},
    )  # fmt: skip
