"""Launches of linear_warpgroups.cu: matrix products of many rows on sm_90a, by TMA and wgmma."""

from dataclasses import replace

from cupy_backend.kernels.arrays import reading, writing
from cupy_backend.kernels.linear_tables import BLOCKS, OUT_TYPES, SHARED, STATIC_SHARED, activation_name, instantiation
from cupy_backend.launch import Argument, Array, Launch, Scalar, TensorMap

ARCH = "sm_90a"
ROWS = 128  # of x in a tile, two warpgroups of 64
FEWEST_ROWS = 128  # below, linear.cu reads weights as fast
THREADS = 384
ROW_BYTES = 128  # of a tile of x, of w and of a chunk of out: the swizzle's pattern
MOST_STAGES = 6


def serves(rows: int, outputs: int, *, arch: str) -> bool:
    """Whether the kernel takes these shapes: eight rows of w share a gain, and rows of out are whole pieces of 16 bytes."""
    return arch == ARCH and rows >= FEWEST_ROWS and outputs % 8 == 0


def matmul(
    x: Array, w: Array, out: Array, *, x_scale: Array | None = None, gain: Array | None = None, act: str | None = None,
    bias: Array | None = None, nodes: tuple[int, ...] = (),
) -> Launch:  # fmt: skip
    """out `[N, M]` = x `[N, K]` times the transpose of w `[M, K]`.

    Both are bf16, or both e4m3 codes, with the scales of x `[runs, N']` and the turned gains of w `[runs, M']`.

    act, for w `[2 M, K]` of gates over ups, and bias: as in `linear.matmul`.
    """
    (rows, width), outputs = x.shape, out.shape[1]
    codes = x_scale is not None
    size = 2 if out.dtype == "bf16" else 4
    columns = 256 if not codes and size == 2 else 128  # rows of w in a tile
    written = columns // (2 if act else 1)
    stage = ROW_BYTES * (ROWS + columns) + (4 * (ROWS + columns) if codes else 0)
    staging = ROWS * written * size
    stages = min(MOST_STAGES, (SHARED[ARCH] - STATIC_SHARED - staging) // stage)
    element = "u8" if codes else "bf16"
    inner = ROW_BYTES if codes else ROW_BYTES // 2
    missing = Scalar(0, "u64")  # a null pointer
    arguments: dict[str, Argument] = {
        "x": TensorMap(replace(reading(x), dtype=element), (ROWS, inner)),
        "w": TensorMap(replace(reading(w), shape=(outputs * (2 if act else 1), width), dtype=element), (written, inner)),
        "out": TensorMap(writing(out), (ROWS // 2, ROW_BYTES // size)),
        "x_scale": missing if x_scale is None else reading(x_scale), "gain": missing if gain is None else reading(gain),
        "bias": missing if bias is None else reading(bias),
        "rows": Scalar(rows, "i32"), "outputs": Scalar(outputs, "i32"), "width": Scalar(width, "i32"),
        "scale_stride": Scalar(0 if x_scale is None else x_scale.shape[1], "i32"),
        "gain_stride": Scalar(0 if gain is None else gain.shape[1], "i32"),
    }  # fmt: skip
    kernel = instantiation(
        "product_by_warpgroups", "e4m3" if codes else "bf16", OUT_TYPES[out.dtype], activation_name(act), columns, stages
    )
    tiles = -(-rows // ROWS) * -(-outputs // written)
    return Launch(
        "linear_warpgroups.cu", kernel, (min(tiles, BLOCKS[ARCH]), 1, 1), (THREADS, 1, 1), arguments,
        shared=stages * stage + staging, nodes=nodes,
    )  # fmt: skip
