"""Bounds of ops.gather: copies, but for the weighted sums and the tables that have to be decoded."""

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import bound, integers
from conformance.running import Running

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
    return Running(a, exact[0], np.concatenate([np.broadcast_to(part.error, part.shape) for part in parts], axis=1))


@bound("gather.embed", "gather.embed_concat")
def embed(a: Arithmetic, exact: Exact, *, ids: np.ndarray, table: np.ndarray, vocab: int) -> Running:
    """A row of a float table is a copy, which rounding leaves as it is; a decoded one is rounded to the compute dtype."""
    return Running(a, exact[0])


@bound("gather.embed_weighted", reduces="sum of {} rows", length=lambda given: given["ids"].shape[-1])
def embed_weighted(a: Arithmetic, exact: Exact, *, ids: np.ndarray, weights: Running, table: np.ndarray, vocab: int) -> Running:
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
