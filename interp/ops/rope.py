"""Rotary position embedding: frequencies, which channels are paired, and the turn itself."""

import math
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from interp.call import Call

# A scaling as sorted items, lists as tuples: what a cache can be keyed by.
Key = tuple[tuple[str, Any], ...]


class Pairs(NamedTuple):
    """Channels `first` and `second` of a head, as slices, turned by the angles of the pairs in `angles`."""

    first: slice
    second: slice
    angles: slice


def rope(
    call: Call,
    q: np.ndarray,
    k: np.ndarray | None,
    positions: np.ndarray,
    head_dim: int,
    theta: float,
    rotary_dim: int | None,
    form: str,
    part: str,
    scaling: dict[str, Any] | None,
    sections: list[int] | None,
    inverse: bool,
) -> Any:
    """Each pair (a, b) of channels at angle t becomes `m (a cos t - b sin t), m (b cos t + a sin t)`."""
    rotary = rotary_dim or head_dim
    key = None if scaling is None else scaling_key(scaling)
    listed = None if sections is None else tuple(sections)
    tables = (call.node.operands["positions"], head_dim, theta, rotary, form, key, listed, inverse)
    cos, sin = call.once(("rope", tables), lambda: _tables(call, positions, head_dim, theta, rotary, form, key, listed, inverse))
    pairs = channel_pairs(head_dim, rotary, form, part, listed)
    turned = [turn(x, head_dim, cos, sin, pairs) for x in (q, k) if x is not None]
    return tuple(turned) if k is not None else turned[0]


def scaling_key(scaling: dict[str, Any]) -> Key:
    """A scaling attribute in hashable form."""
    return tuple(sorted((name, tuple(value) if isinstance(value, list) else value) for name, value in scaling.items()))


