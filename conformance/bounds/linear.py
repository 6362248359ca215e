"""Bounds of ops.linear."""

from typing import Any

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import bound, integers
from conformance.running import Running

Exact = tuple[np.ndarray, ...]
LARGE = 1 << 22  # products of numbers, from which on f32 saves more time than looking at their magnitudes takes
integers("linear.group_routes")


@bound("linear.matmul", "linear.lm_head", reduces="dot product of {} terms", length=lambda given: given["x"].shape[-1])
def matmul(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, out: Any) -> Running:
    """growth(K) u sum_k |x_k w_k|: the K products and K - 1 additions round once each, in any order."""
    return Running(a, exact[0], products(a, x, np.abs(w)))


def products(a: Arithmetic, x: Running, w: np.ndarray) -> np.ndarray:
    """The error of x @ w.T from its steps and from the error of x; w holds magnitudes."""
    terms = x.shape[-1]
    magnitude = np.abs(x.value)
    if not x.inexact:
        return a.growth(terms) * a.unit * sums_of(magnitude, w) + terms * a.tiny
    inherited = sums_of(x.errors, w)
    return inherited + a.growth(terms) * a.unit * (sums_of(magnitude, w) + inherited) + terms * a.tiny


def sums_of(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """x @ w.T of magnitudes, never too small. Large products are computed in f32, whose error is below K + 1 units, and enlarged by
    those.

    Magnitudes below 2^-60 or above 2^60 could leave f32's range in the product, so they take float64.
    """
    if x.shape[0] * w.size > LARGE and all(m.size == 0 or (m.max() < 2.0**60 and m[m > 0].min(initial=1.0) > 2.0**-60) for m in (x, w)):
        sums = x.astype(np.float32) @ w.astype(np.float32).T
        return sums.astype(np.float64) * (1.0 + 2.0 * (x.shape[-1] + 1) * 2.0**-24)
    return x @ w.T


@bound("linear.matmul_grouped", reduces="dot product of {} terms", length=lambda given: given["x"].shape[-1] // given["groups"])
def matmul_grouped(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, routes: np.ndarray, groups: int) -> Running:
    """matmul, group by group."""
    width = x.shape[1] // groups
    parts = enumerate(np.split(np.abs(w), groups, axis=0))
    return Running(a, exact[0], np.concatenate([products(a, x[:, i * width : (i + 1) * width], rows) for i, rows in parts], axis=1))


@bound("linear.gelu_tanh")
def gelu_tanh(a: Arithmetic, exact: Exact, *, x: Running) -> Running:
    """The formula, step by step. Where 1 + tanh cancels, the absolute error is |x| u and the relative error grows."""
    return x.gelu_tanh()


@bound("linear.glu")
def glu(
    a: Arithmetic, exact: Exact, *, x: Running, inter: int, act: str, up: Running | None,
    limit: float | None, alpha: float | None, beta: float | None, up_cap: float | None,
) -> Running:  # fmt: skip
    """The formula, step by step: exponential, sum, quotient and products. The condition of silu at g is |1 + g (1 - sigma(g))|,
    at most 1 + |g|, which the exponential's error meets where g is very negative."""
    gate, raised = (x, up) if up is not None else (x[:, :inter], x[:, inter:])
    if limit is not None:
        gate, raised = gate.clipped(-np.inf, limit), raised.clipped(-limit, limit)
    if alpha is not None:
        return (raised + 1.0) * (gate * (alpha * gate).sigmoid())
    if act == "gelu_tanh":
        return gate.gelu_tanh() * raised
    if act == "gelu":
        return gate.gelu() * raised
    if act == "situ" and beta is not None:
        capped = up_cap * (raised / up_cap).tanh() if up_cap is not None else raised
        return beta * (gate / beta).tanh() * gate.sigmoid() * capped
    return gate.silu() * raised
