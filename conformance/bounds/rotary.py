"""Bounds of the rotary embeddings.

An angle is position times frequency. Its absolute error is |angle| times the relative error of the frequency and of the
product, and passes on to cos and sin at a slope of at most 1. So the error of a rotated channel grows with the position:
that is how precise angles in f32 are. The frequency is theta^-e in f32: an exponent rounded to e (1 + u) moves the power by
the factor theta^(e u), the power and the reciprocal round too.
"""

import json
from functools import lru_cache
from typing import Any

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import bound
from conformance.running import Running, joined
from poem.batch import Geometry

Exact = tuple[np.ndarray, ...]


def _powers(a: Arithmetic, theta: float | np.ndarray, exponents: np.ndarray) -> Running:
    """theta^-e. The exponent is a quotient of two exact integers, so it is rounded once, and once more by a negation."""
    value = theta**-exponents
    power = Running(a, value)._function(value, value * np.expm1(np.abs(np.log(theta) * exponents) * 2.0 * a.unit))
    return power * 1.0  # the reciprocal


def _scaled(
    a: Arithmetic, f: Running, scaling: dict[str, Any] | None, theta: float, rotated: int, lengths: np.ndarray
) -> tuple[Running, float]:
    """Frequencies `[pairs]`, or `[rows, pairs]` where rows differ, and the attention factor.

    lengths: per row, how many tokens its lane has.
    """
    if scaling is None:
        return f, 1.0
    kind = scaling["kind"]
    if kind == "linear":
        return f / scaling["factor"], 1.0
    if kind == "longrope":
        short, long = f / np.array(scaling["short"]), f / np.array(scaling["long"])
        chosen = {"short": np.zeros(len(lengths), bool), "long": np.ones(len(lengths), bool)}.get(
            scaling["use"], lengths > scaling["original_max_position"]
        )[:, None]
        value = np.where(chosen, long.value, short.value)
        return Running(a, value, np.where(chosen, long.error, short.error)), scaling["attention_factor"]
    original = scaling["original_max_position"]
    divided = f / scaling["factor"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        waves = original / (2.0 * np.pi / f)
        t = ((waves - low) / (high - low)).clipped(0.0, 1.0)  # outside 0..1 it is the kept or the divided frequency
        return (1.0 - t) * divided + t * f, 1.0
    pair = np.arange(len(f.value), dtype=np.float64)

    def turns(r: float) -> float:
        return rotated * np.log(original / (2.0 * np.pi * r)) / (2.0 * np.log(theta))

    lo, hi = turns(scaling["beta_fast"]), turns(scaling["beta_slow"])
    if scaling["truncate"]:
        lo, hi = np.floor(lo), np.ceil(hi)
    lo, hi = max(lo, 0.0), min(hi, rotated - 1.0)
    if lo == hi:
        hi += 0.001
    ramp = ((Running(a, pair) - lo) / (hi - lo)).clipped(0.0, 1.0)
    return f * (1.0 - ramp) + divided * ramp, scaling["attention_factor"]


def _pairs(
    form: str, head_dim: int, rotated: int, part: str, sections: list[int] | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Per pair: its two channels, the column of positions it turns with, and the exponent of theta."""
    half = np.arange(rotated // 2)
    start = head_dim - rotated if part == "last" else 0
    column = np.zeros(len(half), int)
    if form == "interleaved":
        return start + 2 * half, start + 2 * half + 1, column, 2.0 * half / rotated
    if form == "proportional":
        return half, half + head_dim // 2, column, 2.0 * half / head_dim
    if form in ("mrope_blocked", "mrope_split"):
        counts = np.array(sections)
        column = np.repeat(np.arange(3), counts)
        inside = np.concatenate([np.arange(count) for count in counts])
        total = int(counts.sum())
        if form == "mrope_blocked":
            first = np.arange(total)
            return first, first + head_dim // 2, column, 2.0 * inside / total
        own = np.repeat(counts, counts)
        first = np.repeat(2 * (np.cumsum(counts) - counts), counts) + inside
        return first, first + own, column, inside / own
    if sections is not None and form == "mrope_interleaved":
        column = np.where((half % 3 == 1) & (half < 3 * sections[1]), 1, np.where((half % 3 == 2) & (half < 3 * sections[2]), 2, 0))
    elif sections is not None and form == "mrope_chunked":
        column = np.where(half < sections[0], 0, np.where(half < sections[0] + sections[1], 1, 2))
    return start + half, start + half + rotated // 2, column, 2.0 * half / rotated


@bound("elemwise.rope", by_lane=True)
def rope(
    a: Arithmetic, exact: Exact, *, q: Running, k: Running | None, positions: np.ndarray, head_dim: int, theta: float,
    rotary_dim: int | None, form: str, part: str, scaling: dict[str, Any] | None, sections: list[int] | None, inverse: bool,
    geometry: Geometry | None,
) -> tuple[Running, ...]:  # fmt: skip
    """Two products and a sum for each channel of a pair, on cos and sin of an angle in f32; other channels are copies."""
    rotated, rows = rotary_dim or head_dim, q.shape[0]
    first, second, column, exponents = _pairs(form, head_dim, rotated, part, sections)
    position = positions.reshape(rows, -1).astype(np.float64)[:, column]
    lengths = np.zeros(rows)
    if geometry is not None:
        lengths = geometry.kv_len[geometry.lane_of_row]
    arrays = [array.astype(np.float64).tobytes() for array in (exponents, position, lengths)]
    cos, sin = _turning(a, theta, json.dumps(scaling), rotated, *arrays)
    if inverse:
        sin = -sin
    return tuple(_turned(x, head_dim, cos, sin, first, second) for x in (q, k) if x is not None)


@lru_cache(maxsize=8)
def _turning(
    a: Arithmetic, theta: float, scaling: str, rotated: int, exponents: bytes, position: bytes, lengths: bytes
) -> tuple[Running, Running]:
    """cos and sin `[rows, 1, pairs]`, which layers and deployments share: scaling as JSON, arrays as the bytes of their float64."""
    exponent, length = np.frombuffer(exponents), np.frombuffer(lengths)
    frequencies, factor = _scaled(a, _powers(a, theta, exponent), json.loads(scaling), theta, rotated, length)
    angle = Running(a, np.frombuffer(position).reshape(len(length), len(exponent))) * frequencies
    return (angle.cos() * factor).reshape(len(length), 1, -1), (angle.sin() * factor).reshape(len(length), 1, -1)


def _turned(x: Running, head_dim: int, cos: Running, sin: Running, first: np.ndarray, second: np.ndarray) -> Running:
    """Turns channels `first` and `second` of each head: cos and sin `[rows, heads or 1, pairs]`. Other channels are copies."""
    heads = x.reshape(x.shape[0], x.shape[1] // head_dim, head_dim)
    left, right = heads[..., first], heads[..., second]
    value, error = heads.value.copy(), np.array(np.broadcast_to(heads.error, heads.shape))
    for channels, turning in ((first, cos * left - sin * right), (second, cos * right + sin * left)):
        value[..., channels] = turning.value
        error[..., channels] = turning.error
    return Running(x.arithmetic, value, error).reshape(*x.shape)


@bound("elemwise.rope_axes")
def rope_axes(
    a: Arithmetic, exact: Exact, *, x: Running, positions: Running, dims: list[int], thetas: list[float], form: str, rotary_dim: int,
    head_dim: int,
) -> Running:  # fmt: skip
    """As rope, with angles of several positions."""
    rows, axes = positions.shape
    counts, bases = np.array(dims[:axes]) // 2, np.array(thetas[:axes])
    if form == "split_ladder":
        return _ladder(a, x, positions, counts, bases, head_dim)
    axis = np.repeat(np.arange(axes), counts)
    inside = np.concatenate([np.arange(count) for count in counts])
    before = np.cumsum(counts) - counts  # pairs of the axes before
    first, second = {
        "interleaved": (2 * (before[axis] + inside), 2 * (before[axis] + inside) + 1),
        "split": (2 * before[axis] + inside, 2 * before[axis] + inside + counts[axis]),
        "neox": (before[axis] + inside, before[axis] + inside + rotary_dim // 2),
    }[form]
    angle = (positions[:, axis] * _powers(a, bases[axis], inside / counts[axis])).reshape(rows, 1, len(axis))
    return _turned(x, head_dim, angle.cos(), angle.sin(), first, second)


def _ladder(a: Arithmetic, x: Running, positions: Running, counts: np.ndarray, bases: np.ndarray, head_dim: int) -> Running:
    """Slots of all heads in one row, the first of them copies; rising frequencies, the axes in turn."""
    rows, axes, half = x.shape[0], len(counts), head_dim // 2
    slot = np.arange(x.shape[1] // 2) - (x.shape[1] // 2 - counts.sum())
    axis, rung = np.maximum(slot, 0) % axes, np.maximum(slot, 0) // axes
    angle = positions[:, axis] * _powers(a, bases[axis], -rung / max(counts[0] - 1, 1))
    angle = angle.reshape(rows, x.shape[1] // head_dim, half)
    pairs = np.arange(half)
    turned = _turned(x, head_dim, angle.cos(), angle.sin(), pairs, pairs + half)
    copied = np.tile((slot < 0).reshape(-1, half), 2).reshape(-1)
    return Running(a, np.where(copied, x.value, turned.value), np.where(copied, x.error, turned.error))


@bound("elemwise.sinusoid")
def sinusoid(a: Arithmetic, exact: Exact, *, t: Running, dim: int, max_period: float, flip_sin_cos: bool, scale: float) -> Running:
    """cos and sin of an angle in f32."""
    angle = scale * (t * _powers(a, max_period, np.arange(dim // 2) / (dim // 2)))
    return joined([angle.cos(), angle.sin()] if flip_sin_cos else [angle.sin(), angle.cos()])
