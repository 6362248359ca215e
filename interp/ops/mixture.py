"""ops.linear: mixture of experts: routing, the experts' products, and their weighted sum."""

import numpy as np

from interp.call import Call
from interp.functions import sigmoid, softplus
from interp.indices import within
from poem.dtypes.tensor import Tensor


def moe_route(
    call: Call,
    logits: np.ndarray,
    experts: int,
    top_k: int,
    score: str,
    bias: Tensor | None,
    expert_scale: Tensor | None,
    renormalize: bool,
    scaling: float,
    groups: int | None,
    group_top_k: int | None,
    sinks: int,
    ids: np.ndarray | None,
    table: Tensor | None,
    group_score: str | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Which experts each row goes to, and their mixture weights."""
    z = np.where(np.isnan(logits), -np.inf, logits)
    scores = _scores(z, experts, score)
    if ids is not None and table is not None:
        routes = _routes_of_ids(ids, table)
    else:
        choice = _choice(z[:, :experts], scores[:, :experts], None if bias is None else call.weight(bias), score, groups)
        if groups is not None and group_top_k is not None:
            by_two = group_score == "top2" or (group_score is None and score != "softmax")
            choice = _within_best_groups(choice, groups, group_top_k, by_two)
        routes = _largest(choice, top_k)
        routes = np.where(np.take_along_axis(choice, routes, axis=1) == -np.inf, -1, routes)
    if sinks:
        always = np.broadcast_to(np.arange(experts, experts + sinks), (len(z), sinks))
        routes = np.concatenate([routes, always], axis=1)
    known = (routes >= 0) & (routes < experts + sinks)
    expert = np.where(known, routes, 0)
    weights = np.where(known, np.take_along_axis(scores, expert, axis=1), 0)
    if renormalize:
        total = np.add.reduce(weights, axis=1, keepdims=True)
        weights = np.where(total > 0, weights / total, weights)
    weights = weights * call.numeric.real(scaling)
    if expert_scale is not None:
        factors = call.weight(expert_scale)
        weights = np.where(known, weights * (factors if len(factors) == 1 else factors[expert]), 0)
    return routes.astype(np.int32), weights


def _scores(z: np.ndarray, experts: int, score: str) -> np.ndarray:
    """What experts weigh before any choice, 0 where the logit is -inf."""
    if score == "softmax":
        z = z[:, :experts]
        weights = np.exp(z - z.max(axis=1, keepdims=True))
        scores = weights / np.add.reduce(weights, axis=1, keepdims=True)
    else:
        scores = sigmoid(z) if score == "sigmoid" else np.sqrt(softplus(z))
    return np.where(z == -np.inf, 0, scores)


def _choice(z: np.ndarray, scores: np.ndarray, bias: np.ndarray | None, score: str, groups: int | None) -> np.ndarray:
    """What experts are chosen by; -inf for those that cannot be. NaN, which only a bias brings, counts as -inf."""
    if score == "softmax" and bias is None and groups is None:
        return z  # in the order of the scores, without the ties that rounding would make
    choice = scores if bias is None else scores + bias
    return np.where((z == -np.inf) | np.isnan(choice), -np.inf, choice)


def _within_best_groups(choice: np.ndarray, groups: int, kept: int, by_two: bool) -> np.ndarray:
    """`choice`, with -inf outside the best groups of consecutive experts, valued by their largest or their two largest."""
    apart = choice.reshape(len(choice), groups, choice.shape[1] // groups)
    if by_two:
        top = np.sort(apart, axis=2)[:, :, -2:]
        value = top[:, :, 0] + top[:, :, 1]
    else:
        value = apart.max(axis=2)
    stays = np.zeros((len(choice), groups), np.bool_)
    np.put_along_axis(stays, _largest(value, kept), True, axis=1)
    return np.where(stays[:, :, None], apart, -np.inf).reshape(choice.shape)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """The columns of the `count` largest values of each row, descending, ties to the lower column."""
    return np.argsort(-values, axis=1, kind="stable")[:, :count]


def _routes_of_ids(ids: np.ndarray, table: Tensor) -> np.ndarray:
    stored = table.planes["data"]
    found = stored[np.where((ids >= 0) & (ids < len(stored)), ids, 0)]
    return np.clip(found, -1, np.iinfo(np.int32).max)


def moe_matmul_select(call: Call, x: np.ndarray, bank: Tensor, routes: np.ndarray, top_k: int, bias: Tensor | None) -> np.ndarray:
    """The product of the row of each slot with the matrix of its expert, expert by expert; a zero row for a route below 0."""
    experts, width, _ = bank.shape
    chosen = _experts(call, routes, experts, len(routes), top_k).reshape(-1)
    row_of_slot = np.arange(len(chosen)) if len(x) == len(chosen) else np.arange(len(chosen)) // top_k
    y = np.zeros((len(chosen), width), call.numeric.real)
    for expert in np.unique(chosen[chosen >= 0]).tolist():
        slots = np.flatnonzero(chosen == expert)
        y[slots] = call.project(x[row_of_slot[slots]], bank, slice(expert, expert + 1))
        if bias is not None:
            y[slots] += call.weight(bias, slice(expert, expert + 1))
    return y


def moe_weighted_sum(call: Call, routed: np.ndarray, weights: np.ndarray, routes: np.ndarray | None, bias: Tensor | None) -> np.ndarray:
    """The slots of each row summed by their weights, in order; slots with a route below 0 are skipped."""
    rows, slots = weights.shape
    apart = routed.reshape(rows, slots, routed.shape[1])
    if routes is None:
        return _sum_of_slots(apart, weights, None)
    chosen = routes.reshape(rows, slots) if bias is None else _experts(call, routes, bias.shape[0], rows, slots)
    if bias is not None:
        apart = apart + call.weight(bias)[np.maximum(chosen, 0)]
    return _sum_of_slots(apart, weights, chosen >= 0)


def moe_bias_sum(call: Call, x: np.ndarray, bias: Tensor, routes: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """`x + sum_s weights[:, s] * bias[routes[:, s]]`; slots with a route below 0 are skipped."""
    chosen = _experts(call, routes, bias.shape[0], *weights.shape)
    return x + _sum_of_slots(call.weight(bias)[np.maximum(chosen, 0)], weights, chosen >= 0)


def _experts(call: Call, routes: np.ndarray, experts: int, rows: int, slots: int) -> np.ndarray:
    """`routes` as [rows, slots]; a route past the experts is an error."""
    chosen = routes.reshape(rows, slots)
    within(call, "routes", np.maximum(chosen, 0), experts, f"there are {experts} experts")
    return chosen


def _sum_of_slots(values: np.ndarray, weights: np.ndarray, live: np.ndarray | None) -> np.ndarray:
    """`sum_s weights[:, s] * values[:, s]` over [rows, slots, D], in slot order, without the slots that are not live."""
    total = np.zeros((len(values), values.shape[2]), values.dtype)
    for slot in range(values.shape[1]):
        term = weights[:, slot, None] * values[:, slot]
        total += term if live is None else np.where(live[:, slot, None], term, 0)
    return total


def moe_sigmoid_gate_add(call: Call, routed: np.ndarray, shared: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """`routed + shared * sigma(gate)`, one gate a row."""
    return routed + shared * sigmoid(gate)
