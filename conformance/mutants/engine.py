"""Runs mutants: sources that hold all of them are built once, then each mutant runs in a process of its own on the trials that reach it."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from pathlib import Path
from time import monotonic
from typing import Literal

from conformance.mutants.generate import HERE, Mutant, Schemata, write
from conformance.mutants.processes import Job, cpu_limit, in_processes
from conformance.mutants.switch import Switch
from conformance.mutants.trials import Mutated, Planner, Recorded, Recorder, Trial
from cupy_backend import sources
from cupy_backend.errors import KernelError
from cupy_backend.launch import Launch
from poem.dataclass import dataclass
from poem.home import poem_home

Verdict = Literal["checker", "bound", "crash", "hang", "survived", "unreached"]
Progress = Callable[[str, int, int], None]  # what is at work, how much of it is done, of how much
SLOWER = 20  # a mutant that takes so many times as long hangs
LEAST_SECONDS = 2.0  # of a processor, before anything counts as hanging
TRIALS_OF_EQUIVALENTS = 3  # a mutant that is listed as no mistake is tried so often


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutant. how: the checker's code, the signal, or which result is past its bound. trial: that killed it. tried: trials
    that reach it, in order, up to that one."""

    mutant: Mutant
    verdict: Verdict
    how: str = ""
    trial: str = ""
    tried: tuple[str, ...] = ()

    @property
    def killed(self) -> bool:
        """Whether some trial told the mutant from the original."""
        return self.verdict not in ("survived", "unreached")


class FalseAlarm(Exception):
    """A trial that fails without a mutant."""


