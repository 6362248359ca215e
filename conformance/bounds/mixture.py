"""Bounds of routing, expert banks and adapters.

Which experts a row takes is an integer and has no bound: the routes are taken as they are. Their weights are softmax or
sigmoid scores of f32 logits, divided by their sum.
"""

from typing import Any

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.linear import products
from conformance.bounds.record import bound
from conformance.running import Running

Exact = tuple[np.ndarray, ...]


@bound("linear.moe_route")
def moe_route(
    a: Arithmetic, exact: Exact, *, logits: Running, experts: int, top_k: int, score: str, bias: np.ndarray | None,
    expert_scale: np.ndarray | None, renormalize: bool, scaling: float, groups: int | None, group_top_k: int | None, sinks: int,
    ids: np.ndarray | None, table: np.ndarray | None, group_score: str | None,
) -> tuple[Running | None, Running]:  # fmt: skip
    """Scores of all experts, then those of the routes taken; a slot without an expert has weight 0."""
    if score == "softmax":
        top = logits.value[:, :experts].max(1, keepdims=True)
        raised = (logits[:, :experts] - top).exp()
        scores = raised / raised.sum()
    elif score == "sigmoid":
        scores = logits.sigmoid()
    else:
        scores = logits.softplus().sqrt()
    routes = exact[0]
    inside = (routes >= 0) & (routes < scores.shape[1])
    taken = np.where(inside, routes, 0)
    weights = scores[np.arange(len(routes))[:, None], taken].where(inside)
    if renormalize:
        total = weights.sum()
        weights = weights / Running(a, np.where(total.value > 0, total.value, 1.0), total.error)
    weights = weights * scaling
    if expert_scale is not None:
        weights = weights * (expert_scale if len(expert_scale) == 1 else expert_scale[taken])
    return None, weights


@bound("linear.moe_matmul_select", reduces="dot product of {} terms", length=lambda given: given["x"].shape[-1])
def moe_matmul_select(
    a: Arithmetic, exact: Exact, *, x: Running, bank: np.ndarray, routes: np.ndarray, top_k: int, bias: np.ndarray | None
) -> Running:
    """A dot product for each slot, and the addition of the bias."""
    chosen = routes.reshape(-1)
    rows = np.arange(len(chosen)) // (1 if x.shape[0] == len(chosen) else top_k)
    error = np.zeros(exact[0].shape)
    for expert in np.unique(chosen[chosen >= 0]):
        slots = np.flatnonzero(chosen == expert)
        error[slots] = products(a, x[rows[slots]], np.abs(bank[expert]))
    product = Running(a, exact[0], error)
    return product if bias is None else Running(a, exact[0], error + a.unit * (np.abs(exact[0]) + error))


@bound("linear.moe_weighted_sum", reduces="sum of {} experts", length=lambda given: given["weights"].shape[-1])
def moe_weighted_sum(
    a: Arithmetic, exact: Exact, *, routed: Running, weights: Running, routes: np.ndarray | None, bias: np.ndarray | None
) -> Running:
    """Products of slots with their weights, summed; slots without an expert are skipped."""
    rows, slots = weights.shape
    values = routed.reshape(rows, slots, -1)
    if routes is None:
        return _weighted(values, weights, None)
    return _weighted(values if bias is None else values + _biases(bias, routes, weights), weights, routes)


@bound("linear.moe_bias_sum", reduces="sum of {} experts", length=lambda given: given["weights"].shape[-1])
def moe_bias_sum(a: Arithmetic, exact: Exact, *, x: Running, bias: np.ndarray, routes: np.ndarray, weights: Running) -> Running:
    """x, plus the experts' biases by their weights."""
    return x + _weighted(Running(a, _biases(bias, routes, weights)), weights, routes)


def _biases(bias: np.ndarray, routes: np.ndarray, weights: Running) -> np.ndarray:
    """The bias of each slot's expert, `[rows, slots, D]`."""
    return bias[np.maximum(routes, 0).reshape(weights.shape)]


def _weighted(values: Running, weights: Running, routes: np.ndarray | None) -> Running:
    """Values `[rows, slots, D]` summed by their weights, without those of slots that have no expert."""
    terms = values * weights.reshape(*weights.shape, 1)
    if routes is not None:
        terms = terms.where(routes.reshape(*weights.shape, 1) >= 0)
    return terms.sum(1)[:, 0]


@bound("linear.moe_sigmoid_gate_add")
def moe_sigmoid_gate_add(a: Arithmetic, exact: Exact, *, routed: Running, shared: Running, gate: Running) -> Running:
    return routed + shared * gate.sigmoid()


@bound("linear.rel_bias", reduces="dot product of {} terms", length=lambda given: given["d_rel"])
def rel_bias(a: Arithmetic, exact: Exact, *, x: Running, w: np.ndarray, heads: int, d_rel: int, extent: int) -> Running:
    """A dot product of d_rel terms for each head and distance."""
    return Running(a, exact[0], products(a, x.reshape(-1, d_rel), np.abs(w.T)).reshape(exact[0].shape))


@bound("linear.lora_correct", reduces="dot product of {} terms", length=lambda given: given["x"].shape[-1])
def lora_correct(a: Arithmetic, exact: Exact, *, x: Running, bank_a: np.ndarray, bank_b: np.ndarray, routes: Any, y: Running) -> Running:
    """Two products in a row; the first is rounded to x's dtype, which is the result's."""
    error = np.array(np.broadcast_to(y.error, y.shape))
    chosen = np.asarray(routes).reshape(-1)
    for adapter in np.unique(chosen[chosen >= 0]):
        rows = np.flatnonzero(chosen == adapter)
        down, up = bank_a[adapter].astype(np.float64), bank_b[adapter].astype(np.float64)
        inner = Running(a, x.value[rows] @ down.T, products(a, x[rows], np.abs(down))).stored(a.results)
        corrected = y[rows] + Running(a, inner.value @ up.T, products(a, inner, np.abs(up)))
        error[rows] = corrected.error
    return Running(a, exact[0], error)
