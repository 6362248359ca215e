"""The self-test of a device: each wrapper of the prelude, once, against the bits that the emulator gave.

`python -m bench.on_gpu.selftest` tests a device; `--record` writes `expected.npz` anew, from the checked emulator.

What a device computes exactly (moved data, conversions, integers, sums of small whole numbers) must have the recorded bits. For what it
may round in its own way, a case brings the exact values and how far they may be missed.
"""

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from bench.on_gpu import stage
from bench.on_gpu.machine import Machine
from cupy_backend.devices import Device, open_device
from cupy_backend.errors import KernelError
from cupy_backend.launch import Launch
from cupy_backend.plan import nearest_arch

EXPECTED = Path(__file__).parent / "expected.npz"
WHOLE = 4096  # bytes of a result that is kept as it is; of a larger one, a digest of each of BLOCKS parts
BLOCKS = 64
SHOWN = 3  # elements of a wrong result that are told
Memory = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Verdict:
    """What a case found. problems: in words, none if all is well. facts: numbers that a case measures beside."""

    problems: tuple[str, ...] = ()
    facts: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Case:
    """One wrapper, or a few that only work together.

    memory: what every buffer holds before, by name. outputs: the buffers that are judged. archs: that have the instructions. judge: given
    the memory before and the outputs; None for outputs that must have the recorded bits.
    """

    name: str
    launches: tuple[Launch, ...]
    memory: Memory
    outputs: tuple[str, ...]
    archs: tuple[str, ...]
    judge: Callable[[Memory, Memory], Verdict] | None = None

    def leaf(self, output: str) -> str:
        """The dtype by which an output is read."""
        return next(array.dtype for launch in self.launches for array in launch.arrays().values() if array.buffer == output)


def run(case: Case, device: Device) -> dict[str, np.ndarray]:
    """The outputs of a case. KernelError for a launch that fails."""
    memory = {name: device.upload(array) for name, array in case.memory.items()}
    for launch in case.launches:
        device.run(launch, memory)
    device.synchronize()
    return {name: device.download(memory[name]) for name in case.outputs}


def judged(case: Case, outputs: Memory) -> Verdict:
    """A case's own verdict, or how its outputs differ from the recorded ones."""
    if case.judge is not None:
        return case.judge(case.memory, outputs)
    problems = [problem for name in case.outputs for problem in differences(case, name, outputs[name])]
    return Verdict(tuple(problems))


