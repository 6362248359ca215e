"""A stage in a process of its own: a case that raises, dies or hangs costs itself and nothing else, and time is kept."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

from bench.on_gpu import stage
from bench.on_gpu.stage import Case, Stage, run_cases, watch
from cupy_backend.errors import KernelError

CHILD = """
import json, os, sys, time
sys.path.insert(0, {root!r})
from bench.on_gpu.stage import Case, described, run_cases
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
def fine(): return {{"ok": True, "pid": os.getpid()}}
def raises(): raise ValueError("wrong on purpose")
def hangs(): time.sleep(60)
def dies(): os.kill(os.getpid(), 11)
def slow(): time.sleep(0.6); return {{}}
{before}
cases = [Case(name, globals()[name.split()[0]]) for name in {names!r}]
sys.exit(run_cases(cases, set(json.loads(given["--skip"])), open(given["--events"], "a"), lambda: None))
"""


def watched(folder: Path, *names: str, before: str = "", seconds: float = 40, case_seconds: float = 10) -> dict[str, object]:
    script = folder / "child.py"
    script.write_text(CHILD.format(root=str(Path(__file__).parents[3]), names=list(names), before=before))
    told: list[str] = []
    found = watch(Stage("s", "a stage", seconds, case_seconds), [sys.executable, str(script)], time.monotonic() + 100, told.append)
    assert told == [name for name in names if "skipped" not in next(case for case in found["cases"] if case["name"] == name)]
    return found


def test_all_cases_run_in_one_process_as_long_as_none_fails(tmp_path: Path) -> None:
    found = watched(tmp_path, "fine 1", "fine 2", "fine 3")
    assert [case["name"] for case in found["cases"]] == ["fine 1", "fine 2", "fine 3"]
    assert len({case["result"]["pid"] for case in found["cases"]}) == 1
    assert found["error"] is None


def test_a_case_that_raises_is_told_and_the_others_run_in_a_new_process(tmp_path: Path) -> None:
    found = watched(tmp_path, "fine 1", "raises", "fine 2")
    first, wrong, second = found["cases"]
    assert (wrong["error"]["code"], wrong["error"]["message"]) == ("ValueError", "wrong on purpose")
    assert "in raises" in wrong["error"]["traceback"]
    assert first["result"]["pid"] != second["result"]["pid"]
    assert found["error"] is None


def test_a_case_that_ends_the_process_costs_only_itself(tmp_path: Path) -> None:
    found = watched(tmp_path, "fine 1", "dies", "fine 2")
    assert found["cases"][1]["error"]["message"] == "the process ended with status -11"
    assert [case["result"]["ok"] for case in (found["cases"][0], found["cases"][2])] == [True, True]


def test_a_case_that_hangs_is_ended(tmp_path: Path) -> None:
    found = watched(tmp_path, "fine 1", "hangs", "fine 2", case_seconds=4)
    assert found["cases"][1]["error"] == {"code": "time", "message": "not done within 4 s"}
    assert found["cases"][2]["result"]["ok"]


def test_when_the_stages_time_is_up_the_rest_is_left_out(tmp_path: Path) -> None:
    found = watched(tmp_path, "slow 1", *(f"slow {number}" for number in range(2, 30)), seconds=4)
    kinds = [next(key for key in ("result", "error", "skipped") if key in case) for case in found["cases"]]
    assert kinds[0] == "result"
    assert kinds[-1] == "skipped"
    assert found["cases"][-1]["skipped"] == "no time was left of 4 s"
    assert found["seconds"] < 10


def test_a_process_that_comes_to_no_case_is_the_stages_fault(tmp_path: Path) -> None:
    refusal = (
        'from cupy_backend.errors import KernelError\nprint(json.dumps(described(KernelError("cuda.no-gpu", "none here"))))\nsys.exit(1)'
    )
    assert watched(tmp_path, before=refusal)["error"] == {"code": "cuda.no-gpu", "message": "none here [cuda.no-gpu]"}
    broken = watched(tmp_path, before="import nothing_of_the_kind")["error"]
    assert "No module named 'nothing_of_the_kind'" in broken["traceback"]  # type: ignore[index]


def test_memory_is_given_back_after_each_case(tmp_path: Path) -> None:
    given_back: list[int] = []
    with open(tmp_path / "events", "w") as out:
        assert run_cases([Case("a", dict), Case("b", dict)], {"b"}, out, lambda: given_back.append(1)) == 0
    assert given_back == [1]


def test_results_are_plain_json() -> None:
    given = {"a": np.float32(0.5), "b": [np.bool_(True), float("nan")], 3: (np.int64(4), None, float("inf"))}
    assert stage.plain(given) == {"a": 0.5, "b": [True, "nan"], "3": [4, None, "inf"]}


def test_a_refusal_is_told_without_a_traceback() -> None:
    told = stage.described(KernelError("kernel.unsupported", "no kernel", expected="bf16", found="f64"))
    assert told == {"code": "kernel.unsupported", "message": "no kernel [kernel.unsupported] expected: bf16 found: f64"}


@pytest.mark.parametrize("name", ["facts", "selftest", "conformance", "kernels", "model", "sanitizer"])
def test_a_stage_has_cases_and_tells_what_it_launches(name: str) -> None:
    module = Stage(name, "", 1, 1).module()
    assert callable(module.cases)
    assert callable(module.launches)
