"""What launch functions share: directions of arrays, C++ names of dtypes, sizes of loads."""

import math
from dataclasses import replace

from cupy_backend.errors import KernelError
from cupy_backend.launch import Array
from poem.dtypes.term import LEAF_BITS

TYPES = {"bf16": "bf16", "f16": "f16", "f32": "float"}  # of activations, as C++ names them


def unsupported(message: str, *, expected: str = "", found: str = "") -> KernelError:
    """The refusal of what no kernel serves; the planner adds op and line."""
    return KernelError("kernel.unsupported", message, phase="plan", expected=expected, found=found)


def reading(array: Array) -> Array:
    """The array as an input of a launch."""
    return array if array.direction == "constant" else replace(array, direction="read")


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
