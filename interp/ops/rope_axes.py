"""Rotary embedding over several position axes, and sinusoids of numbers."""

import math

import numpy as np

from interp.call import Call
from interp.ops.rope import Pairs, turn, turns


def rope_axes(
    call: Call, x: np.ndarray, positions: np.ndarray, dims: list[int], thetas: list[float], form: str, rotary_dim: int, head_dim: int
) -> np.ndarray:
    """Each axis turns the pairs of its own channels by its own positions."""
    axes = positions.shape[1]
    if form == "split_ladder":
        return _ladder(call, x, positions, dims[:axes], thetas[:axes], head_dim)
    parts = []
    for axis, (dim, theta) in enumerate(zip(dims[:axes], thetas[:axes], strict=True)):
        frequency = float(theta) ** (-np.arange(0, dim, 2) / max(dim, 1))
        parts.append(positions[:, axis : axis + 1] * frequency.astype(call.numeric.real))
    return turn(x, head_dim, *turns(np.concatenate(parts, axis=1)), _pairs(dims[:axes], form, rotary_dim))


def _pairs(dims: list[int], form: str, rotary_dim: int) -> tuple[Pairs, ...]:
    half = rotary_dim // 2
    if form == "interleaved":
        return (Pairs(slice(0, rotary_dim, 2), slice(1, rotary_dim, 2), slice(0, half)),)
    if form == "neox":
        return (Pairs(slice(0, half), slice(half, rotary_dim), slice(0, half)),)
    pairs, start = [], 0
    for dim in dims:
        middle = start + dim // 2
        pairs.append(Pairs(slice(start, middle), slice(middle, start + dim), slice(start // 2, middle - start // 2)))
        start += dim
    return tuple(pairs)


def _ladder(call: Call, x: np.ndarray, positions: np.ndarray, dims: list[int], thetas: list[float], head_dim: int) -> np.ndarray:
    """Slot `g = h * (D/2) + i` of head h is the pair (i, i + D/2). Slots before the pad are copied; the others take the axes in
    turn, each with rising frequencies."""
    axes, slots = len(dims), x.shape[1] // 2
    pad = (x.shape[1] - sum(dims)) // 2
    step = np.maximum(np.arange(slots) - pad, 0)
    axis, rung = step % axes, step // axes
    count = dims[0] // 2
    exponent = rung / (count - 1) if count > 1 else np.zeros(slots)
    frequency = np.array(thetas, np.float64)[axis] ** exponent
    angles = positions[:, axis] * frequency.astype(call.numeric.real)
    angles = angles.reshape(len(x), x.shape[1] // head_dim, head_dim // 2)
    pair = Pairs(slice(0, head_dim // 2), slice(head_dim // 2, head_dim), slice(0, head_dim // 2))
    turned = turn(x, head_dim, *turns(angles), (pair,))
    copied = np.repeat((np.arange(slots) < pad).reshape(-1, 1, head_dim // 2), 2, axis=1)
    return np.where(copied.reshape(-1), x, turned)


def sinusoid(call: Call, t: np.ndarray, dim: int, max_period: float, flip_sin_cos: bool, scale: float) -> np.ndarray:
    """`[cos a | sin a]`, or `[sin a | cos a]`, of `a_i = scale * (t * max_period^(-i / (dim/2)))`."""
    real = call.numeric.real
    frequency = np.exp(-math.log(max_period) * np.arange(dim // 2) / (dim // 2)).astype(real)
    angles = real(scale) * (t * frequency)
    parts = (np.cos(angles), np.sin(angles)) if flip_sin_cos else (np.sin(angles), np.cos(angles))
    return np.concatenate(parts, axis=1)
