"""CuTe's layouts, as NVIDIA publishes them for each instruction (CUTLASS 3, include/cute/atom), and how to read them.

A layout is a shape and a stride of the same nesting; its index counts the first axis fastest. `Layout<Shape<Shape<_4,_8>,_2>, ...>` of
(thread, value) gives the place of an element in its matrix, rows counted fastest.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

Nested = Any  # an int, or a tuple of Nested


def flat(nested: Nested) -> Iterator[int]:
    if isinstance(nested, int):
        yield nested
    else:
        for part in nested:
            yield from flat(part)


def offsets(shape: Nested, stride: Nested) -> np.ndarray:
    """The offset of every index of a layout, in order."""
    result = np.zeros(1, np.int64)
    for extent, step in zip(flat(shape), flat(stride), strict=True):
        result = (result[None, :] + np.arange(extent)[:, None] * step).reshape(-1)
    return result


def places(layout: tuple[Nested, Nested], rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each (thread, value) of a layout ((threads, values), strides), as arrays `[threads, values]`."""
    (threads, values), (thread_stride, value_stride) = layout
    offset = offsets(threads, thread_stride)[:, None] + offsets(values, value_stride)[None, :]
    return offset % rows, offset // rows


# mma_traits_sm80.hpp and mma_traits_sm89.hpp: (thread, value) -> (M or N, K), and -> (M, N).
SM80_16x8x16_A = (((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
SM80_16x8x16_B = (((4, 8), (2, 2)), ((16, 1), (8, 64)))
SM80_16x8_ROW = (((4, 8), (2, 2)), ((32, 1), (16, 8)))
SM89_16x8x32_A = (((4, 8), (4, 2, 2)), ((64, 1), (16, 8, 256)))
SM89_16x8x32_B = (((4, 8), (4, 2)), ((32, 1), (8, 128)))


# mma_traits_sm90_gmma.hpp.
def clayout_64xn(n: int) -> tuple[Nested, Nested]:
    return ((4, 8, 4), (2, 2, n // 8)), ((128, 1, 16), (64, 8, 512))


ALAYOUT_64X16 = (((4, 8, 4), (2, 2, 2)), ((128, 1, 16), (64, 8, 512)))
ALAYOUT_64X32 = (((4, 8, 4), (4, 2, 2)), ((256, 1, 16), (64, 8, 1024)))

# copy_traits_sm75.hpp, DstLayout: (thread, bit) -> bit of the rows one after another.
LDSM_N = {count: ((32, (32, count)), (32, (1, 1024))) for count in (1, 2, 4)}
LDSM_T = {count: (((4, 8), (16, 2, count)), ((256, 16), (1, 128, 1024))) for count in (1, 2, 4)}

# Swizzle<B, 4, 3> by bytes of the pattern: bits 7 ... 6 + B of an address are XORed into bits 4 ... 3 + B.
SWIZZLE_BITS = {0: 0, 32: 1, 64: 2, 128: 3}


def swizzle(width: int, address: np.ndarray) -> np.ndarray:
    bits = SWIZZLE_BITS[width]
    return address ^ ((address >> 7) & (2**bits - 1)) << 4


def canonical(width: int, major: str, rows: int, lines: int, leading: int, stride: int) -> np.ndarray:
    """Where the 16-byte chunks of a wgmma operand lie: byte offsets before the swizzle, from the comment on make_gmma_desc.

    K-major, in chunks: ((8, n), 2):((1, SBO), LBO) without swizzle, ((8, n), 2):((W, SBO), 1) with W chunks to a row; `[rows, 2]`.
    MN-major: ((1, n), (8, k)):((X, SBO), (1, LBO)) without, ((W, n), (8, k)):((1, LBO), (W, SBO)) with; `[rows / 8, lines]`.
    leading, stride: bytes.
    """
    w, lbo, sbo = max(width // 16, 1), leading // 16, stride // 16
    if major == "K":
        shape, steps = (((8, rows // 8), 2), ((1, sbo), lbo)) if width == 0 else (((8, rows // 8), 2), ((w, sbo), 1))
        return (offsets(shape, steps) * 16).reshape(2, rows).T
    chunks = rows // 8
    if width == 0:
        shape, steps = ((1, chunks), (8, lines // 8)), ((0, sbo), (1, lbo))
    else:
        shape, steps = ((w, chunks // w), (8, lines // 8)), ((1, lbo), (w, sbo))
    return (offsets(shape, steps) * 16).reshape(lines, chunks).T
