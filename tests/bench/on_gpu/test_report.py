"""The report: what it says failed, and its tables."""

import copy
from typing import Any

import pytest

from bench.on_gpu import report

TIMED = {
    "unit": "TB/s", "value": 3.44, "seconds": 6.2e-4, "target": 3.9, "first": 3.4, "ok": True,
    "rival": {"name": "torch add, rms_norm", "value": 2.1},
}  # fmt: skip
REPORT: dict[str, Any] = {
    "format": 1, "started": "2026-11-30T12:00:00+00:00", "seconds": 200.0, "command": [], "device": "NVIDIA H200", "arch": "sm_90a",
    "compiled": {"kernels": 212, "late": 0, "seconds": 9.14, "failed": []},
    "stages": [
        {"name": "facts", "title": "the device", "budget": 30, "seconds": 4.0, "error": None, "cases": [
            {"name": "copy", "seconds": 1.0, "result": {"unit": "TB/s", "value": 4.3}},
        ]},
        {"name": "selftest", "title": "wrappers", "budget": 30, "seconds": 4.0, "error": None, "cases": [
            {"name": "mma bf16", "seconds": 0.1, "result": {"ok": True, "problems": []}},
            {"name": "mma e4m3, bits kept", "seconds": 0.1, "result": {"ok": True, "problems": [], "bits kept": 14}},
        ]},
        {"name": "kernels", "title": "kernels", "budget": 80, "seconds": 50.0, "error": None, "cases": [
            {"name": "add + rmsnorm", "seconds": 1.0, "result": TIMED},
            {"name": "product", "seconds": 1.0, "result": {**TIMED, "unit": "TFLOP/s", "value": 612.0,
                                                           "rival": {"name": "t", "error": "no"}}},
        ]},
        {"name": "model", "title": "models", "budget": 80, "seconds": 50.0, "error": None, "cases": [
            {"name": "decode 16", "seconds": 9.0, "result": {"ok": True, "value": 2712.3, "unit": "tokens/s", "seconds": 0.0059,
                                                             "graph_seconds": 0.0051, "floor": 0.0039, "launches": 260}},
            {"name": "decode 64", "skipped": "no time was left of 80 s"},
        ]},
    ],
}  # fmt: skip


def changed(stage: int, case: int, value: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(REPORT)
    found["stages"][stage]["cases"][case] = value
    return found


def test_nothing_failed_where_all_agrees_and_some_was_left_out() -> None:
    assert not report.failed(REPORT)


@pytest.mark.parametrize(
    "found",
    [
        changed(1, 0, {"name": "mma bf16", "seconds": 0.1, "result": {"ok": False, "problems": ["1 of 128 elements differ"]}}),
        changed(1, 0, {"name": "mma bf16", "error": {"code": "died", "message": "the process ended with status -11"}}),
        {**REPORT, "compiled": {**REPORT["compiled"], "failed": [("a.cu: k", "no")]}},
        {**REPORT, "stages": [{**REPORT["stages"][0], "error": {"code": "time", "message": "not done"}}]},
    ],
)
def test_what_differs_fails_or_does_not_compile_is_a_failure(found: dict[str, Any]) -> None:
    assert report.failed(found)


def test_the_tables_are_what_a_person_reads() -> None:
    assert (
        "\n".join(report.as_lines(REPORT))
        == """\
NVIDIA H200, sm_90a, 200 s
compiled 212 kernels in 9.1 s

the device (4 s)
  copy    4.3 TB/s

wrappers (4 s)
  mma e4m3, bits kept  ok  bits kept 14
  2 agree

kernels (50 s)
                     value        of copy  target  first  rival                        seconds
  add + rmsnorm  ok  3.44 TB/s    80%      3.9     3.4    2.1     torch add, rms_norm  0.00062
  product        ok  612 TFLOP/s           3.9     3.4    failed  t: no                0.00062

models (50 s)
                      tokens/s  ms   graph ms  floor ms  launches
  decode 16  ok       2712      5.9  5.1       3.9       260
  decode 64  skipped  no time was left of 80 s"""
    )


def test_a_case_that_differs_or_failed_is_told_in_a_stage_that_is_else_quiet() -> None:
    wrong = {"name": "mma bf16", "seconds": 0.1, "result": {"ok": False, "problems": ["1 of 128 elements differ"]}}
    lines = list(report.as_lines(changed(1, 0, wrong)))
    assert "  mma bf16             DIFFERS  problems ['1 of 128 elements differ']" in lines
    assert "  1 agree, 1 differ" in lines
    died = {"name": "mma bf16", "error": {"code": "died", "message": "the process ended with status -11"}}
    assert "  mma bf16             FAILED  died: the process ended with status -11" in list(report.as_lines(changed(1, 0, died)))


def test_a_stage_that_could_not_start_says_why() -> None:
    found = {
        **REPORT,
        "stages": [{**REPORT["stages"][2], "cases": [], "error": {"code": "died", "message": "no module"}}],
        "compiled": None,
    }
    assert list(report.as_lines(found))[-2:] == ["kernels (50 s)", "  died: no module"]
