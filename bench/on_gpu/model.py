"""The stage `model`: whole decode steps and prefills at the size of Llama 3.1 8B, with random weights that are made on the device."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from bench.on_gpu.machine import Machine, Memory, filled, random_block
from bench.on_gpu.stage import Case
from bench.on_gpu.workloads import UNIT, Normal
from cupy_backend.devices import Device
from cupy_backend.launch import Launch
from cupy_backend.plan import Bucket, Options, plan
from cupy_backend.plan.describe import total_floor
from cupy_backend.plan.record import Stored
from cupy_backend.session import Session
from poem.batch import Chunk
from poem.graph import Graph
from poem.package import load_package

PACKAGE = "llama_3"
STEPS, WARM_STEPS = 10, 3  # of decoding, measured and before
PREFILLS = 4  # of which the first does not count
PAGE = 16


class Run(NamedTuple):
    """A deployment and how it is planned. small: what stands for it in a rehearsal. decodes: decoding is measured too."""

    deployment: str
    small: str
    warpgroups: bool = False
    decodes: bool = True

    def name(self, *, small: bool) -> str:
        return (self.small if small else self.deployment) + (", wgmma" if self.warpgroups else "")


RUNS = (
    Run("llama31-8b-bf16-kv-bf16", "llama31-mini-bf16-kv-bf16"),
    Run("llama31-8b-bf16-kv-bf16", "llama31-mini-bf16-kv-bf16", warpgroups=True, decodes=False),
    Run("llama31-8b-e4m3tile128a8-kv-e4m3", "llama31-mini-e4m3tile128a8-kv-e4m3"),
    Run("llama31-8b-u4g64-kv-bf16", "llama31-mini-u4g64-kv-bf16"),
)


class Sizes(NamedTuple):
    """prompt: tokens of a prefill. context: of every sequence before decoding, of which so many come in one pass. batches: of decoding."""

    prompt: int
    context: int
    together: int
    batches: tuple[int, ...]


FULL, SMALL = Sizes(2048, 1200, 2, (1, 16, 64)), Sizes(40, 20, 2, (1, 2))


def graph_of(run: Run, *, small: bool) -> Graph:
    package = load_package(PACKAGE)
    return package.trace(package.deployment(run.small if small else run.deployment))


def content_of(stored: Stored) -> Normal:
    """Random content of a weight's plane, such that activations stay ordinary numbers."""
    path = stored.plane.rpartition(".")[2]
    if path == "data":
        return Normal(0.1, 1.0) if len(stored.shape) == 1 else Normal(0.02)
    if stored.dtype in ("u8", "e4m3", "e8m0", "u4", "u2"):
        return UNIT
    if path == "offset":
        return Normal(0.01, -0.075)
    return Normal(0.0, 0.0003) if stored.dtype == "f32" else Normal(0.002, 0.01)  # a gain of tiles is one number for several rows


