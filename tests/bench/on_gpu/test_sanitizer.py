"""compute-sanitizer: found or not, and what it says read right. A script stands for it."""

import os
from pathlib import Path

import pytest

from bench.on_gpu import sanitizer
from bench.on_gpu.machine import EmulatedMachine

MACHINE = EmulatedMachine("emu-fast")
SAID = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at elementwise<...>+0x90 in elemwise.cu:12
========= ERROR SUMMARY: 1 error
"""


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tool on the path that writes the log it is told to and exits as the test says."""
    path = tmp_path / "compute-sanitizer"
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    path.touch(0o755)
    return path


def script(tool: Path, said: str, status: int, more: str = "") -> None:
    tool.write_text(f'#!/bin/sh\necho "$@" > {tool}.arguments\n{more}\ncat > "$6" <<\'EOF\'\n{said}EOF\nexit {status}\n')


def test_without_the_tool_the_stage_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_PATH", "/nowhere")
    (memcheck, _) = sanitizer.cases(MACHINE)
    assert memcheck.run() == {"ok": None, "skipped": "compute-sanitizer is not installed"}


def test_the_tool_watches_the_small_launches(tool: Path) -> None:
    script(tool, "========= ERROR SUMMARY: 0 errors\n", 0)
    assert sanitizer.check(MACHINE, "memcheck", 30) == {"ok": True, "summary": "ERROR SUMMARY: 0 errors", "findings": []}
    arguments = Path(f"{tool}.arguments").read_text()
    assert arguments.startswith("--tool memcheck --error-exitcode 9 --log-file ")
    assert arguments.strip().endswith("-m bench.on_gpu.sanitizer --device emu")


def test_what_it_finds_is_told(tool: Path) -> None:
    script(tool, SAID, 9)
    result = sanitizer.check(MACHINE, "racecheck", 30)
    assert not result["ok"]
    assert result["findings"] == ["Invalid __global__ write of size 4 bytes"]
    assert result["summary"] == "ERROR SUMMARY: 1 error"
    assert "output" not in result


def test_a_program_that_fails_under_it_is_told_with_its_output(tool: Path) -> None:
    script(tool, "", 1, more="echo no device")
    result = sanitizer.check(MACHINE, "memcheck", 30)
    assert not result["ok"]
    assert "no device" in result["output"]


def test_it_is_given_up_when_time_is_up(tool: Path) -> None:
    script(tool, "", 0, more="echo 'case: a'; echo 'case: b'; exec sleep 20")
    result = sanitizer.check(MACHINE, "memcheck", 1.0)
    assert (result["ok"], result["summary"]) == (None, "stopped after 1 s, launches of 2 cases by then")


def test_the_small_launches_run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    some = sanitizer.works
    monkeypatch.setattr(sanitizer, "works", lambda machine: some(machine)[:2] + some(machine)[-1:])
    assert sanitizer.main(["--device", "emu-fast"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    assert len(some(MACHINE)) > 150
