"""What launch functions share: directions of arrays, C++ names of dtypes, sizes of loads."""

import math
from dataclasses import dataclass, replace

from cupy_backend.errors import KernelError
from cupy_backend.launch import Argument, Array, Scalar
from poem.dtypes.term import LEAF_BITS

TYPES = {"bf16": "bf16", "f16": "f16", "f32": "float"}  # of activations, as C++ names them
NULL = Scalar(0, "u64")  # a null pointer


@dataclass(frozen=True, slots=True)
class Columns:
    """Where a value lies: columns `start .. start + width` of the rows of an array `[rows, stride]`."""

    array: Array
    start: int
    width: int

    @property
    def whole(self) -> bool:
        """Whether these are all the columns."""
        return self.start == 0 and self.width == self.array.shape[-1]


def columns_of(x: Array | Columns) -> Columns:
    """An array as all of its columns."""
    return x if isinstance(x, Columns) else Columns(x, 0, x.shape[1])


def unsupported(message: str, *, expected: str = "", found: str = "") -> KernelError:
    """The refusal of what no kernel serves; the planner adds op and line."""
    return KernelError("kernel.unsupported", message, phase="plan", expected=expected, found=found)


def reading(array: Array) -> Array:
    """The array as an input of a launch."""
    return array if array.direction == "constant" else replace(array, direction="read")


def optional(array: Array | None) -> Argument:
    """An input of a launch that may be left out."""
    return NULL if array is None else reading(array)


def writing(array: Array) -> Array:
    """The array as what a launch writes, every element of it."""
    return replace(array, direction="write")


def updating(array: Array) -> Array:
    """The array as what a launch reads and writes in place, or writes in part."""
    return replace(array, direction="update")


def type_of(array: Array) -> str:
    """The C++ name of an activation's or gain's dtype. KernelError (`kernel.unsupported`) for others."""
    if array.dtype not in TYPES:
        raise unsupported("the kernel takes floats", expected=" ".join(TYPES), found=array.dtype)
    return TYPES[array.dtype]


def vector(dtype: str, *widths: int) -> int:
    """Elements of a 16-byte load, or the most below that which divide all the widths."""
    return math.gcd(128 // LEAF_BITS[dtype], *widths)


def same_dtype(*arrays: Array) -> None:
    """KernelError (`kernel.unsupported`) if the arrays differ in dtype."""
    if len({array.dtype for array in arrays}) > 1:
        found = ", ".join(array.dtype for array in arrays)
        raise unsupported("the kernel takes activations of one dtype", expected=arrays[0].dtype, found=found)
