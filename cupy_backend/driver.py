"""The few functions of the CUDA driver that CuPy does not offer as they are needed here, through ctypes.

CuPy gives the context, memory and streams. Launches go to cuLaunchKernelEx directly, because clusters and overlapping launches are
attributes there, and tensor maps are made by cuTensorMapEncodeTiled. Names and layouts are those of cuda.h (CUDA 12 and 13 agree).
"""

import ctypes
from collections.abc import Sequence
from functools import lru_cache

from cupy_backend.errors import KernelError
from cupy_backend.tensor_map import L2_PROMOTION_256, SWIZZLES, Tiling

LIBRARY = "libcuda.so.1"  # that which CuPy has loaded: a libcuda.so found by other ways may be a toolkit's stub
CLUSTER_DIMENSION, PROGRAMMATIC_STREAM_SERIALIZATION = 4, 6  # CUlaunchAttributeID
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CUfunction_attribute


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id, padding to 8 bytes, a value of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("padding", ctypes.c_char * 4), ("value", ctypes.c_uint32 * 16))


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint32 * 3), ("block", ctypes.c_uint32 * 3), ("shared", ctypes.c_uint32), ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(LaunchAttribute)), ("count", ctypes.c_uint32),
    )  # fmt: skip


class EncodedMap(ctypes.Structure):
    """CUtensorMap: 128 opaque bytes."""

    _fields_ = (("opaque", ctypes.c_uint64 * 16),)


class Driver:
    """libcuda, or what a test puts in its place."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def load_module(self, cubin: bytes) -> int:
        """The handle of a module made of a cubin."""
        module = ctypes.c_void_p()
        self._check(self._library.cuModuleLoadData(ctypes.byref(module), cubin), "a cubin could not be loaded")
        return module.value or 0

    def function(self, module: int, name: str) -> int:
        """The handle of a kernel by its mangled name."""
        found = ctypes.c_void_p()
        self._check(self._library.cuModuleGetFunction(ctypes.byref(found), ctypes.c_void_p(module), name.encode()), f"no kernel {name}")
        return found.value or 0

    def allow_shared(self, function: int, nbytes: int) -> None:
        """Lets a kernel be launched with that much dynamic shared memory; more than 48 KB in all must be asked for."""
        status = self._library.cuFuncSetAttribute(ctypes.c_void_p(function), MAX_DYNAMIC_SHARED_SIZE_BYTES, nbytes)
        self._check(status, f"the device does not give a block {nbytes} bytes of shared memory")

    def launch(
        self, function: int, grid: Sequence[int], block: Sequence[int], shared: int, stream: int, parameters: Sequence["ctypes._CData"],
        *, cluster: Sequence[int] = (1, 1, 1), overlaps: bool = False,
    ) -> None:  # fmt: skip
        """Enqueues a kernel. overlaps: it may start before its predecessor ends."""
        attributes = []
        if tuple(cluster) != (1, 1, 1):
            attributes.append(LaunchAttribute(id=CLUSTER_DIMENSION, value=(ctypes.c_uint32 * 16)(*cluster)))
        if overlaps:
            attributes.append(LaunchAttribute(id=PROGRAMMATIC_STREAM_SERIALIZATION, value=(ctypes.c_uint32 * 16)(1)))
        listed = (LaunchAttribute * len(attributes))(*attributes)
        config = LaunchConfig(
            (ctypes.c_uint32 * 3)(*grid), (ctypes.c_uint32 * 3)(*block), shared, stream, listed if attributes else None, len(attributes)
        )
        pointers = (ctypes.c_void_p * len(parameters))(*(ctypes.addressof(parameter) for parameter in parameters))
        status = self._library.cuLaunchKernelEx(ctypes.byref(config), ctypes.c_void_p(function), pointers, None)
        self._check(status, "the launch was refused")

    def encode_tensor_map(self, tiles: Tiling, address: int) -> EncodedMap:
        """The tensor map of an array at `address`."""
        # The driver wants 64 bytes of alignment, which ctypes does not give.
        raw = ctypes.create_string_buffer(ctypes.sizeof(EncodedMap) + 64)
        encoded = EncodedMap.from_buffer(raw, -ctypes.addressof(raw) % 64)
        rank = len(tiles.dims)
        status = self._library.cuTensorMapEncodeTiled(
            ctypes.byref(encoded), tiles.data_type, ctypes.c_uint32(rank), ctypes.c_void_p(address), (ctypes.c_uint64 * rank)(*tiles.dims),
            (ctypes.c_uint64 * (rank - 1))(*tiles.strides), (ctypes.c_uint32 * rank)(*tiles.box),
            (ctypes.c_uint32 * rank)(*[1] * rank), 0, SWIZZLES[tiles.swizzle], L2_PROMOTION_256, 0,
        )  # fmt: skip
        self._check(status, f"the tensor map was refused: {tiles}")
        return encoded

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            raise KernelError("cuda.driver", what, found=f"CUDA error {status}: {(text.value or b'unknown').decode()}")


@lru_cache
def driver() -> Driver:
    """libcuda. KernelError where the NVIDIA driver is not installed."""
    try:
        return Driver(ctypes.CDLL(LIBRARY))
    except OSError as fault:
        raise KernelError(
            "cuda.no-driver", "the device `cuda` needs the NVIDIA driver, and libcuda is not there", found=str(fault)
        ) from fault
