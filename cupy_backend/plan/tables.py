"""Arrays that follow from attributes and are put into device memory at load: how rotary positions pair and turn channels."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """Which channels of a head turn together, pair by pair: `first` and `second`, by the position in column `columns` times `frequencies`.

    All `[pairs]`, channels and columns int32, frequencies float32.
    """

    first: np.ndarray
    second: np.ndarray
    columns: np.ndarray
    frequencies: np.ndarray


def rotary_pairs(
    *, head_dim: int, theta: float, rotary_dim: int | None, form: str, part: str, scaling: Mapping[str, Any] | None,
    sections: Sequence[int] | None,
) -> Pairs:  # fmt: skip
    """The pairs of `elemwise.rope` (its formula table), their frequencies computed in float64. A longrope has use short or long."""
    first: np.ndarray
    second: np.ndarray
    exponents: np.ndarray
    rotary = rotary_dim or head_dim
    half, start = np.arange(rotary // 2), head_dim - rotary if part == "last" else 0
    counts = list(sections or ())
    column = np.zeros(len(half), np.int32)
    if form in ("mrope_blocked", "mrope_split"):
        inside, own = np.concatenate([np.arange(count) for count in counts]), np.repeat(counts, counts)
        first = np.arange(sum(counts)) + (np.repeat(np.cumsum(counts) - counts, counts) if form == "mrope_split" else 0)
        second = first + (own if form == "mrope_split" else head_dim // 2)
        column = np.repeat(np.arange(3), counts)
        exponents = inside / own if form == "mrope_split" else inside * 2 / sum(counts)
    elif form == "proportional":
        first, second, exponents = half, half + head_dim // 2, half * 2 / head_dim
    elif form == "interleaved":
        first, second, exponents = start + 2 * half, start + 2 * half + 1, half * 2 / rotary
    else:
        first, second, exponents = start + half, start + half + rotary // 2, half * 2 / rotary
    if form == "mrope_chunked":
        column = np.repeat(np.arange(3), counts)
    elif form == "mrope_interleaved":
        for axis in (1, 2):
            column[(half % 3 == axis) & (half < 3 * counts[axis])] = axis
    plain = float(theta) ** -exponents
    frequencies = plain if scaling is None else _scaled(plain, float(theta), rotary, scaling)
    return _pairs(first, second, column, frequencies)


def axes_pairs(*, dims: Sequence[int], thetas: Sequence[float], form: str, rotary_dim: int, axes: int) -> Pairs:
    """The pairs of `elemwise.rope_axes` of form interleaved, split or neox, by `axes` positions a row."""
    counts = np.array(dims[:axes]) // 2
    inside, column = np.concatenate([np.arange(count) for count in counts]), np.repeat(np.arange(axes), counts)
    block = np.repeat(np.cumsum(counts) - counts, counts)  # pairs before the axis
    if form == "interleaved":
        first, distance = 2 * (block + inside), np.ones_like(inside)
    elif form == "split":
        first, distance = 2 * block + inside, np.repeat(counts, counts)
    else:
        first, distance = block + inside, np.full_like(inside, rotary_dim // 2)
    frequencies = np.array(thetas, np.float64)[column] ** -(2 * inside / np.repeat(2 * counts, counts))
    return _pairs(first, first + distance, column, frequencies)


def ladder_pairs(*, dims: Sequence[int], thetas: Sequence[float], width: int, head_dim: int, axes: int) -> Pairs:
    """The pairs of `elemwise.rope_axes` of form split_ladder: those of all heads of a row of `width`, whose frequencies differ."""
    slots = np.arange(width // 2 - sum(dims[:axes]) // 2, width // 2)  # those before are copied
    step = np.arange(len(slots))
    column, rung, rungs = step % axes, step // axes, dims[0] // 2
    first = slots // (head_dim // 2) * head_dim + slots % (head_dim // 2)
    return _pairs(first, first + head_dim // 2, column, np.array(thetas, np.float64)[column] ** (rung / max(rungs - 1, 1)))


def _pairs(first: np.ndarray, second: np.ndarray, columns: np.ndarray, frequencies: np.ndarray) -> Pairs:
    return Pairs(first.astype(np.int32), second.astype(np.int32), columns.astype(np.int32), frequencies.astype(np.float32))


def _scaled(plain: np.ndarray, theta: float, rotary: int, scaling: Mapping[str, Any]) -> np.ndarray:
    """Frequencies changed by a scaling (formulas: `poem.ops.scaling`)."""
    kind = scaling["kind"]
    if kind == "linear":
        return plain / scaling["factor"]
    if kind == "longrope":
        return plain / np.array(scaling[scaling["use"]], np.float64)
    original, factor = scaling["original_max_position"], scaling["factor"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * plain / (2 * math.pi)  # of a pair over the original context
        blend = (turns - low) / (high - low)
        blended = (1 - blend) * plain / factor + blend * plain
        return np.where(blend > 1, plain, np.where(blend < 0, plain / factor, blended))
    assert kind == "yarn"
    edges = [rotary * math.log(original / (2 * math.pi * scaling[beta])) / (2 * math.log(theta)) for beta in ("beta_fast", "beta_slow")]
    if scaling["truncate"]:
        edges = [math.floor(edges[0]), math.ceil(edges[1])]
    low, high = max(edges[0], 0), min(edges[1], rotary - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / ((high - low) or 0.001), 0, 1)
    return plain * (1 - ramp) + plain / factor * ramp
