"""Reports: what the text says and in which order, what the JSON holds, and that the page stands alone."""

import io
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conformance.report import Comparison, Fault, Greedy, Line, Op, Report, Row, Trace
from conformance.report_html import page
from conformance.report_text import Style, render

INF = float("inf")


def fault(**changes: Any) -> Fault:
    usual = Fault(
        op="elemwise.rope", layer=0, line=Line("lib/blocks.poem", 5, "q, k = ops.elemwise.rope(q, k)", ["llama_3.poem:160"]), handed=False,
        instead="", tensor="attention.0.query", index=[3, 17], got=0.5, want=0.25, ulps=8388608, bound=1e-7,
        reason="f32 rounding of each step", fraction=2.5e6, special=0, region=[], again=[1], heat=np.array([[0.5, 2.5e6], [INF, 0.0]]),
    )  # fmt: skip
    return replace(usual, **changes)


def comparison(**changes: Any) -> Comparison:
    usual = Comparison(
        deployment="llama31-mini-bf16-kv-bf16", model="llama31-mini", mode="exact", golden="goldens/llama31-mini", verdict="agrees",
        worst=0.9, where="hidden.1", reason="f32 rounding", seconds=0.1,
        rows=[Row("hidden.0", None, 0, 0.0, 1.0, 0.0, 0.0, [0, 0]), Row("hidden.1", 0, 9.5, 5e-14, 1.0, 0.02, 5e-4, [1, 2]),
              Row("logits", None, 20.0, 1e-13, 1.0, 0.03, 4e-4, [2, 3])],
        ops=[Op("elemwise.rope", 0, "attention.0.query", "lib/blocks.poem", 5, 0.2)], greedy=Greedy(8, 8, [], []),
    )  # fmt: skip
    return replace(usual, **changes)


def wrong(**changes: Any) -> Comparison:
    rows = [Row("hidden.0", None, 0, 0.0, 1.0, 0.0, 0.0, [0, 0]), Row("hidden.1", 0, 5e6, 0.01, 0.9948, 6550.0, 5e-4, [1, 2]),
            Row("logits", None, 1e7, 0.02, 0.99, 5790.0, 4e-4, [2, 3])]  # fmt: skip
    greedy = Greedy(8, 6, [[26, 1, 2]], [[25, 212, 199]])
    return replace(comparison(verdict="differs", worst=2.5e6, rows=rows, faults=[fault()], greedy=greedy), **changes)


def report(*comparisons: Comparison, notes: list[str] | None = None) -> Report:
    traces = [Trace("llama31-mini-bf16-kv-bf16", "llama31-mini", 30, 19)]
    return Report("llama_3", "models/llama_3.poem", traces, list(comparisons), notes or [], 0, ["poem-check", "models/llama_3.poem"], 0.5)


def plain(found: Report) -> str:
    return render(found, Style(io.StringIO()))


def test_agreement_is_a_line_a_comparison_and_a_verdict() -> None:
    assert plain(report(comparison(), comparison(mode="native"))) == (
        "models/llama_3.poem: traced 1 deployment of 1 model, 30 ops\n"
        "  llama31-mini-bf16-kv-bf16  exact   agrees   greedy 8/8  worst 0.9 of its bound (f32 rounding)\n"
        "  llama31-mini-bf16-kv-bf16  native  agrees   greedy 8/8  worst 0.9 of its bound (f32 rounding)\n"
        "llama_3 agrees: 2 of 2 comparisons, in 0.50 s"
    )


