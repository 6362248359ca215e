"""The support table and the failures of the conformance suite, for a terminal."""

from collections.abc import Sequence

from conformance.suite import Cell, Failure, SuiteReport, Support

COMMAND = "poem conformance"


def as_text(report: SuiteReport) -> str:
    """Failures first, one screen each; then a line for each op and dtype; then the verdict."""
    lines = [line for failure in report.failures for line in (*_failure(failure), "")]
    lines += [*_table(report), ""] if report.cells else []
    counts = f"{report.examples} examples in {report.seconds:.1f} s, seed {report.seed}"
    if report.missed:
        counts += f"; the time did not suffice for {report.missed} of {report.missed + len(report.cells)} lines (--budget)"
    lines.append(f"{'DIFFERS' if report.failures else 'agrees'}: {counts}")
    return "\n".join(lines)


def _table(report: SuiteReport) -> list[str]:
    devices = list(dict.fromkeys(cell.device for cell in report.cells))
    rows: dict[tuple[str, str], dict[str, Support]] = {}
    for cell, support in report.cells.items():
        rows.setdefault((cell.name, _dtypes(cell)), {})[cell.device] = support
    table = [("op", "dtype", *(f"{device}: examples, ulps, of bound" for device in devices))]
    table += [(*row, *(_support(found.get(device)) for device in devices)) for row, found in rows.items()]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in table]


def _dtypes(cell: Cell) -> str:
    return f"{cell.dtype} x {cell.weights}" if cell.weights else cell.dtype


def _support(support: Support | None) -> str:
    if support is None:
        return "-"
    if not support.examples:
        return "no kernel"
    verdict = f"  {support.failed} FAILED" if support.failed else ""
    return f"{support.examples:5}  {support.ulps:6.3g}  {support.fraction:.3f}{verdict}"


def _failure(failure: Failure) -> Sequence[str]:
    lines = [f"{failure.case} on {failure.device}"]
    lines += [f"  {line}" for line in failure.fault.splitlines()]
    if failure.index or failure.bound:
        lines += [
            f"  at     {list(failure.index)}",
            f"  got    {failure.got!r}",
            f"  want   {failure.want!r}, {failure.ulps} ulps of f32 away",
            f"  bound  {failure.bound!r}, of which this is {failure.fraction:.3g} times as much",
        ]
    if failure.kernels:
        lines.append(f"  kernel {', '.join(failure.kernels)}")
    return [*lines, f"  again  {COMMAND} {failure.case} --device {failure.device}"]
