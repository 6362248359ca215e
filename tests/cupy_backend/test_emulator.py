"""The device `emu` around the emulator: what it refuses, what it says, and what it leaves behind."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cupy_backend import disk_cache, host_compiler, sources
from cupy_backend.devices import open_device
from cupy_backend.emulator import ALIGNMENT, EmulatedDevice
from cupy_backend.errors import KernelError
from cupy_backend.launch import Argument, Array, Launch, Scalar, TensorMap
from poem.errors import UsageError
from tests.cupy_backend.running import KERNELS

ROOT = Path(__file__).parents[2]
TEXT = """#include "prelude.cuh"
using namespace poem;
__global__ void add(const float* x, float* y, int n) {
  const int i = blockIdx.x * 32 + threadIdx.x;
  if (i < n) y[i] += x[i];
}
__global__ void shift(const float* x, float* y) { y[threadIdx.x] = x[threadIdx.x + 1]; }
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kernels") / "small.cu"
    path.write_text(TEXT)
    return path


def record(source: Path | str, kernel: str = "add", **changes: object) -> Launch:
    arguments: dict[str, Argument] = {
        "x": Array("x", "read", (40,), "f32"),
        "y": Array("y", "update", (40,), "f32"),
        "n": Scalar(40, "i32"),
    }
    given: dict[str, object] = {"grid": (2, 1, 1), "block": (32, 1, 1), "arguments": arguments, "nodes": (3, 4), **changes}
    return Launch(str(source), kernel, **given)  # type: ignore[arg-type]


def memory() -> dict[str, np.ndarray]:
    device = EmulatedDevice()
    return {name: device.upload(np.arange(40, dtype=np.float32)) for name in ("x", "y")}


def refused(launch: Launch, buffers: dict[str, np.ndarray]) -> KernelError:
    with pytest.raises(KernelError) as caught:
        EmulatedDevice().run(launch, buffers)
    return caught.value


# ------------------------------------------------------------------------------------------------------------------------ running
@pytest.mark.parametrize("checked", [True, False])
def test_a_launch_changes_the_buffers_it_names(kernels: Path, checked: bool) -> None:
    buffers = memory()
    EmulatedDevice(checked=checked).run(record(kernels), buffers)
    assert np.array_equal(buffers["y"], 2 * np.arange(40))
    assert np.array_equal(buffers["x"], np.arange(40))


@pytest.mark.parametrize("checked", [True, False])
def test_arrays_lie_at_their_offsets_in_a_buffer(kernels: Path, checked: bool) -> None:
    arena = EmulatedDevice().upload(np.zeros(200, np.float32))
    arena[10:50] = np.arange(40)
    arguments: dict[str, Argument] = {
        "x": Array("arena", "read", (40,), "f32", 40), "y": Array("arena", "update", (40,), "f32", 400), "n": Scalar(40, "i32"),
    }  # fmt: skip
    EmulatedDevice(checked=checked).run(record(kernels, arguments=arguments), {"arena": arena})
    want = np.zeros(200, np.float32)
    want[10:50] = want[100:140] = np.arange(40)
    assert np.array_equal(arena, want)


def test_a_launch_that_is_found_wrong_leaves_inputs_and_updated_buffers_as_they_were(kernels: Path) -> None:
    buffers = memory()
    arguments: dict[str, Argument] = {"x": Array("x", "read", (32,), "f32"), "y": Array("y", "update", (32,), "f32")}
    error = refused(record(kernels, "shift", arguments=arguments, grid=(1, 1, 1)), buffers)
    assert error.code == "emu.bounds"
    assert "read of 4 bytes past the end of `x` [32] f32, at `x`[32]" in error.message
    assert np.array_equal(buffers["y"], np.arange(40))


def test_an_error_names_kernel_line_block_thread_and_nodes(kernels: Path) -> None:
    arguments: dict[str, Argument] = {
        "x": Array("x", "read", (40,), "f32"),
        "y": Array("y", "update", (39,), "f32"),
        "n": Scalar(40, "i32"),
    }
    error = refused(record(kernels, arguments=arguments), memory())
    assert (error.file, error.line) == (str(kernels), 5)
    assert error.message.startswith(f"add of {kernels} (nodes 3, 4), block (1, 0, 0), thread 7: ")


def test_what_is_to_be_written_is_not_what_was_there_before(kernels: Path) -> None:
    arguments: dict[str, Argument] = {"x": Array("x", "read", (40,), "f32"), "y": Array("y", "write", (40,), "f32"), "n": Scalar(40, "i32")}
    assert "read of `y`[0], which nobody has written" in refused(record(kernels, arguments=arguments), memory()).message
    buffers = memory()
    EmulatedDevice(checked=False).run(record(kernels, arguments=arguments), buffers)
    assert np.isnan(buffers["y"]).all()


