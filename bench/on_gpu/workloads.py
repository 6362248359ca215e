"""What is timed: launches of single kernels at the sizes of real models, with the operands that they need.

A workload's launches read and write buffers of its own, so that several copies of it can be run in turn and none finds its operands in
the cache.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cupy_backend.kernels import attn, elemwise, linear, norms
from cupy_backend.kernels.arrays import writing
from cupy_backend.kernels.linear_tables import COUNTERS
from cupy_backend.launch import Array, Launch
from cupy_backend.plan.prepare import PRODUCT, planes_of
from poem.dtypes import Dtype


class Normal(NamedTuple):
    """Random content: floats around `centre`; of codes all but NaN, whatever the scale."""

    scale: float = 1.0
    centre: float = 0.0


Content = Normal | np.ndarray
UNIT = Normal()


@dataclass
class Workload:
    """Launches, the content of their buffers by name, and what they move and compute at least. out: the buffer of the result."""

    arch: str
    launches: list[Launch] = field(default_factory=list)
    buffers: dict[str, tuple[Array, Content]] = field(default_factory=dict)
    nbytes: int = 0
    flops: int = 0
    out: str = ""
    suffix: str = ""

    def new(self, name: str, shape: tuple[int, ...], dtype: str, content: Content = UNIT) -> Array:
        """An operand, in a buffer of its own."""
        array = Array(name + self.suffix, "read", shape, dtype)
        self.buffers[array.buffer] = array, content
        return array

    def integers(self, name: str, values: np.ndarray) -> Array:
        return self.new(name, values.shape, "i32", values.astype(np.int32))

    def zeros(self, name: str, count: int) -> Array:
        return self.new(name, (count,), "u32", np.zeros(count, np.uint32))


Sizes = Mapping[str, int]
Maker = Callable[[Workload, Sizes], None]


def add_rmsnorm(made: Workload, sizes: Sizes) -> None:
    rows, width = sizes["rows"], sizes["width"]
    x, residual, out = (made.new(name, (rows, width), "bf16") for name in ("x", "residual", "out"))
    gain = made.new("gain", (width,), "bf16", Normal(0.1, 1.0))
    made.launches = norms.rmsnorm(x, gain, out, eps=1e-5, residual=residual)
    made.nbytes, made.flops, made.out = 4 * x.nbytes, 5 * rows * width, out.buffer


def glu(made: Workload, sizes: Sizes) -> None:
    rows, inter = sizes["rows"], sizes["inter"]
    x, out = made.new("x", (rows, 2 * inter), "bf16"), made.new("out", (rows, inter), "bf16")
    made.launches = elemwise.elementwise("Glu<SILU>", [elemwise.Part(x, 0), elemwise.Part(x, 1)], out, arch=made.arch)
    made.nbytes, made.flops, made.out = x.nbytes + out.nbytes, 5 * rows * inter, out.buffer


def quantise(made: Workload, sizes: Sizes) -> None:
    """Activations to e4m3, a scale for each 128 columns of a row."""
    rows, width = sizes["rows"], sizes["width"]
    x, codes = made.new("x", (rows, width), "bf16"), made.new("codes", (rows, width), "u8")
    scales = made.new("scales", (width // 128, -(-rows // 4) * 4), "f32")
    made.launches = [linear.quantise_activations(x, codes, scales)]
    made.nbytes, made.flops, made.out = x.nbytes + codes.nbytes + scales.nbytes, 3 * rows * width, codes.buffer


def product_by(dtype: str, *, warpgroups: bool = False) -> Maker:
    """x `[rows, width]` times the transpose of a weight `[outputs, width]` of a dtype; with its activations quantised where it says so."""

    def make(made: Workload, sizes: Sizes) -> None:
        rows, outputs, width = sizes["rows"], sizes["outputs"], sizes["width"]
        of = Dtype(dtype)
        x, out = made.new("x", (rows, width), "bf16"), made.new("out", (rows, outputs), "bf16")
        leaves = planes_of(of, [outputs], (width,), PRODUCT)
        planes = {path: made.new(f"w.{path}", shape, leaf, _content(of, path, shape)) for path, (shape, leaf) in leaves.items()}
        scratch = linear.matmul_scratch(rows, outputs, width, dtype=of, arch=made.arch)
        made.launches = linear.matmul(
            x, planes, out, dtype=of, arch=made.arch, warpgroups=warpgroups,
            scratch=made.new("scratch", (max(scratch, 256),), "u8"), counters=made.zeros("counters", COUNTERS),
        )  # fmt: skip
        made.nbytes = x.nbytes + out.nbytes + sum(plane.nbytes for plane in planes.values())
        made.flops, made.out = 2 * rows * outputs * width, out.buffer

    return make


# Content of a weight's planes, such that weights are small.
PLANES = {"data": Normal(0.02), "code": UNIT, "gain": Normal(0.002, 0.01), "offset": Normal(0.01), "row_gain": Normal(0.002, 0.01)}


def _content(dtype: Dtype, path: str, shape: tuple[int, ...]) -> Content:
    """That of a plane. A gain of tiles is one number for 128 rows, which a turned plane repeats."""
    if path != "gain" or "tile128" not in dtype.name:
        return PLANES[path]
    tiles = np.random.default_rng(2).uniform(0.005, 0.015, (shape[0], -(-shape[1] // 128)))
    return tiles.astype(np.float32).repeat(128, 1)[:, : shape[1]]


def attend(*, decode: bool) -> Maker:
    """Causal attention over paged cells: of the last row of each lane, or of all rows. Pages lie in random order."""

    def make(made: Workload, sizes: Sizes) -> None:
        lanes, cells, heads, kv_heads, dim = (sizes[name] for name in ("lanes", "cells", "heads", "kv_heads", "dim"))
        page, rows = 16, 1 if decode else cells
        pages = -(-cells // page)
        order = np.random.default_rng(1).permutation(lanes * pages)
        q, out = (made.new(name, (lanes * rows, heads * dim), "bf16") for name in ("q", "out"))
        k, v = (made.new(name, (lanes * pages, page, kv_heads * dim), "bf16") for name in ("k", "v"))
        of_lanes = attn.Lanes(
            made.integers("qo_indptr", np.arange(lanes + 1) * rows), made.integers("kv_len", np.full(lanes, cells)),
            made.integers("page_indptr", np.arange(lanes + 1) * pages), made.integers("page_indices", order),
        )  # fmt: skip
        shape = attn.shape_of(dim, dim, "bf16", decode=decode)
        tiles = made.integers("tiles", attn.row_tiles(np.full(lanes, rows), np.full(lanes, cells), heads // kv_heads, shape))
        pieces = attn.pieces_of(tiles.shape[0], kv_heads, decode=decode, arch=made.arch, batch_invariant=False)
        pieces = min(pieces, -(-cells // attn.SHORTEST_PIECE))
        scratch = attn.attention_scratch(lanes * rows, heads, dim, pieces)
        made.launches = attn.attention(
            q, k, v, writing(out), tiles=tiles, lanes=of_lanes, head_dim=dim, kv_heads=kv_heads, sm_scale=dim**-0.5, decode=decode,
            pieces=pieces, scratch=made.new("scratch", (max(scratch, 256),), "u8"),
            counters=made.zeros("counters", tiles.shape[0] * kv_heads),
        )  # fmt: skip
        made.nbytes = q.nbytes + out.nbytes + 2 * lanes * cells * kv_heads * dim * 2
        seen = cells if decode else (cells + 1) / 2  # cells that a row sees, on average
        made.flops, made.out = int(4 * lanes * rows * heads * dim * seen), out.buffer

    return make
