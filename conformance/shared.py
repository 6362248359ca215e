"""Work that this process shares with others beside it, where there are cores for them."""

import os
import pickle
from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
_NUMBER = 2  # bytes


def shared(works: Sequence[Callable[[], T]], processes: int) -> Callable[[], list[T]]:
    """Start on works in forked processes, each taking the next one whenever it is done with one. The function returned joins in until
    none is left, and gives the results in order.

    processes: beside this one; there are none where the platform cannot fork or has one core. What a process could not do is done here.
    Of several faults that of the first work is raised.
    """
    reading, writing = os.pipe()
    os.write(writing, b"".join(number.to_bytes(_NUMBER, "little") for number in range(len(works))))
    os.close(writing)

    faults: dict[int, Exception] = {}  # that this process met itself; those of others are met again

    def take() -> dict[int, T]:
        found: dict[int, T] = {}
        while not faults and (number := os.read(reading, _NUMBER)):
            work = int.from_bytes(number, "little")
            try:
                found[work] = works[work]()
            except Exception as fault:
                faults[work] = fault
        return found

    can_fork = hasattr(os, "fork") and (os.cpu_count() or 1) > 1
    others = [_forked(take) for _ in range(min(processes, len(works)) if can_fork else 0)]

    def outcome() -> list[T]:
        found = take()
        os.close(reading)
        for other in others:
            found |= other()
        for number, work in enumerate(works):
            if number in faults:
                raise faults[number]
            if number not in found:
                found[number] = work()
        return [found[number] for number in range(len(works))]

    return outcome


def _forked(work: Callable[[], dict[int, T]]) -> Callable[[], dict[int, T]]:
    """Start `work` in a forked process. The function returned waits and gives its result, or nothing where the process failed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return lambda: _outcome(reading, child)
    try:  # nothing is left behind: no handler, no buffer of the parent is touched
        found = pickle.dumps(work())
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(found)
    finally:
        os._exit(0)


def _outcome(reading: int, child: int) -> dict[int, T]:
    with os.fdopen(reading, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    try:
        return pickle.loads(found)
    except (EOFError, pickle.UnpicklingError):
        return {}