class KeepsReplays:
    """A device that keeps the passes it captured, so that they can be timed by themselves."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.replays: list[Callable[[], None]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)

    def capture(self, launches: Sequence[Launch], memory: Mapping[str, Memory]) -> Callable[[], None]:
        replay = self._device.capture(launches, memory)
        self.replays.append(replay)
        return replay


class Loaded:
    """A deployment on the device; what its cases share."""

    def __init__(self, machine: Machine, run: Run) -> None:
        self.machine, self.run = machine, run
        self.sizes = SMALL if machine.small else FULL
        self.device = KeepsReplays(machine.device)

    @cached_property
    def session(self) -> Session:
        graph = graph_of(self.run, small=self.machine.small)
        options = Options(self.machine.arch, warpgroups=self.run.warpgroups)
        smallest = plan(graph, Bucket(1, 1, 1, 1, 1, 64, (1,) * len(graph.spaces), PAGE), options)
        planes = {
            stored.buffer: filled(self.machine.device, stored.array, random_block(stored.array, seed, *content_of(stored)))
            for seed, stored in enumerate(smallest.stored)
        }  # fmt: skip
        return Session(graph, {}, self.device, options=options, page_size=PAGE, padded=True, planes=planes)

    @cached_property
    def sequences(self) -> list[int]:
        """As many as the largest batch has, each with a context of random tokens that has been computed."""
        context, together = self.sizes.context, self.sizes.together
        found = [self.session.add_sequence() for _ in range(self.sizes.batches[-1])]
        for first in range(0, len(found), together):
            self.session.run([Chunk(sequence, tokens(sequence, context)) for sequence in found[first : first + together]])
        return found

    def prefill(self) -> dict[str, Any]:
        """A prompt of one sequence, from an empty cache."""
        count, session = self.sizes.prompt, self.session
        outputs: list[dict[str, np.ndarray]] = []

        def once() -> None:
            sequence = session.add_sequence()
            outputs.append(session.run([Chunk(sequence, tokens(1, count))]))
            session.drop_sequence(sequence)

        seconds = self.machine.seconds([once] * (2 if self.machine.small else PREFILLS))[1:]
        floor = total_floor(session.plan)
        return _result(count, median(seconds), floor, outputs[-1]) | {"launches": len(session.plan.launches)}

    def decode(self, batch: int) -> dict[str, Any]:
        """One token for each of some sequences: from the call to the logits on the host, and the captured launches alone."""
        session, sequences = self.session, self.sequences[:batch]
        outputs: list[dict[str, np.ndarray]] = []

        def step() -> None:
            outputs.append(session.run([Chunk(sequence, [7 + len(outputs)]) for sequence in sequences]))

        warm, steps = (1, 2) if self.machine.small else (WARM_STEPS, STEPS)
        seconds = self.machine.seconds([step] * (warm + steps))[warm:]
        graph_seconds = self.machine.seconds([self.device.replays[-1]] * (2 if self.machine.small else 6))[1:]
        cells = max(session.length(sequence) for sequence in sequences)
        exact = plan(session.graph, replace(session.plan.bucket, cells=cells), session.options)
        return _result(batch, median(seconds), total_floor(exact), outputs[-1]) | {
            "graph_seconds": median(graph_seconds), "context": cells, "launches": len(exact.launches),
        }  # fmt: skip


def tokens(seed: int, count: int) -> list[int]:
    return [int(token) for token in np.random.default_rng(seed).integers(0, 256, count)]


def _result(count: int, seconds: float, floor: float, outputs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    finite = all(np.isfinite(values).all() for values in outputs.values() if values.dtype.kind == "f")
    return {"tokens": count, "seconds": seconds, "value": count / seconds, "unit": "tokens/s", "floor": floor, "ok": bool(finite)}


class Slot:
    """Keeps one deployment on the device, the latest."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.held: Loaded | None = None

    def of(self, run: Run) -> Loaded:
        if self.held is None or self.held.run != run:
            self.held = None
            self.machine.release()
            self.held = Loaded(self.machine, run)
        return self.held

    def prefill(self, run: Run) -> dict[str, Any]:
        return self.of(run).prefill()

    def decode(self, run: Run, batch: int) -> dict[str, Any]:
        return self.of(run).decode(batch)


def launches(arch: str, *, small: bool = False) -> list[Launch]:
    """Those of all passes, to be compiled beforehand."""
    found: list[Launch] = []
    sizes = SMALL if small else FULL
    for run in RUNS:
        graph = graph_of(run, small=small)
        pages = (1024,) * len(graph.spaces)
        longest = 1 << (sizes.prompt - 1).bit_length()
        buckets = [Bucket(longest, 1, 1, sizes.prompt, sizes.prompt, longest, pages, PAGE, True)]
        if run.decodes:
            buckets += [Bucket(batch, batch, batch, 1, 1, longest, pages, PAGE, True) for batch in sizes.batches]
        for bucket in buckets:
            found += plan(graph, bucket, Options(arch, warpgroups=run.warpgroups)).launches
    return found


def cases(machine: Machine) -> Sequence[Case]:
    """For each deployment in order: a prefill, then decoding in growing batches."""
    slot, sizes = Slot(machine), SMALL if machine.small else FULL
    found = []
    for run in RUNS:
        name = run.name(small=machine.small)
        found.append(Case(f"{name}: prefill 1 x {sizes.prompt}", partial(slot.prefill, run)))
        if run.decodes:
            found += [Case(f"{name}: decode {batch}", partial(slot.decode, run, batch)) for batch in sizes.batches]
    return found
