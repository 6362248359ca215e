"""The report of `bench.gpu`: its JSON and its tables.

    {"format": 1, "started": "2026-11-30T12:00:00+00:00", "seconds": 281.0, "command": ["--only", ...], "device": "NVIDIA H200",
     "arch": "sm_90a", "compiled": {"kernels": 212, "late": 0, "seconds": 9.1, "failed": []},
     "stages": [{"name": "kernels", "title": ..., "budget": 80, "seconds": 61.2, "error": null or a fault,
                 "cases": [{"name": ..., "seconds": 1.2, "result": {...}} or {..., "error": a fault} or {..., "skipped": "why"}]}]}

A fault is {"code", "message"} and perhaps "traceback". `ok` in a result is true, false, or null where nothing was compared. Times are
seconds.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FORMAT = 1
COPY = 4.3  # TB/s, where the copy was not measured


def result_of(report: Mapping[str, Any], stage: str, case: str) -> Mapping[str, Any]:
    """The result of a case, empty where there is none."""
    for found in report["stages"]:
        for each in found["cases"]:
            if (found["name"], each["name"]) == (stage, case):
                return dict(each.get("result") or {})
    return {}


def failed(report: Mapping[str, Any]) -> bool:
    """Whether a comparison differs, or something could not be run."""
    if (report["compiled"] or {}).get("failed"):
        return True
    return any(
        stage["error"] or any("error" in case or case.get("result", {}).get("ok") is False for case in stage["cases"])
        for stage in report["stages"]
    )


def as_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """The report as a person reads it: a table for each stage."""
    yield f"{report['device'] or 'no device'}, {report['arch']}, {report['seconds']:.0f} s"
    compiled = report.get("compiled")
    if compiled:
        late = f", {compiled['late']} were late" if compiled["late"] else ""
        yield f"compiled {compiled['kernels']} kernels in {compiled['seconds']:.1f} s{late}"
        yield from (f"  {kernel}: {message}" for kernel, message in compiled["failed"])
    copied = result_of(report, "facts", "copy").get("value") or COPY
    for stage in report["stages"]:
        yield ""
        yield f"{stage['title']} ({stage['seconds']:.0f} s)"
        if stage["error"]:
            yield f"  {stage['error']['code']}: {stage['error']['message']}"
        rows = [_row(stage["name"], case, copied) for case in stage["cases"] if stage["name"] not in QUIET or _is_loud(case)]
        header = HEADERS.get(stage["name"])
        yield from _table([header, *rows] if header and rows else rows)
        yield from _counts(stage)


HEADERS: dict[str, list[str]] = {
    "kernels": ["", "", "value", "of copy", "target", "first", "rival", "", "seconds"],
    "model": ["", "", "tokens/s", "ms", "graph ms", "floor ms", "launches"],
}
QUIET = ("selftest", "conformance")  # stages whose cases are told only if they do not agree, or have more to tell


def _row(stage: str, case: Mapping[str, Any], copied: float) -> list[str]:
    verdict = _verdict(case)
    if "result" not in case:
        return [case["name"], verdict, case.get("skipped") or f"{case['error']['code']}: {case['error']['message']}"[:110]]
    result = case["result"]
    if stage == "kernels":
        return [case["name"], verdict, *_speed(result, copied)]
    if stage == "model":
        times = [1e3 * result[key] if key in result else None for key in ("seconds", "graph_seconds", "floor")]
        return [case["name"], verdict, f"{result['value']:.0f}", *map(_number, times), str(result.get("launches", ""))]
    return [case["name"], verdict, _told(result)]


def _is_loud(case: Mapping[str, Any]) -> bool:
    return _verdict(case) in ("FAILED", "DIFFERS") or any(key in case.get("result", {}) for key in ("where", "bits kept"))


def _verdict(case: Mapping[str, Any]) -> str:
    if "error" in case:
        return "FAILED"
    if "skipped" in case:
        return "skipped"
    return {True: "ok", False: "DIFFERS", None: ""}[case["result"].get("ok")]


def _speed(result: Mapping[str, Any], copied: float) -> list[str]:
    """A value in its unit, as part of the copy's, what is to be reached, and the rival's."""
    rival = result.get("rival") or {}
    fraction = f"{result['value'] / copied:.0%}" if result["unit"] == "TB/s" else ""
    other = _number(rival.get("value")) if "value" in rival else "failed" if rival else ""
    named = f"{rival['name']}: {rival['error']}"[:90] if "error" in rival else rival.get("name", "")
    return [
        f"{_number(result['value'])} {result['unit']}", fraction, _number(result["target"]), _number(result["first"]), other, named,
        f"{result['seconds']:.3g}",
    ]  # fmt: skip


def _told(result: Mapping[str, Any]) -> str:
    """A result in words."""
    if "unit" in result:
        return f"{_number(result['value'])} {result['unit']}"
    words = [
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in result.items() if _is_told(key, value)
    ]
    return ", ".join(words)


def _is_told(key: str, value: object) -> bool:
    return key != "ok" and value not in (None, "", [], {}) and not isinstance(value, dict)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def _counts(stage: Mapping[str, Any]) -> Iterator[str]:
    verdicts = [_verdict(case) for case in stage["cases"]]
    if stage["name"] in QUIET and verdicts:
        words = {"ok": "agree", "DIFFERS": "differ", "FAILED": "failed", "skipped": "left out", "": "not comparable"}
        yield "  " + ", ".join(f"{verdicts.count(key)} {word}" for key, word in words.items() if key in verdicts)


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths: dict[int, int] = {}
    for row in rows:
        for column, cell in enumerate(row[:-1]):
            widths[column] = max(widths.get(column, 0), len(cell))
    for row in rows:
        yield "  " + "  ".join(cell.ljust(widths.get(column, 0)) for column, cell in enumerate(row)).rstrip()
