"""Every example in the documentation runs.

Fences understood, by their info string:

    ```poem NAME.poem      a complete package: it loads and every deployment traces
    ```poem-error CODE     a package that is refused with that code
    ```poem-fragment       part of a package: it parses
    ```starlark            lines `expression  # -> result`, evaluated as a package would
    ```python              Python, run in a folder that holds the packages of the page (the README's in the checkout)
"""

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest

import poem
from poem.errors import PoemError
from poem.graph import Graph

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(?P<info>[^\n`]+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FUNCTIONS = """
def layout(id, deploy): return struct(w = weight([2, 2], dtype.bf16))
def formats(m): return [format("hub", read = [("w", "w")])]
def caches(m, c): pass
def forward(m, inputs): output("ids", ops.gather.gather_rows(inputs.tokens(), inputs.readout_rows()))
"""
HEADER = """
MODELS = [model("example", template = template("raw", stop = ["</s>"]), tokenizer = tokenizer())]
DEPLOYMENTS = [deployment("example", weights = dtype.bf16, kv = dtype.bf16)]
"""


class Example(NamedTuple):
    page: Path
    line: int
    language: str
    argument: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def examples(*languages: str) -> list[Example]:
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in FENCE.finditer(text):
            language, _, argument = match["info"].strip().partition(" ")
            if language in languages:
                found.append(Example(page, text.count("\n", 0, match.start()) + 1, language, argument, match["text"]))
    return found


def packages_of(page: Path, folder: Path) -> None:
    for example in examples("poem"):
        if example.page == page:
            (folder / example.argument).write_text(example.text)


def traced(path: Path) -> list[Graph]:
    """The graphs of every deployment of a package."""
    package = poem.load_package(path)
    return [package.trace(deployment) for deployment in package.deployments.values()]


@pytest.mark.parametrize("example", examples("poem"), ids=str)
def test_a_package_in_the_docs_traces(example: Example, tmp_path: Path) -> None:
    (tmp_path / example.argument).write_text(example.text)
    assert all(graph.nodes for graph in traced(tmp_path / example.argument))


@pytest.mark.parametrize("example", examples("poem-error"), ids=str)
def test_a_wrong_package_in_the_docs_is_refused_as_it_says(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "wrong.poem"
    path.write_text(example.text)
    with pytest.raises(PoemError) as caught:
        traced(path)
    assert caught.value.code == example.argument, caught.value.render()


@pytest.mark.parametrize("example", examples("poem-fragment"), ids=str)
def test_a_fragment_in_the_docs_loads(example: Example, tmp_path: Path) -> None:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "blocks.poem").write_text("def attention():\n    pass\n\ndef swiglu():\n    pass\n")
    functions = "\n".join(line for line in FUNCTIONS.splitlines() if line[:10] not in example.text)
    # `stack` and `src` belong to the formats phase: put what uses them there
    body = example.text.replace("\n", "\n    ") if "stack(" in example.text else "pass"
    text = f"def later():\n    {body}\n" if body != "pass" else example.text
    (tmp_path / "fragment.poem").write_text(f"{text}\n{HEADER}\n{functions}")
    assert poem.load_package(tmp_path / "fragment.poem").models


@pytest.mark.parametrize("example", examples("starlark"), ids=str)
def test_an_expression_in_the_docs_gives_what_it_says(example: Example, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split("  # -> ") for line in example.text.splitlines() if line.strip()]
    shown = "".join(f"print(repr({expression}))\n" for expression, _ in lines)
    path = tmp_path / "expressions.poem"
    path.write_text(shown + HEADER + FUNCTIONS)
    poem.load_package(path)
    printed = [line.split(": ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    for (expression, want), got in zip(lines, printed, strict=True):
        assert got == want, f"{expression}: got {got}, the page says {want}"


@pytest.mark.parametrize("example", examples("python"), ids=str)
def test_python_in_the_docs_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packages_of(example.page, tmp_path)
    monkeypatch.chdir(ROOT if example.page.parent == ROOT else tmp_path)
    exec(compile(example.text, str(example), "exec"), {"__name__": "__example__", "json": json})
