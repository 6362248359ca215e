"""ops.attn: attention over paged caches and over packed rows.

Latent attention is in latent.py, indexed and pooled attention in indexed.py and pooled.py.
"""

import math
from copy import copy
from itertools import pairwise
from typing import Any

import numpy as np

from interp.attention import Scores, attention, key_block
from interp.call import Call
from interp.kv import KvRow
from poem.batch import Geometry
from poem.dtypes.tensor import Tensor
from poem.graph import Cache


def attend(
    call: Call,
    q: np.ndarray,
    cache: Cache,
    inputs: Geometry,
    head_dim: int,
    kv_heads: int,
    sm_scale: float,
    window: int | None,
    causal: bool,
    softcap: float | None,
    mask: tuple[np.ndarray | None, ...] | None,
    sinks: np.ndarray | Tensor | None,
    bias: np.ndarray | None,
    selection: np.ndarray | None,
    ratio: int,
    log_scaling: list[float] | None,
    lse: bool,
) -> Any:
    """Attention of the new rows over their lanes' cells, lane by lane (see `interp.attention`)."""
    real: Any = call.numeric.real
    row: KvRow = call.cache(cache)
    pages = inputs.pages[cache.space]
    heads = q.shape[1] // head_dim
    value_width = cache.planes[-1] // kv_heads
    parts: list[np.ndarray] = []
    sums: list[np.ndarray] = []
    sink_rows = None if sinks is None else call.weight(sinks).reshape(-1, heads).astype(real, copy=False)
    row_scale = None if log_scaling is None else _log_scaling(inputs.positions, log_scaling, real)
    block = key_block(call.numeric)
    for lane, start, end in inputs.lanes_with_rows:
        visible = call.once(
            ("visible", lane, window, causal, mask is None),
            lambda: Visible(inputs, lane, window, causal, mask),  # noqa: B023
        )
        if selection is not None:
            visible = visible.among(selection[start:end].reshape(end - start, -1), ratio)
        first, stop = visible.span(slice(0, end - start))
        if block:
            first = first // block * block
        planes, written = row.read(pages, lane, first, stop)
        if np.count_nonzero(written) < len(written):
            _refuse_unwritten(call, visible, written, first, start)
        k, v = planes[0], planes[-1]
        scores = Scores(
            sm_scale, visible.allowed, visible.span, softcap,
            None if bias is None else _relative_bias(bias[start:end], inputs.positions[start:end], heads),
            None if row_scale is None else row_scale[start:end],
            None if sink_rows is None else sink_rows[start:end] if isinstance(sinks, np.ndarray) else sink_rows,
        )  # fmt: skip
        result, summed = attention(
            call.numeric, q[start:end].reshape(end - start, heads, head_dim),
            k.reshape(len(k), kv_heads, head_dim), v.reshape(len(v), kv_heads, value_width), scores, first, lse,
        )  # fmt: skip
        parts.append(result.reshape(end - start, heads * value_width))
        if summed is not None:
            sums.append(summed)
    o = _joined(parts, heads * value_width, real)
    return (o, _joined(sums, heads, real)) if lse else o


