"""The device `emu`: runs launches on the CPU, fast or checked, in a chosen or random order (docs/emulator.md)."""

import ctypes
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from cupy_backend import host_compiler, sources, tensor_map
from cupy_backend.errors import KernelError
from cupy_backend.host_compiler import Mode
from cupy_backend.launch import DIRECTIONS, SCALAR_TYPES, Array, Launch, Scalar, TensorMap
from poem.dtypes.leaves import STORAGE
from poem.dtypes.term import LEAF_BITS

ALIGNMENT = 256  # of every allocation, as on a GPU
GUARD = 1 << 20  # bytes between the arguments of a checked launch, so that no overrun ends in another argument
POISON = 0xFF  # NaN in every float format that has one
HOPPER_FP8_BITS = 13
SHARE = 4  # kernels of a file that are worth a compiler of their own
RUNTIME_FLAGS: tuple[str, ...] = ("-O2",)  # with -DPOEM_UCONTEXT fibers switch as on machines other than x86-64
_one_at_a_time = threading.Lock()  # the emulated machine is one per process


@dataclass(frozen=True, slots=True)
class Schedule:
    """In which order threads, blocks and copies take their turns.

    order: first come first served, the reverse, or at random. timing: whether what happens asynchronously (cp.async, TMA, wgmma) happens at
    once, as late as it may, or either, at random. seed: of what is random.
    """

    order: Literal["fifo", "lifo", "random"] = "fifo"
    timing: Literal["early", "late", "random"] = "late"
    seed: int = 1


class Counters(NamedTuple):
    """What a launch did. matrix_wavefronts over matrix_phases is 1 if ldmatrix and stmatrix had no bank conflicts."""

    switches: int
    products: int
    collectives: int
    barriers: int
    matrix_phases: int
    matrix_wavefronts: int
    static_shared: int


class _Options(ctypes.Structure):
    _fields_ = (
        ("order", ctypes.c_int32), ("timing", ctypes.c_int32), ("check", ctypes.c_int32), ("fp8_bits", ctypes.c_int32),
        ("overlaps", ctypes.c_int32), ("cluster", ctypes.c_uint32 * 3), ("seed", ctypes.c_uint64),
    )  # fmt: skip


