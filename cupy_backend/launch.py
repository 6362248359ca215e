"""The launch record: everything a device needs to run one kernel once, as plain data."""

import ctypes
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cupy_backend.errors import KernelError
from poem.dtypes.leaves import STORAGE
from poem.dtypes.term import LEAF_BITS

# constant: never written while a program runs (weights, tables). read: an input. write: the kernel writes every element, and what was
# there before does not count. update: read and written in place, or written in part. scratch: what was there before does not count, and
# the kernel may leave part of it unwritten.
Direction = Literal["constant", "read", "write", "update", "scratch"]
DIRECTIONS: tuple[Direction, ...] = ("constant", "read", "write", "update", "scratch")
# Parameters by value, as C passes them.
SCALAR_TYPES: dict[str, Any] = {
    "i32": ctypes.c_int32, "u32": ctypes.c_uint32, "i64": ctypes.c_int64, "u64": ctypes.c_uint64, "f32": ctypes.c_float,
}  # fmt: skip
MAXIMUM_THREADS = 1024
MAXIMUM_CLUSTER = 8
MAXIMUM_SHARED = 227 << 10  # of a block, on the device that has most
MAXIMUM_GRID = (2**31 - 1, 65535, 65535)

Triple = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Array:
    """A pointer parameter: a row-major array in a buffer.

    buffer: the name by which the memory is found when the launch runs. dtype: a leaf (`bf16`, `u8`). offset: bytes from the
    buffer's start.
    """

    buffer: str
    direction: Direction
    shape: tuple[int, ...]
    dtype: str
    offset: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of the array. Sub-byte leaves are packed."""
        return (math.prod(self.shape) * LEAF_BITS[self.dtype] + 7) // 8


@dataclass(frozen=True, slots=True)
class Scalar:
    """A parameter by value: `i32 u32 i64 u64 f32`."""

    value: int | float
    type: str


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor map parameter: how the copy engine walks an array of rank 2 to 5.

    box: elements of a tile for each axis, in the order of the array's shape (slowest first). swizzle: bytes of the pattern, 0, 32, 64 or
    128. strides: bytes from one element to the next of each axis but the last, or None where rows are contiguous.
    """

    array: Array
    box: tuple[int, ...]
    swizzle: int = 128
    strides: tuple[int, ...] | None = None


Argument = Array | Scalar | TensorMap


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch of one kernel.

    source: its file in `cuda_src`, or a path. kernel: the instantiation as C++ writes it, `add_rmsnorm<bf16, 256, 2>`. arguments: by
    the parameters' names, in the order of the kernel's parameters. shared: bytes of dynamic shared memory. nodes: ids of the graph's nodes
    that the launch stands for. overlaps: it may start before its predecessor ends, and waits by itself.

    KernelError if a record cannot be run on any device.
    """

    source: str
    kernel: str
    grid: Triple
    block: Triple
    arguments: Mapping[str, Argument]
    shared: int = 0
    cluster: Triple = (1, 1, 1)
    nodes: tuple[int, ...] = ()
    overlaps: bool = False

    def __post_init__(self) -> None:
        if any(not 1 <= size <= most for size, most in zip(self.grid, MAXIMUM_GRID, strict=True)):
            raise self.refusal(f"a grid of {self.grid} blocks", expected=f"1 to {MAXIMUM_GRID}")
        threads = math.prod(self.block)
        if min(self.block) < 1 or threads > MAXIMUM_THREADS or threads % 32:
            raise self.refusal(f"a block of {self.block} threads", expected=f"whole warps of 32, at most {MAXIMUM_THREADS} threads")
        if (
            min(self.cluster) < 1
            or math.prod(self.cluster) > MAXIMUM_CLUSTER
            or any(g % c for g, c in zip(self.grid, self.cluster, strict=True))
        ):
            raise self.refusal(
                f"clusters of {self.cluster} in a grid of {self.grid}", expected=f"at most {MAXIMUM_CLUSTER} blocks, dividing the grid"
            )
        if not 0 <= self.shared <= MAXIMUM_SHARED:
            raise self.refusal(f"{self.shared} bytes of dynamic shared memory", expected=f"at most {MAXIMUM_SHARED}")
        for name, argument in self.arguments.items():
            self._check_argument(name, argument)

    def _check_argument(self, name: str, argument: Argument) -> None:
        if isinstance(argument, Scalar):
            if argument.type not in SCALAR_TYPES:
                raise self.refusal(f"`{name}` has type {argument.type}", expected=" ".join(SCALAR_TYPES))
            return
        array = argument.array if isinstance(argument, TensorMap) else argument
        if array.dtype not in STORAGE:
            raise self.refusal(f"`{name}` has dtype {array.dtype}", expected=" ".join(STORAGE))
        if array.direction not in DIRECTIONS:
            raise self.refusal(f"`{name}` has direction {array.direction}", expected=" ".join(DIRECTIONS))
        if min(array.shape, default=1) < 0 or array.offset < 0:
            raise self.refusal(f"`{name}` has shape {array.shape} at offset {array.offset}", expected="no negative numbers")

    def refusal(self, message: str, *, code: str = "kernel.launch", expected: str = "", found: str = "", hint: str = "") -> KernelError:
        """A KernelError that names the launch and the nodes it stands for."""
        return KernelError(code, f"{self.described()}: {message}", phase="launch", expected=expected, found=found, hint=hint)

    def described(self) -> str:
        """`add_rmsnorm<bf16, 256, 2> of norms.cu (nodes 3, 4)`."""
        nodes = f" (nodes {', '.join(map(str, self.nodes))})" if self.nodes else ""
        return f"{self.kernel} of {self.source}{nodes}"

    def arrays(self) -> dict[str, Array]:
        """The arrays among the arguments, those of tensor maps included, by parameter name."""
        found = {}
        for name, argument in self.arguments.items():
            if isinstance(argument, TensorMap):
                found[name] = argument.array
            elif isinstance(argument, Array):
                found[name] = argument
        return found
