"""Operands of every flavour, NumPy and torch to run a formula on them in f32, and how near a run comes to its bound."""

import math
from typing import Any

import numpy as np
import pytest

try:
    import torch
except ModuleNotFoundError:  # extra `oracles`; the same cases then run in NumPy alone
    torch = None  # type: ignore[assignment]
needs_torch = pytest.mark.skipif(torch is None, reason="needs the extra `oracles`")

FLAVOURS = ("normal", "integers", "huge", "tiny", "cancelling", "spread")
SEEDS = range(3)
# A bound that no run of these cases comes within this factor of would say nothing.
LOOSEST = 300.0


def draw(rng: np.random.Generator, shape: tuple[int, ...], flavour: str) -> np.ndarray:
    """Operands as float32 values."""
    x = rng.standard_normal(shape)
    if flavour == "integers":
        x = rng.integers(-3, 4, shape)
    elif flavour == "huge":
        x *= 1e12
    elif flavour == "tiny":
        x *= 1e-22
    elif flavour == "cancelling":
        x = np.concatenate([x[..., : shape[-1] // 2], -x[..., : shape[-1] - shape[-1] // 2]], -1) * (1 + 1e-6 * rng.standard_normal(shape))
    elif flavour == "spread":
        x *= 10.0 ** rng.uniform(-6, 6, shape)
    return np.asarray(x, np.float32)


class NumPy:
    """The functions that the formulas below use, in NumPy."""

    exp, tanh, sqrt, log, sin, cos = np.exp, np.tanh, np.sqrt, np.log, np.sin, np.cos
    where, concatenate = np.where, staticmethod(np.concatenate)
    sum = staticmethod(lambda x: np.sum(x, -1, keepdims=True))
    mean = staticmethod(lambda x: np.mean(x, -1, keepdims=True, dtype=x.dtype))
    max = staticmethod(lambda x: np.max(x, -1, keepdims=True))
    erf = staticmethod(lambda x: np.vectorize(math.erf, otypes=[x.dtype])(x))


class Torch:
    """The same in torch, whose names differ little."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def concatenate(self, parts: list[Any], axis: int) -> Any:
        return torch.cat(parts, axis)

    def sum(self, x: Any) -> Any:
        return x.sum(-1, keepdim=True)

    def mean(self, x: Any) -> Any:
        return x.mean(-1, keepdim=True)

    def max(self, x: Any) -> Any:
        return x.max(-1, keepdim=True).values


TORCH = Torch()
LIBRARIES: list[tuple[str, Any]] = [("NumPy", NumPy)] + ([("torch", TORCH)] if torch is not None else [])


def worst_fraction(got: np.ndarray, exact: np.ndarray, bound: np.ndarray, what: str) -> float:
    """max |got - exact| / bound over the finite results; fails where it passes 1."""
    assert bound.shape == exact.shape, f"{what}: the bound is {bound.shape}, the result {exact.shape}"
    assert not np.isnan(bound).any(), f"{what}: the bound is NaN at {np.argwhere(np.isnan(bound))[0]}"
    fits = np.isfinite(got) & (np.abs(exact) < 1e38)
    error = np.where(fits, np.abs(got.astype(np.float64) - np.where(fits, exact, 0.0)), 0.0)
    over = error > bound
    if over.any():
        at = tuple(np.argwhere(over)[0])
        pytest.fail(f"{what}{list(map(int, at))}: got {got[at]!r}, exact {exact[at]!r}, error {error[at]:.3e} > bound {bound[at]:.3e}")
    inside = (bound > 0) & (error > 0)
    return float((error[inside] / bound[inside]).max(initial=0.0))