def _joined(parts: list[np.ndarray], width: int, real: type) -> np.ndarray:
    """The rows of all lanes, in order."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty((0, width), real), *parts])


class Visible:
    """Which cells the new rows of one lane may see. Layers share it in a pass, so it remembers its answers."""

    def __init__(self, geometry: Geometry, lane: int, window: int | None, causal: bool, mask: tuple[np.ndarray | None, ...] | None) -> None:
        self.positions = geometry.positions[geometry.qo_indptr[lane] : geometry.qo_indptr[lane + 1]]
        self.length = int(geometry.kv_len[lane])
        self.window, self.causal = window, causal
        self.mask = None if mask is None else mask[lane]
        self.selection: np.ndarray | None = None
        self.ratio = 1
        self._known: dict[tuple[int, int, int, int], np.ndarray | None] = {}

    def among(self, selection: np.ndarray, ratio: int) -> "Visible":
        """The same, cut to selected blocks: selection [rows, k] of blocks of `ratio` cells."""
        found = copy(self)
        found.selection, found.ratio, found._known = selection, ratio, {}
        return found

    def span(self, rows: slice) -> tuple[int, int]:
        """Bounds of the cells that any of `rows` may see, by causality and window."""
        stop = int(self.positions[rows.stop - 1]) + 1 if self.causal else self.length
        first = 0 if self.window is None else max(0, int(self.positions[rows.start]) - self.window + 1)
        return first, stop

    def allowed(self, rows: slice, first: int, stop: int) -> np.ndarray | None:
        """bool [rows, stop - first]; None where all are visible."""
        key = (rows.start, rows.stop, first, stop)
        if key not in self._known:
            self._known[key] = self._allowed(rows, first, stop)
        return self._known[key]

    def _allowed(self, rows: slice, first: int, stop: int) -> np.ndarray | None:
        positions = self.positions[rows]
        if (
            self.mask is None
            and self.selection is None
            and stop <= self.length
            and (not self.causal or positions[0] >= stop - 1)
            and (self.window is None or positions[-1] - first < self.window)
        ):
            return None
        cells = np.arange(first, stop, dtype=np.int32)
        at = positions[:, None]
        found = np.broadcast_to(cells < self.length, (len(positions), len(cells))).copy()
        if self.causal:
            found &= cells <= at
        if self.window is not None:
            found &= at - cells < self.window
        if self.mask is not None:
            known = self.mask[rows, first:stop]
            found[:, : known.shape[1]] &= known
        if self.selection is not None:
            found &= selected(self.selection[rows], positions, cells, self.ratio)
        return found


def _refuse_unwritten(call: Call, visible: Visible, written: np.ndarray, first: int, start: int) -> None:
    """Raises PoemError if a row may see a cell that was never written. written [cells read], the first being cell `first`."""
    rows = slice(0, len(visible.positions))
    allowed = visible.allowed(rows, first, first + len(written))
    bad = ~written if allowed is None else allowed & ~written
    if bad.any():
        row, cell = np.argwhere(np.atleast_2d(bad))[0].tolist()
        raise call.error(
            "run.unwritten-cell",
            f"cell {first + cell} of the sequence was never written, or its page was dropped",
            row=start + row,
            hint="append before reading, and keep attention windows within the window of the space",
        )


def selected(selection: np.ndarray, positions: np.ndarray, cells: np.ndarray, ratio: int) -> np.ndarray:
    """Which of `cells` lie in a listed block of `ratio` cells, or in the open tail after the last whole block: bool [rows, cells].

    selection [rows, k] holds block ids; ids outside the row's whole blocks are skipped.
    """
    whole = (positions + 1) // ratio
    named = np.zeros((len(positions), int(whole.max(initial=0)) + 1), np.bool_)
    rows, slots = np.nonzero((selection >= 0) & (selection < whole[:, None]))
    named[rows, selection[rows, slots]] = True
    block = cells // ratio
    found = named[:, np.minimum(block, named.shape[1] - 1)] & (block < whole[:, None])
    if ratio > 1:
        found |= (cells >= (whole * ratio)[:, None]) & (cells <= positions[:, None])
    return found


def _log_scaling(positions: np.ndarray, log_scaling: list[float], real: type) -> np.ndarray:
    """`1 + a ln((p + 1) / floor)` for rows with p + 1 > floor, else 1."""
    floor, slope = (real(number) for number in log_scaling)
    ratio = np.maximum((positions + 1).astype(real) / floor, real(1))
    return 1 + slope * np.log(ratio)


def _relative_bias(bias: np.ndarray, positions: np.ndarray, heads: int) -> Any:
    """`bias[t, h * extent + (p - j)]` where `0 <= p - j < extent`, else 0."""
    extent = bias.shape[1] // heads

    def added(rows: slice, first: int, stop: int) -> np.ndarray:
        distance = positions[rows, None] - np.arange(first, stop, dtype=np.int32)
        near = (distance >= 0) & (distance < extent)
        table = bias[rows].reshape(-1, heads, extent)
        values = np.take_along_axis(table, np.where(near, distance, 0)[:, None, :], axis=2)
        return np.where(near[:, None, :], values, bias.dtype.type(0))

    return added


def plan_prefill(call: Call, inputs: Geometry, q_heads: int, kv_heads: int, head_dim: int, window: int | None) -> Geometry:
    """The lanes and rows of the pass; everything else is in the operands of `prefill`."""
    return inputs


def prefill(
    call: Call, q: np.ndarray, plan: Geometry, cache: Cache, window: int | None, head_dim: int, kv_heads: int, sm_scale: float
) -> np.ndarray:
    """Plain causal attention with the geometry of a plan."""
    return attend(
        call, q, cache, plan, head_dim, kv_heads, sm_scale, window,
        causal=True, softcap=None, mask=None, sinks=None, bias=None, selection=None, ratio=1, log_scaling=None, lse=False,
    )  # fmt: skip


def kv_append(
    call: Call, k: np.ndarray, v: np.ndarray, cache: Cache, write_page: np.ndarray | None, write_offset: np.ndarray | None
) -> None:
    """Store k and v of each new row in its cell."""
    append(call, cache, {"k": k, "v": v}, write_page, write_offset)


def kv_append_shared(call: Call, kv: np.ndarray, cache: Cache, write_page: np.ndarray | None, write_offset: np.ndarray | None) -> None:
    """Store the rows of the one plane that serves as K and V."""
    append(call, cache, {"kv": kv}, write_page, write_offset)


def append(call: Call, cache: Cache, values: dict[str, np.ndarray], write_page: np.ndarray | None, write_offset: np.ndarray | None) -> None:
    """Store one operand [N, width] a plane, by its name, at the rows' own cells or at the slots named.

    A named offset outside the page skips its row. Raises PoemError for a page that does not exist and for a slot named twice.
    """
    row: KvRow = call.cache(cache)
    dtypes = [call.dtype(name) for name in values]
    if write_page is None or write_offset is None:
        pages = call.batch.pages[cache.space]
        row.append(pages.write_slots, list(values.values()), dtypes)
        return
    kept = np.flatnonzero((write_offset >= 0) & (write_offset < row.page_size))
    pages_named, offsets = write_page[kept], write_offset[kept]
    bad = np.flatnonzero((pages_named < 0) | (pages_named >= row.page_count))
    if len(bad):
        raise call.error("run.index", f"write_page is {pages_named[bad[0]]}, but there are {row.page_count} pages", row=int(kept[bad[0]]))
    slots = pages_named.astype(np.int64) * row.page_size + offsets
    _, firsts = np.unique(slots, return_index=True)
    if len(firsts) < len(slots):
        again = np.setdiff1d(np.arange(len(slots)), firsts)[0]
        raise call.error("run.slot-twice", f"slot ({pages_named[again]}, {offsets[again]}) is written twice", row=int(kept[again]))
    row.append(slots, [value[kept] for value in values.values()], dtypes)


def logit_softcap(call: Call, x: np.ndarray, cap: float) -> np.ndarray:
    """`cap * tanh(x / cap)`."""
    bound = call.numeric.real(cap)
    return bound * np.tanh(x / bound)


def dense(
    call: Call,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    q_indptr: np.ndarray,
    kv_indptr: np.ndarray,
    head_dim: int,
    kv_heads: int,
    sm_scale: float,
    causal: bool,
    bias: np.ndarray | None,
    tags: list[np.ndarray] | None,
    lse: bool,
) -> Any:
    """Attention of packed query segments over packed key segments, segment by segment."""
    real: Any = call.numeric.real
    heads, value_width = q.shape[1] // head_dim, v.shape[1] // kv_heads
    o = np.zeros((len(q), heads * value_width), real)
    sums = np.full((len(q), heads), -np.inf, real) if lse else None
    q_bounds, k_bounds = _bounds(call, "q_indptr", q_indptr, len(q)), _bounds(call, "kv_indptr", kv_indptr, len(k))
    if len(q_bounds) != len(k_bounds):
        raise call.error("run.index", f"q_indptr has {len(q_bounds)} entries, kv_indptr {len(k_bounds)}")
    for (start, end), (first, stop) in zip(pairwise(q_bounds), pairwise(k_bounds), strict=True):
        if start == end:
            continue
        queries, keys = q[start:end], k[first:stop]
        visible = _segment(end - start, stop - first, causal, None if tags is None else (tags[0][start:end], tags[1][first:stop]))
        scores = Scores(
            sm_scale, visible, lambda rows, count=stop - first: (0, count),  # type: ignore[misc]
            bias=None if bias is None else _distance_bias(bias),
        )  # fmt: skip
        result, summed = attention(
            call.numeric, queries.reshape(end - start, heads, head_dim), keys.reshape(stop - first, kv_heads, head_dim),
            v[first:stop].reshape(stop - first, kv_heads, value_width), scores, 0, lse,
        )  # fmt: skip
        o[start:end] = result.reshape(end - start, -1)
        if sums is not None:
            sums[start:end] = summed
    return o if sums is None else (o, sums)


def _bounds(call: Call, name: str, indptr: np.ndarray, rows: int) -> list[int]:
    """The entries of a bounds list. Raises PoemError if they decrease or leave the rows."""
    bounds = indptr.reshape(-1).tolist()
    for index, bound in enumerate(bounds):
        if not (bounds[index - 1] if index else 0) <= bound <= rows:
            raise call.error("run.index", f"{name} has {bound} at {index}: bounds may not decrease or pass {rows} rows")
    return bounds


def _segment(queries: int, keys: int, causal: bool, tags: tuple[np.ndarray, np.ndarray] | None) -> Any:
    """Visibility inside a segment: `j <= i + (keys - queries)` if causal; a tag t >= 0 sees only keys of tag t."""

    def allowed(rows: slice, first: int, stop: int) -> np.ndarray | None:
        if not causal and tags is None and stop <= keys:
            return None
        cells = np.arange(first, stop)
        at = np.arange(queries)[rows, None]
        found = np.broadcast_to(cells < keys, (len(at), len(cells))).copy()
        if causal:
            found &= cells <= at + (keys - queries)
        if tags is not None:
            own = tags[0].reshape(-1)[rows, None]
            key_tags = np.full(len(cells), -1, np.int32)
            known = tags[1].reshape(-1)[first:stop]
            key_tags[: len(known)] = known
            found &= (own < 0) | (own == key_tags)
        return found

    return allowed


def _distance_bias(bias: np.ndarray) -> Any:
    """`bias[h, clip(j - i + m - 1, 0, 2m - 2)]` for bias [heads, 2m - 1]."""
    middle = bias.shape[1] // 2

    def added(rows: slice, first: int, stop: int) -> np.ndarray:
        distance = np.arange(first, stop) - np.arange(rows.start, rows.stop)[:, None]
        return bias[:, np.clip(distance + middle, 0, 2 * middle)].transpose(1, 0, 2)

    return added


def sink(call: Call, o: np.ndarray, lse: np.ndarray, sinks: Tensor, head_dim: int) -> np.ndarray:
    """`o / (1 + e^(sink - lse ln 2))` per head; unchanged where lse is not finite."""
    real: Any = call.numeric.real
    factor = 1 / (1 + np.exp(call.weight(sinks) - lse * real(math.log(2))))
    factor = np.where(np.isfinite(lse), factor, real(1))
    return (o.reshape(*lse.shape, head_dim) * factor[:, :, None]).reshape(o.shape)


def merge_lse(
    call: Call, o1: np.ndarray, lse1: np.ndarray, o2: np.ndarray, lse2: np.ndarray, heads: int, head_dim: int
) -> tuple[np.ndarray, np.ndarray]:
    """Attention over two disjoint key sets, from the results over each: weights `2^(lse - max)`.

    A side whose lse is not finite gives way to the other; side 1 is taken as it is if side 2 is not finite.
    """
    largest = np.maximum(lse1, lse2)
    weight1, weight2 = np.exp2(lse1 - largest), np.exp2(lse2 - largest)
    total = weight1 + weight2
    sides = [o.reshape(len(o), heads, head_dim) for o in (o1, o2)]
    merged = (sides[0] * weight1[:, :, None] + sides[1] * weight2[:, :, None]) / total[:, :, None]
    lse = largest + np.log2(total)
    only_first, only_second = ~np.isfinite(lse2), ~np.isfinite(lse1)
    merged = np.where(only_second[:, :, None], sides[1], merged)
    merged = np.where(only_first[:, :, None], sides[0], merged)
    lse = np.where(only_first, lse1, np.where(only_second, lse2, lse))
    return merged.reshape(o1.shape), lse
