"""The stage `facts`: what the device is, how fast it copies, what a launch costs it. What the other stages are judged by."""

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Any

from bench.on_gpu import selftest_cases
from bench.on_gpu.machine import Machine, filled, random_block
from bench.on_gpu.stage import Case
from cupy_backend.launch import Array, Launch

COPIED, SMALL = 2 << 30, 1 << 20  # bytes
REPEATS = 12  # of which the first two do not count
LAUNCHES = 200


def copy(machine: Machine) -> dict[str, Any]:
    """A copy inside the device's memory: bytes read and written a second."""
    nbytes = SMALL if machine.small else COPIED
    array = Array("source", "read", (nbytes,), "u8")
    source, target = filled(machine.device, array, random_block(array, 1)), machine.device.empty((nbytes,), "u8")

    def once() -> None:
        target[...] = source

    seconds = machine.seconds([once] * (3 if machine.small else REPEATS))[2:]
    return {"unit": "TB/s", "value": 2 * nbytes / median(seconds) / 1e12, "fastest": 2 * nbytes / min(seconds) / 1e12, "bytes": 2 * nbytes}


def launch(machine: Machine) -> dict[str, Any]:
    """A launch of almost no work as a node of a graph, one after the other."""
    relay = selftest_cases.relay()
    count = 4 if machine.small else LAUNCHES
    memory = {name: machine.device.upload(values) for name, values in relay.memory.items()}
    chain = [Launch(each.source, each.kernel, (1, 1, 1), (32, 1, 1), _first(each)) for each in relay.launches[:1] * count]
    replay = machine.device.capture(chain, memory)
    seconds = machine.seconds([replay] * (3 if machine.small else REPEATS))[2:]
    return {"unit": "us", "value": median(seconds) / count * 1e6, "launches": count}


def launches(arch: str) -> list[Launch]:
    """To be compiled beforehand."""
    return list(selftest_cases.relay().launches)


def _first(launch: Launch) -> dict[str, Any]:
    """The arguments of a launch, of each array the first 32 elements."""
    return {name: Array(array.buffer, array.direction, (32,), array.dtype) for name, array in launch.arrays().items()}


def cases(machine: Machine) -> Sequence[Case]:
    return [Case("device", machine.facts), Case("copy", partial(copy, machine)), Case("launch in a graph", partial(launch, machine))]
