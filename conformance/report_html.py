"""A report as one self-contained page: verdict, error by layer as a plot, heat map of the first bad tensor, table of ops."""

import base64
import html
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from conformance.report import Comparison, Fault, Line, Report, Row

STYLE = Path(__file__).with_name("report.css")
LISTED_OPS = 400


def page(report: Report) -> str:
    """The page as HTML text, without anything to fetch."""
    title = f"{report.package}: {report.verdict}"
    firsts = {(comparison.faults[0].line.file, comparison.faults[0].line.line): comparison  # one for each line
              for comparison in reversed(report.comparisons) if comparison.faults}  # fmt: skip
    body = [_head(report), *(_difference(comparison) for comparison in reversed(firsts.values())), _verdicts(report)]
    body += [_details(comparison) for comparison in report.comparisons]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{_text(title)}</title><style>{STYLE.read_text()}</style></head>\n<body><main>\n{''.join(body)}\n</main></body></html>\n"
    )


def _text(item: object) -> str:
    return html.escape(str(item))


def _head(report: Report) -> str:
    word = {"agrees": "agrees with the original", "differs": "differs from the original", "traced": "traced; nothing to compare with"}
    agreeing = sum(comparison.verdict == "agrees" for comparison in report.comparisons)
    facts = [f"{_text(report.file)}", f"{len(report.traces)} deployment{'' if len(report.traces) == 1 else 's'} traced"]
    if report.comparisons:
        facts.append(f"{agreeing} of {len(report.comparisons)} comparisons agree")
    facts += [f"seed {report.seed}", f"{report.seconds:.2f} s"]
    return (
        f'<header class="{report.verdict}"><h1><b>{_text(report.package)}</b> {word[report.verdict]}</h1>'
        f"<p>{' · '.join(facts)}</p></header>"
    )


# -- the first divergence ------------------------------------------------------------------------
def _difference(comparison: Comparison) -> str:
    fault = comparison.faults[0]
    row, column = [*fault.index, 0][:2]
    facts = [
        ("got", f"{fault.got:.9g}"), ("want", f"{fault.want:.9g}"), ("apart", f"{fault.ulps:,} ulp"),
        ("error", f"{abs(fault.got - fault.want):.3g}"), ("bound", f"{fault.bound:.3g}"), ("times the bound", f"{fault.fraction:.3g}"),
    ]  # fmt: skip
    special = f'<p class="bad">{fault.special} elements are NaN or infinite where the original\'s are not.</p>' if fault.special else ""
    again = f"<p>The same line differs in layer {', '.join(map(str, fault.again))}.</p>" if fault.again else ""
    region = ""
    if fault.region:
        region = "<p>No tensor of the original lies between this line and these:</p>" + "".join(_code(line) for line in fault.region)
    more = "".join(f"<li>{_text(other.place)}, <code>{_text(other.name)}</code>, {_text(other.tensor)}{_code(other.line)}</li>"
                   for other in comparison.faults[1:])  # fmt: skip
    return (
        f'<section class="fault"><h2>First divergence: {_text(fault.place)}, {_text(fault.name)}</h2>'
        f"<p>{_text(comparison.deployment)}, {comparison.mode} mode, from {_text(comparison.golden)}</p>{_code(fault.line)}"
        f"<p>It {_text(fault.sentence)}.</p>"
        f"{special}<dl>{''.join(f'<div><dt>{label}</dt><dd>{value}</dd></div>' for label, value in facts)}</dl>"
        f"<p>Worst element: row {row}, column {column}. The bound comes from {_text(fault.reason)}.</p>{again}{region}{_heat(fault)}"
        + (f"<details><summary>{len(comparison.faults) - 1} more lines differ</summary><ul>{more}</ul></details>" if more else "")
        + "</section>"
    )


def _code(line: Line) -> str:
    callers = f" <small>called from {_text(', '.join(reversed(line.callers)))}</small>" if line.callers else ""
    return f'<pre><span class="place">{_text(line)}</span> {_text(line.text)}{callers}</pre>'


