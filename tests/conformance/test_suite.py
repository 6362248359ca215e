"""The suite: what it runs, how it reports, what it refuses."""

import json
from typing import Any

import numpy as np
import pytest

from conformance import suite
from conformance.examples import Case, Outcome, example, judge
from conformance.suite import Cell, Plan, Support, run_suite
from conformance.suite_text import as_text
from poem.cli import main
from poem.errors import UsageError


def plan(*patterns: str, **settings: Any) -> Plan:
    return Plan(("interp",), patterns, rounds=2, processes=1, **settings)


def test_a_cell_is_an_op_with_a_dtype_of_its_values_and_one_of_its_weights() -> None:
    report = run_suite(plan("gather.embed", dtype="u4*"))
    kinds = [(dtype, weights) for dtype in ("bf16", "f32") for weights in ("u4g64", "u4g32")]
    assert set(report.cells) == {Cell("gather.embed", *kind, "interp") for kind in kinds}
    assert all(support.examples == 2 and not support.failed for support in report.cells.values())
    assert report.missed == 0


def test_patterns_choose_ops_and_dtypes() -> None:
    assert {cell.name for cell in run_suite(plan(op="attn.kv*")).cells} == {"attn.kv_append", "attn.kv_append_shared"}
    assert {(cell.dtype, cell.weights) for cell in run_suite(plan("linear.matmul:f32:nvfp4")).cells} == {("f32", "nvfp4")}
    huge = {cell.name for cell in run_suite(plan("attn.*:bf16:-:huge")).cells}
    assert "attn.sink" in huge
    assert "attn.attend" not in huge, "attention has no huge examples"


def test_an_example_is_run_by_its_name_alone() -> None:
    report = run_suite(plan("linear.glu:f32:-:huge:3", "linear.glu:f32:-:tiny:4"))
    assert report.cells == {Cell("linear.glu", "f32", "", "interp"): report.cells[Cell("linear.glu", "f32", "", "interp")]}
    assert report.examples == 2


def test_the_same_seed_gives_the_same_table_however_many_processes_work() -> None:
    one, two = (
        run_suite(Plan(("interp",), ("elemwise.s*",), seed=5, rounds=3, processes=processes, budget=600)) for processes in (1, 2)
    )  # fmt: skip
    assert one.cells == two.cells


def test_what_time_does_not_suffice_for_is_counted() -> None:
    report = run_suite(Plan(("interp",), ("linear.*",), budget=0.0, processes=1))
    assert report.missed > 50
    assert "the time did not suffice" in as_text(report)


def wrong(found: Any, session: Any) -> Outcome:
    """Judges examples of more than one pass as wrong."""
    outcome = judge(found, session)
    if len(found.passes) == 1:
        return outcome
    return Outcome(3.5, 7, outcome.judged, "it is past its bound: rounding")


def test_a_failure_is_shown_first_in_its_simplest_form_with_the_command_that_repeats_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "judge", wrong)
    report = run_suite(Plan(("interp",), ("elemwise.silu:f32",), rounds=12, processes=1))
    failure = report.failures[0]
    least = example(Case.of(failure.case))
    assert [len(pass_.batch) for pass_ in least.passes] == [1, 1], "the first batch of two passes"
    assert set(least.picks[1:]) == {0}
    lines = as_text(report).splitlines()
    assert lines[0] == f"{failure.case} on interp"
    assert "it is past its bound: rounding" in lines[1]
    assert f"  again  poem conformance {failure.case} --device interp" in lines
    assert lines[-1].startswith("DIFFERS: ")


def test_support_is_merged_by_its_worst() -> None:
    support = Support(2, 1.5, 0.25)
    support.merge(Support(3, 0.5, 0.75, refused=1, refusal="no kernel"))
    assert support == Support(5, 1.5, 0.75, 1, "no kernel")


def test_an_op_without_a_kernel_has_no_figures_on_that_device() -> None:
    report = run_suite(Plan(("interp", "emu"), ("gather.topk:f32",), rounds=1, processes=1))
    line = next(line for line in as_text(report).splitlines() if line.startswith("gather.topk"))
    assert line.endswith("no kernel")


@pytest.mark.parametrize("pattern", ["linear.matmull", "linear.matmul:bf16:-:odd:1"])
def test_names_of_nothing_are_refused(pattern: str) -> None:
    with pytest.raises(UsageError):
        run_suite(plan(pattern))


def test_the_command_prints_a_table_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["conformance", "gather.select", "--device", "interp", "--rounds", "1"]
    assert main.main(arguments) == 0
    assert "gather.select  bf16" in capsys.readouterr().out
    assert main.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"] == "agrees"
    assert {(row["name"], row["dtype"]) for row in found["support"]} == {("gather.select", "bf16"), ("gather.select", "f32")}


@pytest.mark.parametrize("wrong", [["--budget", "0"], ["--rounds", "0"], ["no.such.op"]])
def test_the_command_refuses_what_makes_no_sense(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["conformance", *wrong]) == 2
    assert "[conformance." in capsys.readouterr().err


def test_a_device_that_is_not_there_is_told_at_once(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert main.main(["conformance", "gather.select", "--device", "cuda"]) == 2
    assert np.char.count(capsys.readouterr().err, "\n") <= 5
