"""ops.gather: rows and columns copied by index. Embeddings are in embeddings.py."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from interp.call import Call
from interp.indices import rows_of, whole_runs, within
from interp.ops.embeddings import embed as embed
from interp.ops.embeddings import embed_concat as embed_concat
from interp.ops.embeddings import embed_weighted as embed_weighted

COPIES = (
    "concat_cols", "gather_rows", "group_rows", "pack_rows", "scatter_live_rows", "scatter_rows", "select", "split_q_gate",
    "split_qkv", "split_rows", "topk", "unpack_rows",
)  # fmt: skip


def gather_rows(call: Call, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`x[rows]`; an index outside x is an error."""
    return rows_of(call, "rows", rows, x, "x")


def split_rows(call: Call, x: np.ndarray, width: int) -> tuple[np.ndarray, np.ndarray]:
    """The columns before `width`, and the others."""
    return x[:, :width], x[:, width:]


def split_qkv(call: Call, x: np.ndarray, q_width: int, kv_width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Three blocks of columns."""
    return x[:, :q_width], x[:, q_width : q_width + kv_width], x[:, q_width + kv_width :]


def split_q_gate(call: Call, x: np.ndarray, head_dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Of each head's 2 D columns, the first D to q and the others to the gate."""
    heads = x.reshape(len(x), x.shape[1] // (2 * head_dim), 2, head_dim)
    width = x.shape[1] // 2
    return heads[:, :, 0].reshape(len(x), width), heads[:, :, 1].reshape(len(x), width)


def concat_cols(call: Call, values: Sequence[np.ndarray]) -> np.ndarray:
    """The values' columns side by side."""
    return np.concatenate([_columns(value) for value in values], axis=1)


def select(call: Call, x: np.ndarray, index: int, width: int) -> np.ndarray:
    """Block `index` of `width` columns."""
    return _columns(x)[:, index * width : (index + 1) * width]


def _columns(x: np.ndarray) -> np.ndarray:
    """Integers one wide come as a list: `[rows]` as `[rows, 1]`."""
    return x[:, None] if x.ndim == 1 else x


def pack_rows(call: Call, x: np.ndarray, perm: np.ndarray) -> np.ndarray:
    """`y[i] = x[perm[i]]`, a zero row where perm[i] is -1."""
    packed = np.zeros_like(x)
    live = _live(call, "perm", perm, len(x))
    packed[live] = x[perm[live]]
    return packed


def unpack_rows(call: Call, x: np.ndarray, perm: np.ndarray) -> np.ndarray:
    """`y[perm[i]] = x[i]` where perm[i] is not -1; other rows are zero."""
    unpacked = np.zeros_like(x)
    live = _live(call, "perm", perm, len(x))
    unpacked[perm[live]] = x[live]
    return unpacked


def _live(call: Call, name: str, indices: np.ndarray, count: int) -> np.ndarray:
    """Where `indices` is not -1; anything else outside 0 .. count - 1 is an error."""
    within(call, name, np.where(indices == -1, 0, indices) if count else indices, count, f"there are {count} rows")
    return np.flatnonzero(indices != -1)


def group_rows(call: Call, x: np.ndarray, side: int) -> np.ndarray:
    """Runs of side^2 rows laid end to end."""
    runs = whole_runs(call, x, side * side)
    return x.reshape(runs, side * side * _columns(x).shape[1])


def pool_rows(call: Call, x: np.ndarray, side: int) -> np.ndarray:
    """The mean of each run of side^2 rows."""
    size = side * side
    runs = x.reshape(whole_runs(call, x, size), size, x.shape[1])
    total = runs[:, 0].copy()
    for row in range(1, size):
        total += runs[:, row]
    return total / size


def scatter_live_rows(call: Call, src: np.ndarray, routes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A copy of y in which row routes[i] is src[i], for routes that are not negative."""
    live = np.flatnonzero(_routes(call, src, routes) >= 0)
    return _scatter(call, src, routes, y, live)


def scatter_rows(call: Call, src: np.ndarray, routes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """As scatter_live_rows; a negative route is an error too."""
    return _scatter(call, src, _routes(call, src, routes), y, np.arange(len(src)))


def _routes(call: Call, src: np.ndarray, routes: np.ndarray) -> np.ndarray:
    if len(routes) < len(src):
        raise call.error("run.index", f"src has {len(src)} rows, but there are {len(routes)} routes")
    return routes[: len(src)]


def _scatter(call: Call, src: np.ndarray, routes: np.ndarray, y: np.ndarray, live: np.ndarray) -> np.ndarray:
    named = routes[live]
    outside = np.flatnonzero((named < 0) | (named >= len(y)))
    if len(outside):
        raise call.error("run.index", f"routes is {named[outside[0]]}, but y has {len(y)} rows", row=int(live[outside[0]]))
    scattered = y.copy()
    scattered[named] = src[live]  # NumPy keeps the last of several
    return scattered


def topk(call: Call, x: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k largest entries of each row in descending order, and their columns; NaN never, then 0 and column 0."""
    columns = np.argsort(-x, axis=1, kind="stable")[:, :k]  # NumPy sorts NaN to the end
    values = np.take_along_axis(x, columns, axis=1)
    exhausted = np.isnan(values)
    return np.where(exhausted, 0, values), np.where(exhausted, 0, columns).astype(np.int32)


def grid_taps(
    call: Call, positions: np.ndarray, grids: np.ndarray, segments: np.ndarray, kind: str, side: int
) -> tuple[np.ndarray, np.ndarray]:
    """Which entries of a table of positions each patch reads, and with which weights."""
    real = call.numeric.real
    row, column = positions[:, 1], positions[:, 2]
    if kind == "axes":
        ids = np.stack([np.minimum(column, side - 1), side + np.minimum(row, side - 1)], axis=1)
        return ids, np.ones(ids.shape, real)
    patches = np.arange(len(positions))
    image = np.searchsorted(segments, patches, side="right") - 1
    homeless = (image < 0) | (image >= len(grids))
    if homeless.any():
        raise call.error("run.index", "the patch lies in no image of segments", row=int(homeless.argmax()))
    taps = [_taps(index, grids[image, axis], side, real) for index, axis in ((row, 1), (column, 2))]
    (row_taps, row_weights), (column_taps, column_weights) = taps
    ids = row_taps[:, :, None] * side + column_taps[:, None, :]
    weights = row_weights[:, :, None] * column_weights[:, None, :]
    return ids.reshape(-1, 4).astype(np.int32), weights.reshape(-1, 4)


def _taps(index: np.ndarray, size: np.ndarray, side: int, real: Any) -> tuple[np.ndarray, np.ndarray]:
    """Lower and upper tap [patches, 2] of `index * (side - 1) / max(size - 1, 1)`, and their weights."""
    span = np.maximum(size.astype(np.int64) - 1, 1)
    lower, rest = np.divmod(index.astype(np.int64) * (side - 1), span)
    fraction = rest.astype(real) / span.astype(real)
    return np.clip(np.stack([lower, lower + 1], axis=1), 0, side - 1), np.stack([1 - fraction, fraction], axis=1)


def pixels(call: Call, x: np.ndarray, mean: list[float], std: list[float], order: str, temporal: int) -> np.ndarray:
    """`(byte / 255 - mean) / std` by channel, the frame repeated, channels first or last."""
    real: Any = call.numeric.real
    side = math.isqrt(x.shape[1] // 3)
    values = (x.reshape(len(x), side * side, 3).astype(real) / 255 - np.array(mean, real)) / np.array(std, real)
    if order == "chw":
        frames = np.repeat(values.transpose(0, 2, 1)[:, :, None, :], temporal, axis=2)
    else:
        frames = np.repeat(values[:, None], temporal, axis=1)
    return frames.reshape(len(x), temporal * x.shape[1])