def _heat(fault: Fault) -> str:
    """Fractions of the bound, one square an element: pale within the bound, from yellow to dark red beyond it."""
    if fault.heat is None or not fault.heat.size:
        return ""
    cells = _pooled(fault.heat, 192, 512)
    with np.errstate(divide="ignore"):
        beyond = np.clip(np.log10(np.maximum(cells, 1e-12)), 0.0, 6.0) / 6.0
    within = cells <= 1.0
    stops = np.array([[255, 237, 160], [254, 178, 76], [240, 59, 32], [110, 0, 30]], np.float64)
    place = beyond * (len(stops) - 1)
    low = np.minimum(place.astype(int), len(stops) - 2)
    colours = stops[low] + (stops[low + 1] - stops[low]) * (place - low)[..., None]
    colours = np.where(within[..., None], np.array([226, 232, 240.0]), colours)
    colours = np.where(np.isinf(cells)[..., None], np.array([20, 0, 20.0]), colours)
    image = base64.b64encode(_png(colours.astype(np.uint8))).decode()
    rows, columns = fault.heat.shape
    bad = int((fault.heat > 1.0).sum())
    legend = "".join(f"<span><i style='background:{colour}'></i>{label}</span>" for colour, label in (
        ("#e2e8f0", "within the bound"), ("#ffeda0", "just past it"), ("#feb24c", "100 times"), ("#f03b20", "10,000 times"),
        ("#6e001e", "a million times"), ("#140014", "NaN or infinity"),
    ))  # fmt: skip
    height = max(96, min(420, rows * 12))
    return (
        f"<figure><figcaption>{_text(fault.tensor)}, {rows} rows by {columns} columns: {bad:,} of {fault.heat.size:,} elements "
        f'past their bound</figcaption><img alt="heat map of {_text(fault.tensor)}" style="height:{height}px" '
        f'src="data:image/png;base64,{image}"><div class="legend">{legend}</div></figure>'
    )