@lru_cache(maxsize=256)
def frequencies(
    theta: float, rotary: int, head_dim: int, form: str, scaling: Key | None, sections: tuple[int, ...] | None, long: bool = False
) -> np.ndarray:
    """The angle per position of each pair, in float64. long: which list of a longrope."""
    if form == "proportional":
        plain = _powers(theta, np.arange(rotary // 2) * 2 / head_dim)
    elif form == "mrope_blocked":
        assert sections is not None
        plain = np.concatenate([_powers(theta, np.arange(count) * 2 / sum(sections)) for count in sections])
    elif form == "mrope_split":
        assert sections is not None
        plain = np.concatenate([_powers(theta, np.arange(count) / max(count, 1)) for count in sections])
    else:
        plain = _powers(theta, np.arange(rotary // 2) * 2 / rotary)
    return plain if scaling is None else _scaled(plain, theta, rotary, dict(scaling), long)


def _powers(theta: float, exponents: np.ndarray) -> np.ndarray:
    return float(theta) ** -exponents


def _scaled(plain: np.ndarray, theta: float, rotary: int, scaling: dict[str, Any], long: bool) -> np.ndarray:
    """Frequencies changed by a scaling (formulas: `poem.ops.scaling`)."""
    kind = scaling["kind"]
    if kind == "linear":
        return plain / scaling["factor"]
    if kind == "longrope":
        return plain / np.array(scaling["long" if long else "short"], np.float64)
    original, factor = scaling["original_max_position"], scaling["factor"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        wavelength = 2 * math.pi / plain
        blend = (original / wavelength - low) / (high - low)
        blended = (1 - blend) * plain / factor + blend * plain
        return np.where(wavelength < original / high, plain, np.where(wavelength > original / low, plain / factor, blended))
    assert kind == "yarn"
    edges = [
        rotary * math.log(original / (2 * math.pi * turns)) / (2 * math.log(theta))
        for turns in (scaling["beta_fast"], scaling["beta_slow"])
    ]
    if scaling["truncate"]:
        edges = [math.floor(edges[0]), math.ceil(edges[1])]
    low, high = max(edges[0], 0), min(edges[1], rotary - 1)
    if low == high:
        high += 0.001
    ramp = np.clip((np.arange(len(plain)) - low) / (high - low), 0, 1)
    return plain * (1 - ramp) + plain / factor * ramp


@lru_cache(maxsize=256)
def position_columns(rotary: int, form: str, sections: tuple[int, ...] | None) -> np.ndarray | None:
    """Which column of [N, 3] positions turns each pair; None for forms with one position."""
    if not form.startswith("mrope_"):
        return None
    assert sections is not None
    if form != "mrope_interleaved":
        return np.repeat(np.arange(3), sections)
    pair = np.arange(rotary // 2)
    column = np.zeros(rotary // 2, np.intp)
    for axis in (1, 2):
        column[(pair % 3 == axis) & (pair < 3 * sections[axis])] = axis
    return column


@lru_cache(maxsize=256)
def channel_pairs(head_dim: int, rotary: int, form: str, part: str, sections: tuple[int, ...] | None) -> tuple[Pairs, ...]:
    """The pairs of channels inside a head."""
    start = head_dim - rotary if part == "last" else 0
    half = rotary // 2
    if form == "interleaved":
        return (Pairs(slice(start, start + rotary, 2), slice(start + 1, start + rotary, 2), slice(0, half)),)
    if form in ("proportional", "mrope_blocked"):
        count = half if form == "proportional" else sum(sections or ())
        middle = head_dim // 2
        return (Pairs(slice(0, count), slice(middle, middle + count), slice(0, count)),)
    if form == "mrope_split":
        pairs, done = [], 0
        for count in sections or ():
            first = slice(2 * done, 2 * done + count)
            pairs.append(Pairs(first, slice(first.stop, first.stop + count), slice(done, done + count)))
            done += count
        return tuple(pairs)
    return (Pairs(slice(start, start + half), slice(start + half, start + rotary), slice(0, half)),)


def _tables(
    call: Call,
    positions: np.ndarray,
    head_dim: int,
    theta: float,
    rotary: int,
    form: str,
    scaling: Key | None,
    sections: tuple[int, ...] | None,
    inverse: bool,
) -> tuple[np.ndarray, np.ndarray]:
    """The tables of `turn` for each row's angles, times the attention factor."""
    real: Any = call.numeric.real
    settings = dict(scaling or ())
    frequency = frequencies(theta, rotary, head_dim, form, scaling, sections, settings.get("use") == "long").astype(real)
    columns = position_columns(rotary, form, sections)
    at = positions.astype(real)
    at = at.reshape(-1, 1) if columns is None else at[:, columns]
    if settings.get("use") == "auto":
        long = frequencies(theta, rotary, head_dim, form, scaling, sections, True).astype(real)
        is_long = call.batch.kv_len > settings["original_max_position"]
        angles = at * np.where(is_long[call.batch.lane_of_row][:, None], long, frequency)
    else:
        angles = at * frequency
    return turns(angles, real(settings.get("attention_factor", 1.0)), inverse)


def turns(angles: np.ndarray, factor: Any = 1, inverse: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """What `turn` multiplies by, from angles [N, pairs] or [N, heads, pairs]: cos [N, 1 or heads, 1, pairs], for both channels of a
    pair, and sin [N, 1 or heads, 2, pairs], what the first takes of the second (negative) and the second of the first."""
    angles = angles[:, None, None] if angles.ndim == 2 else angles[:, :, None]
    cos, sin = np.cos(angles), np.sin(angles)
    if factor != 1:
        cos, sin = cos * factor, sin * factor
    return cos, np.concatenate([sin, -sin] if inverse else [-sin, sin], axis=2)


def turn(x: np.ndarray, head_dim: int, cos: np.ndarray, sin: np.ndarray, pairs: tuple[Pairs, ...]) -> np.ndarray:
    """Turns the pairs of channels of each head of x, by the tables of `turns`."""
    heads = x.reshape(len(x), x.shape[1] // head_dim, head_dim)
    if len(pairs) == 1 and 2 * cos.shape[3] == head_dim and not pairs[0].first.step:  # two halves, and nothing else
        return _turned(_side_by_side(heads, pairs[0]), cos, sin).reshape(x.shape)
    turned = heads.copy()
    for pair in pairs:
        _side_by_side(turned, pair)[...] = _turned(_side_by_side(heads, pair), cos[..., pair.angles], sin[..., pair.angles])
    return turned.reshape(x.shape)


def _turned(channels: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    return channels * cos + channels[:, :, ::-1] * sin


def _side_by_side(heads: np.ndarray, pair: Pairs) -> np.ndarray:
    """A view of heads [N, heads, D] as [N, heads, 2, pairs]: the first channels, then the second ones."""
    rows, count, _ = heads.shape
    first, second = pair.first, pair.second
    if first.step:  # interleaved
        return heads[:, :, first.start : second.stop].reshape(rows, count, (second.stop - first.start) // 2, 2).swapaxes(2, 3)
    apart = second.start - first.start
    return heads[:, :, first.start : first.start + 2 * apart].reshape(rows, count, 2, apart)[:, :, :, : first.stop - first.start]
