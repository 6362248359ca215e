"""The stage `conformance`: mini models on the device against the interpreter, as poem-check compares them, and random examples of ops."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from bench.on_gpu.machine import Machine
from bench.on_gpu.stage import Case
from conformance.backend import compare_backend
from conformance.examples import Case as Example
from conformance.examples import example, judge, session_of
from conformance.folders import shipped_golden
from conformance.golden import open_golden
from conformance.options import Options
from conformance.planned import subject_of
from conformance.strategies import Strategy, strategies
from cupy_backend.devices import Device
from cupy_backend.emulator import EmulatedDevice
from cupy_backend.errors import KernelError
from cupy_backend.launch import Launch
from cupy_backend.session import Session
from poem.checkpoint import open_checkpoint
from poem.importer import plan_import
from poem.package import load_package

# Packages with their models and deployments: every family of kernels, each format of weights and of cells.
MINIS = (
    ("llama_3", "llama31-mini", "llama31-mini-bf16-kv-bf16"),
    ("llama_3", "llama31-mini", "llama31-mini-e4m3tile128a8-kv-e4m3"),
    ("llama_3", "llama31-mini", "llama31-mini-u4g64-kv-bf16"),
    ("llama_3", "llama31-mini", "llama31-mini-nvfp4-kv-e4m3"),
    ("qwen_2", "qwen2-mini", "qwen2-mini-bf16-kv-bf16"),
    ("mistral", "mistral-mini", "mistral-mini-bf16-kv-bf16"),
)
SEEDS = 2  # examples of an op for each dtype of its weights


def mini(device: Device, package: str, model: str, deployment: str) -> dict[str, Any]:
    """A mini model: each launch on the interpreter's operands, then the whole run."""
    loaded = load_package(package)
    folder = shipped_golden(loaded.path, loaded.name, model) if loaded.path is not None else None
    assert folder is not None, f"{model} ships with a golden"
    plan = plan_import(open_checkpoint(folder), [loaded], deployment=deployment)
    subject = subject_of(plan, loaded.trace(loaded.deployment(deployment)), open_golden(folder), Options(package))
    found = compare_backend(subject, device.name, Session(subject.graph, subject.tensors, device))
    faults = [f"{fault.line}: {fault.name}" for fault in found.faults]
    return {"ok": found.verdict == "agrees", "worst": found.worst, "where": found.where, "faults": faults}


def op(device: Device, strategy: Strategy) -> dict[str, Any]:
    """Random examples of one op. worst: the largest error as a fraction of its bound. Those that no kernel serves are counted."""
    judged, unsupported, worst, faults = 0, 0, 0.0, []
    for case in examples(strategy):
        try:
            found = example(case)
            outcome = judge(found, session_of(found, device))
        except KernelError as refusal:
            if refusal.code != "kernel.unsupported":
                raise
            unsupported += 1
            continue
        judged, worst = judged + 1, max(worst, outcome.fraction)
        faults += [f"{case}: {outcome.fault}"] if outcome.fault else []
    return {"ok": not faults if judged else None, "worst": worst, "judged": judged, "unsupported": unsupported, "faults": faults}


def examples(strategy: Strategy) -> Iterable[Example]:
    """Some of an op: each dtype of weights, flavours in turn."""
    for number, (weights, seed) in enumerate(product(strategy.weights, range(SEEDS))):
        yield Example(strategy.name, strategy.dtypes[0], weights, strategy.flavours[number % len(strategy.flavours)], seed)


def cases(machine: Machine) -> Sequence[Case]:
    return [*(Case(names[2], partial(mini, machine.device, *names)) for names in MINIS), *per_op_examples(machine)]


def per_op_examples(machine: Machine) -> Sequence[Case]:
    return [Case(name, partial(op, machine.device, strategy)) for name, strategy in strategies().items()]


class Dry:
    """A device that runs nothing and notes what it is to compile."""

    name = "dry"

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.launches: list[Launch] = []
        self._memory = EmulatedDevice(checked=False)
        self.empty, self.upload, self.download = self._memory.empty, self._memory.upload, self._memory.download

    def prepare(self, launches: Iterable[Launch]) -> None:
        self.launches += launches

    def run(self, launch: Launch, memory: Mapping[str, np.ndarray]) -> None:
        self.launches.append(launch)

    def capture(self, launches: Sequence[Launch], memory: Mapping[str, np.ndarray]) -> Callable[[], None]:
        return lambda: None

    def synchronize(self) -> None:
        """Nothing is under way."""


def launches(arch: str) -> list[Launch]:
    """Those of all cases, to be compiled beforehand. What they are compared to is nonsense, since nothing runs."""
    device = Dry(arch)
    works: list[Callable[[], object]] = [partial(mini, device, *names) for names in MINIS]
    works += [partial(op, device, strategy) for strategy in strategies().values()]
    for work in works:
        with contextlib.suppress(Exception), np.errstate(all="ignore"):
            work()
    return device.launches
