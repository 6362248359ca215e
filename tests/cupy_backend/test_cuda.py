"""The device `cuda` without a GPU: what reaches the driver, and what is said when something is missing. CuPy and libcuda are stood for."""

import ctypes
import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cupy_backend import cuda, driver, host_compiler
from cupy_backend.cuda import CudaDevice, architecture
from cupy_backend.driver import Driver
from cupy_backend.errors import KernelError
from cupy_backend.launch import Argument, Array, Launch, Scalar, TensorMap
from tests.cupy_backend.compiling import compiler

FAKE = Path(__file__).parent / "fake_driver.cpp"
KERNEL = "decode_halves<bf16>"


class FakeLibrary:
    """The functions of fake_driver.cpp by the names that libcuda has."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library

    def __getattr__(self, name: str) -> object:
        return self.library[f"fake_{name}"]


class Told:
    """What the fake driver was told."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.fake_log.restype = ctypes.c_char_p

    def clear(self, status: int = 0) -> None:
        """Forgets; from now on every call returns `status`."""
        self.library.fake_clear(status)

    def text(self) -> str:
        return str(self.library.fake_log().decode())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("driver") / "libfake.so"
    include = Path(os.environ.get("CUDA_PATH") or "/usr/local/cuda") / "include"
    subprocess.run([host_compiler.compiler()[0], "-std=c++20", "-shared", "-fPIC", f"-I{include}", "-o", str(path), str(FAKE)], check=True)
    return ctypes.CDLL(str(path))


class FakeGraph:
    """A captured graph: notes the streams that it is launched on."""

    def __init__(self) -> None:
        self.launched_on: list[int] = []

    def launch(self, stream: "FakeStream") -> None:
        self.launched_on.append(stream.ptr)


class FakeStream:
    """A stream as CuPy's: `with` makes it current, and between begin_capture and end_capture it captures."""

    current: "list[FakeStream]" = []  # noqa: RUF012
    graphs: list[FakeGraph] = []  # noqa: RUF012

    def __init__(self, *, non_blocking: bool = False, ptr: int = 0x77) -> None:
        assert non_blocking == (ptr == 0x77), "the null stream waits for blocking ones, and the other way round"
        self.ptr, self.capturing = ptr, False

    def __enter__(self) -> None:
        FakeStream.current.append(self)

    def __exit__(self, *fault: object) -> None:
        assert not self.capturing, "a capture that is never ended"
        FakeStream.current.pop()

    def synchronize(self) -> None:
        assert not self.capturing, "a stream cannot be waited for while it captures"

    def begin_capture(self) -> None:
        self.capturing = True

    def end_capture(self) -> FakeGraph:
        self.capturing = False
        FakeStream.graphs.append(FakeGraph())
        return FakeStream.graphs[-1]


FakeStream.current.append(FakeStream(ptr=0x55))


def fake_cupy(*, available: bool = True, capability: str = "90") -> types.ModuleType:
    def array_of(values: np.ndarray) -> object:
        return types.SimpleNamespace(data=types.SimpleNamespace(ptr=0x7000_0000), nbytes=values.nbytes)

    module = types.ModuleType("cupy")
    module.cuda = types.SimpleNamespace(  # type: ignore[attr-defined]
        is_available=lambda: available, Device=lambda: types.SimpleNamespace(compute_capability=capability),
        get_current_stream=lambda: FakeStream.current[-1], Stream=FakeStream,
        runtime=types.SimpleNamespace(free=lambda pointer: None, CUDARuntimeError=RuntimeError),
    )  # fmt: skip
    module.empty = lambda shape, dtype: array_of(np.empty(shape, dtype))  # type: ignore[attr-defined]
    module.asarray = array_of  # type: ignore[attr-defined]
    return module


@pytest.fixture
def device(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaDevice]:
    compiler()
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy())
    monkeypatch.setattr(driver, "driver", lambda: Driver(FakeLibrary(library)))  # type: ignore[arg-type]
    Told(library).clear()
    yield CudaDevice()
    Told(library).clear()


