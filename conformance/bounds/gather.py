"""Bounds of ops.gather: copies, but for the weighted sums and the tables that have to be decoded."""

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import bound, integers
from conformance.running import Running, joined

Exact = tuple[np.ndarray, ...]
integers("gather.topk", results=2)


@bound("gather.gather_rows", copies=True)
def gather_rows(a: Arithmetic, exact: Exact, *, x: Running, rows: np.ndarray) -> Running:
    return x[rows.reshape(-1)]


@bound("gather.split_rows", copies=True)
def split_rows(a: Arithmetic, exact: Exact, *, x: Running, width: int) -> tuple[Running, ...]:
    return x[:, :width], x[:, width:]


@bound("gather.split_qkv", copies=True)
def split_qkv(a: Arithmetic, exact: Exact, *, x: Running, q_width: int, kv_width: int) -> tuple[Running, ...]:
    return x[:, :q_width], x[:, q_width : q_width + kv_width], x[:, q_width + kv_width :]


@bound("gather.split_q_gate", copies=True)
def split_q_gate(a: Arithmetic, exact: Exact, *, x: Running, head_dim: int) -> tuple[Running, ...]:
    pairs = x.reshape(x.shape[0], -1, 2, head_dim)
    return tuple(pairs[:, :, side].reshape(x.shape[0], -1) for side in (0, 1))


@bound("gather.select", copies=True)
def select(a: Arithmetic, exact: Exact, *, x: Running, index: int, width: int) -> Running:
    return x[:, index * width : (index + 1) * width]


@bound("gather.concat_cols", copies=True)
def concat_cols(a: Arithmetic, exact: Exact, **given: list[Running]) -> Running:
    (parts,) = given.values()
    return joined(parts)


@bound("gather.embed", "gather.embed_concat")
def embed(a: Arithmetic, exact: Exact, *, ids: np.ndarray, table: np.ndarray, vocab: int) -> Running:
    """A row of a float table is a copy. A decoded one is rounded to float32 where that does not hold its product with the gain, and then to
    the compute dtype."""
    values = exact[0].astype(np.float64)
    rounded = np.isfinite(values) & (values.astype(np.float32) != values)
    return Running(a, exact[0], np.where(rounded, a.unit * np.abs(values), 0.0))


@bound("gather.embed_weighted", reduces="sum of {} rows", length=lambda given: given["ids"].shape[-1])
def embed_weighted(a: Arithmetic, exact: Exact, *, ids: np.ndarray, weights: Running, table: np.ndarray, vocab: int) -> Running:
    ids = ids.reshape(weights.shape)
    rows = table[np.where((ids >= 0) & (ids < vocab), ids, 0)]
    taps = weights.reshape(ids.shape[0], 1, ids.shape[1])
    return taps.matmul(rows).reshape(ids.shape[0], -1)


@bound("gather.pool_rows", reduces="mean of {} rows", length=lambda given: given["side"] ** 2)
def pool_rows(a: Arithmetic, exact: Exact, *, x: Running, side: int) -> Running:
    count = side * side
    return (x.reshape(-1, count, x.shape[1]).sum(1) / count).reshape(-1, x.shape[1])


@bound("gather.pack_rows", copies=True)
def pack_rows(a: Arithmetic, exact: Exact, *, x: Running, perm: np.ndarray) -> Running:
    rows = perm.reshape(-1)
    error = np.broadcast_to(x.error, x.shape)[np.maximum(rows, 0)]
    return Running(a, exact[0], np.where(rows[:, None] >= 0, error, 0.0))


@bound("gather.unpack_rows", copies=True)
def unpack_rows(a: Arithmetic, exact: Exact, *, x: Running, perm: np.ndarray) -> Running:
    rows = perm.reshape(-1)
    error = np.zeros(x.shape)
    error[rows[rows >= 0]] = np.broadcast_to(x.error, x.shape)[rows >= 0]
    return Running(a, exact[0], error)


@bound("gather.group_rows", copies=True)
def group_rows(a: Arithmetic, exact: Exact, *, x: Running, side: int) -> Running:
    return x.reshape(-1, side * side * x.shape[1])


@bound("gather.scatter_live_rows", "gather.scatter_rows", copies=True)
def scatter_rows(a: Arithmetic, exact: Exact, *, src: Running, routes: np.ndarray, y: Running) -> Running:
    error = np.array(np.broadcast_to(y.error, y.shape))
    rows = routes.reshape(-1)[: src.shape[0]]
    error[rows[rows >= 0]] = np.broadcast_to(src.error, src.shape)[: len(rows)][rows >= 0]
    return Running(a, exact[0], error)


@bound("gather.grid_taps")
def grid_taps(
    a: Arithmetic, exact: Exact, *, positions: np.ndarray, grids: np.ndarray, segments: np.ndarray, kind: str, side: int
) -> tuple[None, Running]:
    """The weight of a tap is a product of two fractions, each a quotient of integers or what it lacks to 1."""
    if kind == "axes":
        return None, Running(a, exact[1])
    image = np.searchsorted(segments.reshape(-1), np.arange(len(positions)), side="right") - 1
    row, column = (_fractions(a, positions[:, axis], grids[image, axis], side) for axis in (1, 2))
    return None, (row.reshape(-1, 2, 1) * column.reshape(-1, 1, 2)).reshape(-1, 4)


def _fractions(a: Arithmetic, index: np.ndarray, size: np.ndarray, side: int) -> Running:
    """Weights `[patches, 2]` of the lower and the upper tap."""
    span = np.maximum(size.astype(np.int64) - 1, 1)
    upper = (Running(a, index.astype(np.int64) * (side - 1) % span) / span).reshape(-1, 1)
    return joined([1.0 - upper, upper])


@bound("gather.pixels")
def pixels(a: Arithmetic, exact: Exact, *, x: np.ndarray, mean: list[float], std: list[float], order: str, temporal: int) -> Running:
    """A quotient, a difference and a quotient for each byte."""
    rows, bytes = x.shape
    values = (Running(a, x.reshape(rows, bytes // 3, 3)) / 255.0 - np.array(mean)) / np.array(std)
    frames = [values.transpose(0, 2, 1).reshape(rows, 3, 1, bytes // 3)] * temporal if order == "chw" else [values] * temporal
    return joined(frames, 2 if order == "chw" else 1).reshape(rows, temporal * bytes)
