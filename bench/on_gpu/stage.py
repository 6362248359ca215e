"""A stage of `bench.gpu`: named cases with a budget of time, run in a process of their own so that no case can stop the others.

A launch that goes astray takes the whole CUDA context with it, and one that waits for ever takes the process. So a process runs the cases
of one stage and writes a line as each starts and ends. Whoever watches it ends it when a case takes too long, notes what was under way as
failed, and starts another process for the cases that are left.
"""

import json
import math
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TextIO

import numpy as np

from poem.errors import PoemError

POLL = 0.05  # seconds
TOLD = 2000  # characters of what a process that died said last


class Case(NamedTuple):
    """One measurement or comparison. run: returns its result, plain data; `ok` in it says whether a comparison agrees."""

    name: str
    run: Callable[[], dict[str, Any]]


class Stage(NamedTuple):
    """name: of its module here, which has `cases(machine)` and `launches(arch)`. seconds: for all cases. case_seconds: for one, and for the
    process to start."""

    name: str
    title: str
    seconds: float
    case_seconds: float

    def module(self) -> ModuleType:
        """Imported by need: a package that one stage needs and that is missing stops no other."""
        return import_module(f"bench.on_gpu.{self.name}")


def run_cases(cases: Sequence[Case], skip: set[str], out: TextIO, release: Callable[[], None]) -> int:
    """Runs the cases that are left and writes a line of JSON for each event. Ends at the first that raises: its context may be lost."""

    def tell(**event: Any) -> None:
        print(json.dumps(plain(event)), file=out, flush=True)

    tell(cases=[case.name for case in cases])
    for case in cases:
        if case.name in skip:
            continue
        tell(start=case.name)
        begun = time.perf_counter()
        try:
            result = case.run()
        except Exception as fault:
            tell(end=case.name, seconds=time.perf_counter() - begun, error=described(fault))
            return 1
        tell(end=case.name, seconds=time.perf_counter() - begun, result=result)
        release()
    return 0


def plain(value: Any) -> Any:
    """A value as JSON has it: NumPy's scalars as Python's, numbers that JSON does not know as words."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def described(fault: BaseException) -> dict[str, str]:
    """A fault as data: its code, its message, and for those that are nobody's refusal the end of the traceback."""
    if isinstance(fault, PoemError):
        return {"code": fault.code, "message": " ".join(fault.render().split())}
    last = "".join(traceback.format_exception(fault)[-3:])
    return {"code": type(fault).__name__, "message": str(fault), "traceback": last[-TOLD:]}


@dataclass
class Watched:
    """A stage as far as it has come: the cases that it lists, what they gave, and the one that is under way."""

    listed: list[str] = field(default_factory=list)
    done: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: str | None = None

    def take(self, event: dict[str, Any], progress: Callable[[str], None]) -> None:
        if "cases" in event:
            self.listed = event["cases"]
        elif "start" in event:
            self.started = event["start"]
            progress(event["start"])
        else:
            name = event["end"]
            self.done[name] = {"name": name, **{key: value for key, value in event.items() if key != "end"}}
            self.started = None


def watch(stage: Stage, command: Sequence[str], deadline: float, progress: Callable[[str], None]) -> dict[str, Any]:
    """Runs a stage by `command`, which takes `--events PATH` and `--skip NAMES` (JSON), until all cases are done or time is up.

    Returns the stage as it stands in the report.
    """
    begun = time.monotonic()
    until = min(deadline, begun + stage.seconds)
    so_far = Watched()
    error: dict[str, str] | None = None
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() < until and not (so_far.listed and len(so_far.done) == len(so_far.listed)):
            before = len(so_far.done)
            events = Path(folder) / f"events.{before}"
            skip = json.dumps(list(so_far.done))
            fault = _watch_once(stage, [*command, "--events", str(events), "--skip", skip], events, so_far, until, progress)
            if so_far.started is not None:
                name, so_far.started = so_far.started, None
                so_far.done[name] = {"name": name, "error": fault or {"code": "died", "message": "the process ended"}}
            if len(so_far.done) == before:  # it came to no case
                error = fault
                break
    for name in so_far.listed:
        so_far.done.setdefault(name, {"name": name, "skipped": f"no time was left of {stage.seconds:.0f} s"})
    return {
        "name": stage.name, "title": stage.title, "budget": stage.seconds, "seconds": time.monotonic() - begun, "error": error,
        "cases": [so_far.done[name] for name in so_far.listed],
    }  # fmt: skip


def _watch_once(
    stage: Stage, command: Sequence[str], events: Path, so_far: Watched, until: float, progress: Callable[[str], None]
) -> dict[str, str] | None:
    """One process. Returns what stopped it before it had done all it could."""
    events.touch()
    with open(events.with_suffix(".said"), "w+") as said, open(events) as lines:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        since, partial, before = time.monotonic(), "", len(so_far.done)
        try:
            while True:
                ended = child.poll() is not None
                *whole, partial = (partial + lines.read()).split("\n")
                for line in whole:
                    since = time.monotonic()
                    so_far.take(json.loads(line), progress)
                now = time.monotonic()
                if ended:
                    break
                if now >= until or now - since > stage.case_seconds:
                    limit = f"the {stage.seconds:.0f} s of the stage" if now >= until else f"{stage.case_seconds:.0f} s"
                    return {"code": "time", "message": f"not done within {limit}"}
                time.sleep(POLL)
        finally:
            child.kill()
            child.wait()
        said.seek(0)
        return _last_words(child.returncode, said.read()) if child.returncode not in (0, 1) or len(so_far.done) == before else None


def _last_words(status: int, said: str) -> dict[str, str]:
    """What a process that ended too early said: a fault as `described` makes it, or the end of its output."""
    for line in reversed(said.splitlines()):
        if line.startswith('{"code"'):
            found: dict[str, str] = json.loads(line)
            return found
    return {"code": "died", "message": f"the process ended with status {status}", "traceback": said[-TOLD:]}
