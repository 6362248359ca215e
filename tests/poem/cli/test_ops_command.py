"""`poem ops` lists the ops and explains one."""

import json

import pytest

from poem.cli import ops_
from poem.cli.main import main
from poem.ops import NAMESPACES, REGISTRY, Op


def test_without_a_name_every_op_is_listed_by_namespace(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert [line for line in lines if line and not line.startswith(" ")] == [f"ops.{namespace}" for namespace in NAMESPACES]
    assert len([line for line in lines if line.startswith("  ")]) == len(REGISTRY)
    assert next(line for line in lines if line.startswith("  matmul ")).split()[1:3] == ["Matrix", "product"]
    assert "[extension" in next(line for line in lines if line.startswith("  hc_gates "))


def test_a_namespace_lists_its_ops(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "ops.sampling"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0] == "ops.sampling"
    assert [line.split()[0] for line in shown[1:]] == ["argmax"]


def test_the_list_says_what_the_interpreter_lacks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(ops_, "in_interpreter", lambda op: op.name != "lm_head")
    assert main(["ops", "linear"]) == 0
    lacking = [line.split()[0] for line in capsys.readouterr().out.splitlines() if "not in the interpreter" in line]
    assert lacking == ["lm_head"]


def test_the_interpreter_has_an_op_when_its_shelf_has_the_function() -> None:
    assert ops_.in_interpreter(REGISTRY["linear.matmul"])
    rule = REGISTRY["linear.matmul"].rule
    assert not ops_.in_interpreter(Op("linear", "no_such_op", rule))
    assert not ops_.in_interpreter(Op("no_such_shelf", "matmul", rule))


@pytest.mark.parametrize("name", ["matmul", "linear.matmul", "ops.linear.matmul"])
def test_a_name_is_explained_with_its_rules(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", name]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("ops.linear.matmul(x, w, out=None)\n")
    for part in ("Shapes", "Formula", "Rounding", "Rules", "2. w.shape[1] == x.width.", "Public equivalents", "nn.Linear"):
        assert part in shown


def test_a_rope_scaling_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "yarn"]) == 0
    assert "beta_fast=32.0" in capsys.readouterr().out


def test_a_rope_scaling_comes_as_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "llama3", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["name"] == "llama3"
    assert record["signature"] == "llama3(factor, low_freq_factor, high_freq_factor, original_max_position)"
    assert "Formula" in record["documentation"]


def test_the_records_come_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {record["name"] for record in listed} == set(REGISTRY)
    assert all(isinstance(record["interpreter"], bool) for record in listed)
    assert main(["ops", "glu", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["name"] == "linear.glu"
    assert record["rules"]["6"] == "limit > 0."


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("matmull", "did you mean `matmul`?"),
        ("mlp_swiglu", "use ops.linear.glu(x, inter)"),
        ("attn.decode", "use ops.attn.attend("),
        ("layout.embed", "use ops.gather.embed(ids, table, vocab)"),
        ("qqqqqqqq", "`poem ops` lists them all"),
    ],
)
def test_an_unknown_name_is_refused_with_what_to_try(name: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", name]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert f"there is no op `{name}` [ops.unknown]" in shown.err
    assert hint in shown.err


def test_an_unknown_name_is_refused_in_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "matmull", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "ops.unknown"