def test_memory_is_aligned_as_on_a_gpu() -> None:
    device = EmulatedDevice()
    for shape, dtype, stored in (((3, 5), "bf16", (3, 5)), ((7, 6), "u4", (7, 3)), ((2, 8), "u2", (2, 2)), ((4,), "e4m3", (4,))):
        array = device.empty(shape, dtype)
        assert array.ctypes.data % ALIGNMENT == 0
        assert array.shape == stored
    copied = device.upload(np.arange(3))
    assert copied.ctypes.data % ALIGNMENT == 0
    assert device.download(copied) is not copied


def test_switching_fibers_through_the_c_library_computes_the_same() -> None:
    """As on machines that are not x86-64, in a process of its own: a process has one emulator."""
    program = """
import numpy as np
from cupy_backend import emulator
from cupy_backend.errors import KernelError
emulator.RUNTIME_FLAGS = ("-O0", "-DPOEM_UCONTEXT")
from tests.cupy_backend.test_emulator_gemms import mma, pipelined
from tests.cupy_backend.test_emulator_rules import RULES, run
print(np.abs(mma(64, 64, 64).got).sum().hex(), np.abs(pipelined(128, 128, 128).got).sum().hex())
for rule in RULES:
    if rule.name in ("shared_barrier", "stack_size"):
        try:
            run(rule, right=False)
        except KernelError as error:
            print(error.code)
"""
    from tests.cupy_backend.test_emulator_gemms import mma, pipelined

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False)
    results = [np.abs(mma(64, 64, 64).got).sum().hex(), np.abs(pipelined(128, 128, 128).got).sum().hex()]
    assert done.stdout.split() == [*results, "emu.unwritten", "emu.stack"], done.stderr


# ----------------------------------------------------------------------------------------------------------------------- refusals
def test_arguments_must_fit_the_kernels_parameters(kernels: Path) -> None:
    arguments: dict[str, Argument] = {
        "x": Array("x", "read", (40,), "f32"),
        "y": Array("y", "update", (40,), "f32"),
        "n": Scalar(40, "i64"),
    }
    error = refused(record(kernels, arguments=arguments), memory())
    assert "the arguments do not fit the kernel's parameters" in error.message
    assert (error.expected, error.found) == ("sizes [8, 8, 4]", "['x', 'y', 'n'], sizes [8, 8, 8]")


def test_a_buffer_that_is_missing_too_small_or_read_only_is_named(kernels: Path) -> None:
    buffers = memory()
    assert "argument `y` needs the buffer `y`" in refused(record(kernels), {"x": buffers["x"]}).message
    small = refused(record(kernels), {**buffers, "y": buffers["y"][:39]})
    assert ("argument `y` does not fit its buffer `y`" in small.message, small.expected, small.found) == (True, "160 bytes", "156 bytes")
    buffers["y"].setflags(write=False)
    assert "argument `y` is written, and its buffer `y` is read-only" in refused(record(kernels), buffers).message
    strided = {**memory(), "x": np.zeros(80, np.float32)[::2]}
    assert "buffer `x` of argument `x` is not contiguous" in refused(record(kernels), strided).message


def test_arguments_that_overlap_are_refused_unless_both_are_updated_or_read(kernels: Path) -> None:
    arena = EmulatedDevice().upload(np.ones(60, np.float32))

    def launch(x: str, y: str) -> Launch:
        arguments: dict[str, Argument] = {
            "x": Array("arena", x, (40,), "f32"), "y": Array("arena", y, (40,), "f32", 80), "n": Scalar(20, "i32"),  # type: ignore[arg-type]
        }  # fmt: skip
        return record(kernels, arguments=arguments, grid=(1, 1, 1))

    error = refused(launch("read", "update"), {"arena": arena})
    assert "arguments `x` and `y` overlap" in error.message
    EmulatedDevice().run(launch("update", "update"), {"arena": arena})
    assert arena.tolist() == [1.0] * 20 + [2.0] * 20 + [1.0] * 20


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"grid": (0, 1, 1)}, "a grid of (0, 1, 1) blocks"),
        ({"grid": (1, 65536, 1)}, "a grid of (1, 65536, 1) blocks"),
        ({"block": (48, 1, 1)}, "a block of (48, 1, 1) threads"),
        ({"block": (32, 33, 1)}, "a block of (32, 33, 1) threads"),
        ({"cluster": (3, 1, 1)}, "clusters of (3, 1, 1) in a grid of (2, 1, 1)"),
        ({"grid": (16, 1, 1), "cluster": (16, 1, 1)}, "clusters of (16, 1, 1) in a grid of (16, 1, 1)"),
        ({"shared": 240_000}, "240000 bytes of dynamic shared memory"),
        ({"arguments": {"n": Scalar(1, "i16")}}, "`n` has type i16"),
        ({"arguments": {"x": Array("x", "read", (4,), "f8")}}, "`x` has dtype f8"),
        ({"arguments": {"x": Array("x", "reads", (4,), "f32")}}, "`x` has direction reads"),  # type: ignore[arg-type]
        ({"arguments": {"x": TensorMap(Array("x", "read", (-4, 8), "f32"), (4, 8))}}, "`x` has shape (-4, 8)"),
    ],
)
def test_a_record_that_no_device_can_run_is_refused_when_it_is_made(changes: dict[str, object], says: str) -> None:
    with pytest.raises(KernelError) as caught:
        record("small.cu", **changes)
    assert says in caught.value.message
    assert "add of small.cu (nodes 3, 4)" in caught.value.message


