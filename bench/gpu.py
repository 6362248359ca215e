"""Everything there is to learn from a GPU, in one run of at most five minutes: python -m bench.gpu

Tests each wrapper of the CUDA prelude against the bits that the emulator gave, compares models and ops with the interpreter, times kernels
and whole models beside torch, and has compute-sanitizer look on. Prints tables and writes JSON. See docs/performance.md, "On a GPU".

Exit code 0 if all is well, 1 if something differs or failed, 2 if there is no GPU.
"""

import argparse
import json
import multiprocessing
import os
import re
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.on_gpu import report, stage
from bench.on_gpu.machine import open_machine
from bench.on_gpu.stage import Stage
from cupy_backend import cubin_cache
from poem.errors import PoemError

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
ARCH = "sm_90a"  # what is compiled for where there is no GPU to ask
NO_DEVICE = ("cuda.no-cupy", "cuda.no-gpu", "cuda.no-driver")

STAGES = (
    Stage("facts", "the device", 30, 30),
    Stage("selftest", "each wrapper of the prelude against the emulator's bits", 40, 20),
    Stage("conformance", "models and ops against the interpreter", 60, 25),
    Stage("kernels", "kernels by graph replay", 80, 30),
    Stage("model", "whole models with random weights", 70, 40),
    Stage("sanitizer", "compute-sanitizer on small shapes", 60, 40),
)
COMPILING = 60  # seconds at most before the first stage; what is late is compiled as it is launched
REHEARSAL = 20  # how many times as long the emulator may take


def main(arguments: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(arguments)
    if given.child:
        return _child(given)
    if given.list:
        for each in STAGES:
            print(f"{each.name:12} {each.seconds:4.0f} s  {each.title}")
        return 0
    chosen = [each for each in STAGES if not given.only or each.name in given.only]
    start, started = time.monotonic(), datetime.now(UTC)
    found: dict[str, Any] = {
        "format": report.FORMAT, "started": started.isoformat(timespec="seconds"), "seconds": 0.0,
        "command": list(sys.argv[1:] if arguments is None else arguments), "device": None, "arch": ARCH, "compiled": None, "stages": [],
    }  # fmt: skip
    if given.compile_only:
        return int(bool(_told(compiled(chosen, ARCH))["failed"]))
    deadline = start + given.seconds * (1 if given.device == "cuda" else REHEARSAL)
    asked = _watched(STAGES[0], given, deadline)
    if asked["error"] and asked["error"]["code"] in NO_DEVICE:
        _told(compiled(chosen, ARCH))
        print(f"nothing was measured: {asked['error']['message']}", file=sys.stderr)
        return 2
    found["stages"].append(asked)
    device = report.result_of(found, "facts", "device")
    found["device"], found["arch"] = device.get("device"), device.get("arch", ARCH)
    if given.device == "cuda":
        found["compiled"] = compiled(chosen, found["arch"], COMPILING)
    path = Path(given.output) if given.output else RESULTS / f"{_file_name(found['device'] or 'unknown')}-{started:%Y-%m-%d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    _keep(found, path, start)
    for each in chosen:
        if each.name != "facts":
            found["stages"].append(_watched(each, given, deadline))
            _keep(found, path, start)
    for line in report.as_lines(found):
        print(line)
    print(f"\n{path}")
    return int(report.failed(found))


def _keep(found: dict[str, Any], path: Path, start: float) -> None:
    """Writes the report as it stands: what ends the whole run leaves what there is."""
    found["seconds"] = time.monotonic() - start
    path.write_text(json.dumps(found, indent=1) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.gpu", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [each.name for each in STAGES]
    parser.add_argument("--only", action="append", choices=names, metavar="STAGE", help=f"one of {', '.join(names)}; may be repeated")
    parser.add_argument("--seconds", type=float, default=300, help="for the whole run")
    parser.add_argument("--output", help=f"where the JSON goes; {RESULTS.relative_to(ROOT)}/DEVICE-DATE.json if not said")
    parser.add_argument("--list", action="store_true", help="list the stages and their time")
    parser.add_argument("--compile-only", action="store_true", help=f"compile everything for {ARCH} into $POEM_HOME, which needs no GPU")
    parser.add_argument("--device", default="cuda", help="emu or emu-fast rehearse all stages at small sizes on the CPU")
    for hidden in ("--child", "--events", "--skip"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    return parser


def _watched(of: Stage, given: argparse.Namespace, deadline: float) -> dict[str, Any]:
    _say(of.title)
    if given.device != "cuda":
        of = of._replace(seconds=REHEARSAL * of.seconds, case_seconds=REHEARSAL * of.case_seconds)
    command = [sys.executable, "-m", "bench.gpu", "--child", of.name, "--device", given.device]
    return stage.watch(of, command, deadline, lambda case: _say(f"  {case}"))


def _child(given: argparse.Namespace) -> int:
    """Runs the cases of one stage for the process that watches."""
    (of,) = (each for each in STAGES if each.name == given.child)
    try:
        machine = open_machine(given.device)
        cases = of.module().cases(machine)
    except Exception as fault:
        print(json.dumps(stage.described(fault)), file=sys.stderr)
        return 1
    with open(given.events, "a") as out:
        return stage.run_cases(cases, set(json.loads(given.skip)), out, machine.release)


def compiled(chosen: Iterable[Stage], arch: str, seconds: float | None = None) -> dict[str, Any]:
    """Compiles what the stages launch, as far as time allows. What does not compile is told, and left to the stage."""
    start = time.monotonic()
    wanted: dict[tuple[str, str, str], None] = {}
    failures: list[tuple[str, str]] = []
    for each in sorted(chosen, key=lambda each: each.name == "conformance"):  # which launches the most kernels, each a few times
        try:
            wanted |= dict.fromkeys((launch.source, launch.kernel, arch) for launch in each.module().launches(arch))
        except Exception as fault:
            failures.append((each.name, stage.described(fault)["message"]))
    _say(f"compiling {len(wanted)} kernels for {arch}")
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as pool:
        done, late = wait([pool.submit(_compile, kernel) for kernel in wanted], seconds)
        for future in late:
            future.cancel()
    refused = [refusal for refusal in (future.result() for future in done) if refusal is not None]
    return {
        "kernels": len(done) - len(refused), "late": len(late), "seconds": time.monotonic() - start, "failed": failures + sorted(refused),
    }  # fmt: skip


def _told(found: dict[str, Any]) -> dict[str, Any]:
    """What was compiled where nothing else is done."""
    _say(*(f"{kernel}: {message}" for kernel, message in found["failed"]))
    print(f"compiled {found['kernels']} kernels for {ARCH} in {found['seconds']:.1f} s")
    return found


def _compile(kernel: tuple[str, str, str]) -> tuple[str, str] | None:
    source, name, arch = kernel
    try:
        cubin_cache.get(source, [name], arch)
    except PoemError as fault:
        return f"{source}: {name}", fault.message
    return None


def _say(*lines: str) -> None:
    for line in lines:
        print(line, file=sys.stderr, flush=True)


def _file_name(device: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")


if __name__ == "__main__":
    sys.exit(main())
