"""Work that may crash or hang, each piece in a forked process: it inherits everything that is built and recorded, and can break nothing."""

import faulthandler
import io
import os
import pickle
import resource
import select
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, TypeVar

from conformance.mutants.generate import Mutant
from poem.dataclass import dataclass

MEMORY = 2 << 30  # bytes that a mutant may take on top of what is there

T = TypeVar("T")
R = TypeVar("R")
Job = tuple[Mutant, Sequence[T]]


def cpu_limit(seconds: float) -> None:
    """The process dies once it has used so many seconds of a processor from now on; what others use does not count."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


@dataclass(slots=True)
class _Child:
    pid: int
    pipe: int
    data: bytes = b""


def in_processes(
    jobs: Sequence[Job[T]], attempt: Callable[[Mutant, Sequence[T]], Iterator[R]], died: Callable[[R, str, bool], R], workers: int,
    deadline: float,
) -> Iterator[R]:  # fmt: skip
    """The last result of each job, as they end; none is begun after the deadline.

    attempt: yields results as it goes on, in the child. died: makes a result of the last one, the signal that ended the process, and
    whether that was `cpu_limit`. What `attempt` raises is raised here.
    """
    waiting, running = list(jobs)[::-1], list[_Child]()
    try:
        while (waiting and monotonic() < deadline) or running:
            while waiting and len(running) < workers and monotonic() < deadline:
                running.append(_start(*waiting.pop(), attempt))
            ready, _, _ = select.select([child.pipe for child in running], [], [])
            for child in [child for child in running if child.pipe in ready]:
                part = os.read(child.pipe, 1 << 16)
                child.data += part
                if not part:
                    running.remove(child)
                    yield _end(child, died)
    finally:
        for child in running:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
            os.close(child.pipe)


def _start(mutant: Mutant, on: Sequence[T], attempt: Callable[[Mutant, Sequence[T]], Iterator[R]]) -> _Child:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return _Child(pid, reading)
    try:
        os.close(reading)
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the last words of what crashes
        faulthandler.disable()  # which may write elsewhere
        try:
            for result in attempt(mutant, on):
                os.write(writing, pickle.dumps(result))
        except Exception as error:
            os.write(writing, pickle.dumps(error))
    finally:
        os._exit(0)


def _end(child: _Child, died: Callable[[R, str, bool], R]) -> R:
    os.close(child.pipe)
    _, status = os.waitpid(child.pid, 0)
    last: Any = None
    stream = io.BytesIO(child.data)
    while stream.tell() < len(child.data):
        last = pickle.load(stream)
    if isinstance(last, BaseException):
        raise last
    if last is None:
        raise RuntimeError(f"a process ended before it began, with status {status}")
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return died(last, signal.Signals(number).name, number == signal.SIGPROF)
    return last
