"""Launches of rope_append.cu: rotary positions of q and k, and k and v into their cache."""

import math

from cupy_backend.kernels.arrays import reading, type_of, unsupported, updating, vector, writing
from cupy_backend.launch import Argument, Array, Launch, Scalar
from poem.dtypes.term import LEAF_BITS

SOURCE = "rope_append.cu"
THREADS = 256
CELLS = {"bf16": "bf16", "f16": "f16", "f32": "float", "e4m3": "e4m3", "e5m2": "e5m2"}


def rope_append(
    parts: tuple[Array, Array, Array], strides: tuple[int, int, int], positions: Array, frequencies: Array, pages: Array, offsets: Array,
    q_out: Array, cells: tuple[Array, Array], *, widths: tuple[int, int, int], head_dim: int, factor: float, inverse: bool = False,
    scales: tuple[float, float] = (1.0, 1.0), nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """q turned into q_out, and k turned and v into the cells of their rows.

    parts: q, k and v, each a run of elements from its first on, whose rows lie `strides` elements apart and have `widths`: columns of
    one matrix, or matrices. positions, pages, offsets: i32 `[N]`; a row whose page is negative gets no cell. frequencies: f32 `[R/2]`.
    cells: the planes `[pages, page_size, width]` of keys and values, read as `code * scale`. Channels i and i + R/2 of each head turn by
    position * frequencies[i], times factor.
    """
    rows, rotary = q_out.shape[0], 2 * math.prod(frequencies.shape)
    q, k, v = parts
    if len({part.dtype for part in (*parts, q_out)}) > 1 or len({plane.dtype for plane in cells}) > 1:
        raise unsupported("the kernel takes q, k and v of one dtype", found=", ".join(part.dtype for part in parts))
    if cells[0].dtype not in CELLS:
        raise unsupported("no kernel appends to cells of this dtype", expected=" ".join(CELLS), found=cells[0].dtype)
    starts = [part.offset * 8 // LEAF_BITS[part.dtype] for part in parts]
    vec = vector(q.dtype, rotary // 2, head_dim - rotary, widths[2], *strides, *starts)
    sizes = {"q_stride": strides[0], "k_stride": strides[1], "v_stride": strides[2]}
    sizes |= {"q_heads": widths[0] // head_dim, "k_heads": widths[1] // head_dim, "head_dim": head_dim, "rotary": rotary}
    sizes |= {"v_width": widths[2], "page_size": cells[0].shape[1]}
    numbers = {"factor": factor, "sign": -1.0 if inverse else 1.0, "k_scale": scales[0], "v_scale": scales[1]}
    arguments: dict[str, Argument] = {
        "q": reading(q), "k": reading(k), "v": reading(v), "positions": reading(positions), "frequencies": reading(frequencies),
        "pages": reading(pages), "offsets": reading(offsets), "q_out": writing(q_out), "k_cells": updating(cells[0]),
        "v_cells": updating(cells[1]), **{name: Scalar(size, "i32") for name, size in sizes.items()},
        **{name: Scalar(number, "f32") for name, number in numbers.items()},
    }  # fmt: skip
    kernel = f"rope_append<{type_of(q)}, {CELLS[cells[0].dtype]}, {vec}>"
    return [Launch(SOURCE, kernel, (rows, 1, 1), (THREADS, 1, 1), arguments, shared=rotary // 2 * 8, nodes=nodes)]