def test_a_difference_says_first_what_differs_then_the_table_by_layer_then_how_to_rerun() -> None:
    assert plain(report(wrong())) == (
        "DIFFERS  llama31-mini-bf16-kv-bf16, exact mode, from goldens/llama31-mini\n"
        "\n"
        "First divergence: layer 0, ops.elemwise.rope\n"
        "  lib/blocks.poem:5  q, k = ops.elemwise.rope(q, k)\n"
        "    called from llama_3.poem:160\n"
        "  gives a result that is not the original's attention.0.query\n"
        "  at [3, 17]: got 0.5, want 0.25, 8,388,608 ulp apart\n"
        "  |got - want| = 0.25, 2.5e+06 times the bound 1e-07: f32 rounding of each step\n"
        "  the same line differs in layer 1\n"
        "Greedy: token 25 is 212, the original's is 199; 1 of 8 tokens differ\n"
        "\n"
        "                      max ulp       NMSE       cosine   of bound\n"
        "  embedding                 0          0  1.000000000          0\n"
        "  layer 0           5,000,000       0.01  0.994800000   6.55e+03  jump\n"
        "  logits           10,000,000       0.02  0.990000000   5.79e+03  growth\n"
        "\n"
        "To rerun: poem-check models/llama_3.poem --deployment llama31-mini-bf16-kv-bf16 --mode exact --only attention.0.query\n"
        "\n"
        "models/llama_3.poem: traced 1 deployment of 1 model, 30 ops\n"
        "  llama31-mini-bf16-kv-bf16  exact   DIFFERS  greedy 6/8, 1 tied  worst 2.5e+06 of its bound\n"
        "llama_3 differs: 0 of 1 comparison, in 0.50 s"
    )


def test_nan_and_infinity_come_before_everything_else() -> None:
    lines = plain(report(wrong(faults=[fault(special=12, got=float("nan"), fraction=INF)]))).splitlines()
    special = next(i for i, line in enumerate(lines) if "12 elements of attention.0.query" in line)
    assert special < next(i for i, line in enumerate(lines) if line.startswith("First divergence"))


def test_an_op_that_is_handed_the_wrong_tensor_says_which_one() -> None:
    text = plain(report(wrong(faults=[fault(handed=True, instead="attention.0.key", tensor="attention.0.value")])))
    assert "is handed the original's attention.0.key where the original hands over attention.0.value" in text


def test_a_fault_between_several_ops_lists_their_lines_and_how_to_get_finer() -> None:
    layer = fault(op="this layer", region=[Line("llama_3.poem", 7, "x = ops.elemwise.rmsnorm(y)", [])])
    text = plain(report(wrong(faults=[layer])))
    assert "layer 0, this layer" in text
    assert "llama_3.poem:7  x = ops.elemwise.rmsnorm(y)" in text
    assert "--against transformers" in text


