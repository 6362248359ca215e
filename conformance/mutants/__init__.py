"""Mutants of the CUDA sources: small mistakes planted everywhere, each of which the examples must find (docs/mutants.md)."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from time import monotonic
from zlib import crc32

from conformance.mutants.engine import Engine, FalseAlarm, Progress, until
from conformance.mutants.equivalent import entries, sorted_out
from conformance.mutants.generate import Mutant, all_mutants, by_file, files_of
from conformance.mutants.report import MutantReport, as_text
from conformance.mutants.trials import ExampleTrial
from cupy_backend import sources
from poem.errors import UsageError

__all__ = ["MutantReport", "as_text", "run"]

SUITE = Path(__file__).with_name("suite")


def rounds(file: str) -> Iterator[list[ExampleTrial]]:
    """The examples that mutants of a source are tried on, those of `suite/<source>.txt`: a paragraph for each round."""
    for paragraph in (SUITE / f"{Path(file).stem}.txt").read_text().split("\n\n"):
        names = [line for line in paragraph.splitlines() if line and not line.startswith("#")]
        if names:
            yield [ExampleTrial(name) for name in names]


def sampled(mutants: Sequence[Mutant], most: int) -> list[Mutant]:
    """Of each kind of mistake, at most so many in each function, and the same ones until their lines change."""
    kinds: dict[tuple[str, str, str], list[Mutant]] = {}
    for mutant in sorted(mutants, key=lambda mutant: crc32(repr(mutant.key).encode())):
        kinds.setdefault((mutant.file, mutant.function, mutant.operator), []).append(mutant)
    kept = {mutant.number for kind in kinds.values() for mutant in kind[:most]}
    return [mutant for mutant in mutants if mutant.number in kept]


def run(
    budget: float | None = None, files: Sequence[str] = (), sample: int | None = None, progress: Progress = lambda what, done, of: None
) -> MutantReport:
    """Tries mutants on the examples of their source, round by round, until each is killed.

    budget: seconds. files: of the sources, all if there are none. sample: at most so many mutants of a kind in a function, all if None.
    UsageError (`conformance.file`) for a file that is not mutated.
    """
    start, folder = monotonic(), sources.folder()
    paths = {path.name: path for path in files_of(folder)}
    if unknown := [name for name in files if name not in paths]:
        raise UsageError(
            "conformance.file", "no kernel file is called that", phase="conformance", expected=" ".join(paths), found=" ".join(unknown)
        )  # fmt: skip
    report = MutantReport(texts={str(path.relative_to(folder)): path.read_text() for path in paths.values()})
    deadline = until(budget)
    for file, mutants in by_file(all_mutants(folder, files)):
        reasons, stale = sorted_out(mutants, entries(file))
        chosen = mutants if sample is None else sampled(mutants, sample)
        engine = Engine(chosen, frozenset(reasons), _of_file(file, progress), deadline)
        try:
            for trials in rounds(file):
                if engine.alive and monotonic() < deadline:
                    engine.round(trials)
        except FalseAlarm as alarm:
            return MutantReport(false_alarm=str(alarm), seconds=monotonic() - start)
        report.results += engine.results.values()
        report.reasons |= {number: why for number, why in reasons.items() if number in engine.results}
        report.stale += stale
        report.uncompilable += len(engine.uncompilable)
        if monotonic() >= deadline:
            report.not_tried |= engine.remaining.keys() - engine.equivalent
    report.seconds = monotonic() - start
    return report


def _of_file(file: str, progress: Progress) -> Progress:
    return lambda what, done, of: progress(f"{what} of {file}", done, of)
