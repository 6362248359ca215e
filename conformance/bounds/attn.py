"""Bounds of ops.attn.

Softmax attention in f32: scores are dot products, so they carry growth(D) u sum |q k|; the exponential turns an absolute
error of a score into a relative one of its weight, e^error - 1; the quotient by the sum and the weighted sum of values
follow as products and sums of n terms. Subtracting the maximum changes no quotient, so its own error counts for nothing.
K and V are read after the cast of the cache (`Cells.read`).
"""

from itertools import pairwise
from typing import Any

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import Cells, bound, integers
from conformance.running import Running, joined
from poem.batch import Geometry

Exact = tuple[np.ndarray, ...]
integers("attn.plan_prefill")
integers("attn.kv_append", "attn.kv_append_shared", results=0)


def allowed_cells(
    positions: np.ndarray, cells: int, window: int | None, causal: bool, mask: np.ndarray | None, selection: np.ndarray | None, ratio: int
) -> np.ndarray:
    """Which cells `[rows, cells]` each new row of a lane may attend. mask and selection: of these rows."""
    position = positions[:, None]
    cell = np.arange(cells)[None, :]
    allowed = np.ones((len(position), cell.shape[1]), bool)
    if mask is not None:
        allowed &= mask
    if causal:
        allowed &= cell <= position
    if window is not None:
        allowed &= position - cell < window
    if selection is not None:
        blocks = (position + 1) // ratio
        listed = np.zeros_like(allowed)
        for row, ids in enumerate(selection):
            inside = ids[(ids >= 0) & (ids < blocks[row, 0])]
            listed[row] = np.isin(cell[0] // ratio, inside) | (cell[0] >= blocks[row, 0] * ratio) & (ratio > 1)
        allowed &= listed
    return allowed


@bound("attn.attend", reduces="scores of {} terms", length=lambda given: given["head_dim"])
def attend(
    a: Arithmetic, exact: Exact, *, q: Running, cache: Cells, inputs: Geometry, head_dim: int, kv_heads: int, sm_scale: float,
    window: int | None, causal: bool, softcap: float | None, mask: Any, sinks: Running | None, bias: Running | None,
    selection: np.ndarray | None, ratio: int, log_scaling: list[float] | None, lse: bool,
) -> Running | tuple[Running, ...]:  # fmt: skip
    """Lane by lane. The scale may be applied to q or to the score: both roundings are counted. mask: per lane a bool matrix."""
    heads = q.shape[1] // head_dim
    parts, logs = [], []
    for lane, start, end in inputs.lanes_with_rows:
        rows, new, cells = slice(start, end), end - start, int(inputs.kv_len[lane])
        position = inputs.positions[rows]
        keys = cache.read(lane, 0, a).reshape(cells, kv_heads, head_dim)
        values = cache.read(lane, 1, a).reshape(cells, kv_heads, -1)
        queries = q[rows].reshape(new, kv_heads, heads // kv_heads, head_dim).transpose(1, 2, 0, 3)  # [kv heads, group, rows, D]
        scores = (queries * sm_scale).matmul(keys.transpose(1, 2, 0)[:, None]) * 1.0
        if softcap is not None:
            scores = softcap * (scores / softcap).tanh()
        if bias is not None:
            scores = scores + _relative(bias[rows], position, cells, heads).reshape(*scores.shape)
        if log_scaling is not None:
            floor, slope = log_scaling
            grown = 1.0 + slope * (Running(a, np.maximum(position + 1.0, floor)) / floor).log()
            scores = scores * grown.reshape(new, 1)
        chosen = None if selection is None else selection[rows]
        allowed = allowed_cells(position, cells, window, causal, None if mask is None else mask[lane], chosen, ratio)
        sink = None
        if sinks is not None:
            given = sinks[rows] if len(sinks.shape) == 2 else sinks * np.ones((new, 1))
            sink = given.transpose(1, 0).reshape(kv_heads, heads // kv_heads, new, 1)
        out, log = weighted_values(a, scores, allowed, values.transpose(1, 0, 2)[:, None], sink)
        parts.append(_rows(out, new))
        logs.append(_rows(log, new))
    o = by_lane(a, parts, exact[0])
    return (o, by_lane(a, logs, exact[1])) if lse else o


def weighted_values(a: Arithmetic, scores: Running, allowed: np.ndarray, values: Running, sink: Running | None) -> tuple[Running, Running]:
    """Softmax of scores `[..., rows, cells]` over the allowed cells, times values `[..., cells, width]`, and the base-2 lse.

    sink: one more score, which has no value. A row without an allowed cell gives 0 and -inf. Infinite and NaN values have no error; they
    are left out, so that rows which may not attend them keep theirs.
    """
    if a.special:
        values = values.where(np.isfinite(values.value))
    top = np.where(allowed, scores.value, -np.inf).max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0) if sink is None else np.maximum(top, sink.value)
    weights = (Running(a, np.where(allowed, scores.value - top, 0.0), np.where(allowed, scores.error, 0.0)) + 0.0).exp()
    # A weight is in 0..1 however wrong its score is.
    weights = Running(a, np.where(allowed, weights.value, 0.0), np.where(allowed, np.minimum(weights.error, 1.0), 0.0))
    total = weights.sum()
    if sink is not None:
        total = total + (sink - top).exp()
    empty = ~allowed.any(-1, keepdims=True)
    safe = Running(a, np.where(empty, 1.0, total.value), total.error)
    # To base 2: log2 e is a rounded number, and the product with it rounds once more.
    log = safe.log() * (1.0 / np.log(2.0)) + Running(a, top, a.unit * np.abs(top)) * (1.0 / np.log(2.0))
    return (weights / safe).matmul(values), Running(a, np.where(empty, -np.inf, log.value), np.where(empty, 0.0, log.error))


@bound("attn.prefill", reduces="scores of {} terms", length=lambda given: given["head_dim"])
def prefill(
    a: Arithmetic, exact: Exact, *, q: np.ndarray, plan: Geometry, cache: Cells, window: int | None, head_dim: int, kv_heads: int,
    sm_scale: float,
) -> Running | tuple[Running, ...]:  # fmt: skip
    """attend without its options."""
    return attend(
        a, exact, q=q, cache=cache, inputs=plan, head_dim=head_dim, kv_heads=kv_heads, sm_scale=sm_scale, window=window, causal=True,
        softcap=None, mask=None, sinks=None, bias=None, selection=None, ratio=1, log_scaling=None, lse=False,
    )  # fmt: skip


@bound("attn.dense", reduces="scores of {} terms", length=lambda given: given["head_dim"])
def dense(
    a: Arithmetic, exact: Exact, *, q: Running, k: Running, v: Running, q_indptr: np.ndarray, kv_indptr: np.ndarray, head_dim: int,
    kv_heads: int, sm_scale: float, causal: bool, bias: Running | None, tags: list[np.ndarray] | None, lse: bool,
) -> Running | tuple[Running, ...]:  # fmt: skip
    """attend segment by segment. Rows outside all segments are zeros."""
    group = q.shape[1] // head_dim // kv_heads
    errors = [np.zeros(result.shape) for result in exact]
    bounds = zip(pairwise(q_indptr.reshape(-1)), pairwise(kv_indptr.reshape(-1)), strict=True)
    for (start, end), (first, stop) in bounds:
        new, cells = end - start, stop - first
        if not new or not cells:
            continue
        queries = q[start:end].reshape(new, kv_heads, group, head_dim).transpose(1, 2, 0, 3)  # [kv heads, group, rows, D]
        keys, values = (x[first:stop].reshape(cells, kv_heads, -1).transpose(1, 0, 2)[:, None] for x in (k, v))
        scores = (queries * sm_scale).matmul(keys.transpose(0, 1, 3, 2)) * 1.0
        distance = np.arange(cells)[None, :] - np.arange(new)[:, None]
        if bias is not None:
            middle = bias.shape[1] // 2
            scores = scores + bias[:, np.clip(distance + middle, 0, 2 * middle)].reshape(*scores.shape)
        allowed = distance <= cells - new if causal else np.ones((new, cells), bool)
        if tags is not None:
            own, theirs = tags[0].reshape(-1)[start:end, None], tags[1].reshape(-1)[None, first:stop]
            allowed &= (own < 0) | (own == theirs)
        for error, found in zip(errors, weighted_values(a, scores, allowed, values, None), strict=False):
            error[start:end] = _rows(Running(a, found.value, np.broadcast_to(found.error, found.shape)), new).error
    results = tuple(Running(a, result, error) for result, error in zip(exact, errors, strict=True))
    return results if lse else results[0]


@bound("attn.logit_softcap")
def logit_softcap(a: Arithmetic, exact: Exact, *, x: Running, cap: float) -> Running:
    return cap * (x / cap).tanh()


def _relative(bias: Running, position: np.ndarray, cells: int, heads: int) -> Running:
    """bias[t, h*extent + (p - j)] for 0 <= p - j < extent, else 0: `[heads, rows, cells]`."""
    by_head = bias.reshape(len(position), heads, -1)
    distance = position[:, None] - np.arange(cells)[None, :]
    inside = (distance >= 0) & (distance < by_head.shape[2])
    place = np.where(inside, distance, 0)[:, None, :].repeat(heads, 1)
    picked = by_head[np.arange(len(position))[:, None, None], np.arange(heads)[None, :, None], place]
    return (picked * inside[:, None, :].astype(np.float64)).transpose(1, 0, 2)


def _rows(running: Running, new: int) -> Running:
    """`[kv heads, group, rows, width]` -> `[rows, heads * width]`."""
    return running.transpose(2, 0, 1, 3).reshape(new, -1)


def by_lane(a: Arithmetic, parts: list[Running], exact: np.ndarray) -> Running:
    """Rows of all lanes; exact where no lane has rows."""
    return joined(parts, 0) if parts else Running(a, exact)