def record(**changes: object) -> Launch:
    arguments: dict[str, Argument] = {
        "bias": Array("arena", "constant", (64,), "bf16", 0x100), "rows": Scalar(4, "i32"), "x": Array("arena", "read", (4, 64), "bf16"),
    }  # fmt: skip
    given: dict[str, object] = {"grid": (3, 2, 1), "block": (256, 1, 1), "arguments": arguments, "nodes": (9,), **changes}
    return Launch("selftest.cu", KERNEL, **given)  # type: ignore[arg-type]


def test_a_launch_reaches_the_driver_as_the_record_says(device: CudaDevice, library: ctypes.CDLL) -> None:
    memory = {"arena": device.empty((4096,), "u8")}
    device.run(record(shared=60_000, cluster=(1, 2, 1), overlaps=True), memory)
    lines = Told(library).text().splitlines()
    assert lines[0] == "load ELF\x02"
    assert lines[1].startswith("function 0x1000 _Z13decode_halvesI")
    assert lines[2:] == [
        "attribute 0x2000 8 60000",
        "launch 0x2000 grid 3 2 1 block 256 1 1 shared 60000 stream 0x55 extra (nil)",
        "cluster 1 2 1",
        "attribute 6 1",
        "first 70000100 second 4",
    ]
    Told(library).clear()
    device.run(record(), memory)
    assert Told(library).text().splitlines() == [
        "launch 0x2000 grid 3 2 1 block 256 1 1 shared 0 stream 0x55 extra (nil)", "first 70000100 second 4",
    ]  # fmt: skip


def test_a_tensor_map_is_made_by_the_driver_from_the_arrays_terms(device: CudaDevice, library: ctypes.CDLL) -> None:
    array = Array("arena", "read", (5, 40, 64), "bf16", 0x200)
    arguments: dict[str, Argument] = {"map": TensorMap(array, (1, 16, 64), 128), "n": Scalar(3, "i32")}
    device.run(record(arguments=arguments), {"arena": device.empty((1 << 16,), "u8")})
    assert (
        "map aligned 1 type 9 rank 3 address 0x70000200 interleave 0 swizzle 3 promotion 3 fill 0 dim 64 box 64 step 1 "
        "dim 40 box 16 step 1 dim 5 box 1 step 1 stride 128 stride 5120\n"
    ) in Told(library).text()
    assert "first 5a5a5a5a5a5a5a5a second 3" in Told(library).text()


def test_codes_are_moved_as_bytes(device: CudaDevice, library: ctypes.CDLL) -> None:
    for dtype, elements in (("e4m3", 128), ("u4", 256)):
        arguments: dict[str, Argument] = {
            "map": TensorMap(Array("arena", "read", (8, elements), dtype), (8, elements), 128),
            "n": Scalar(0, "i32"),
        }
        Told(library).clear()
        device.run(record(arguments=arguments), {"arena": device.empty((4096,), "u8")})
        assert "type 0 rank 2" in Told(library).text()
        assert "dim 128 box 128 step 1 dim 8 box 8 step 1 stride 128" in Told(library).text()


def test_a_capture_takes_launches_on_a_stream_of_its_own_and_replays_them_on_the_current_one(
    device: CudaDevice, library: ctypes.CDLL
) -> None:
    memory = {"arena": device.empty((4096,), "u8")}
    FakeStream.graphs.clear()
    replay = device.capture([record(), record(grid=(1, 1, 1))], memory)
    launches = [line for line in Told(library).text().splitlines() if line.startswith("launch")]
    assert [line.split("stream ")[1].split()[0] for line in launches] == ["0x77", "0x77"]
    assert len(FakeStream.current) == 1
    replay()
    replay()
    assert [graph.launched_on for graph in FakeStream.graphs] == [[0x55, 0x55]]
    assert len([line for line in Told(library).text().splitlines() if line.startswith("launch")]) == 2


def test_a_launch_that_is_refused_ends_the_capture(device: CudaDevice, library: ctypes.CDLL) -> None:
    device.prepare([record()])
    with pytest.raises(KernelError, match="needs the buffer `arena`"):
        device.capture([record()], {})
    assert [stream.ptr for stream in FakeStream.current] == [0x55]


