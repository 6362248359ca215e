"""The pages of docs/ops are those that the registry gives."""

import re
from pathlib import Path

import pytest

from poem.ops import REGISTRY
from poem.ops.documentation import ATTRIBUTE_VALUES, as_data, as_text, pages, value_as_text
from poem.ops.record import Op

FOLDER = Path(__file__).parents[3] / "docs" / "ops"
PAGES = pages()


@pytest.mark.parametrize("name", PAGES)
def test_the_committed_page_is_the_generated_one(name: str) -> None:
    assert (FOLDER / name).read_text() == PAGES[name], f"run `python -m poem.ops.documentation docs/ops` and commit docs/ops/{name}"


def test_there_is_no_other_page_but_the_conventions() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {*PAGES, "conventions.md"}


@pytest.mark.parametrize("op", REGISTRY.values(), ids=lambda op: op.full_name)
def test_the_page_of_an_op_holds_its_signature_parameters_and_rules(op: Op) -> None:
    page = PAGES[f"{op.namespace}.md"]
    _, found, rest = page.partition(f"\n## {op.name}\n")
    assert found
    section = rest.split("\n## ")[0]
    assert f"`{op.signature()}`" in section
    for parameter in op.parameters:
        assert f"| `{parameter.name}` |" in section
    assert re.findall(r"^(\d+)\. ", section.split("**Rules**")[-1] if op.rules else "", re.MULTILINE) == [str(n) for n in op.rules]


@pytest.mark.parametrize("name", [*PAGES, "conventions.md"])
def test_links_between_the_pages_lead_somewhere(name: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", (FOLDER / name).read_text()):
        file, _, heading = target.partition("#")
        text = (FOLDER / (file or name)).read_text()
        assert not heading or re.search(rf"^## {heading}$", text, re.MULTILINE), f"{name} links to {target}"


@pytest.mark.parametrize("name", [*PAGES, "conventions.md"])
def test_fences_and_tables_of_the_pages_are_whole(name: str) -> None:
    text = (FOLDER / name).read_text()
    assert text.count("```") % 2 == 0
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", prose, re.MULTILINE)
    for table in tables:
        columns = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
        assert len(columns) == 1, table


def test_the_terminal_shows_everything_the_record_holds() -> None:
    shown = as_text(REGISTRY["attn.attend"])
    for text in REGISTRY["attn.attend"].documentation.values():
        for line in text.splitlines():
            assert line.strip() in shown
    assert "  kv_heads     int >= 1\n" in shown
    assert "  lse          True or False (default False)\n" in shown


def test_the_data_of_an_op_has_these_fields() -> None:
    data = as_data(REGISTRY["attn.kv_append"])
    assert set(data) == {
        "name", "signature", "summary", "extension", "effect", "same_as", "parameters", "rules",
        "shapes", "formula", "rounding", "edge", "for", "public",
    }  # fmt: skip
    assert data["effect"] == "cache"
    assert data["parameters"][0] == {
        "name": "k", "takes": "value of f32, f16 or bf16", "required": True, "default": None, "none_allowed": False,
    }  # fmt: skip
    assert set(data["rules"]) == {"1", "2", "3"}


@pytest.mark.parametrize("name", ATTRIBUTE_VALUES)
def test_attribute_values_are_explained(name: str) -> None:
    assert value_as_text(name).startswith(f"{name}(")
    assert f"\n### {name}\n" in PAGES["values.md"]
