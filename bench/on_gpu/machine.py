"""A device with a clock: what the stages of `bench.gpu` measure on. `cuda` is a GPU; `emu` rehearses the stages on the CPU."""

import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Protocol

import numpy as np

from cupy_backend.devices import Device, open_device
from cupy_backend.launch import Array
from cupy_backend.plan import nearest_arch
from poem.dtypes.leaves import STORAGE

Memory = Any  # what a device hands out
BLOCK = 8 << 20  # bytes of random content that are made on the host; larger arrays repeat it
SEEDS = 4  # how many such blocks of a kind
PACKAGES = ("cupy-cuda13x", "cupy-cuda12x", "torch", "numpy", "ml_dtypes", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


class Machine(Protocol):
    """What a stage needs. small: the sizes of a rehearsal. cache: bytes of the last-level cache."""

    device: Device
    arch: str
    small: bool
    cache: int

    def facts(self) -> dict[str, Any]:
        """What the device is, in numbers and names."""

    def seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        """How long the device takes for each call, one after the other."""

    def torch_device(self) -> str:
        """Where tensors of torch live that are compared with this device."""

    def release(self) -> None:
        """Gives back memory that nothing holds any more."""


class CudaMachine:
    """The current GPU. KernelError where there is none, or no CuPy."""

    def __init__(self, *, small: bool = False) -> None:
        self.device = open_device("cuda")
        import cupy  # type: ignore[import-not-found]

        self._cupy = cupy
        self.arch = nearest_arch(self.device.arch)  # type: ignore[attr-defined]
        self.small = small
        self._properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)
        self.cache = int(self._properties["l2CacheSize"])

    def facts(self) -> dict[str, Any]:
        runtime, found = self._cupy.cuda.runtime, self._properties
        return {
            "device": found["name"].decode() if isinstance(found["name"], bytes) else str(found["name"]), "arch": self.arch,
            "multiprocessors": found["multiProcessorCount"], "memory": found["totalGlobalMem"], "cache": self.cache,
            "driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion(), "python": platform.python_version(),
            "versions": _versions(), "nvidia-smi": _nvidia_smi(),
        }  # fmt: skip

    def seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        cuda = self._cupy.cuda
        stream = cuda.get_current_stream()
        events = [stream.record(cuda.Event())]
        for call in calls:
            call()
            events.append(stream.record(cuda.Event()))
        events[-1].synchronize()
        return [cuda.get_elapsed_time(start, stop) / 1e3 for start, stop in zip(events, events[1:], strict=False)]  # noqa: RUF007

    def torch_device(self) -> str:
        return "cuda"

    def release(self) -> None:
        self._cupy.get_default_memory_pool().free_all_blocks()


class EmulatedMachine:
    """The emulator. What its clock says is the time of the emulation: nothing about a GPU."""

    arch = "sm_90a"
    cache = 1 << 20

    def __init__(self, name: str = "emu", *, small: bool = True) -> None:
        self.device = open_device(name)
        self.small = small

    def facts(self) -> dict[str, Any]:
        return {
            "device": f"the emulator on {platform.machine()}", "arch": self.arch, "python": platform.python_version(),
            "versions": _versions(),
        }  # fmt: skip

    def seconds(self, calls: Sequence[Callable[[], object]]) -> list[float]:
        times = []
        for call in calls:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        return times

    def torch_device(self) -> str:
        return "cpu"

    def release(self) -> None:
        """The emulator's memory is NumPy's."""


def open_machine(name: str, *, small: bool = False) -> Machine:
    """`cuda`, `emu` or `emu-fast`. KernelError if what the device needs is missing."""
    return CudaMachine(small=small) if name == "cuda" else EmulatedMachine(name)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _nvidia_smi() -> str:
    """Clocks, power and temperature as they are, or "" where the tool does not answer."""
    query = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu"
    try:
        done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


# -------------------------------------------------------------------------------------------------------------------- memory
def filled(device: Device, array: Array, block: np.ndarray) -> Memory:
    """Memory for an array, filled with copies of `block`, which are made on the device."""
    memory = device.empty(array.shape, array.dtype)
    flat = memory.reshape(-1).view(np.uint8)
    source = device.upload(np.ascontiguousarray(block).reshape(-1).view(np.uint8))
    for start in range(0, flat.nbytes, source.nbytes):
        stop = min(flat.nbytes, start + source.nbytes)
        flat[start:stop] = source[: stop - start]
    return memory


def random_block(array: Array, seed: int, scale: float = 1.0, centre: float = 0.0) -> np.ndarray:
    """Random content of an array's dtype, at most `BLOCK` bytes: floats from a normal distribution, codes from all but NaN."""
    whole = _whole_block(array.dtype, seed % SEEDS, scale, centre)
    return whole[: max(1, min(array.nbytes, BLOCK) // whole.itemsize)]


@lru_cache(maxsize=64)
def _whole_block(dtype: str, seed: int, scale: float, centre: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    storage = STORAGE[dtype]
    count = BLOCK // storage.itemsize
    if dtype in ("e4m3", "u8"):  # u8 may hold e4m3 codes
        codes = random.integers(0, 0x7F, count, np.uint8)
        return codes | (random.integers(0, 2, count, np.uint8) << 7)
    if storage.kind in "iu":
        return random.integers(0, 2**31 if storage.itemsize > 1 else 256, count).astype(storage)
    return (random.standard_normal(count, np.float32) * np.float32(scale) + np.float32(centre)).astype(storage)
