"""The device with a clock: CuPy's calls on a stand-in, content of memory on the emulator."""

import sys
import types

import numpy as np
import pytest

from bench.on_gpu import machine
from bench.on_gpu.machine import CudaMachine, EmulatedMachine, filled, open_machine, random_block
from cupy_backend.emulator import EmulatedDevice
from cupy_backend.launch import Array
from poem.dtypes import leaves


class Event:
    """An event: when it was recorded, by a clock that each call moves."""

    clock = 0.0

    def __init__(self) -> None:
        self.time: float | None = None

    def synchronize(self) -> None:
        assert self.time is not None


class Stream:
    def record(self, event: Event) -> Event:
        event.time = Event.clock
        return event


class CudaDevice(EmulatedDevice):
    """The emulator by the name of a GPU."""

    name = "cuda"
    arch = "sm_90a"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> CudaMachine:
    """A machine on a stand-in for CuPy."""
    freed: list[int] = []
    properties = {"name": b"NVIDIA H200", "multiProcessorCount": 132, "totalGlobalMem": 150 << 30, "l2CacheSize": 60 << 20}
    stream = Stream()
    cupy = types.ModuleType("cupy")
    cupy.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        Event=Event, get_current_stream=lambda: stream, Device=lambda: types.SimpleNamespace(id=0),
        get_elapsed_time=lambda start, stop: (stop.time - start.time) * 1e3,
        runtime=types.SimpleNamespace(
            getDeviceProperties=lambda id: properties, driverGetVersion=lambda: 13000, runtimeGetVersion=lambda: 13000
        ),
    )  # fmt: skip
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(free_all_blocks=lambda: freed.append(1))  # type: ignore[attr-defined]
    cupy.freed = freed  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setattr(machine, "open_device", lambda name: CudaDevice(checked=False))
    found = open_machine("cuda")
    assert isinstance(found, CudaMachine)
    return found


def test_a_gpu_is_described_in_numbers_and_names(gpu: CudaMachine) -> None:
    facts = gpu.facts()
    assert (facts["device"], facts["arch"], facts["multiprocessors"], facts["cache"]) == ("NVIDIA H200", "sm_90a", 132, 60 << 20)
    assert facts["versions"]["numpy"] == np.__version__
    assert gpu.torch_device() == "cuda"
    gpu.release()
    assert sys.modules["cupy"].freed == [1]


def test_each_call_is_timed_between_two_events(gpu: CudaMachine) -> None:
    def takes(seconds: float) -> None:
        Event.clock += seconds

    assert gpu.seconds([lambda: takes(0.25), lambda: takes(0.5)]) == pytest.approx([0.25, 0.5])


def test_without_the_tool_there_are_no_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine._nvidia_smi() == ""


def test_the_emulator_rehearses_at_small_sizes() -> None:
    found = open_machine("emu-fast")
    assert isinstance(found, EmulatedMachine)
    assert found.small
    assert "emulator" in found.facts()["device"]
    assert len(found.seconds([lambda: None] * 3)) == 3


@pytest.mark.parametrize("shape", [(3, 5), (1,), (1 << 19, 7)])
def test_memory_is_filled_with_copies_of_a_block(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    array = Array("x", "read", shape, "f32")
    block = np.arange(1 << 16, dtype=np.float32)
    memory = filled(EmulatedDevice(), array, block)
    assert np.array_equal(memory.reshape(-1), np.resize(block, shape).reshape(-1))


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "e4m3", "u8", "i32", "u32"])
def test_random_content_is_of_its_dtype_and_holds_no_nan(dtype: str) -> None:
    block = random_block(Array("x", "read", (5000,), dtype), 3, 2.0, 1.0)
    assert len(block) == 5000
    assert block.dtype == leaves.STORAGE[dtype]
    assert len(np.unique(block)) > 200
    if dtype in ("e4m3", "u8"):
        assert np.isfinite(leaves.decode(block, "e4m3")).all()
    elif dtype not in ("i32", "u32"):
        values = block.astype(np.float64)
        assert abs(values.mean() - 1) < 0.2
        assert abs(values.std() - 2) < 0.2
