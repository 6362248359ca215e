"""Launches of attn.cu: attention over paged caches.

Each function turns arrays into launches; what no kernel serves is a KernelError (`kernel.unsupported`). A cache plane is
`[pages, page_size, heads * width]`. Lanes, lengths and pages are i32 arrays on the device, as `poem.batch`
makes them, so that a launch can be replayed; a padded lane has no rows.

How a result is rounded: scores, weights and sums are float32, but tensor cores take weights as two numbers of the activations' dtype,
whose sum is off by at most `WEIGHT_ERROR` of the weight, and by `WEIGHT_FLOOR` of the row's largest weight. So `|o - exact|` is at most the
bound of attention in float32, plus `WEIGHT_ERROR * sum_j p_j |v_j| + WEIGHT_FLOOR * sum_j |v_j|`. With rounded_weights it is one number and
`ROUNDED_WEIGHT_ERROR`: a third less work, and no longer what the op promises.
"""

from dataclasses import dataclass

import numpy as np

from cupy_backend.kernels.arrays import NULL, optional, reading, same_dtype, type_of, updating, writing
from cupy_backend.kernels.paged import Scales, bytes_of, cell_of, refusal, scale_arguments
from cupy_backend.launch import Argument, Array, Launch, Scalar

SOURCE = "attn.cu"
HEAD_DIMS = {1: (32, 64, 96, 128, 192, 256), 2: (16, 32, 64, 80, 96, 112, 128, 192, 256)}  # by bytes of a cell
WEIGHT_ERROR = {"bf16": 2.0**-17, "f16": 2.0**-23}
WEIGHT_FLOOR = {"bf16": 0.0, "f16": 2.0**-40}
ROUNDED_WEIGHT_ERROR = {"bf16": 2.0**-8, "f16": 2.0**-11}
MULTIPROCESSORS = {"sm_80": 108, "sm_89": 142, "sm_90a": 132, "sm_100a": 148, "sm_120a": 188}
WAVES = 4  # blocks for each multiprocessor that pieces are to give
MAXIMUM_PIECES = 64
INVARIANT_PIECES = 16
SHORTEST_PIECE = 256  # cells, where a plan says nothing else
PADDING = 8  # floats behind each row of results in shared memory


@dataclass(frozen=True, slots=True)
class Shape:
    """How a block is laid out: warps along rows and along cells, cells of a tile, tiles under way."""

    warps_m: int
    warps_n: int
    cells: int
    stages: int

    @property
    def rows(self) -> int:
        """Packed rows of a block."""
        return self.warps_m * 16

    @property
    def threads(self) -> int:
        return self.warps_m * self.warps_n * 32

    def shared(self, head_dim: int, value_dim: int, cell_bytes: int, pieces: int) -> int:
        """Bytes of dynamic shared memory: tiles and queries that registers do not hold; later results of warps, and weights of pieces."""
        tiles = self.stages * self.cells * (head_dim + value_dim) * cell_bytes
        queries = head_dim // 16 * self.threads * 16 if head_dim > 128 else 0
        return max(tiles + queries, self.warps_n * self.rows * ((value_dim + PADDING) * 4 + 8), (pieces + 1) * self.rows * 4)


# (largest head_dim, bytes of a cell) -> shape, the first that fits. Every shape fits the 99 KiB of the smallest device.
DECODE = {(128, 1): Shape(1, 4, 64, 3), (128, 2): Shape(1, 4, 64, 3), (256, 1): Shape(1, 4, 64, 2), (256, 2): Shape(1, 2, 32, 2)}
PREFILL = {(128, 1): Shape(4, 1, 64, 2), (128, 2): Shape(4, 1, 64, 2), (256, 1): Shape(4, 1, 32, 2), (256, 2): Shape(4, 1, 32, 2)}


def shape_of(head_dim: int, value_dim: int, cells: str, *, decode: bool) -> Shape:
    """The layout for a head and a dtype of cells: decode for lanes of few packed rows, else prefill."""
    _check_heads(head_dim, value_dim, cells)
    table = DECODE if decode else PREFILL
    width, cell_bytes = max(head_dim, value_dim), bytes_of(cells)
    return next(shape for (widest, size), shape in table.items() if width <= widest and size == cell_bytes)


