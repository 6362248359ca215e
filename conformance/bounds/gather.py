"""Bounds of ops.gather: copies, but for the weighted sums and the tables that have to be decoded."""

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import bound, copies
from conformance.running import Running

Exact = tuple[np.ndarray, ...]
copies(
    "gather.gather_rows", "gather.split_rows", "gather.split_qkv", "gather.split_q_gate", "gather.concat_cols", "gather.pack_rows",
    "gather.unpack_rows", "gather.group_rows", "gather.scatter_live_rows", "gather.scatter_rows", "gather.select",
)  # fmt: skip


@bound("gather.embed", "gather.embed_concat")
def embed(a: Arithmetic, exact: Exact, *, ids: np.ndarray, table: np.ndarray, vocab: int) -> Running:
    """A row of a float table is a copy, which rounding leaves as it is; a decoded one is rounded to the compute dtype."""
    return Running(a, exact[0])


@bound("gather.embed_weighted", reduces="sum of {} rows", length=lambda given: given["ids"].shape[-1])
def embed_weighted(
    a: Arithmetic, exact: Exact, *, ids: np.ndarray, weights: np.ndarray, table: np.ndarray, vocab: int
) -> Running:
    rows = table[np.where((ids >= 0) & (ids < vocab), ids, 0)]
    taps = ids.shape[1]
    magnitude = np.einsum("nt,ntd->nd", np.abs(weights), np.abs(rows))
    return Running(a, exact[0], a.growth(taps) * a.unit * magnitude + taps * a.tiny)


@bound("gather.pool_rows", reduces="mean of {} rows", length=lambda given: given["side"] ** 2)
def pool_rows(a: Arithmetic, exact: Exact, *, x: np.ndarray, side: int) -> Running:
    count = side * side
    return (Running(a, x.reshape(-1, count, x.shape[1])).sum(1) / count).reshape(-1, x.shape[1])