def test_each_kernel_is_compiled_and_loaded_once_whatever_it_is_asked_for_with(device: CudaDevice, library: ctypes.CDLL) -> None:
    other = Launch("selftest.cu", "decode_halves<f16>", (1, 1, 1), (256, 1, 1), {})
    device.prepare([record(), record()])
    device.prepare([record(), other])
    lines = Told(library).text().splitlines()
    assert [line.split()[0] for line in lines] == ["load", "function", "load", "function"]


def test_cupy_has_what_the_device_uses() -> None:
    """Names and parameters; CuPy can be imported without a GPU."""
    cupy = pytest.importorskip("cupy", reason="CuPy comes with the extras cuda12 and cuda13")
    for name in ("synchronize", "begin_capture", "end_capture", "__enter__"):
        assert hasattr(cupy.cuda.Stream, name)
    for name in ("is_available", "get_current_stream", "get_elapsed_time", "Event", "Device"):
        assert hasattr(cupy.cuda, name)
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert isinstance(cupy.cuda.Device.compute_capability, property | types.GetSetDescriptorType)
    assert "stream=None" in cupy.cuda.graph.Graph.launch.__doc__
    for name in ("free", "getDeviceProperties", "driverGetVersion"):
        assert hasattr(cupy.cuda.runtime, name)


def test_what_the_driver_refuses_names_the_launch_and_its_nodes(device: CudaDevice, library: ctypes.CDLL) -> None:
    memory = {"arena": device.empty((4096,), "u8")}
    device.prepare([record()])
    Told(library).clear(1)
    with pytest.raises(KernelError) as caught:
        device.run(record(), memory)
    assert caught.value.message == f"{KERNEL} of selftest.cu (nodes 9): the launch was refused"
    assert (caught.value.code, caught.value.found) == ("cuda.driver", "CUDA error 1: invalid argument")


def test_a_buffer_that_is_missing_or_too_small_is_named(device: CudaDevice) -> None:
    with pytest.raises(KernelError, match="argument `bias` needs the buffer `arena`"):
        device.run(record(), {})
    with pytest.raises(KernelError, match="argument `bias` does not fit its buffer `arena`"):
        device.run(record(), {"arena": device.empty((256,), "u8")})


@pytest.mark.parametrize(
    ("capability", "name"),
    [((8, 0), "sm_80"), ((8, 6), "sm_86"), ((8, 9), "sm_89"), ((9, 0), "sm_90a"), ((10, 0), "sm_100a"), ((12, 0), "sm_120a")],
)
def test_a_device_gets_code_for_its_own_features(capability: tuple[int, int], name: str) -> None:
    assert architecture(capability) == name


def test_an_old_gpu_is_refused() -> None:
    with pytest.raises(KernelError, match=r"compute capability 8.0 \(Ampere\) or newer") as caught:
        architecture((7, 5))
    assert caught.value.found == "7.5"


def test_without_cupy_a_gpu_or_the_driver_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(KernelError) as no_cupy:
        CudaDevice()
    assert (no_cupy.value.code, no_cupy.value.message) == ("cuda.no-cupy", "the device `cuda` needs CuPy, and it is not installed")
    assert no_cupy.value.hint.startswith('pip install "poem-models[cuda13]"')
    monkeypatch.setitem(sys.modules, "cupy", fake_cupy(available=False))
    with pytest.raises(KernelError) as no_gpu:
        CudaDevice()
    assert (no_gpu.value.code, no_gpu.value.message) == ("cuda.no-gpu", "there is no GPU that CUDA can use")
    monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.1")
    driver.driver.cache_clear()
    with pytest.raises(KernelError) as no_driver:
        driver.driver()
    driver.driver.cache_clear()
    assert no_driver.value.code == "cuda.no-driver"


def test_the_layouts_are_those_of_the_installed_header(library: ctypes.CDLL) -> None:
    """The fake driver is compiled against cuda.h where there is one, and then asserts its own layouts."""
    if not (Path(os.environ.get("CUDA_PATH") or "/usr/local/cuda") / "include" / "cuda.h").exists():
        pytest.skip("cuda.h comes with a CUDA toolkit")
    assert ctypes.sizeof(driver.LaunchConfig) == 56
    assert ctypes.sizeof(driver.LaunchAttribute) == 72
    assert cuda.OLDEST == (8, 0)
