"""The attention core: softmax-weighted sums of value rows, for query rows and key rows of one sequence.

In the reference setting keys are taken in blocks of `KEY_BLOCK` cells counted from cell 0, the last one padded, and block
sums are added in order. Cells that a row may not see add exact zeros, so a row's result depends neither on the rows beside
it, nor on how the prompt was cut, nor on pages.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from interp.numeric import Numeric

KEY_BLOCK = 128
SCORE_BYTES = 1 << 23  # query rows are worked on in groups whose scores take about this much

# Which cells rows may see: (rows, first, stop) -> bool [rows, stop - first], or None where all of them.
Allowed = Callable[[slice, int, int], np.ndarray | None]
Span = Callable[[slice], tuple[int, int]]
# What is added to scores: (rows, first, stop) -> real [rows, heads, stop - first].
Bias = Callable[[slice, int, int], np.ndarray]


class Scores(NamedTuple):
    """How a score comes from `<q, k>`, in this order: scale, cap, bias, row factor; then masked by `allowed`.

    span gives bounds of the cells that a group of rows may see. row_scale [rows]; sinks [rows or 1, heads].
    """

    sm_scale: float
    allowed: Allowed
    span: Span
    softcap: float | None = None
    bias: Bias | None = None
    row_scale: np.ndarray | None = None
    sinks: np.ndarray | None = None

    @property
    def is_plain(self) -> bool:
        """Whether a score is no more than `sm_scale <q, k>`."""
        return self.softcap is None and self.bias is None and self.row_scale is None and self.sinks is None


def key_block(numeric: Numeric) -> int:
    """Cells in a block of keys; 0 where blocks are not needed."""
    return 0 if numeric.exact or numeric.fast else KEY_BLOCK


def attention(
    numeric: Numeric, q: np.ndarray, k: np.ndarray, v: np.ndarray, scores: Scores, origin: int = 0, want_lse: bool = False
) -> tuple[np.ndarray, np.ndarray | None]:
    """Attention of q [n, Hq, D] over k [m, Hkv, D], v [m, Hkv, Dv] -> (o [n, Hq, Dv], lse [n, Hq] or None).

    Row 0 of k and v is cell `origin`, a multiple of the block size. `Hq / Hkv` consecutive query heads share a key head.
    `o = sum_j e^(s_j) v_j / d`, `d = sum_j e^(s_j)`, plus `e^sink`; `lse = log2(d)`, without a sink. A row that may see no
    cell gives o = 0, lse = -inf.
    """
    rows, heads, _ = q.shape
    block = key_block(numeric)
    group = max(1, SCORE_BYTES // (heads * max(len(k), 1) * q.itemsize))
    if rows <= group and not block and len(k):
        first, stop = scores.span(slice(0, rows))
        cells = slice(first - origin, stop - origin)
        if rows == 1 and scores.is_plain and not want_lse and scores.allowed(slice(0, 1), first, stop) is None:
            return _plain_row(q, k[cells], v[cells], numeric.real(scores.sm_scale)), None
        return _group(numeric, q, k[cells], v[cells], scores, slice(0, rows), first, stop, want_lse)
    o: np.ndarray = np.zeros((rows, heads, v.shape[2]), numeric.real)
    lse: np.ndarray | None = np.full((rows, heads), -np.inf, numeric.real) if want_lse else None
    if not len(k):
        return o, lse
    if block and len(k) % block:
        padding = ((0, -len(k) % block), (0, 0), (0, 0))
        k, v = np.pad(k, padding), np.pad(v, padding)
    for start in range(0, rows, group):
        part = slice(start, min(start + group, rows))
        first, stop = scores.span(part)
        if block:
            first, stop = first // block * block, -(-stop // block) * block
        cells = slice(first - origin, stop - origin)
        o[part], sums = _group(numeric, q[part], k[cells], v[cells], scores, part, first, stop, want_lse)
        if lse is not None:
            lse[part] = sums
    return o, lse


def _plain_row(q: np.ndarray, k: np.ndarray, v: np.ndarray, sm_scale: np.floating) -> np.ndarray:
    """What `_group` computes for one row with plain scores that sees every cell: decoding, in as few calls as it takes."""
    _, heads, width = q.shape
    key_heads = k.shape[1]
    query = (q * sm_scale).reshape(key_heads, heads // key_heads, width)
    s = np.matmul(query, k.transpose(1, 2, 0))
    weights = np.exp(s - np.maximum.reduce(s, axis=2, keepdims=True))
    o = np.matmul(weights, v.transpose(1, 0, 2)) / np.add.reduce(weights, axis=2, keepdims=True)
    return o.reshape(1, heads, -1)


def _group(
    numeric: Numeric,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scores: Scores,
    part: slice,
    first: int,
    stop: int,
    want_lse: bool,
) -> tuple[np.ndarray, np.ndarray | None]:
    """Attention of some rows over cells first .. stop - 1. Arrays inside are [key heads, blocks, rows, heads of a group, cells]."""
    rows, heads, width = q.shape
    key_heads, value_width = k.shape[1], v.shape[2]
    shared = heads // key_heads
    size = key_block(numeric) or stop - first
    blocks = (stop - first) // size
    real = numeric.real

    query = q * real(scores.sm_scale)
    query = query.reshape(rows, key_heads, shared, width).transpose(1, 0, 2, 3).reshape(key_heads, 1, rows * shared, width)
    keys = k.reshape(blocks, size, key_heads, width).transpose(2, 0, 1, 3)
    values = v.reshape(blocks, size, key_heads, value_width).transpose(2, 0, 3, 1)
    s = numeric.matmul(query, keys).reshape(key_heads, blocks, rows, shared, size)
    if scores.softcap is not None:
        cap = real(scores.softcap)
        s /= cap
        np.tanh(s, out=s)
        s *= cap
    if scores.bias is not None:
        bias = scores.bias(part, first, stop).reshape(rows, key_heads, shared, blocks, size)
        s += bias.transpose(1, 3, 0, 2, 4)
    if scores.row_scale is not None:
        s *= scores.row_scale[part].reshape(rows, 1, 1)
    allowed = scores.allowed(part, first, stop)
    if allowed is not None:
        hidden = ~allowed.reshape(rows, blocks, size).transpose(1, 0, 2)[:, :, None, :]
        np.copyto(s, -np.inf, where=hidden)

    largest = np.maximum.reduce(s, axis=4)
    largest = largest[:, 0] if blocks == 1 else np.maximum.reduce(largest, axis=1)
    if scores.sinks is not None:
        sinks = scores.sinks[part] if len(scores.sinks) > 1 else scores.sinks
        sinks = sinks.reshape(-1, key_heads, shared).transpose(1, 0, 2)
        largest = np.maximum(largest, sinks)
    largest = np.where(largest == -np.inf, real(0), largest)  # scores of -inf alone, visible or not, sum to 0
    s -= largest[:, None, :, :, None]
    weights = np.exp(s, out=s)

    summed = _in_order(np.add.reduce(weights, axis=4))
    total = _weighted(numeric, weights, values, allowed)
    lse = None
    if want_lse:
        lse = largest * real(1 / math.log(2)) + np.log2(summed)
        lse = lse.transpose(1, 0, 2).reshape(rows, heads)
    if scores.sinks is not None:
        summed = summed + np.exp(sinks - largest)
    total /= summed[..., None]
    o = total.transpose(1, 0, 2, 3).reshape(rows, heads, value_width)
    if allowed is not None and not allowed.any(axis=1).all():
        nothing = ~allowed.any(axis=1)
        o[nothing] = 0
        if lse is not None:
            lse[nothing] = -np.inf
    return o, lse


def _weighted(numeric: Numeric, weights: np.ndarray, values: np.ndarray, allowed: np.ndarray | None) -> np.ndarray:
    """`sum_j weights_j v_j`: weights [key heads, blocks, rows, shared, cells], values [key heads, blocks, Dv, cells].

    Returns [key heads, rows, shared, Dv]. A cell that is not finite counts only for the rows that may see it: a product of its
    value with a weight of 0 would be NaN for all the others.
    """
    key_heads, blocks, rows, shared, size = weights.shape
    flat = weights.reshape(key_heads, blocks, rows * shared, size)
    products = numeric.matmul(flat, values)
    if allowed is not None and np.isnan(products).any():
        sound = np.isfinite(values)
        if not sound.all():
            products = numeric.matmul(flat, np.where(sound, values, 0))
            products = products.reshape(key_heads, blocks, rows, shared, -1)
            visible = allowed.reshape(rows, blocks, size)
            unsound = np.where(sound, 0, values)
            for block, cell in np.argwhere(~sound.all(axis=(0, 2))).tolist():
                seen = visible[:, block, cell]
                weight, value = weights[:, block][:, seen][..., cell], unsound[:, block, :, cell]
                products[:, block, seen] += weight[..., None] * value[:, None, None, :]
    return _in_order(products.reshape(key_heads, blocks, rows, shared, -1))


def _in_order(parts: np.ndarray) -> np.ndarray:
    """The sum over axis 1, from block 0 on, starting at +0: blocks of zeros before or after change no bit."""
    if parts.shape[1] == 1:
        return parts[:, 0] + parts.dtype.type(0)
    total = np.zeros_like(parts[:, 0])
    for block in range(parts.shape[1]):
        total += parts[:, block]
    return total