def row_tiles(
    rows_of_lane: np.ndarray, kv_len: np.ndarray, group: int, shape: Shape, *, least: int = 1, most: int | None = None,
    count: int | None = None,
) -> np.ndarray:  # fmt: skip
    """The work list of `attention`: (lane, first packed row) of each block, i32 `[tiles, 2]`; the blocks that may see most come first.

    rows_of_lane: new rows of each lane, kv_len: its cells. Lanes with fewer than `least` or more than `most` rows are left to another
    launch. count: of tiles, the rest being padding (lane -1).
    """
    found = [
        (cells - rows + min(start // group + -(-shape.rows // group), rows), lane, start)
        for lane, (rows, cells) in enumerate(zip(rows_of_lane.tolist(), kv_len.tolist(), strict=True))
        if rows >= least and (most is None or rows <= most)
        for start in range(0, rows * group, shape.rows)
    ]
    listed = [(lane, start) for _, lane, start in sorted(found, reverse=True)]
    padding = [(-1, 0)] * ((len(found) if count is None else count) - len(found))
    return np.array(listed + padding, np.int32).reshape(-1, 2)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The operands that say which rows and cells belong together, all i32: see `poem.batch`."""

    qo_indptr: Array
    kv_len: Array
    page_indptr: Array
    page_indices: Array


def pieces_of(tiles: int, kv_heads: int, *, decode: bool, arch: str, batch_invariant: bool) -> int:
    """Into how many pieces the cells of a lane are cut at most. Where a cut lies depends on the lane's own length and this number."""
    if batch_invariant:
        return INVARIANT_PIECES if decode else 1
    return min(MAXIMUM_PIECES, max(1, WAVES * MULTIPROCESSORS[arch] // (tiles * kv_heads)))


def attention_scratch(rows: int, heads: int, value_dim: int, pieces: int) -> int:
    """Bytes of scratch of `attention`: none for one piece."""
    return pieces * rows * heads * (value_dim + 2) * 4 if pieces > 1 else 0


@dataclass(frozen=True, slots=True)
class Scores:
    """What becomes of a score after its scale: cap * tanh(score / cap), then plus bias, then times 1 + slope ln((position + 1) / floor).

    bias: f32 `[N, heads * extent]`, for cells 0 to extent - 1 before the row's own. log_scaling: (floor, slope), for positions from floor
    on. mask: bits of the cells that rows may see, and bounds of each lane's bytes, i32 `[lanes + 1]`; a lane without bytes has no mask.
    """

    softcap: float | None = None
    bias: Array | None = None
    log_scaling: tuple[float, float] | None = None
    mask: tuple[Array, Array] | None = None


PLAIN = Scores()


def attention(
    q: Array, k_cache: Array, v_cache: Array, out: Array, *, tiles: Array, lanes: Lanes, head_dim: int, kv_heads: int,
    sm_scale: float, decode: bool, pieces: int = 1, shortest: int = SHORTEST_PIECE, window: int | None = None, causal: bool = True,
    scores: Scores = PLAIN, sinks: Array | None = None, lse: Array | None = None, scales: Scales = None, rounded_weights: bool = False,
    scratch: Array | None = None, counters: Array | None = None, nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """Attention of the rows that `tiles` lists (`row_tiles`, with `shape_of` for the same `decode`) over their lanes' cells.

    q `[N, heads * head_dim]`; out `[N, heads * value_dim]` of q's dtype, with the direction it is given: `write` if the tiles are all its
    rows. Cells are of q's dtype, e4m3 or e5m2; scales f32 `[1]` of K and of V multiply what they hold. sinks `[heads]` or `[N, heads]`,
    f32 or of q's dtype; lse f32 `[N, heads]`, in base 2. pieces: see `pieces_of`; several need `attention_scratch` bytes, and counters
    u32 for each tile and key head, which are 0 before and after. shortest: cells of a piece, at least.
    """
    rows, heads = q.shape[0], q.shape[1] // head_dim
    value_dim, group = v_cache.shape[2] // kv_heads, heads // kv_heads
    shape = shape_of(head_dim, value_dim, k_cache.dtype, decode=decode)
    if q.dtype == "f32" or (bytes_of(k_cache.dtype) > 1 and k_cache.dtype != q.dtype):
        raise refusal("queries of bf16 or f16 over cells of the same dtype, e4m3 or e5m2", f"{q.dtype} over {k_cache.dtype}")
    same_dtype(q, out)
    same_dtype(k_cache, v_cache)
    if sinks is not None and sinks.dtype not in ("f32", q.dtype):
        raise refusal(f"sinks of f32 or {q.dtype}", sinks.dtype)
    partial, sums, counted = _pieces(scratch, counters, (pieces, rows, heads, value_dim), tiles.shape[0] * kv_heads)
    mask, mask_indptr = scores.mask or (None, None)
    log_floor, log_slope = scores.log_scaling or (float("inf"), 0.0)
    numbers = {
        "window": window or 2**31 - 1, "causal": int(causal), "total_rows": rows, "shortest": max(1, shortest // shape.cells),
        "own_sinks": int(sinks is not None and len(sinks.shape) == 2),
        "wide_sinks": int(sinks is not None and sinks.dtype == "f32"),
        "extent": 0 if scores.bias is None else scores.bias.shape[1] // heads,
    }  # fmt: skip
    arguments: dict[str, Argument] = {
        "q": reading(q), "k_cache": reading(k_cache), "v_cache": reading(v_cache), "tiles": reading(tiles),
        "qo_indptr": reading(lanes.qo_indptr), "kv_len": reading(lanes.kv_len), "page_indptr": reading(lanes.page_indptr),
        "page_indices": reading(lanes.page_indices), **scale_arguments(scales), "sinks": optional(sinks), "mask": optional(mask),
        "mask_indptr": optional(mask_indptr), "bias": optional(scores.bias), "out": out, "lse": NULL if lse is None else _like(lse, out),
        "partial": partial, "sums": sums, "counters": counted, "group": Scalar(group, "i32"),
        "kv_heads": Scalar(kv_heads, "i32"), **_page_division(k_cache.shape[1]),
        **{name: Scalar(number, "i32") for name, number in numbers.items()}, "scale": Scalar(sm_scale, "f32"),
        "cap": Scalar(scores.softcap or 0.0, "f32"), "log_floor": Scalar(log_floor, "f32"), "log_slope": Scalar(log_slope, "f32"),
    }  # fmt: skip
    form = f"{head_dim}, {value_dim}, {shape.warps_m}, {shape.warps_n}, {shape.cells}, {shape.stages}, {1 if rounded_weights else 2}"
    kernel = f"attention<{type_of(q)}, {cell_of(k_cache)}, {form}, {'true' if scores == PLAIN else 'false'}>"
    shared = shape.shared(head_dim, value_dim, bytes_of(k_cache.dtype), pieces)
    return [Launch(SOURCE, kernel, (tiles.shape[0], kv_heads, pieces), (shape.threads, 1, 1), arguments, shared=shared, nodes=nodes)]


def _pieces(
    scratch: Array | None, counters: Array | None, shape: tuple[int, int, int, int], groups: int
) -> tuple[Argument, Argument, Argument]:
    """Weighted values `[pieces, rows, heads, value_dim]` and sums of pieces, and the counters; null pointers for one piece."""
    if shape[0] == 1:
        return NULL, NULL, NULL
    if scratch is None or counters is None or counters.shape[0] < groups:
        raise refusal(f"scratch for the pieces, and {groups} counters", f"{scratch}, {counters}")
    partial = Array(scratch.buffer, "scratch", shape, "f32", scratch.offset)
    sums = Array(scratch.buffer, "scratch", (*shape[:3], 2), "f32", scratch.offset + partial.nbytes)
    return partial, sums, updating(counters)


def _check_heads(head_dim: int, value_dim: int, cells: str) -> None:
    if cells not in ("bf16", "f16", "e4m3", "e5m2"):
        raise refusal("cells of bf16, f16, e4m3 or e5m2", cells)
    known = HEAD_DIMS[bytes_of(cells)]
    if head_dim not in known or value_dim not in known:
        raise refusal(f"heads of {', '.join(map(str, known))} over cells of {cells}", f"{head_dim}, {value_dim}")


def _like(array: Array, other: Array) -> Array:
    return writing(array) if other.direction == "write" else updating(array)


def _page_division(size: int) -> dict[str, Argument]:
    """Division by the page size, as a product: n // size = (2 n * magic >> 32) >> shift for 0 <= n < 2^31.

    With 2^shift >= size, magic = (2^(31 + shift) + e) / size has 0 <= e < size, so 2 n * magic / 2^(32 + shift) exceeds n / size by
    n e / (size 2^(31 + shift)) < 1 / size, which is too little to reach the next whole number.
    """
    shift = (size - 1).bit_length()
    return {
        "page_size": Scalar(size, "i32"), "page_magic": Scalar(-(-(1 << 31 + shift) // size), "u32"), "page_shift": Scalar(shift, "i32"),
    }  # fmt: skip
