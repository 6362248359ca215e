"""A report as text for a terminal: what differs first, in one screen; then the table by layer, and how to rerun it."""

import os
import shlex
import sys
from collections.abc import Sequence
from typing import TextIO

from conformance.report import Comparison, Fault, Report, Row

JUMP = 100.0  # an NMSE that grows by more than this factor over one layer is called a jump
LISTED = 8  # further faults that are shown
SPANNED = 20  # lines of a layer that are shown


class Style:
    """Colours, on a terminal that wants them (NO_COLOR says no)."""

    def __init__(self, stream: TextIO) -> None:
        self.on = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"

    def _wrapped(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.on else text

    def good(self, text: str) -> str:
        return self._wrapped("32", text)

    def bad(self, text: str) -> str:
        return self._wrapped("1;31", text)

    def strong(self, text: str) -> str:
        return self._wrapped("1", text)

    def dim(self, text: str) -> str:
        return self._wrapped("2", text)


def render(report: Report, style: Style | None = None) -> str:
    """The whole report."""
    style = style or Style(sys.stdout)
    lines: list[str] = []
    shown: set[tuple[str, int, str]] = set()
    for comparison in report.comparisons:
        if comparison.verdict != "differs":
            continue
        key = _first(comparison)
        if not shown:
            lines += [*_difference(report, comparison, style), ""]
        elif key not in shown:  # another line: the essentials
            lines += [*_heading(comparison, style), *(line for fault in comparison.faults[:1] for line in _fault(fault, style)), ""]
        shown.add(key)
    lines += _summary(report, style)
    return "\n".join(lines)


# -- a difference --------------------------------------------------------------------------------
def _first(comparison: Comparison) -> tuple[str, int, str]:
    """The line of the first divergence, which comparisons of one fault share."""
    line = comparison.faults[0].line if comparison.faults else None
    return (line.file, line.line, line.text) if line is not None else ("", 0, "")


def _heading(comparison: Comparison, style: Style) -> list[str]:
    return [f"{style.bad('DIFFERS')}  {style.strong(comparison.deployment)}, {comparison.mode} mode, from {comparison.golden}", ""]


def _difference(report: Report, comparison: Comparison, style: Style) -> list[str]:
    lines = _heading(comparison, style)
    special = [fault for fault in comparison.faults if fault.special]
    if special:
        fault = special[0]
        lines += [style.bad(f"NaN or infinity: {fault.special} elements of {fault.tensor} are not what the original has"), ""]
    if comparison.faults:
        lines += _fault(comparison.faults[0], style)
    if comparison.greedy is not None and comparison.greedy.differ:
        position, got, want = comparison.greedy.differ[0]
        lines.append(f"Greedy: token {position} is {got}, the original's is {want}; {len(comparison.greedy.differ)} of "
                     f"{comparison.greedy.tokens} tokens differ")  # fmt: skip
    if len(comparison.faults) > 1:
        lines += ["", f"{len(comparison.faults) - 1} more that may follow from it or not:"]
        lines += [f"  {fault.line}  {fault.name} ({fault.place}): {fault.tensor}" for fault in comparison.faults[1 : LISTED + 1]]
    if comparison.rows:
        lines += ["", *_table(comparison.rows)]
    tensor = comparison.faults[0].tensor if comparison.faults else "greedy"
    return [*lines, "", "To rerun: " + shlex.join([*report.command, *_selection(comparison, tensor)])]


def _selection(comparison: Comparison, tensor: str) -> list[str]:
    how = "--mode" if comparison.mode in ("exact", "native") else "--backend"
    return ["--deployment", comparison.deployment, how, comparison.mode, "--only", tensor]


def _fault(fault: Fault, style: Style) -> list[str]:
    lines = [f"First divergence: {style.strong(f'{fault.place}, {fault.name}')}", f"  {style.strong(str(fault.line))}  {fault.line.text}"]
    if fault.line.callers:
        lines.append(style.dim(f"    called from {', '.join(reversed(fault.line.callers))}"))
    lines.append(f"  {fault.sentence}")
    row, column = [*fault.index, 0][:2]
    lines.append(f"  at [{row}, {column}]: got {fault.got:.9g}, want {fault.want:.9g}, {fault.ulps:,} ulp apart")
    error = abs(fault.got - fault.want)
    lines.append(f"  |got - want| = {error:.3g}, {_times(fault.fraction)} the bound {fault.bound:.3g}: {fault.reason}")
    if fault.region:
        lines.append("  nothing of the original lies between this and the following, where the fault may be too:")
        lines += [f"    {line}  {line.text}" for line in fault.region[:SPANNED]]
        if " " in fault.op:
            lines.append("  to get to the op, compare with the original itself: --checkpoint DIR --against transformers")
    if fault.again:
        lines.append(f"  the same line differs in layer{'s' if len(fault.again) > 1 else ''} {', '.join(map(str, fault.again))}")
    return lines


def _ulps(ulps: float) -> str:
    return f"{ulps:,.0f}" if 10 <= ulps < 1e9 else f"{ulps:.2g}"


def _times(fraction: float) -> str:
    return "beyond" if fraction == float("inf") else f"{fraction:.3g} times"


def _table(rows: Sequence[Row]) -> list[str]:
    """By layer, with a word where the error jumps rather than grows."""
    lines = [f"  {'':<14} {'max ulp':>12} {'NMSE':>10} {'cosine':>12} {'of bound':>10}"]
    before: Row | None = None
    for row in rows:
        word = ""
        if before is not None and row.fraction > 1.0:
            word = "  jump" if row.nmse > JUMP * before.nmse and before.fraction <= 1.0 else "  growth"
        elif row.fraction > 1.0:
            word = "  jump"
        lines.append(f"  {row.label:<14} {_ulps(row.max_ulp):>12} {row.nmse:>10.2g} {row.cosine:>12.9f} {row.fraction:>10.3g}{word}")
        before = row
    return lines


# -- the verdict ---------------------------------------------------------------------------------
def _summary(report: Report, style: Style) -> list[str]:
    lines = []
    if report.traces:
        nodes = sum(trace.nodes for trace in report.traces)
        models = len({trace.model for trace in report.traces})
        lines.append(f"{report.file}: traced {_count(len(report.traces), 'deployment')} of {_count(models, 'model')}, {nodes:,} ops")
    width = max((len(comparison.deployment) for comparison in report.comparisons), default=0)
    for comparison in report.comparisons:
        verdict = style.good("agrees ") if comparison.verdict == "agrees" else style.bad("DIFFERS")
        greedy = ""
        if comparison.greedy is not None:
            ties = f", {len(comparison.greedy.ties)} tied" if comparison.greedy.ties else ""
            greedy = f"  greedy {comparison.greedy.agree}/{comparison.greedy.tokens}{ties}"
        worst = f"  worst {comparison.worst:.2g} of its bound" + (f" ({comparison.reason})" if comparison.verdict == "agrees" else "")
        cost = ""
        if comparison.cost is not None:
            cost = f"  cost: logits NMSE {comparison.cost.nmse:.2g}, top-1 {comparison.cost.agree}/{comparison.cost.rows}"
        lines.append(f"  {comparison.deployment:<{width}}  {comparison.mode:<6}  {verdict}{greedy}{worst}{cost}")
    notes: dict[str, None] = dict.fromkeys([*report.notes, *(note for comparison in report.comparisons for note in comparison.notes)])
    lines += [style.dim(f"note: {note}") for note in notes]
    verdict = {
        "agrees": style.good("agrees"), "differs": style.bad("differs"), "traced": "traced; nothing to compare with",
    }[report.verdict]  # fmt: skip
    agreeing = sum(comparison.verdict == "agrees" for comparison in report.comparisons)
    of = f": {agreeing} of {_count(len(report.comparisons), 'comparison')}" if report.comparisons else ""
    return [*lines, f"{style.strong(report.package)} {verdict}{of}, in {report.seconds:.2f} s"]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
