"""How fast kernels run on the device `emu`, fast and checked. Run: python -m bench.emulator [--json]

Milliseconds of one launch, best of several, on one core, and the seconds that building takes into an empty cache; then whole passes of a
mini Llama in each of its deployments, after building.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from cupy_backend import emulator
from cupy_backend.emulator import Counters, EmulatedDevice
from cupy_backend.kernels import norms
from cupy_backend.launch import Array, Launch
from cupy_backend.session import Session
from poem.batch import Chunk
from poem.checkpoint import open_checkpoint
from poem.home import shipped_models
from poem.importer import plan_import
from poem.package import load_package
from tests.cupy_backend.running import normal
from tests.cupy_backend.test_emulator_gemms import mma, pipelined, wgmma

DEPLOYMENTS = [f"llama31-mini-{dtypes}" for dtypes in ("bf16-kv-bf16", "e4m3tile128a8-kv-e4m3", "nvfp4-kv-e4m3", "u4g64-kv-bf16")]


class Case(NamedTuple):
    """A launch, and how many multiply-adds it does."""

    name: str
    run: Callable[[EmulatedDevice], object]
    work: float


def add_rmsnorm(device: EmulatedDevice, rows: int = 4, width: int = 4096) -> None:
    arrays = {name: Array(name, "read", (rows, width), "bf16") for name in ("x", "residual", "out")}
    launch = norms.rmsnorm(arrays["x"], Array("gain", "read", (width,), "bf16"), arrays["out"], eps=1e-6, residual=arrays["residual"])[0]
    memory = {name: normal(1, *shape) for name, shape in (("x", (rows, width)), ("residual", (rows, width)), ("gain", (width,)))}
    memory["out"] = np.empty_like(memory["x"])
    device.run(launch, memory)


CASES = [
    Case("add + rmsnorm 4 x 4096", add_rmsnorm, 4 * 4096),
    Case("mma.sync GEMM 128 x 128 x 256", lambda device: mma(device=device), 128 * 128 * 256),
    Case("wgmma GEMM 128 x 128 x 256", lambda device: wgmma(128, 128, 256, device=device), 128 * 128 * 256),
    Case("TMA, wgmma GEMM 128 x 128 x 256", lambda device: pipelined(128, 128, 256, device=device), 128 * 128 * 256),
    Case("the same, e4m3", lambda device: pipelined(128, 128, 256, dtype="e4m3", device=device), 128 * 128 * 256),
    Case("the same, cluster of 2, 256 x 128 x 256", lambda device: pipelined(256, 128, 256, cluster=2, device=device), 256 * 128 * 256),
    Case("mma.sync GEMM 512 x 512 x 512", lambda device: mma(512, 512, 512, device=device), 512**3),
]


def forward(deployment: str, checked: bool, repeats: int) -> Iterator[tuple[str, float]]:
    """Milliseconds of whole passes of a mini Llama of two layers: a prompt of 16 tokens, and one token behind it."""
    package, folder = load_package("llama_3"), shipped_models() / "goldens" / "llama_3" / "llama31-mini"
    weights = plan_import(open_checkpoint(folder), [package], deployment=deployment).weights
    session = Session(package.trace(deployment), weights, EmulatedDevice(checked=checked))
    times: dict[str, list[float]] = {"prompt of 16": [], "a token": []}
    for _ in range(repeats):
        sequence = session.add_sequence()
        for (_, taken), tokens in zip(times.items(), (list(range(1, 17)), [17]), strict=True):
            start = time.perf_counter()
            session.run([Chunk(sequence, tokens)])
            taken.append(1e3 * (time.perf_counter() - start))
        session.drop_sequence(sequence)
    return ((f"{deployment}, {what}", min(taken)) for what, taken in times.items())


class Timed(EmulatedDevice):
    """Keeps how long its launches took, in seconds."""

    def __init__(self, *, checked: bool) -> None:
        super().__init__(checked=checked)
        self.times: list[float] = []

    def run(self, launch: Launch, memory: Mapping[str, np.ndarray]) -> Counters:
        start = time.perf_counter()
        counters = super().run(launch, memory)
        self.times.append(time.perf_counter() - start)
        return counters


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=12)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POEM_HOME"] = folder
        start = time.perf_counter()
        emulator.runtime()
        built = time.perf_counter() - start
        results = []
        for mode in ("fast", "checked"):
            for case in CASES:
                device = Timed(checked=mode == "checked")
                for _ in range(given.repeats):
                    case.run(device)
                best = min(device.times)
                results.append(
                    {"what": case.name, "mode": mode, "ms": 1e3 * best, "build": device.times[0] - best, "mega": case.work / best / 1e6}
                )
        passes = [
            {"what": what, "mode": mode, "ms": ms}
            for mode in ("fast", "checked")
            for deployment in DEPLOYMENTS
            for what, ms in forward(deployment, mode == "checked", given.repeats)
        ]
    if given.json:
        print(json.dumps({"build": built, "launches": results, "passes": passes}))
        return
    print(f"the emulator: built in {built:.1f} s")
    for result in results:
        speed = f"{result['ms']:8.2f} ms {result['mega']:6.0f} M multiply-adds/s"
        print(f"{result['mode']:8} {result['what']:42} {speed}  built in {result['build']:.2f} s")
    for result in passes:
        print(f"{result['mode']:8} {result['what']:56} {result['ms']:8.1f} ms")


if __name__ == "__main__":
    main()