def test_the_same_line_in_another_mode_is_not_explained_twice() -> None:
    assert plain(report(wrong(), wrong(mode="native"))).count("First divergence") == 1
    other = wrong(mode="native", faults=[fault(line=Line("llama_3.poem", 9, "z", []))])
    assert plain(report(wrong(), other)).count("First divergence") == 2


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[" in render(report(wrong()), Style(Terminal()))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in render(report(wrong()), Style(Terminal()))
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b[" not in render(report(wrong()), Style(io.StringIO()))


def test_a_package_without_goldens_is_traced_and_says_so() -> None:
    text = plain(report(notes=["no golden beside the package for x: nothing was compared. To make one: poem-check ..."]))
    assert "To make one" in text
    assert text.splitlines()[-1].startswith("llama_3 traced; nothing to compare with")


# -- JSON: the schema that docs/check.md states ---------------------------------------------------
NUMBER = (int, float, str)  # "nan", "inf" and "-inf" are text
SCHEMA: dict[str, Any] = {
    "schema": int, "verdict": str, "exit_code": int, "package": str, "file": str, "seed": int, "command": [str], "seconds": float,
    "notes": [str],
    "traces": [{"deployment": str, "model": str, "nodes": int, "weights": int}],
    "comparisons": [{
        "deployment": str, "model": str, "mode": str, "golden": str, "verdict": str, "worst": NUMBER, "where": str, "reason": str,
        "seconds": float, "notes": [str],
        "faults": [{
            "op": str, "layer": (int, type(None)), "line": {"file": str, "line": int, "text": str, "callers": [str]}, "handed": bool,
            "instead": str, "tensor": str, "index": [int], "got": NUMBER, "want": NUMBER, "ulps": int, "bound": NUMBER, "reason": str,
            "fraction": NUMBER, "special": int, "region": [{"file": str, "line": int, "text": str, "callers": [str]}], "again": [int],
            "whose": str,
        }],
        "rows": [{
            "tensor": str, "layer": (int, type(None)), "max_ulp": NUMBER, "nmse": NUMBER, "cosine": NUMBER, "fraction": NUMBER,
            "bound": NUMBER, "index": [int],
        }],
        "ops": [{"op": str, "layer": (int, type(None)), "tensor": str, "file": str, "line": int, "fraction": NUMBER}],
        "greedy": ({"tokens": int, "agree": int, "ties": [[int]], "differ": [[int]]}, None),
        "cost": ({"nmse": float, "agree": int, "rows": int}, None),
    }],
}  # fmt: skip


def conforms(item: Any, schema: Any, path: str = "") -> None:
    """Fail unless `item` has exactly the fields and types of `schema`."""
    if isinstance(schema, tuple) and not all(isinstance(kind, type) for kind in schema):
        if item is not None:
            conforms(item, schema[0], path)
    elif isinstance(schema, dict):
        assert isinstance(item, dict), path
        assert set(item) == set(schema), f"{path}: {sorted(set(item) ^ set(schema))}"
        for key, part in schema.items():
            conforms(item[key], part, f"{path}.{key}")
    elif isinstance(schema, list):
        assert isinstance(item, list), path
        for i, part in enumerate(item):
            conforms(part, schema[0], f"{path}[{i}]")
    else:
        assert isinstance(item, schema), f"{path} is {item!r}"
        assert not isinstance(item, bool) or schema is bool, path


def test_json_has_the_documented_schema_and_no_bare_nan() -> None:
    found = report(comparison(), wrong(faults=[fault(got=float("nan"), fraction=INF)]), comparison(greedy=None))
    text = json.dumps(found.as_json(), allow_nan=False)
    data = json.loads(text)
    conforms(data, SCHEMA)
    assert (data["schema"], data["verdict"], data["exit_code"]) == (1, "differs", 1)
    assert data["comparisons"][1]["faults"][0]["got"] == "nan"
    assert data["comparisons"][1]["faults"][0]["fraction"] == "inf"


def test_the_documentation_names_every_field_of_the_schema() -> None:
    text = (Path(__file__).parents[2] / "docs" / "check.md").read_text().partition("## JSON")[2]

    def fields(schema: Any) -> set[str]:
        if isinstance(schema, dict):
            return set(schema).union(*(fields(part) for part in schema.values()))
        return set().union(*(fields(part) for part in schema)) if isinstance(schema, (list, tuple)) else set()

    assert {field for field in fields(SCHEMA) if f"`{field}`" not in text} == set()


@pytest.mark.parametrize(("comparisons", "verdict", "code"), [
    ([], "traced", 0), ([comparison()], "agrees", 0), ([comparison(), wrong()], "differs", 1),
])  # fmt: skip
def test_the_verdict_gives_the_exit_code(comparisons: list[Comparison], verdict: str, code: int) -> None:
    found = report(*comparisons)
    assert (found.verdict, found.exit_code) == (verdict, code)


# -- the page -------------------------------------------------------------------------------------
class _Page(HTMLParser):
    """Collects links, and checks that tags close."""

    VOID = ("meta", "img", "br", "link", "line", "circle", "polyline", "path", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag, f"</{tag}> closes something else"


def test_the_page_stands_alone_and_holds_verdict_plot_heat_map_and_table() -> None:
    text = page(report(comparison(), wrong()))
    parser = _Page()
    parser.feed(text)
    assert parser.open == []
    assert all(source.startswith("data:") for source in parser.sources), parser.sources
    assert "url(" not in text
    assert "@import" not in text
    assert not re.search(r"<script", text)
    for part in ("differs from the original", "<svg", "data:image/png;base64,", "attention.0.query", "lib/blocks.poem:5", "Op by op"):
        assert part in text, part


def test_the_page_shows_what_users_wrote_as_text() -> None:
    text = page(report(wrong(faults=[fault(line=Line("a<b>.poem", 1, "x = '<script>'", []))])))
    assert "<script>" not in text
    assert "a&lt;b&gt;.poem" in text
