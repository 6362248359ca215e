"""Examples of ops.gather."""

import numpy as np

from conformance.strategies.build import Build
from conformance.strategies.record import QUANTISED, alike, strategy
from poem.axes import times
from poem.ops.operands import Weight

VOCAB = 50
WIDTHS = (64, 8, 5, 1, 136)
MANY = 301  # an odd number of columns, more than a block has threads
OF_A_TOKEN = (1, 3, 64)  # rows; of 64 there are more than a block has threads, too


def _table(b: Build) -> Weight:
    """Ids of the lookup run past the vocabulary and below 0, and the table has rows behind the vocabulary."""
    return b.weight(VOCAB + 6, b.pick(128, 1024) if b.weights else b.pick(*WIDTHS), dtype=b.weights or b.dtype)


@strategy("gather.embed", weights=("", *QUANTISED[:-1]), exact=True)
def embed(b: Build) -> None:
    b.call("gather.embed", b.ids(VOCAB + 4, low=-2), _table(b), VOCAB)


@strategy("gather.embed_weighted", weights=("", *QUANTISED[:-1]), exact=True)
def embed_weighted(b: Build) -> None:
    taps = b.pick(2, 1, 4)
    b.call("gather.embed_weighted", b.ids(VOCAB + 4, taps, low=-2), b.value(taps, dtype="f32"), _table(b), VOCAB)


@strategy("gather.embed_concat", weights=("", *QUANTISED[:-1]), exact=True)
def embed_concat(b: Build) -> None:
    b.call("gather.embed_concat", b.ids(VOCAB + 4, b.pick(2, 1, 3), low=-2), _table(b), VOCAB)


@strategy("gather.split_rows", exact=True)
def split_rows(b: Build) -> None:
    width = b.pick(16, 3, 100)
    b.call("gather.split_rows", b.value(width + b.pick(16, 5)), width)


@strategy("gather.split_qkv", exact=True)
def split_qkv(b: Build) -> None:
    q, kv = b.pick(16, 4, 96), b.pick(8, 2)
    b.call("gather.split_qkv", b.value(q + 2 * kv), q, kv)


@strategy("gather.split_q_gate", exact=True)
def split_q_gate(b: Build) -> None:
    head_dim = b.pick(16, 2, 64)
    b.call("gather.split_q_gate", b.value(2 * head_dim * b.pick(2, 3)), head_dim)


@strategy("gather.select", exact=True)
def select(b: Build) -> None:
    width, parts = b.pick(16, 3), 4
    b.call("gather.select", b.value(parts * width), b.pick(0, 2, 3), width)


@strategy("gather.concat_cols", exact=True)
def concat_cols(b: Build) -> None:
    b.call("gather.concat_cols", [b.value(width) for width in b.pick((16, 8), (3, 1, 4), (64, 5))])


@strategy("gather.topk", exact=True)
def topk(b: Build) -> None:
    b.call("gather.topk", b.value(b.pick(9, 100)), b.pick(4, 1))


@strategy("gather.group_rows", exact=True)
def group_rows(b: Build) -> None:
    side = b.pick(2, 1, 3)
    b.call("gather.group_rows", b.value(b.pick(8, 5), f"tokens*{side * side}"), side)


@strategy("gather.pool_rows", exact=False)
def pool_rows(b: Build) -> None:
    side = b.pick(2, 1, 3)
    b.call("gather.pool_rows", b.value(b.pick(8, 5), f"tokens*{side * side}"), side)


@strategy("gather.gather_rows", exact=True)
def gather_rows(b: Build) -> None:
    """Rows of the pass by number; each pass has at least one."""
    rows = b.integers(lambda count: b.random.integers(0, max(count, 1), count), axis="readouts")
    b.call("gather.gather_rows", b.value(b.pick(*WIDTHS)), rows)


def _permutation(b: Build, count: int) -> np.ndarray:
    """Each row at most once, some of them nowhere."""
    order = b.random.permutation(count)
    order[b.random.random(count) < 0.3] = -1
    return order


@alike("gather.pack_rows", "gather.unpack_rows", exact=True)
def permuted(b: Build, op: str) -> None:
    width, rows = b.pick(*WIDTHS, MANY), times("tokens", b.pick(*OF_A_TOKEN))
    b.call(op, b.value(width, rows), b.integers(lambda count: _permutation(b, count), axis=rows))


@strategy("gather.scatter_live_rows", exact=True)
def scatter_live_rows(b: Build) -> None:
    _scattered(b, "gather.scatter_live_rows", -1)


@strategy("gather.scatter_rows", exact=True)
def scatter_rows(b: Build) -> None:
    _scattered(b, "gather.scatter_rows", 0)


def _scattered(b: Build, op: str, lowest: int) -> None:
    """Several routes may lead to a row."""
    width, each = b.pick(*WIDTHS, MANY), b.pick(*OF_A_TOKEN)
    rows = times("tokens", each)
    routes = b.integers(lambda count: b.random.integers(lowest, count // each, count), axis=rows)
    b.call(op, b.value(width, rows), routes, b.value(width))


@strategy("gather.grid_taps", dtypes=("f32",), flavours=("normal",))
def grid_taps(b: Build) -> None:
    """Images of a few patches; positions, sizes and bounds belong together."""
    side, kind = b.pick(4, 1, 7), b.pick("bilinear", "axes")
    grids = [[[int(b.random.integers(1, 3)), *map(int, b.random.integers(1, 8, 2))] for _ in counts] for counts in b.batch]
    patches = [[place for grid in images for place in np.ndindex(*grid)] for images in grids]
    ends = [np.cumsum([0, *(int(np.prod(grid)) for grid in images)]) for images in grids]
    positions, sizes, bounds = (
        b.listed(parts, width, axis) for parts, width, axis in ((patches, 3, "patches"), (grids, 3, "images"), (ends, 1, "images+1"))
    )
    b.call("gather.grid_taps", positions, sizes, bounds, kind, side)


@strategy("gather.pixels", dtypes=("bf16",), flavours=("normal",))
def pixels(b: Build) -> None:
    mean, std = [0.48, 0.46, 0.41], [0.27, 0.26, 0.28]
    x = b.bytes(3 * b.pick(4, 9), "patches")
    b.call("gather.pixels", x, mean, std, order=b.pick("chw", "hwc"), temporal=b.pick(1, 2))