def test_a_kernel_that_does_not_compile_shows_its_own_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.cu"
    path.write_text(TEXT.replace("y[i] += x[i];", "y[i] += z[i];"))
    error = refused(record(path), memory())
    assert (error.code, error.file, error.line) == ("kernel.compile", str(path), 5)
    assert "‘z’ was not declared in this scope" in error.message


def test_an_instantiation_that_is_none_is_named(kernels: Path) -> None:
    error = refused(record(kernels, "ad"), memory())
    assert (error.code, error.file) == ("kernel.compile", str(kernels))
    assert error.message == "not all of these are kernels of small.cu: ad"
    assert "‘ad’ was not declared in this scope" in error.found


def test_a_kernel_file_that_is_not_there_is_refused_with_those_that_are() -> None:
    error = refused(record("nothing.cu"), memory())
    assert (error.code, error.message) == ("kernel.no-sources", "there is no kernel file nothing.cu")
    assert "elemwise.cu" in error.expected


def test_a_device_has_one_of_three_names() -> None:
    assert open_device("emu").name == "emu"
    assert open_device("emu-fast").mode == "fast"  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match="there is no device gpu"):
        open_device("gpu")


# ---------------------------------------------------------------------------------------------------------- compiler and cache
@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CXX", "no-such-compiler")
    host_compiler.compiler.cache_clear()
    yield
    host_compiler.compiler.cache_clear()


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_one_sentence_says_how_to_get_one(tmp_path: Path) -> None:
    path = tmp_path / "new.cu"
    path.write_text(TEXT)
    error = refused(record(path), memory())
    assert error.code == "cuda.no-compiler"
    assert error.message == "the device `emu` compiles kernels with g++ 12 or newer, and there is no no-such-compiler"
    assert error.hint.startswith("install it: `apt install g++`")


def test_an_old_compiler_is_refused_by_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = tmp_path / "old-g++"
    old.write_text("#!/bin/sh\necho 9.4.0\n")
    old.chmod(0o755)
    monkeypatch.setenv("CXX", str(old))
    host_compiler.compiler.cache_clear()
    with pytest.raises(KernelError) as caught:
        host_compiler.compiler()
    host_compiler.compiler.cache_clear()
    assert caught.value.found == f"{old}, version 9.4.0"


def test_processes_that_build_the_same_thing_build_it_once(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from cupy_backend import disk_cache
def build(target):
    with open({str(tmp_path / "log")!r}, "a") as log: log.write("built\\n")
    time.sleep(0.2)
    target.write_text("whole")
print(disk_cache.get("thing.so", build).read_text())
"""
    environment = {**os.environ, "POEM_HOME": str(tmp_path)}
    running = [
        subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)
    ]
    assert [process.communicate()[0] for process in running] == ["whole\n"] * 4
    assert (tmp_path / "log").read_text() == "built\n"
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["thing.so"]


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POEM_HOME", str(tmp_path))

    def build(target: Path) -> None:
        target.write_text("half")
        raise KernelError("kernel.compile", "no")

    with pytest.raises(KernelError):
        disk_cache.get("thing.so", build)
    assert [path.suffix for path in (tmp_path / "kernels").iterdir()] == [".lock"]
    assert disk_cache.get("thing.so", lambda target: target.write_text("whole") and None).read_text() == "whole"


def test_a_cache_that_cannot_be_written_is_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "kernels").write_text("a file where the folder should be")
    monkeypatch.setenv("POEM_HOME", str(tmp_path))
    with pytest.raises(KernelError) as caught:
        disk_cache.folder()
    assert (caught.value.code, caught.value.hint) == ("cuda.cache", "set POEM_HOME to a folder that can")


def test_a_changed_kernel_is_built_anew(tmp_path: Path) -> None:
    """In another process: one process keeps what it has loaded."""
    program = """
import sys
import numpy as np
from tests.cupy_backend.running import run
x, y = np.ones(32, np.float32), np.zeros(32, np.float32)
run(sys.argv[1], "scale", (1,), 32, {"x": (x, "read"), "y": (y, "write")})
print(y[0], (y == y[0]).all())
"""
    path = tmp_path / "scale.cu"
    for factor in (2, 3):
        path.write_text(
            f'#include "prelude.cuh"\n__global__ void scale(const float* x, float* y) {{ y[threadIdx.x] = {factor} * x[threadIdx.x]; }}\n'
        )
        done = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, cwd=ROOT, check=False)
        assert done.stdout == f"{factor}.0 True\n", done.stderr


def test_the_sources_are_found_and_told_apart_by_their_text() -> None:
    assert sources.find("elemwise.cu").parent == sources.folder()
    assert sources.find(str(KERNELS / "rules.cu")) == KERNELS / "rules.cu"
    assert sources.digest("a", "b") != sources.digest("ab", "") != sources.digest("ab")