def _pooled(array: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """At most so many rows and columns: the largest of each block."""
    tall, wide = -(-array.shape[0] // rows), -(-array.shape[1] // columns)
    padded = np.zeros((-(-array.shape[0] // tall) * tall, -(-array.shape[1] // wide) * wide))
    padded[: array.shape[0], : array.shape[1]] = array
    return padded.reshape(padded.shape[0] // tall, tall, padded.shape[1] // wide, wide).max((1, 3))


def _png(pixels: np.ndarray) -> bytes:
    """An 8-bit RGB image [height, width, 3] as PNG."""
    height, width, _ = pixels.shape
    raw = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b"")


# -- verdicts and tables -------------------------------------------------------------------------
def _verdicts(report: Report) -> str:
    if not report.comparisons:
        return "".join(f'<p class="note">{_text(note)}</p>' for note in report.notes)
    rows = []
    for comparison in report.comparisons:
        greedy = f"{comparison.greedy.agree}/{comparison.greedy.tokens}" if comparison.greedy is not None else "–"
        rows.append(
            f"<tr><td>{_text(comparison.deployment)}</td><td>{comparison.mode}</td>"
            f'<td class="{comparison.verdict}">{comparison.verdict}</td><td>{_bar(comparison.worst)}</td><td>{_text(comparison.where)}</td>'
            f"<td>{greedy}</td></tr>"
        )
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in dict.fromkeys(report.notes))
    return (
        "<section><h2>Comparisons</h2><table><thead><tr><th>deployment</th><th>mode</th><th>verdict</th><th>worst, of its bound</th>"
        f"<th>at</th><th>greedy</th></tr></thead><tbody>{''.join(rows)}</tbody></table>{notes}</section>"
    )


def _details(comparison: Comparison) -> str:
    opened = " open" if comparison.verdict == "differs" else ""
    parts = []
    if comparison.rows:
        parts += [_plot(comparison.rows), _layer_table(comparison.rows)]
    if comparison.ops:
        parts.append(_op_table(comparison))
    notes = "".join(f'<p class="note">{_text(note)}</p>' for note in comparison.notes)
    return (
        f"<details{opened}><summary>{_text(comparison.deployment)}, {comparison.mode} mode: "
        f'<span class="{comparison.verdict}">{comparison.verdict}</span></summary>{"".join(parts)}{notes}</details>'
    )


def _plot(rows: Sequence[Row]) -> str:
    """The error of the whole run by layer, as a fraction of its bound, on a logarithmic axis; 1 is the bound."""
    width, height, left, right, top, bottom = 760, 260, 64, 48, 16, 40
    values = [min(max(row.fraction, 1e-4), 1e9) for row in rows]
    low = math.floor(min(-2.0, *(math.log10(value) for value in values)))
    high = math.ceil(max(1.0, *(math.log10(value) for value in values)))
    step = (width - left - right) / max(len(rows) - 1, 1)

    def x(place: int) -> float:
        return left + place * step

    def y(value: float) -> float:
        return top + (high - math.log10(value)) / (high - low) * (height - top - bottom)

    every = max(1, (high - low) // 6)
    grid = "".join(
        f'<line x1="{left}" x2="{width - right}" y1="{y(10.0**power):.1f}" y2="{y(10.0**power):.1f}" '
        f'class="{"grid" if power else "limit"}"/>'
        f'<text x="{left - 8}" y="{y(10.0**power) + 4:.1f}" class="tick end">{_power(power)}</text>'
        for power in range(low, high + 1)
        if power % every == 0
    )
    labels = max(1, len(rows) // 12)
    named = "".join(
        f'<text x="{x(i):.1f}" y="{height - bottom + 20}" class="tick middle">{_text(row.label)}</text>'
        for i, row in enumerate(rows)
        if i % labels == 0 or i == len(rows) - 1
    )
    line = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values))
    dots = "".join(
        f'<circle cx="{x(i):.1f}" cy="{y(values[i]):.1f}" r="4" class="{"over" if row.fraction > 1 else "under"}">'
        f"<title>{_text(row.label)}: {row.fraction:.3g} of its bound</title></circle>"
        for i, row in enumerate(rows)
    )
    return (
        f'<figure><figcaption>Error by layer, as a fraction of its bound</figcaption><svg viewBox="0 0 {width} {height}" role="img">'
        f'{grid}<text x="{width - right}" y="{y(1.0) - 6:.1f}" class="tick end">the bound</text>{named}'
        f'<polyline points="{line}" class="line"/>{dots}</svg></figure>'
    )


def _power(power: int) -> str:
    return {0: "1", 1: "10", 2: "100", -1: "0.1", -2: "0.01"}.get(power, f"1e{power}")


def _layer_table(rows: Sequence[Row]) -> str:
    cells = "".join(
        f"<tr><td>{_text(row.label)}</td><td class='n'>{row.max_ulp:,.3g}</td><td class='n'>{row.nmse:.2g}</td>"
        f"<td class='n'>{row.cosine:.9f}</td>"
        f"<td class='n'>{row.bound:.2g}</td><td>{_bar(row.fraction)}</td></tr>"
        for row in rows
    )
    return (
        "<table><thead><tr><th>after</th><th class='n'>max ulp</th><th class='n'>NMSE</th><th class='n'>cosine</th>"
        "<th class='n'>bound</th><th>of its bound</th></tr></thead>"
        f"<tbody>{cells}</tbody></table>"
    )


def _op_table(comparison: Comparison) -> str:
    shown = comparison.ops[:LISTED_OPS]
    cells = "".join(
        f"<tr><td>{'' if op.layer is None else op.layer}</td><td><code>{_text(op.op)}</code></td><td>{_text(op.tensor)}</td>"
        f"<td>{_text(op.file)}:{op.line}</td><td>{_bar(op.fraction)}</td></tr>"
        for op in shown
    )
    more = f"<p class='note'>{len(comparison.ops) - LISTED_OPS} more are not shown.</p>" if len(comparison.ops) > LISTED_OPS else ""
    return (
        "<h3>Op by op, each on the original's operands</h3><table><thead><tr><th>layer</th><th>op</th><th>tensor of the original</th>"
        f"<th>line</th><th>of its bound</th></tr></thead><tbody>{cells}</tbody></table>{more}"
    )


def _bar(fraction: float) -> str:
    share = 100.0 if fraction > 1 else 100.0 * fraction
    kind = "over" if fraction > 1 else "under"
    return f'<span class="bar"><i class="{kind}" style="width:{share:.1f}%"></i></span> <span class="{kind}">{fraction:.2g}</span>'
