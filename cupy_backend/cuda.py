"""The device `cuda`: runs launches on a GPU. CuPy holds memory and streams; it is imported when the device is opened."""

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cupy_backend import cubin_cache, driver, tensor_map
from cupy_backend.errors import KernelError
from cupy_backend.launch import SCALAR_TYPES, Array, Launch, Scalar, TensorMap
from poem.dtypes.leaves import STORAGE
from poem.dtypes.term import LEAF_BITS

# Devices whose kernels may use instructions of that architecture alone.
SPECIFIC = {(9, 0): "sm_90a", (10, 0): "sm_100a", (10, 3): "sm_103a", (12, 0): "sm_120a", (12, 1): "sm_121a"}
OLDEST = (8, 0)
INSTALL = 'pip install "poem-models[cuda13]" (driver 580 or newer) or "poem-models[cuda12]"'


def architecture(capability: tuple[int, int]) -> str:
    """`sm_90a` for a compute capability of 9.0. KernelError for devices before 8.0."""
    if capability < OLDEST:
        raise KernelError(
            "cuda.too-old", "the kernels need a GPU of compute capability 8.0 (Ampere) or newer", found=f"{capability[0]}.{capability[1]}"
        )
    return SPECIFIC.get(capability, f"sm_{capability[0]}{capability[1]}")


def _cupy() -> Any:
    try:
        import cupy  # type: ignore[import-not-found]
    except ImportError as fault:
        raise KernelError("cuda.no-cupy", "the device `cuda` needs CuPy, and it is not installed", hint=INSTALL) from fault
    if not cupy.cuda.is_available():
        raise KernelError(
            "cuda.no-gpu",
            "there is no GPU that CUDA can use",
            hint="`nvidia-smi` shows whether the driver sees one; the device `emu` runs on the CPU",
        )
    return cupy


class CudaDevice:
    """Runs launches on the current GPU and stream. Memory is a CuPy array; 8-bit floats and packed codes are uint8, as in NumPy.

    KernelError if CuPy, the driver or a GPU is missing.
    """

    name = "cuda"

    def __init__(self) -> None:
        self._cupy = _cupy()
        self._cupy.cuda.runtime.free(0)  # makes the context that the driver's functions work in
        self._driver = driver.driver()
        capability = self._cupy.cuda.Device().compute_capability  # "90", "120"
        self.arch = architecture((int(capability[:-1]), int(capability[-1])))
        self._functions: dict[tuple[str, str], int] = {}
        self._shared: dict[int, int] = {}

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """Uninitialised memory for an array of a leaf dtype; sub-byte leaves are packed along the last axis."""
        bits = LEAF_BITS[dtype]
        if bits < 8:
            shape = (*shape[:-1], (shape[-1] * bits + 7) // 8)
        return self._cupy.empty(shape, STORAGE[dtype])

    def upload(self, array: np.ndarray) -> Any:
        """A copy of `array` in the device's memory."""
        return self._cupy.asarray(array)

    def download(self, memory: Any) -> np.ndarray:
        """A copy of device memory, once everything enqueued before is done."""
        copied: np.ndarray = self._cupy.asnumpy(memory)
        return copied

    def synchronize(self) -> None:
        """Waits for all launches. KernelError if one of them failed."""
        try:
            self._cupy.cuda.get_current_stream().synchronize()
        except self._cupy.cuda.runtime.CUDARuntimeError as fault:
            raise KernelError(
                "cuda.failed", "a launch failed on the device", found=str(fault), hint="the device `emu` names the line"
            ) from fault

    def prepare(self, launches: Iterable[Launch]) -> None:
        """Compiles and loads the kernels of these launches, each once, several at the same time."""
        wanted = {(launch.source, launch.kernel) for launch in launches} - self._functions.keys()
        if not wanted:
            return
        for (source, kernel), compiled in cubin_cache.get_each(wanted, self.arch).items():
            module = self._driver.load_module(compiled.cubin)
            self._functions[source, kernel] = self._driver.function(module, compiled.names[kernel])

    def capture(self, launches: Sequence[Launch], memory: Mapping[str, Any]) -> Callable[[], None]:
        """All these launches as one call: a CUDA graph, replayed on the same memory."""
        self.prepare(launches)
        stream = self._cupy.cuda.Stream(non_blocking=True)  # the null stream cannot be captured
        self._cupy.cuda.get_current_stream().synchronize()
        with stream:
            stream.begin_capture()
            try:
                for launch in launches:
                    self.run(launch, memory)
            except BaseException:
                with contextlib.suppress(self._cupy.cuda.runtime.CUDARuntimeError):  # the fault above says more
                    stream.end_capture()
                raise
            graph = stream.end_capture()
        held = dict(memory)  # a graph knows addresses: their memory lives as long as it does

        def replay() -> None:
            assert held
            graph.launch(self._cupy.cuda.get_current_stream())

        return replay

    def run(self, launch: Launch, memory: Mapping[str, Any]) -> None:
        """Enqueues one launch on the current stream, on the buffers in `memory`, by name.

        KernelError, naming the launch and its nodes, if it cannot be compiled or the driver refuses it.
        """
        self.prepare([launch])
        function = self._functions[launch.source, launch.kernel]
        try:
            if launch.shared > self._shared.get(function, 0):  # with static shared memory it may pass the 48 KB given unasked
                self._driver.allow_shared(function, launch.shared)
                self._shared[function] = launch.shared
            parameters = [self._parameter(launch, name, memory) for name in launch.arguments]
            self._driver.launch(
                function, launch.grid, launch.block, launch.shared, self._cupy.cuda.get_current_stream().ptr, parameters,
                cluster=launch.cluster, overlaps=launch.overlaps,
            )  # fmt: skip
        except KernelError as fault:
            raise launch.refusal(fault.message, code=fault.code, expected=fault.expected, found=fault.found) from fault

    def _parameter(self, launch: Launch, name: str, memory: Mapping[str, Any]) -> "ctypes._CData":
        argument = launch.arguments[name]
        if isinstance(argument, Scalar):
            made: ctypes._CData = SCALAR_TYPES[argument.type](argument.value)
            return made
        if isinstance(argument, TensorMap):
            address = self._address(launch, name, argument.array, tensor_map.extent(argument), memory)
            return self._driver.encode_tensor_map(tensor_map.tiling(launch, name, argument), address)
        return ctypes.c_void_p(self._address(launch, name, argument, argument.nbytes, memory))

    def _address(self, launch: Launch, name: str, array: Array, nbytes: int, memory: Mapping[str, Any]) -> int:
        if array.buffer not in memory:
            raise launch.refusal(f"argument `{name}` needs the buffer `{array.buffer}`", found=f"buffers {', '.join(memory)}")
        buffer = memory[array.buffer]
        if array.offset + nbytes > buffer.nbytes:
            raise launch.refusal(
                f"argument `{name}` does not fit its buffer `{array.buffer}`",
                expected=f"{array.offset + nbytes} bytes",
                found=f"{buffer.nbytes} bytes",
            )
        return int(buffer.data.ptr) + array.offset
