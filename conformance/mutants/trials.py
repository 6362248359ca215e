"""What mutants are tried on: examples, and what their launches were given and gave on the sources as they are."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Protocol

import numpy as np

from conformance.examples import Case, example, judge, session_of
from conformance.mutants.switch import Switch
from conformance.suite import schedule_of
from cupy_backend.emulator import Counters, EmulatedDevice, Schedule, aligned_empty
from cupy_backend.launch import Launch
from poem.dataclass import dataclass


class Trial(Protocol):
    """Something to run on a device, which takes its turns by `schedule`."""

    @property
    def name(self) -> str:
        """What finds it again."""

    @property
    def schedule(self) -> Schedule:
        """Of the device."""

    def judge(self, device: EmulatedDevice) -> str:
        """Runs it. What is wrong, in words; empty if all is well. KernelError for a launch that fails."""


@dataclass(frozen=True, slots=True)
class ExampleTrial:
    """An example of the suite: `linear.matmul:bf16:u4g64:normal:7`."""

    name: str

    @property
    def schedule(self) -> Schedule:
        """As the suite runs it."""
        return schedule_of(Case.of(self.name).seed)

    def judge(self, device: EmulatedDevice) -> str:
        """Against the exact results, within their bounds."""
        found = example(Case.of(self.name))
        return judge(found, session_of(found, device)).fault


@dataclass(frozen=True, slots=True)
class Recorded:
    """One launch of a trial. before: the buffers it uses, as it found them. after: the bytes of the arrays that it may write, by the
    parameters' names. reached: numbers of the mutants that it runs through. seconds: that it took."""

    launch: Launch
    before: Mapping[str, np.ndarray]
    after: Mapping[str, np.ndarray]
    reached: frozenset[int]
    seconds: float

    def memory(self) -> dict[str, np.ndarray]:
        """The buffers once more, to be written."""
        return {name: _copy(data) for name, data in self.before.items()}

    def differs(self, memory: Mapping[str, np.ndarray]) -> bool:
        """Whether the launch left other bytes in `memory` than it did when it was recorded."""
        return any(not np.array_equal(data, self.after[name]) for name, data in _written(self.launch, memory).items())


def _copy(data: np.ndarray) -> np.ndarray:
    made = aligned_empty(data.nbytes).view(data.dtype).reshape(data.shape)
    made[...] = data
    return made


def _written(launch: Launch, memory: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The bytes of the arrays that a launch may write, by parameter."""
    found = {}
    for name, array in launch.arrays().items():
        if array.direction not in ("constant", "read"):
            data = memory[array.buffer].reshape(-1).view(np.uint8)
            found[name] = data[array.offset : array.offset + array.nbytes].copy()
    return found


class Planner(EmulatedDevice):
    """A device that runs nothing, and so tells what would run: launches do not depend on results."""

    def __init__(self) -> None:
        super().__init__()
        self.planned: list[Launch] = []

    def prepare(self, launches: Iterable[Launch]) -> None:
        """Builds nothing."""

    def run(self, launch: Launch, memory: Mapping[str, np.ndarray]) -> Counters:
        """Notes the launch."""
        self.planned.append(launch)
        return Counters(0, 0, 0, 0, 0, 0, 0)


class Mutated(EmulatedDevice):
    """A device whose kernels can turn wrong: those of `files`, out of `folder`. The others are as they are."""

    def __init__(self, folder: Path, files: frozenset[str], schedule: Schedule) -> None:
        super().__init__(folder=folder, schedule=schedule, lines=False)
        self.files = files
        self._plain = EmulatedDevice(schedule=schedule, lines=False)

    def prepare(self, launches: Iterable[Launch]) -> None:
        """Compiles the kernels, from both folders."""
        launches = list(launches)
        super().prepare(launch for launch in launches if launch.source in self.files)
        self._plain.prepare(launch for launch in launches if launch.source not in self.files)

    def run(self, launch: Launch, memory: Mapping[str, np.ndarray]) -> Counters:
        """As EmulatedDevice."""
        return super().run(launch, memory) if launch.source in self.files else self._plain.run(launch, memory)


class Recorder(Mutated):
    """One that keeps what its launches were given and gave, and which mutants they reach."""

    def __init__(self, folder: Path, files: frozenset[str], schedule: Schedule, switch: Switch) -> None:
        super().__init__(folder, files, schedule)
        self.switch = switch
        self.launches: list[Recorded] = []

    def run(self, launch: Launch, memory: Mapping[str, np.ndarray]) -> Counters:
        """Runs, and keeps what may reach a mutant."""
        if launch.source not in self.files:
            return super().run(launch, memory)
        before = {array.buffer: _copy(memory[array.buffer]) for array in launch.arrays().values()}
        self.prepare([launch])
        start = perf_counter()
        with self.switch.noting() as reached:
            counters = super().run(launch, memory)
        seconds = perf_counter() - start
        self.launches.append(Recorded(launch, before, _written(launch, memory), frozenset(reached), seconds))
        return counters
