"""What became of all mutants, as data and as text."""

import difflib
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

from conformance.mutants.engine import Result
from conformance.mutants.equivalent import Equivalent
from conformance.mutants.operators import OPERATORS, meaning
from poem.dataclass import dataclass

KILLED = ("checker", "bound", "crash", "hang")
COLUMNS = ("mutants", *(f"by {verdict}" for verdict in KILLED), "equivalent", "survived", "not reached", "not tried")


@dataclass
class MutantReport:
    """The outcome of a run.

    reasons: of the mutants that are no mistake, by number. stale: entries of that list which no mutant is any more. not_tried: numbers of
    those that the time did not suffice for. false_alarm: what a trial says of the sources as they are; then nothing else is known.
    texts: of the sources, by file.
    """

    results: list[Result] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    stale: list[Equivalent] = field(default_factory=list)
    not_tried: set[int] = field(default_factory=set)
    uncompilable: int = 0
    false_alarm: str = ""
    seconds: float = 0.0
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def survivors(self) -> list[Result]:
        """Mistakes that no trial found."""
        return [result for result in self.results if self.column(result) in ("survived", "not reached")]

    @property
    def wrongly_equivalent(self) -> list[Result]:
        """Mutants that are listed as no mistake, and were told from the original."""
        return [result for result in self.results if result.mutant.number in self.reasons and result.killed]

    @property
    def passed(self) -> bool:
        """Whether every mistake was found, every entry of the list is right, and there was no false alarm."""
        return not (self.survivors or self.wrongly_equivalent or self.stale or self.false_alarm or self.not_tried)

    def column(self, result: Result) -> str:
        """Where a mutant counts in the tables."""
        number = result.mutant.number
        if number in self.reasons:
            return "equivalent"
        if number in self.not_tried:
            return "not tried"
        return {"survived": "survived", "unreached": "not reached"}.get(result.verdict, f"by {result.verdict}")

    def counts(self, by: Callable[[Result], str]) -> dict[str, dict[str, int]]:
        """Mutants in each column, by file or by operator."""
        found: dict[str, dict[str, int]] = {}
        for result in self.results:
            row = found.setdefault(by(result), dict.fromkeys(COLUMNS, 0))
            row["mutants"] += 1
            row[self.column(result)] += 1
        return found

    def diff(self, result: Result) -> list[str]:
        """The mistake as lines of a unified diff."""
        mutant, text = result.mutant, self.texts[result.mutant.file]
        changed = text[: mutant.start] + mutant.replacement + text[mutant.end :]
        before, after = (whole.splitlines() for whole in (text, changed))
        return list(difflib.unified_diff(before, after, f"a/{mutant.file}", f"b/{mutant.file}", lineterm="", n=1))

    def as_json(self) -> dict[str, Any]:
        """The report as JSON has it."""
        return {
            "verdict": "passed" if self.passed else "failed", "seconds": self.seconds, "false_alarm": self.false_alarm,
            "uncompilable": self.uncompilable, "files": self.counts(lambda result: result.mutant.file),
            "operators": self.counts(lambda result: result.mutant.operator), "stale": [str(entry) for entry in self.stale],
            "mutants": [
                {
                    "name": result.mutant.name, "function": result.mutant.function, "was": result.mutant.was,
                    "becomes": result.mutant.becomes, "outcome": self.column(result), "how": result.how, "trial": result.trial,
                    "tried": list(result.tried), "reason": self.reasons.get(result.mutant.number, ""),
                }
                for result in self.results
            ],
        }  # fmt: skip


def as_text(report: MutantReport) -> str:
    """Survivors first, each with its diff; then the tables; then the verdict."""
    if report.false_alarm:
        return f"FALSE ALARM: without any mistake planted, {report.false_alarm}"
    lines = [line for result in report.survivors for line in (*_survivor(report, result), "")]
    for result in report.wrongly_equivalent:
        lines += [f"NOT EQUIVALENT {result.mutant.name}: {result.trial} finds it ({result.how}), though it is listed as no mistake:",
                  f"  {report.reasons[result.mutant.number]}", *report.diff(result), ""]  # fmt: skip
    lines += [f"STALE entry of the equivalent mutants: {entry}" for entry in report.stale]
    lines += [*_table("file", report.counts(lambda result: result.mutant.file)), ""]
    lines += [*_table("operator", report.counts(lambda result: result.mutant.operator), {name: meaning(name) for name in OPERATORS}), ""]
    return "\n".join([*lines, _verdict(report)])


def _survivor(report: MutantReport, result: Result) -> Iterator[str]:
    tried = f"{len(result.tried)} examples reach it" if result.tried else "no example reaches it"
    yield f"SURVIVED {result.mutant.name}, in {result.mutant.function}: {tried}"
    yield from report.diff(result)
    for start in range(0, len(result.tried), 3):
        yield f"  tried {' '.join(result.tried[start : start + 3])}"


def _table(of: str, counts: dict[str, dict[str, int]], meanings: dict[str, str] | None = None) -> list[str]:
    columns = [column for column in COLUMNS if any(row[column] for row in counts.values())]
    total = {column: sum(row[column] for row in counts.values()) for column in COLUMNS}
    rows = [(of, *columns)] + [(name, *(str(row[column]) for column in columns)) for name, row in {**counts, "all": total}.items()]
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    shown = []
    for row in rows:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        shown.append("  ".join([*cells, (meanings or {}).get(row[0], "")]).rstrip())
    return shown


def _verdict(report: MutantReport) -> str:
    counts = [report.column(result) for result in report.results]
    killed = sum(column.startswith("by ") for column in counts)
    parts = [f"{killed} of {len(counts)} mutants killed", f"{counts.count('equivalent')} equivalent"]
    parts += [f"{counts.count(column)} {column}" for column in ("survived", "not reached", "not tried") if column in counts]
    return f"{'passed' if report.passed else 'FAILED'}: {', '.join(parts)}, in {report.seconds:.0f} s"
