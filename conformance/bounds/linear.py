"""Bounds of ops.linear."""

from typing import Any

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.record import bound, copies
from conformance.running import Running

copies("linear.group_routes")


@bound("linear.matmul", "linear.lm_head", reduces="dot product of {} terms", length=lambda given: given["x"].shape[-1])
def matmul(a: Arithmetic, exact: tuple[np.ndarray, ...], *, x: np.ndarray, w: np.ndarray, out: Any) -> Running:
    """growth(K) u sum_k |x_k w_k|: the K products and K - 1 additions round once each, in any order."""
    return Running(a, exact[0], _products(a, np.abs(x), np.abs(w)))


def _products(a: Arithmetic, x: np.ndarray, w: np.ndarray) -> np.ndarray:
    """growth(K) u x @ w.T of magnitudes. Computed in f32, which is itself within 2 K 2^-24 of the sum and is enlarged by that.

    Magnitudes below 2^-60 or above 2^60 could leave f32's range in the product, so those take float64.
    """
    terms = x.shape[-1]
    single = all(m.size == 0 or (m.max() < 2.0**60 and m[m > 0].min(initial=1.0) > 2.0**-60) for m in (x, w))
    if single:
        sums = (x.astype(np.float32) @ w.astype(np.float32).T).astype(np.float64) * (1.0 + 2.0 * (terms + 1) * 2.0**-24)
    else:
        sums = x.astype(np.float64) @ w.astype(np.float64).T
    return a.growth(terms) * a.unit * sums + terms * a.tiny


@bound("linear.matmul_grouped", reduces="dot product of {} terms", length=lambda given: given["x"].shape[-1] // given["groups"])
def matmul_grouped(
    a: Arithmetic, exact: tuple[np.ndarray, ...], *, x: np.ndarray, w: np.ndarray, routes: np.ndarray, groups: int
) -> Running:
    """matmul, group by group."""
    parts = zip(np.split(np.abs(x), groups, axis=1), np.split(np.abs(w), groups, axis=0), strict=True)
    return Running(a, exact[0], np.concatenate([_products(a, part, rows) for part, rows in parts], axis=1))


@bound("linear.gelu_tanh")
def gelu_tanh(a: Arithmetic, exact: tuple[np.ndarray, ...], *, x: np.ndarray) -> Running:
    """The formula, step by step. Where 1 + tanh cancels, the absolute error is |x| u and the relative error grows."""
    return Running(a, x).gelu_tanh()


@bound("linear.glu")
def glu(
    a: Arithmetic, exact: tuple[np.ndarray, ...], *, x: np.ndarray, inter: int, act: str, up: np.ndarray | None,
    limit: float | None, alpha: float | None, beta: float | None, up_cap: float | None,
) -> Running:  # fmt: skip
    """The formula, step by step: exponential, sum, quotient and products. The condition of silu at g is |1 + g (1 - sigma(g))|,
    at most 1 + |g|, which the exponential's error meets where g is very negative."""
    gate, raised = (Running(a, x), Running(a, up)) if up is not None else (Running(a, x[:, :inter]), Running(a, x[:, inter:]))
    if limit is not None:
        gate, raised = gate.clipped(-np.inf, limit), raised.clipped(-limit, limit)
    if alpha is not None:
        return (raised + 1.0) * (gate * (alpha * gate).sigmoid())
    if act == "gelu_tanh":
        return gate.gelu_tanh() * raised
    if act == "gelu":
        return gate.gelu() * raised
    if act == "situ":
        capped = up_cap * (raised / up_cap).tanh() if up_cap is not None else raised
        return beta * (gate / beta).tanh() * gate.sigmoid() * capped
    return gate.silu() * raised