class _Argument(ctypes.Structure):
    _fields_ = (
        ("pointer", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("direction", ctypes.c_int32), ("rank", ctypes.c_int32),
        ("shape", ctypes.POINTER(ctypes.c_uint64)), ("element_bits", ctypes.c_uint32), ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
    )  # fmt: skip


class _Statistics(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in Counters._fields)


def _build_runtime() -> Path:
    files = [f'#include "{path}"\n' for path in sorted((sources.folder() / "emu").glob("*.cpp"))]
    halves = ("".join(files[::2]), "".join(files[1::2]))  # few units, as each reads the headers again
    return host_compiler.build_library("emulator", halves, RUNTIME_FLAGS, sources.emulator_digest())


@lru_cache
def runtime() -> ctypes.CDLL:
    """The emulator, built on first use. KernelError if there is no g++."""
    loaded = ctypes.CDLL(str(_build_runtime()), mode=ctypes.RTLD_GLOBAL)  # kernels find the emulator's functions by name
    loaded.poem_error.restype = ctypes.c_char_p
    return loaded


class _Kernel(NamedTuple):
    """A compiled kernel: its entry point, and the function that tells the sizes of its parameters."""

    entry: Any
    sizes: Any


_kernels: dict[tuple[Path, str, Mode], _Kernel] = {}  # of this process


def _build(path: Path, kernels: Sequence[str], mode: Mode, folder: Path) -> Path:
    """Kernels of one file as one library, from the cache on disk if it is there. folder: of the prelude that they include."""
    text = f'#include "{path}"\n#define POEM_EXPORT extern "C" __attribute__((visibility("default")))\n'
    for i, kernel in enumerate(kernels):
        text += f"POEM_EXPORT void poem_entry_{i}(void** arguments) {{ poem::emu::Bind<&{kernel}>::call(arguments); }}\n"
        text += f"POEM_EXPORT int poem_sizes_{i}(uint32_t* sizes) {{ return poem::emu::Bind<&{kernel}>::sizes(sizes); }}\n"
    folders = dict.fromkeys((folder, sources.folder()))
    flags = (*host_compiler.MODES[mode], "-fvisibility=hidden", *(f"-I{include}" for include in folders))
    identity = sources.digest(sources.emulator_headers_digest(folder), path.read_bytes())
    try:
        return host_compiler.build_library(f"{path.stem}-{mode}", [text], flags, identity)
    except KernelError as error:
        if error.file != "<stdin>":
            raise
        raise KernelError(  # not the template, but how it was asked for
            "kernel.compile", f"not all of these are kernels of {path.name}: {', '.join(kernels)}", file=str(path), found=error.found
        ) from error


def aligned_empty(nbytes: int) -> np.ndarray:
    """Uninitialised bytes at an address that is a multiple of `ALIGNMENT`."""
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    return raw[-raw.ctypes.data % ALIGNMENT :][:nbytes]


class EmulatedDevice:
    """Runs launches on the CPU. Memory is a NumPy array.

    checked: every access is judged, and the arguments lie apart from each other. fp8_bits: how many bits below the largest
    term the tensor cores keep when they add products of 8-bit floats; 0 for all of them. folder: of the CUDA sources, if it is a changed
    copy of them. lines: name the source line of an error, which takes a process of its own.
    """

    name = "emu"

    def __init__(
        self, *, checked: bool = True, schedule: Schedule = Schedule(), fp8_bits: int = HOPPER_FP8_BITS, folder: Path | None = None,
        lines: bool = True,
    ) -> None:  # fmt: skip
        self.mode: Mode = "checked" if checked else "fast"
        self.folder = folder or sources.folder()
        self.schedule = schedule
        self.fp8_bits = fp8_bits
        self.lines = lines

    def empty(self, shape: tuple[int, ...], dtype: str) -> np.ndarray:
        """Uninitialised memory for an array of a leaf dtype; sub-byte leaves are packed along the last axis."""
        bits = LEAF_BITS[dtype]
        if bits < 8:
            shape = (*shape[:-1], (shape[-1] * bits + 7) // 8)
        storage = STORAGE[dtype]
        return aligned_empty(int(np.prod(shape)) * storage.itemsize).view(storage).reshape(shape)

    def upload(self, array: np.ndarray) -> np.ndarray:
        """A copy of `array` in the device's memory."""
        memory = aligned_empty(array.nbytes).view(array.dtype).reshape(array.shape)
        memory[...] = array
        return memory

    def download(self, memory: np.ndarray) -> np.ndarray:
        """A copy of device memory."""
        return memory.copy()

    def synchronize(self) -> None:
        """Launches end before `run` returns."""

    def prepare(self, launches: Iterable[Launch]) -> None:
        """Compiles the kernels of these launches together, which is several times quicker than one by one in `run`."""
        wanted: dict[Path, list[str]] = {}
        for path, kernel in sorted({(sources.find(launch.source, self.folder), launch.kernel) for launch in launches}):
            if (path, kernel, self.mode) not in _kernels:
                wanted.setdefault(path, []).append(kernel)
        if not wanted:
            return
        workers = os.cpu_count() or 1
        jobs = []
        for path, kernels in wanted.items():
            size = max(SHARE, -(-len(kernels) // workers))
            jobs += [(path, kernels[start : start + size]) for start in range(0, len(kernels), size)]
        with ThreadPoolExecutor(workers) as pool:
            pool.submit(_build_runtime)
            libraries = list(pool.map(lambda job: _build(job[0], job[1], self.mode, self.folder), jobs))
        runtime()  # first, so that the libraries find it
        for (path, kernels), library in zip(jobs, libraries, strict=True):
            loaded = ctypes.CDLL(str(library))
            for i, kernel in enumerate(kernels):
                _kernels[path, kernel, self.mode] = _Kernel(loaded[f"poem_entry_{i}"], loaded[f"poem_sizes_{i}"])

    def capture(self, launches: Sequence[Launch], memory: Mapping[str, np.ndarray]) -> Callable[[], None]:
        """All these launches as one call, which runs them again on the same memory."""
        held = dict(memory)

        def replay() -> None:
            for launch in launches:
                self.run(launch, held)

        return replay

    def run(self, launch: Launch, memory: Mapping[str, np.ndarray]) -> Counters:
        """Runs one launch on the buffers in `memory`, by name.

        KernelError: `kernel.*` if it cannot be compiled or does not fit its arguments, `emu.*` for what the checker found, with the kernel,
        its file and line, block, thread and nodes.
        """
        self.prepare([launch])
        kernel = _kernels[sources.find(launch.source, self.folder), launch.kernel, self.mode]
        bound = _Bound(launch, memory, checked=self.mode == "checked")
        _check_sizes(launch, kernel, bound.parameters)
        options = _Options(
            ("fifo", "lifo", "random").index(self.schedule.order), ("early", "late", "random").index(self.schedule.timing),
            self.mode == "checked", self.fp8_bits, launch.overlaps, (ctypes.c_uint32 * 3)(*launch.cluster), self.schedule.seed,
        )  # fmt: skip
        statistics = _Statistics()
        pointers = (ctypes.c_void_p * len(bound.parameters))(*(ctypes.addressof(parameter) for parameter in bound.parameters))
        with _one_at_a_time:
            failed = runtime().poem_launch(
                kernel.entry, (ctypes.c_uint32 * 3)(*launch.grid), (ctypes.c_uint32 * 3)(*launch.block),
                ctypes.c_uint32(launch.shared), pointers, ctypes.byref(options), bound.arguments, len(bound.arguments),
                ctypes.byref(statistics),
            )  # fmt: skip
            if failed:
                code, message, place, thread = (runtime().poem_error(part).decode() for part in range(4))
                raise _error(launch, code, message, _source_line(place, self.folder) if self.lines else (place, 0), thread)
        bound.copy_back()
        return Counters(*(getattr(statistics, name) for name in Counters._fields))


def _check_sizes(launch: Launch, kernel: _Kernel, parameters: list["ctypes._CData"]) -> None:
    sizes = (ctypes.c_uint32 * 256)()
    wanted = list(sizes[: kernel.sizes(sizes)])
    given = [ctypes.sizeof(parameter) for parameter in parameters]
    if wanted != given:
        raise launch.refusal(
            "the arguments do not fit the kernel's parameters", expected=f"sizes {wanted}", found=f"{list(launch.arguments)}, sizes {given}"
        )


class _Extent:
    """A stretch of one buffer that arguments cover, and where a checked launch keeps its copy."""

    def __init__(self, start: int, stop: int) -> None:
        self.start, self.stop, self.writable, self.copy_at = start, stop, False, 0


class _Bound:
    """The arguments of one launch as the emulator takes them: parameters by value, and what each array may be used for."""

    def __init__(self, launch: Launch, memory: Mapping[str, np.ndarray], *, checked: bool) -> None:
        self.launch = launch
        self.bytes = {name: _bytes_of(launch, name, array, memory) for name, array in launch.arrays().items()}
        self.extents: dict[str, _Extent] = {}
        self.guarded: np.ndarray | None = None
        self._place(checked)
        self.parameters: list[ctypes._CData] = [self._parameter(name) for name in launch.arguments]
        self._keep: list[object] = []
        described = [self._argument(name, array) for name, array in launch.arrays().items()]
        self.arguments = (_Argument * len(described))(*described)

    def _place(self, checked: bool) -> None:
        """Finds overlaps, poisons what is to be written, and copies arguments apart from each other for a checked launch."""
        spans = sorted((data.ctypes.data, data.ctypes.data + data.nbytes, name) for name, data in self.bytes.items())
        extent = None
        for start, stop, name in spans:
            array = self.launch.arrays()[name]
            if extent is None or start >= extent.stop:
                extent = _Extent(start, stop)
                first = name
            elif start != stop:
                self._check_overlap(first, name)
                extent.stop = max(extent.stop, stop)
            extent.writable |= array.direction not in ("constant", "read")
            self.extents[name] = extent
        for name, array in self.launch.arrays().items():
            if array.direction in ("write", "scratch"):
                self.bytes[name][...] = POISON
        if not checked:
            return
        distinct = list(dict.fromkeys(self.extents.values()))
        total = sum(extent.stop - extent.start + 2 * ALIGNMENT + GUARD for extent in distinct) + GUARD
        self.guarded = aligned_empty(total)
        at = GUARD
        for extent in distinct:
            owner = next(name for name, other in self.extents.items() if other is extent)
            # The copy is as far from a multiple of ALIGNMENT as the original is from the start of its buffer.
            wanted = (self.launch.arrays()[owner].offset - (self.bytes[owner].ctypes.data - extent.start)) % ALIGNMENT
            at += (wanted - at) % ALIGNMENT
            extent.copy_at = at
            self._original(extent, into_copy=True)
            at += extent.stop - extent.start + GUARD

    def _check_overlap(self, first: str, second: str) -> None:
        arrays = self.launch.arrays()
        directions = {arrays[first].direction, arrays[second].direction}
        if directions <= {"constant", "read"} or directions == {"update"}:
            return
        raise self.launch.refusal(
            f"arguments `{first}` and `{second}` overlap", expected="arrays apart, or one parameter with direction `update`",
            found=f"directions {arrays[first].direction} and {arrays[second].direction}",
        )  # fmt: skip

    def _original(self, extent: _Extent, *, into_copy: bool) -> None:
        assert self.guarded is not None
        copy = self.guarded[extent.copy_at : extent.copy_at + extent.stop - extent.start]
        original = np.ctypeslib.as_array((ctypes.c_uint8 * copy.nbytes).from_address(extent.start))
        if into_copy:
            copy[...] = original
        else:
            original[...] = copy

    def copy_back(self) -> None:
        """Moves what a checked launch wrote to where it belongs."""
        if self.guarded is not None:
            for extent in dict.fromkeys(self.extents.values()):
                if extent.writable:
                    self._original(extent, into_copy=False)

    def _address(self, name: str) -> int:
        extent, address = self.extents[name], self.bytes[name].ctypes.data
        return address if self.guarded is None else self.guarded.ctypes.data + extent.copy_at + address - extent.start

    def _parameter(self, name: str) -> "ctypes._CData":
        argument = self.launch.arguments[name]
        if isinstance(argument, Scalar):
            return _scalar(argument)
        if isinstance(argument, TensorMap):
            return tensor_map.encode_emulated(tensor_map.tiling(self.launch, name, argument), self._address(name))
        return ctypes.c_void_p(self._address(name))

    def _argument(self, name: str, array: Array) -> _Argument:
        shape = (ctypes.c_uint64 * len(array.shape))(*array.shape)
        self._keep.append(shape)
        return _Argument(
            self._address(name), self.bytes[name].nbytes, DIRECTIONS.index(array.direction), len(array.shape),
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_uint64)), LEAF_BITS[array.dtype], name.encode(), array.dtype.encode(),
        )  # fmt: skip


def _scalar(argument: Scalar) -> "ctypes._CData":
    made: ctypes._CData = SCALAR_TYPES[argument.type](argument.value)
    return made


def _bytes_of(launch: Launch, name: str, array: Array, memory: Mapping[str, np.ndarray]) -> np.ndarray:
    """The bytes of an array argument, in its buffer."""
    if array.buffer not in memory:
        raise launch.refusal(f"argument `{name}` needs the buffer `{array.buffer}`", found=f"buffers {', '.join(memory)}")
    buffer = memory[array.buffer]
    if not buffer.flags.c_contiguous:
        raise launch.refusal(f"buffer `{array.buffer}` of argument `{name}` is not contiguous")
    argument = launch.arguments[name]
    nbytes = tensor_map.extent(argument) if isinstance(argument, TensorMap) else array.nbytes
    data = buffer.reshape(-1).view(np.uint8)
    if array.offset + nbytes > data.nbytes:
        raise launch.refusal(
            f"argument `{name}` does not fit its buffer `{array.buffer}`",
            expected=f"{array.offset + nbytes} bytes",
            found=f"{data.nbytes} bytes",
        )
    if array.direction not in ("constant", "read") and not buffer.flags.writeable:
        raise launch.refusal(f"argument `{name}` is written, and its buffer `{array.buffer}` is read-only")
    return data[array.offset : array.offset + nbytes]


def _error(launch: Launch, code: str, message: str, place: tuple[str, int], thread: str) -> KernelError:
    file, line = place
    where = ""
    if thread:
        x, y, z, number = thread.split()
        where = f", block ({x}, {y}, {z}), thread {number}"
    return KernelError(code, f"{launch.described()}{where}: {message}", phase="emu", file=file, line=line)


def _source_line(place: str, folder: Path) -> tuple[str, int]:
    """File and line of `file:line`, or of `library+offset` by addr2line, whose innermost frame outside the prelude counts."""
    found = re.fullmatch(r"(.*)\+0x([0-9a-f]+)", place)
    frames = [place]
    if found and shutil.which("addr2line"):
        command = ["addr2line", "-i", "-e", found[1], hex(int(found[2], 16) - 1)]
        frames = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    frames = [re.sub(r" \(discriminator \d+\)$", "", frame) for frame in frames]
    frames = [frame.removeprefix(f"{folder}/").removeprefix(f"{sources.folder()}/") for frame in frames]
    outside = [frame for frame in frames if not frame.startswith(("prelude", "emu/"))]
    file, _, line = (outside or frames or [""])[0].rpartition(":")
    return (file, int(line)) if line.isdigit() else (place, 0)
