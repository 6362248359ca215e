"""The command: without a GPU it says so, with the emulator it rehearses every stage, and its JSON is what the report says."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import gpu
from bench.on_gpu import kernels, stage
from cupy_backend.launch import Launch

ROOT = Path(__file__).parents[2]
FEW = {"facts": ["device", "copy", "launch in a graph"]}


def test_the_stages_are_listed_with_their_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["facts", "selftest", "conformance", "kernels", "model", "sanitizer"]


def test_compiling_and_all_stages_fit_into_five_minutes_and_the_slow_one_is_last() -> None:
    assert gpu._parser().parse_args([]).seconds == 300
    assert sum(each.seconds for each in gpu.STAGES) <= 340  # none takes all it may; what is late is left out
    assert gpu.STAGES[-1].name == "sanitizer"


def test_without_a_gpu_all_is_compiled_and_one_sentence_says_that_nothing_was_measured(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked: list[list[str]] = []

    def compiled(stages: list[stage.Stage], arch: str) -> dict[str, Any]:
        asked.append([arch, *(each.name for each in stages)])
        return {"kernels": 7, "late": 0, "seconds": 1.0, "failed": []}

    monkeypatch.setattr(gpu, "compiled", compiled)
    monkeypatch.setitem(sys.modules, "cupy", None)
    output = tmp_path / "r.json"
    assert gpu.main(["--output", str(output)]) == 2
    said = capsys.readouterr()
    assert asked == [["sm_90a", *(each.name for each in gpu.STAGES)]]
    assert "compiled 7 kernels for sm_90a in 1.0 s" in said.out
    assert said.err.splitlines()[-1].startswith("nothing was measured: ")
    assert not output.exists()


def test_what_stages_launch_is_compiled_and_what_does_not_compile_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cupy_backend.compiling import compiler

    compiler()
    good = Launch("selftest.cu", "relay<>", (1, 1, 1), (32, 1, 1), {})
    bad = Launch("selftest.cu", "nothing<>", (1, 1, 1), (32, 1, 1), {})
    monkeypatch.setattr(kernels, "launches", lambda arch: [good, bad, good])
    unplanned = stage.Stage("nowhere", "a stage whose module is missing", 1, 1)
    found = gpu.compiled([stage.Stage("kernels", "", 1, 1), unplanned], "sm_90a")
    assert (found["kernels"], found["late"]) == (1, 0)
    assert {name for name, _ in found["failed"]} == {"nowhere", "selftest.cu: nothing<>"}


def test_compiling_stops_when_its_time_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.cupy_backend.compiling import compiler

    compiler()
    many = [Launch("selftest.cu", f"logic<{table}>", (1, 1, 1), (32, 1, 1), {}) for table in range(200, 240)]
    monkeypatch.setattr(kernels, "launches", lambda arch: many)
    found = gpu.compiled([stage.Stage("kernels", "", 1, 1)], "sm_80", 0.0)
    assert found["late"] > 0
    assert found["kernels"] + found["late"] == len(many)
    assert not found["failed"]


def test_the_emulator_rehearses_a_run(tmp_path: Path) -> None:
    """The whole way: a process for each stage, its events, the report and its file."""
    output = tmp_path / "results" / "r.json"
    command = [sys.executable, "-m", "bench.gpu", "--device", "emu-fast", "--only", "sanitizer", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    assert found.keys() == {"format", "started", "seconds", "command", "device", "arch", "compiled", "stages"}
    assert (found["format"], found["arch"], found["compiled"]) == (1, "sm_90a", None)
    assert [each["name"] for each in found["stages"]] == ["facts", "sanitizer"]
    for each in found["stages"]:
        assert each.keys() == {"name", "title", "budget", "seconds", "error", "cases"}
        assert each["error"] is None
        assert all(case.keys() <= {"name", "seconds", "result", "error", "skipped"} for case in each["cases"])
    assert [case["name"] for case in found["stages"][0]["cases"]] == FEW["facts"]
    assert f"\n{output}\n" in done.stdout
    assert "the device" in done.stdout


def test_a_device_that_is_none_is_a_fault_of_every_stage(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench.gpu", "--device", "tpu", "--only", "facts", "--output", str(tmp_path / "r.json")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1
    assert "there is no device tpu" in done.stdout


def test_results_are_named_by_device_and_day() -> None:
    assert gpu._file_name("NVIDIA H200") == "nvidia-h200"
    assert gpu._file_name("the emulator on x86_64") == "the-emulator-on-x86-64"