@dataclass
class Engine:
    """Mutants on trials.

    equivalent: numbers of those that are no mistake; they are tried a few times, to see whether that is so. deadline: when no further
    mutant is started, by `time.monotonic`.
    """

    mutants: Sequence[Mutant]
    equivalent: frozenset[int] = frozenset()
    progress: Progress = lambda what, done, of: None
    deadline: float = float("inf")
    workers: int = field(default_factory=lambda: os.cpu_count() or 1)
    uncompilable: list[Mutant] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.switch = Switch()
        self.remaining = {mutant.number: mutant for mutant in self.mutants}
        self.results = {mutant.number: Result(mutant, "unreached") for mutant in self.mutants}

    def round(self, trials: Sequence[Trial]) -> None:
        """Tries the mutants that are still alive on these trials. FalseAlarm if one fails without a mutant."""
        planned = self._planned(trials)
        trials = [trial for trial in trials if planned[trial.name]]
        if not trials:
            return
        device, recorded = self._record(trials, planned)
        jobs = list(self._jobs(trials, recorded))

        def attempt(mutant: Mutant, on: Sequence[Trial]) -> Iterator[Result]:
            return self._attempt(mutant, on, recorded, device)

        for done, result in enumerate(in_processes(jobs, attempt, self._died, self.workers, self.deadline), 1):
            self._keep(result)
            self.progress("mutants", done, len(jobs))

    @property
    def alive(self) -> bool:
        """Whether mistakes are left."""
        return bool(self.remaining.keys() - self.equivalent)

    def _jobs(self, trials: Sequence[Trial], recorded: dict[str, list[Recorded]]) -> Iterator[Job[Trial]]:
        """Each mutant with the trials that reach it, quick ones first."""
        costs = {trial.name: sum(launch.seconds for launch in recorded[trial.name]) for trial in trials}
        for number, mutant in self.remaining.items():
            reaching = [trial for trial in trials if any(number in launch.reached for launch in recorded[trial.name])]
            reaching.sort(key=lambda trial: costs[trial.name])
            if number in self.equivalent:
                reaching = reaching[: max(0, TRIALS_OF_EQUIVALENTS - len(self.results[number].tried))]
            if reaching:
                yield mutant, reaching

    def _keep(self, result: Result) -> None:
        number, before = result.mutant.number, self.results[result.mutant.number]
        self.results[number] = Result(result.mutant, result.verdict, result.how, result.trial, before.tried + result.tried)
        if result.killed:
            del self.remaining[number]

    # -- the sources with their mutants ------------------------------------------------------
    def _files(self) -> frozenset[str]:
        """Sources with mutants that are alive. What the prelude holds is in all of them."""
        own = {mutant.file for mutant in self.remaining.values()}
        if any(name.startswith("prelude/") for name in own):
            return frozenset(path.name for path in sources.folder().glob("*.cu"))
        return frozenset(own)

    def _planned(self, trials: Sequence[Trial]) -> dict[str, list[Launch]]:
        """The launches of each trial that may reach a mutant."""
        files, found = self._files(), dict[str, list[Launch]]()
        for trial in trials:
            planner = Planner()
            trial.judge(planner)
            found[trial.name] = planner.planned if any(launch.source in files for launch in planner.planned) else []
        return found

    def _record(self, trials: Sequence[Trial], planned: dict[str, list[Launch]]) -> tuple[Mutated, dict[str, list[Recorded]]]:
        """Builds the sources with the mutants that are alive, and runs the trials with all of them off."""
        while True:
            folder, woven = self._write()
            device = Mutated(folder, self._files(), trials[0].schedule)
            try:
                device.prepare([launch for trial in trials for launch in planned[trial.name]])
                return device, self._run_all(trials, folder)
            except KernelError as error:
                if error.code != "kernel.compile" or not self._drop(error, folder, woven):
                    raise

    def _write(self) -> tuple[Path, dict[str, Schemata]]:
        mutants, folder = list(self.remaining.values()), sources.folder()
        texts = sorted([*folder.glob("*.cu*"), *(folder / "prelude").glob("*.cuh"), *HERE.glob("*.h")])
        name = sources.digest(
            repr([(mutant.number, mutant.start, mutant.end, mutant.replacement) for mutant in mutants]),
            *(path.read_bytes() for path in texts),
        )
        target = poem_home() / "mutants" / name
        return target, write(folder, target, mutants)

    def _run_all(self, trials: Sequence[Trial], folder: Path) -> dict[str, list[Recorded]]:
        recorded = {}
        for done, trial in enumerate(trials, 1):
            recorder = Recorder(folder, self._files(), trial.schedule, self.switch)
            try:
                fault = trial.judge(recorder)
            except KernelError as error:
                fault = error.render() if error.code.startswith("emu.") else ""
                if not fault:
                    raise
            if fault:
                raise FalseAlarm(f"{trial.name}: {fault}")
            recorded[trial.name] = recorder.launches
            self.progress("trials", done, len(trials))
        return recorded

    def _drop(self, error: KernelError, folder: Path, woven: dict[str, Schemata]) -> bool:
        """Leaves out the mutant that does not compile. False if there is none where the compiler says."""
        file = Path(error.file or "")
        found = woven[str(file.relative_to(folder))].at(error.line or 1, error.column or 1) if file.is_relative_to(folder) else None
        if found is None:
            return False
        self.uncompilable.append(found)
        del self.remaining[found.number], self.results[found.number]
        return True

    # -- one mutant, in a process of its own --------------------------------------------------
    def _attempt(
        self, mutant: Mutant, trials: Sequence[Trial], recorded: dict[str, list[Recorded]], device: Mutated
    ) -> Iterator[Result]:  # fmt: skip
        """Yields before each trial what is to be said if the process dies in it, and in the end what came of all."""
        self.switch.turn_on(mutant.number)
        tried: tuple[str, ...] = ()
        for trial in trials:
            tried += (trial.name,)
            launches = [launch for launch in recorded[trial.name] if mutant.number in launch.reached]
            cpu_limit(LEAST_SECONDS + SLOWER * sum(launch.seconds for launch in launches))
            yield Result(mutant, "crash", "", trial.name, tried)
            try:
                fault = self._fault(trial, launches, Mutated(device.folder, device.files, trial.schedule))
            except KernelError as error:
                if not error.code.startswith("emu."):
                    raise
                yield Result(mutant, "checker", error.code, trial.name, tried)
                return
            if fault:
                yield Result(mutant, "bound", fault, trial.name, tried)
                return
        yield Result(mutant, "survived", "", "", tried)

    def _fault(self, trial: Trial, launches: Sequence[Recorded], device: Mutated) -> str:
        """What is wrong with a trial. Launches that leave the same bytes need no judge."""
        for launch in launches:
            memory = launch.memory()
            device.run(launch.launch, memory)
            if launch.differs(memory):
                return trial.judge(device)
        return ""

    def _died(self, last: Result, signal_name: str, hung: bool) -> Result:
        return Result(last.mutant, "hang" if hung else "crash", signal_name, last.trial, last.tried)


def until(seconds: float | None) -> float:
    """The deadline that lies so many seconds ahead."""
    return float("inf") if seconds is None else monotonic() + seconds
