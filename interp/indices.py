"""Indices from data: refused at the row that holds a bad one."""

import numpy as np

from interp.call import Call


def within(call: Call, name: str, indices: np.ndarray, count: int, of: str) -> np.ndarray:
    """`indices`, all of 0 .. count - 1. PoemError (`run.index`) at the first row with another one."""
    outside = indices.astype(np.uint32) >= count  # negative ones become large
    if np.count_nonzero(outside):
        first = np.argwhere(outside)[0]
        raise call.error("run.index", f"{name} is {indices[tuple(first)]}, but {of}", row=int(first[0]))
    return indices


def rows_of(call: Call, name: str, indices: np.ndarray, x: np.ndarray, x_name: str) -> np.ndarray:
    """`x[indices]`. PoemError (`run.index`) at the first row whose index is outside x."""
    return x.take(within(call, name, indices, len(x), f"{x_name} has {len(x)} rows"), axis=0)


def whole_runs(call: Call, x: np.ndarray, size: int) -> int:
    """How many runs of `size` rows x has. PoemError (`run.index`) if one is left incomplete."""
    if len(x) % size:
        raise call.error("run.index", f"x has {len(x)} rows, no multiple of {size}")
    return len(x) // size
