"""Launches of rope.cu: rotary positions, whichever channels turn together."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from cupy_backend.kernels.arrays import NULL, optional, reading, same_dtype, type_of, unsupported, writing
from cupy_backend.launch import Argument, Array, Launch, Scalar
from poem.dtypes.term import LEAF_BITS

SOURCE = "rope.cu"
THREADS = 256
POSITIONS = {"i32": "int", "f32": "float"}  # as C++ names them
COPIED = -1  # in place of a second channel


class Packs(NamedTuple):
    """What a thread turns or copies at once.

    table: i32 `[packs, 2]`, the first channels of each pack and of its partners, or `COPIED`. vector: channels of a pack. neighbours: pairs
    lie inside a pack, which has no partner.
    """

    table: np.ndarray
    vector: int
    neighbours: bool


def packs(first: np.ndarray, second: np.ndarray, head_dim: int, dtype: str, widest: int | None = None) -> Packs:
    """The packs of a head whose pairs are (first[i], second[i]): loads of 16 bytes, or of `widest` channels, or the most below that fit."""
    widest = widest or 128 // LEAF_BITS[dtype]
    copied = np.setdiff1d(np.arange(head_dim), np.concatenate([first, second]))
    if np.array_equal(second, first + 1) and all(stride == 2 for stride in np.diff(first)):
        start, stop = int(first[0]), int(second[-1]) + 1
        vector = math.gcd(widest, head_dim, start, stop - start)
        if vector > 1:
            turned = [(channel, 0) for channel in range(start, stop, vector)]
            return Packs(_table(turned, copied, vector), vector, True)
    runs = list(_runs(first, second))
    vector = math.gcd(widest, head_dim, *(number for run in runs for number in run))
    turned = [(a + i, b + i) for a, b, count in runs for i in range(0, count, vector)]
    return Packs(_table(turned, copied, vector), vector, False)


def _runs(first: np.ndarray, second: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """Pairs that lie behind each other: channels of the first, and how many."""
    edges = np.flatnonzero((np.diff(first) != 1) | (np.diff(second) != 1)) + 1
    for start, stop in zip([0, *edges], [*edges, len(first)], strict=True):
        yield int(first[start]), int(second[start]), int(stop - start)


def _table(turned: Sequence[tuple[int, int]], copied: np.ndarray, vector: int) -> np.ndarray:
    return np.array([*turned, *((channel, COPIED) for channel in copied[::vector])], np.int32)


@dataclass(frozen=True, slots=True)
class Turn:
    """How a head is turned.

    packs i32 `[packs, 2]`, vector, neighbours: what turns together, as `packs` makes it. frequencies: f32 `[pairs]`; `[2, pairs]` with a
    switch. columns: i32 `[pairs]`, which position turns each pair where rows have several. factor multiplies the result. switch:
    lane_of_row i32 `[N]`, kv_len i32 `[lanes]` and the number of cells past which the rows of a lane take the second frequencies.
    """

    packs: Array
    vector: int
    neighbours: bool
    frequencies: Array
    columns: Array | None = None
    factor: float = 1.0
    inverse: bool = False
    switch: tuple[Array, Array, int] | None = None


def rope(
    given: Sequence[Array], positions: Array, turn: Turn, made: Sequence[Array], *, head_dim: int, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """The pairs of each head of one or two arrays `[N, heads * head_dim]` turn by position times frequency, the result times a factor.

    positions: i32 or f32 `[N]` or `[N, axes]`.
    """
    same_dtype(*given, *made)
    if positions.dtype not in POSITIONS:
        raise unsupported("the kernel takes positions of other dtypes", expected=" ".join(POSITIONS), found=positions.dtype)
    lane_of_row, kv_len, switch_at = turn.switch or (None, None, 0)
    pairs, q, k = turn.frequencies.shape[-1], given[0], given[1] if len(given) > 1 else None
    numbers = {
        "q_heads": q.shape[1] // head_dim, "k_heads": k.shape[1] // head_dim if k else 0, "head_dim": head_dim,
        "axes": positions.shape[1] if len(positions.shape) > 1 else 1, "pairs": pairs, "packs_of_head": turn.packs.shape[0],
        "switch_at": switch_at,
    }  # fmt: skip
    arguments: dict[str, Argument] = {
        "q": reading(q), "k": optional(k), "positions": reading(positions), "columns": optional(turn.columns),
        "frequencies": reading(turn.frequencies), "packs": reading(turn.packs), "lane_of_row": optional(lane_of_row),
        "kv_len": optional(kv_len), "q_out": writing(made[0]), "k_out": writing(made[1]) if k else NULL,
        **{name: Scalar(number, "i32") for name, number in numbers.items()},
        "factor": Scalar(turn.factor, "f32"), "sign": Scalar(-1.0 if turn.inverse else 1.0, "f32"),
    }  # fmt: skip
    kernel = f"rope<{type_of(q)}, {POSITIONS[positions.dtype]}, {turn.vector}, {'true' if turn.neighbours else 'false'}>"
    return [Launch(SOURCE, kernel, (q.shape[0], 1, 1), (THREADS, 1, 1), arguments, shared=pairs * 8, nodes=nodes)]