def differences(case: Case, output: str, got: np.ndarray) -> list[str]:
    """Where an output differs from what is recorded, in words."""
    bits = canonical(got, case.leaf(output))
    recorded = expected().get(f"{case.name}/{output}")
    if recorded is None:
        return [f"`{output}` is not recorded: python -m bench.on_gpu.selftest --record"]
    if bits.nbytes > WHOLE:
        wrong = np.flatnonzero(digests(bits) != recorded)
        size = -(-bits.size // BLOCKS)
        where = (f"[{block * size}:{min(bits.size, (block + 1) * size)}] = {_hex(bits[block * size :][:SHOWN])} ..." for block in wrong)
        return [f"{len(wrong)} of {len(recorded)} parts of `{output}` differ: {', '.join(list(where)[:SHOWN])}"] if len(wrong) else []
    if bits.shape != recorded.shape:
        return [f"`{output}` has {bits.size} elements, recorded are {recorded.size}"]
    wrong = np.flatnonzero(bits != recorded)
    where = (f"[{at}] = {_hex(bits[at : at + 1])}, recorded {_hex(recorded[at : at + 1])}" for at in wrong[:SHOWN])
    return [f"{len(wrong)} of {bits.size} elements of `{output}` differ: {', '.join(where)}"] if len(wrong) else []


def _hex(bits: np.ndarray) -> str:
    return " ".join(f"{int(value):0{2 * bits.itemsize}x}" for value in bits)


def canonical(values: np.ndarray, leaf: str) -> np.ndarray:
    """The bits of an array, flat, with one code for every NaN: a device need not keep a NaN's sign and payload."""
    bits = np.ascontiguousarray(values).reshape(-1).view(f"u{values.itemsize}")
    if leaf in NANS:
        largest, nan = NANS[leaf]
        magnitude = bits & np.array(nan, bits.dtype)
        bits = np.where(magnitude > np.array(largest, bits.dtype), np.array(nan, bits.dtype), bits)
    return bits


# The code of infinity, or of the largest number where there is none, and a code all of whose bits but the sign are set: a NaN.
NANS = {
    "f64": (0x7FF0000000000000, 0x7FFFFFFFFFFFFFFF), "f32": (0x7F800000, 0x7FFFFFFF), "f16": (0x7C00, 0x7FFF), "bf16": (0x7F80, 0x7FFF),
    "e4m3": (0x7E, 0x7F), "e5m2": (0x7C, 0x7F),
}  # fmt: skip


def digests(bits: np.ndarray) -> np.ndarray:
    """8 bytes of SHA-256 of each of at most `BLOCKS` parts."""
    size = -(-bits.size // BLOCKS)
    parts = (bits[start : start + size].tobytes() for start in range(0, bits.size, size))
    return np.array([int.from_bytes(hashlib.sha256(part).digest()[:8], "little") for part in parts], np.uint64)


@lru_cache
def expected() -> Mapping[str, np.ndarray]:
    """The recorded outputs, by case and output."""
    with np.load(EXPECTED) as found:
        return dict(found)


def record(cases: Iterable[Case], device: Device) -> dict[str, np.ndarray]:
    """The outputs of all cases that have no judge, as they are kept."""
    found = {}
    for case in cases:
        if case.judge is None:
            for name, output in run(case, device).items():
                bits = canonical(output, case.leaf(name))
                found[f"{case.name}/{name}"] = digests(bits) if bits.nbytes > WHOLE else bits
    return found


# ------------------------------------------------------------------------------------------------------------------- the stage
def all_cases(arch: str) -> list[Case]:
    """Those that an architecture has the instructions for."""
    from bench.on_gpu.selftest_cases import cases

    return [case for case in cases() if arch in case.archs]


def launches(arch: str) -> list[Launch]:
    """To be compiled beforehand."""
    return [launch for case in all_cases(arch) for launch in case.launches]


def cases(machine: Machine) -> Sequence[stage.Case]:
    with contextlib.suppress(KernelError):  # what does not compile is the fault of its own case
        machine.device.prepare(launches(machine.arch))
    return [stage.Case(case.name, partial(result, case, machine.device)) for case in all_cases(machine.arch)]


def result(case: Case, device: Device) -> dict[str, Any]:
    verdict = judged(case, run(case, device))
    return {"ok": not verdict.problems, "problems": list(verdict.problems), **(verdict.facts or {})}


def main(arguments: list[str] | None = None) -> int:
    """Exit code 0 if all cases agree, 1 if one does not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="emu", help="emu, emu-fast or cuda")
    parser.add_argument("--record", action="store_true")
    given = parser.parse_args(arguments)
    device = open_device("emu" if given.record else given.device)
    arch = nearest_arch(getattr(device, "arch", "sm_90a"))
    chosen = all_cases(arch)
    device.prepare(launches(arch))
    if given.record:
        found = record(chosen, device)
        np.savez_compressed(EXPECTED, **found)  # type: ignore[arg-type]
        print(f"{len(found)} outputs of {len(chosen)} cases in {EXPECTED}, {EXPECTED.stat().st_size} bytes")
        return 0
    wrong = 0
    for case in chosen:
        verdict = judged(case, run(case, device))
        wrong += bool(verdict.problems)
        print(f"{'differs' if verdict.problems else 'agrees':8} {case.name}", *verdict.problems, verdict.facts or "", sep="  ")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
