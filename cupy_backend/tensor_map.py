"""Tensor maps: one description, checked once, encoded for either device."""

import ctypes
from dataclasses import dataclass

from cupy_backend.launch import Array, Launch, TensorMap
from poem.dtypes.term import LEAF_BITS

SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle
# CUtensorMapDataType. Formats that the copy engine does not know are moved as bytes.
DATA_TYPES = {"bf16": 9, "f16": 6, "f32": 7, "i32": 3, "u32": 2, "u16": 1, "i16": 1, "i64": 5, "u64": 4, "f64": 8}
L2_PROMOTION_256 = 3
MAGIC = 0x4D454F50  # marks a map made for the emulator


@dataclass(frozen=True, slots=True)
class Tiling:
    """A tensor map in the terms of cuTensorMapEncodeTiled: fastest axis first, strides of all axes but the first.

    element: bytes of an element. data_type: CUtensorMapDataType.
    """

    dims: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element: int
    data_type: int
    swizzle: int


def tiling(launch: Launch, name: str, argument: TensorMap) -> Tiling:
    """The map in the driver's terms. KernelError, naming launch and parameter, where the driver would refuse it.

    The rules are those of cuTensorMapEncodeTiled in the CUDA driver API, and one more: a row of the box is as wide as the swizzle. The
    driver takes narrower rows too, but how they lie in shared memory is not documented.
    """
    array = argument.array
    bits = LEAF_BITS[array.dtype]
    shape, box = array.shape, argument.box
    if bits < 8:  # packed: moved as the bytes they lie in
        if not shape or not box or shape[-1] * bits % 8 or box[-1] * bits % 8:
            raise launch.refusal(f"tensor map `{name}`: rows of {array.dtype} must be whole bytes", found=f"shape {shape}, box {box}")
        shape, box = (*shape[:-1], shape[-1] * bits // 8), (*box[:-1], box[-1] * bits // 8)
        bits = 8
    element = bits // 8
    strides = argument.strides or _contiguous_strides(shape, element)

    def require(holds: bool, rule: str, found: object) -> None:
        if not holds:
            raise launch.refusal(f"tensor map `{name}`: {rule}", found=str(found))

    require(2 <= len(shape) <= 5, "2 to 5 axes", shape)
    require(len(box) == len(shape), f"a box of {len(shape)} axes", box)
    require(len(strides) == len(shape) - 1, f"{len(shape) - 1} strides", strides)
    require(all(1 <= dim <= 2**32 for dim in shape), "1 to 2^32 elements along each axis", shape)
    require(all(1 <= extent <= 256 for extent in box), "1 to 256 elements of a box along each axis", box)
    require(box[-1] * element % 16 == 0, "a box row of a multiple of 16 bytes", f"{box[-1]} elements of {element} bytes")
    require(argument.swizzle in SWIZZLES, "a swizzle of 0, 32, 64 or 128 bytes", argument.swizzle)
    require(
        argument.swizzle in (0, box[-1] * element),
        f"a box row of {argument.swizzle} bytes with this swizzle", f"{box[-1] * element} bytes",
    )  # fmt: skip
    require(all(stride % 16 == 0 and 0 < stride < 2**40 for stride in strides), "strides that are multiples of 16 below 2^40", strides)
    require(array.offset % 16 == 0, "a start aligned to 16 bytes", f"offset {array.offset}")
    return Tiling(shape[::-1], strides[::-1], box[::-1], element, DATA_TYPES.get(array.dtype, 0) if element > 1 else 0, argument.swizzle)


def _contiguous_strides(shape: tuple[int, ...], element: int) -> tuple[int, ...]:
    strides, step = [], element
    for extent in shape[:0:-1]:
        step *= extent
        strides.append(step)
    return tuple(strides[::-1])


def extent(argument: TensorMap) -> int:
    """Bytes from the array's start to the end of its last element, strides included."""
    array = argument.array
    if argument.strides is None:
        return array.nbytes
    last = sum((dim - 1) * stride for dim, stride in zip(array.shape[:-1], argument.strides, strict=True))
    return last + Array(array.buffer, array.direction, array.shape[-1:], array.dtype).nbytes


class EmulatedMap(ctypes.Structure):
    """The 128 bytes that the emulator reads (cuda_src/emu/tma.cpp: Map)."""

    _fields_ = (
        ("base", ctypes.c_uint64), ("strides", ctypes.c_uint64 * 4), ("dims", ctypes.c_uint32 * 5), ("box", ctypes.c_uint32 * 5),
        ("rank", ctypes.c_uint32), ("element", ctypes.c_uint32), ("swizzle", ctypes.c_uint32), ("magic", ctypes.c_uint32),
        ("padding", ctypes.c_uint8 * 32),
    )  # fmt: skip


def encode_emulated(tiles: Tiling, address: int) -> EmulatedMap:
    """The map for the emulator, of an array at `address`."""
    encoded = EmulatedMap(base=address, rank=len(tiles.dims), element=tiles.element, swizzle=tiles.swizzle, magic=MAGIC)
    for axis, (dim, box) in enumerate(zip(tiles.dims, tiles.box, strict=True)):
        encoded.dims[axis], encoded.box[axis] = dim, box
    for axis, stride in enumerate(tiles.strides):
        encoded.strides[axis] = stride
    return encoded
