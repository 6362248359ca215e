"""What launches over paged caches share: the C++ names of cells, their scales, where rows begin."""

from cupy_backend.errors import KernelError
from cupy_backend.kernels.arrays import TYPES, Columns, optional
from cupy_backend.launch import Argument, Array, Scalar

CELLS = TYPES | {"e4m3": "e4m3", "e5m2": "e5m2"}  # dtypes of cells, as C++ names them
Scales = tuple[Array, Array] | None  # f32 `[1]` of K and of V, by which cells of 8 bits are multiplied when they are read


def cell_of(cache: Array) -> str:
    """The C++ name of the dtype of a cache's cells. KernelError (`kernel.unsupported`) for others."""
    if cache.dtype not in CELLS:
        raise refusal(f"cells of {', '.join(CELLS)}", cache.dtype)
    return CELLS[cache.dtype]


def bytes_of(cells: str) -> int:
    """Bytes of a cell's element."""
    return {"e4m3": 1, "e5m2": 1, "f32": 4}.get(cells, 2)


def scale_arguments(scales: Scales) -> dict[str, Argument]:
    k_scale, v_scale = scales or (None, None)
    return {"k_scale": optional(k_scale), "v_scale": optional(v_scale)}


def row_arguments(**parts: Columns) -> dict[str, Argument]:
    """How far the rows of each part are apart, and the column with which they begin."""
    found: dict[str, Argument] = {}
    for name, part in parts.items():
        found[f"{name}_stride"] = Scalar(part.array.shape[1], "i32")
        found[f"{name}_first"] = Scalar(part.start, "i32")
    return found


def refusal(expected: str, found: str) -> KernelError:
    return KernelError("kernel.unsupported", "no attention kernel serves this", phase="plan", expected=expected, found=found)
