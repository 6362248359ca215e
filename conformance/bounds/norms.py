"""Bounds of the norms.

`mean(x^2) + eps` is a sum of positive terms, so its relative error is at most (growth(W) + 3) u, halved by the root; the
rest is one rounding for each product. Nothing cancels: rms norms are well conditioned, also where x is huge or tiny.
A layer norm subtracts the mean first; where the mean is large against the deviation, that difference cancels.
"""

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import bound
from conformance.running import Running

Exact = tuple[np.ndarray, ...]


def rms(x: Running, eps: float) -> Running:
    """x / sqrt(mean(x^2) + eps) over the last axis. The square is formed once, so its two factors err together."""
    squares = x * x
    return x * (squares.mean() + eps).rsqrt()


@bound("elemwise.rmsnorm", reduces="mean of {} squares", length=lambda given: given["x"].shape[-1])
def rmsnorm(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, eps: float) -> Running:
    return rms(x, eps) * w


@bound("elemwise.rmsnorm_plus_one", reduces="mean of {} squares", length=lambda given: given["x"].shape[-1])
def rmsnorm_plus_one(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, eps: float) -> Running:
    return rms(x, eps) * (Running(a, w) + 1.0)


@bound("elemwise.rmsnorm_per_head", reduces="mean of {} squares", length=lambda given: given["head_dim"])
def rmsnorm_per_head(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, head_dim: int, eps: float) -> Running:
    return (rms(x.reshape(x.shape[0], -1, head_dim), eps) * w).reshape(*x.shape)


@bound("elemwise.rmsnorm_per_head_plus_one", reduces="mean of {} squares", length=lambda given: given["head_dim"])
def rmsnorm_per_head_plus_one(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, head_dim: int, eps: float) -> Running:
    return (rms(x.reshape(x.shape[0], -1, head_dim), eps) * (Running(a, w) + 1.0)).reshape(*x.shape)


@bound("elemwise.rmsnorm_no_scale", reduces="mean of {} squares", length=lambda given: given["head_dim"])
def rmsnorm_no_scale(a: Arithmetic, exact: Exact, *, x: Running, head_dim: int, eps: float) -> Running:
    return rms(x.reshape(x.shape[0], -1, head_dim), eps).reshape(*x.shape)


@bound("elemwise.rmsnorm_grouped_plus_one", reduces="mean of {} squares", length=lambda given: given["group"])
def rmsnorm_grouped_plus_one(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, group: int, eps: float) -> Running:
    return rms(x.reshape(x.shape[0], -1, group), eps).reshape(*x.shape) * (Running(a, w) + 1.0)


@bound("elemwise.rmsnorm_gated", reduces="mean of {} squares", length=lambda given: given["head_dim"])
def rmsnorm_gated(
    a: Arithmetic, exact: Exact, *, x: Running, gate: Running, w: np.ndarray, head_dim: int, eps: float, act: str, gate_first: bool
) -> Running:
    opened = gate.silu() if act == "silu" else gate.sigmoid()
    gain = np.tile(w, x.shape[1] // len(w))
    row = x * opened if gate_first else x
    normed = rms(row.reshape(x.shape[0], -1, head_dim), eps).reshape(*x.shape) * gain
    return normed if gate_first else normed * opened


@bound("elemwise.layernorm", reduces="mean of {} terms", length=lambda given: given["x"].shape[-1])
def layernorm(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray | None, b: np.ndarray | None, eps: float) -> Running:
    """Two passes, or Welford's one, whose variance errs by growth(W) kappa u, kappa = sqrt(1 + mean^2 / variance)
    (Chan, Golub and LeVeque, "Algorithms for computing the sample variance", 1983): the larger is taken."""
    centred = x - x.mean()
    variance = (centred * centred).mean()
    mean_squares = np.mean(x.value * x.value, axis=-1, keepdims=True)
    one_pass = a.growth(x.shape[-1]) * a.unit * np.sqrt(variance.value * mean_squares)
    variance = Running(a, variance.value, np.maximum(variance.error, one_pass))
    normed = centred * (variance + eps).rsqrt()
    normed = normed * w if w is not None else normed
    return normed + b if b is not None else normed


@bound("elemwise.layernorm_no_scale", reduces="mean of {} terms", length=lambda given: given["x"].shape[-1])
def layernorm_no_scale(a: Arithmetic, exact: Exact, *, x: Running, eps: float) -> Running:
    return layernorm(a, exact, x=x, w=None, b=None, eps=eps)


@bound("elemwise.rmsnorm_gated_by", reduces="mean of {} squares", length=lambda given: given["x"].shape[-1] // given["heads"])
def rmsnorm_gated_by(a: Arithmetic, exact: Exact, *, x: Running, gate: Running, w: np.ndarray, heads: int, eps: float) -> Running:
    return rmsnorm_gated(a, exact, x=x, gate=gate, w=w, head_dim=x.shape[1] // heads, eps=eps, act="sigmoid", gate_first=False)
