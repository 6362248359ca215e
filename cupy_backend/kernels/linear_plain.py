"""Launches of linear_plain.cu: matrix products of floats that linear.cu does not take."""

from cupy_backend.kernels.arrays import TYPES, reading, type_of, writing
from cupy_backend.kernels.linear_tables import OUT_TYPES
from cupy_backend.launch import Argument, Array, Launch, Scalar
from poem.dtypes import Dtype

OUTPUTS = 64  # of a tile
TILES = ((8, 2, 1), (64, 4, 4))  # rows of a tile, and what a thread has of them and of the outputs; the first that holds all rows
ALIGNMENT = 8  # columns; linear.cu loads as many at once


def serves(x: str, out: str, dtype: Dtype, width: int) -> bool:
    """Whether a product of x and a weight `[M, width]`, by their dtypes and the result's, is one of these: floats, but not what linear.cu
    is for."""
    taken = x == dtype.name == "bf16" and out in OUT_TYPES and width % ALIGNMENT == 0
    return dtype.name in TYPES and not taken


def matmul(x: Array, w: Array, out: Array, *, bias: Array | None = None, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """out `[N, M]` = x `[N, K]` times the transpose of w `[M, K]`, each f32, bf16 or f16; summed in float32, in the order of k.

    bias `[M]`, of out's dtype, is added to the rounded product.
    """
    (rows, width), outputs = x.shape, w.shape[0]
    tile = next((tile for tile in TILES if rows <= tile[0]), TILES[-1])
    sizes = {"rows": rows, "outputs": outputs, "width": width}
    arguments: dict[str, Argument] = {
        "x": reading(x), "w": reading(w), "bias": Scalar(0, "u64") if bias is None else reading(bias), "out": writing(out),
        **{name: Scalar(size, "i32") for name, size in sizes.items()},
    }  # fmt: skip
    kernel = f"product_plain<{type_of(x)}, {type_of(w)}, {type_of(out)}, {', '.join(map(str, tile))}>"
    grid = (-(-outputs // OUTPUTS), -(-rows // tile[0]), 1)
    return [Launch("linear_plain.cu", kernel, grid, (256, 1, 1), arguments, nodes=nodes)]
