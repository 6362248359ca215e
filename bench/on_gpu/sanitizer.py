"""The stage `sanitizer`: compute-sanitizer over launches of every kernel at small sizes, last because it is slow.

Run as a program, this module is what the tool watches: the small workloads of the stage `kernels` and the cases of the self-test, once.
"""

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.on_gpu import kernels, selftest, selftest_cases
from bench.on_gpu.machine import Machine, open_machine
from bench.on_gpu.stage import Case
from cupy_backend.launch import Launch

TOOLS = ("memcheck", "racecheck")
FOUND = 9  # the exit code of a run in which the tool found something
SHOWN = 5  # of its findings
SECONDS = 27  # for each of its checks
BEGUN = "case: "  # said by the program under the tool as each case begins
ROOT = Path(__file__).parents[2]


def tool() -> str | None:
    """The path of compute-sanitizer, from PATH or the toolkit; None where it is not installed."""
    folders = [os.environ.get("PATH", ""), f"{os.environ.get('CUDA_PATH') or '/usr/local/cuda'}/bin"]
    return shutil.which("compute-sanitizer", path=os.pathsep.join(folders))


def check(machine: Machine, name: str, seconds: float) -> dict[str, Any]:
    """One of the tool's checks over all small launches."""
    found = tool()
    if found is None:
        return {"ok": None, "skipped": "compute-sanitizer is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [
            found, "--tool", name, "--error-exitcode", str(FOUND), "--log-file", str(log), sys.executable, "-m", "bench.on_gpu.sanitizer",
            "--device", machine.device.name,
        ]  # fmt: skip
        output, status = folder + "/output", None
        with open(output, "w+") as printed:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = subprocess.run(command, stdout=printed, stderr=printed, timeout=seconds, cwd=ROOT).returncode
            printed.seek(0)
            told = printed.read()
        said = log.read_text(errors="replace") if log.exists() else ""
    findings = re.findall(r"^========= ((?:Error|Invalid|Program hit|Race|Potential|Warning|Uninitialized).*)$", said, re.MULTILINE)
    summary = re.findall(r"^========= (.*SUMMARY.*)$", said, re.MULTILINE)
    result: dict[str, Any] = {"ok": status == 0, "summary": summary[-1] if summary else "", "findings": findings[:SHOWN]}
    if status is None:  # the tool was stopped: what it had found by then counts
        return result | {"ok": False if findings else None, "summary": f"stopped after {seconds:.0f} s, launches of {_works(told)} by then"}
    return result if status in (0, FOUND) else result | {"output": (told + said)[-2000:]}


def _works(told: str) -> str:
    """How much of what runs under the tool has begun."""
    return f"{told.count(BEGUN)} cases"


def cases(machine: Machine) -> Sequence[Case]:
    return [Case(name, partial(check, machine, name, SECONDS)) for name in TOOLS]


def launches(arch: str) -> list[Launch]:
    """To be compiled beforehand, beside those of the self-test."""
    return kernels.launches(arch, small=True)


def works(machine: Machine) -> list[tuple[str, Callable[[], object]]]:
    """What runs under the tool, by name."""
    found: list[tuple[str, Callable[[], object]]] = [(timing.name, partial(once, machine, timing)) for timing in kernels.TIMINGS]
    chosen = [case for case in selftest_cases.cases() if machine.arch in case.archs]
    return found + [(case.name, partial(selftest.run, case, machine.device)) for case in chosen]


def once(machine: Machine, timing: kernels.Timing) -> None:
    made = kernels.workload(timing, machine.arch, small=True)
    memory = kernels.memory_of(machine, made)
    for launch in made.launches:
        machine.device.run(launch, memory)
    machine.device.synchronize()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(arguments)
    if given.device == "cuda":
        import cupy  # type: ignore[import-not-found]

        cupy.cuda.set_allocator(None)  # every array is an allocation of its own, whose end the tool knows
    machine = open_machine(given.device, small=True)
    for name, work in works(machine):
        print(f"{BEGUN}{name}", flush=True)
        work()
    return 0


if __name__ == "__main__":
    sys.exit(main())
