"""Bounds of the ops on several residual streams, M streams of width H side by side: `[rows, M * H]`."""

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.linear import products
from conformance.bounds.norms import rms
from conformance.bounds.record import bound
from conformance.running import Running, joined

Exact = tuple[np.ndarray, ...]


def _weighted(weights: Running, streams: Running) -> Running:
    """`sum_s weights[:, s] * streams[:, s]`, in any order: weights `[rows, M]`, streams `[rows, M * H]`."""
    rows, count = weights.shape
    return weights.reshape(rows, 1, count).matmul(_apart(streams, count)).reshape(rows, streams.shape[1] // count)


def _apart(streams: Running, count: int) -> Running:
    """`[rows, M, H]`."""
    return streams.reshape(streams.shape[0], count, streams.shape[1] // count)


@bound("elemwise.hc_expand", copies=True)
def hc_expand(a: Arithmetic, exact: Exact, *, x: Running, stream_count: int) -> Running:
    return joined([x] * stream_count)


@bound("elemwise.hc_rmsnorm_f32", reduces="mean of {} squares", length=lambda given: given["streams"].shape[-1])
def hc_rmsnorm_f32(a: Arithmetic, exact: Exact, *, streams: Running, eps: float) -> Running:
    return rms(streams, eps)


@bound("elemwise.hc_project", reduces="dot product of {} terms", length=lambda given: given["normed"].shape[-1])
def hc_project(a: Arithmetic, exact: Exact, *, normed: Running, dynamic: np.ndarray, stream_count: int) -> Running:
    """As linear.matmul."""
    return Running(a, exact[0], products(a, normed, np.abs(dynamic)))


@bound("elemwise.hc_gates", reduces="sum of {} streams", length=lambda given: given["stream_count"])
def hc_gates(
    a: Arithmetic, exact: Exact, *, mixes: Running, streams: Running, scale: np.ndarray, base: np.ndarray, stream_count: int, eps: float,
    alpha: float, sinkhorn: int,
) -> tuple[Running, ...]:  # fmt: skip
    m = stream_count
    logits = mixes * np.repeat(scale, [m, m, m * m]) + base
    comb = _balanced(a, logits[:, 2 * m :].reshape(mixes.shape[0], m, m), eps, sinkhorn)
    return _weighted(logits[:, :m].sigmoid() + eps, streams), alpha * logits[:, m : 2 * m].sigmoid(), comb.reshape(mixes.shape[0], m * m)


def _balanced(a: Arithmetic, logits: Running, eps: float, sinkhorn: int) -> Running:
    """Softmax over the rows of matrices `[rows, M, M]`, plus eps, then Sinkhorn's turns, which divide columns and rows by their sums + eps.

    Errors are followed as logarithms. A computed entry is c_ij e^(d_ij + r_i + k_j): d comes from the entry's own roundings, r and k from
    what its row and its column were divided by. Of a row with the sum s + eps, p_ij = c_ij / (s + eps) and q = eps / (s + eps) add up to
    1, and dividing by the computed sum leaves a new r'_i = -log(sum_j p_ij e^(d_ij + k_j) + q e^(-r_i)): the old r_i is divided out. By
    Jensen's inequality |r'_i| <= log(sum_j p_ij e^(|d_ij| + |k_j|) + q e^|r_i|). So errors grow with the number of turns, where following
    each quotient by itself would double them in each.
    """
    top = logits.value.max(2, keepdims=True)
    weights = (Running(a, logits.value - top, logits.error) + 0.0).exp()
    weights = Running(a, weights.value, np.minimum(weights.error, 1.0))  # in 0..1 however wrong the logit is
    start = weights / weights.sum() + eps
    comb, entries = start.value, _logarithmic(start)
    divided = {1: np.zeros_like(comb[:, :1]), 2: np.zeros_like(comb[:, :, :1])}
    for axis in (1, *(2, 1) * (sinkhorn - 1)):
        sums = comb.sum(axis, keepdims=True) + eps
        comb = comb / sums
        inherited = (comb * np.exp(entries + divided[3 - axis])).sum(axis, keepdims=True) + eps / sums * np.exp(divided[axis])
        divided[axis] = np.log(inherited) - np.log1p(-a.unit) * (a.growth(comb.shape[axis]) + 1.0)
        entries = entries + _logarithmic(Running(a, comb, a.unit * comb + a.tiny))
    return Running(a, comb, comb * np.expm1(entries + divided[1] + divided[2]))


def _logarithmic(x: Running) -> np.ndarray:
    """How far the logarithm of a positive number may be off."""
    return -np.log1p(-np.minimum(x.error / np.maximum(x.value, 1e-300), 1.0))


@bound("elemwise.hc_fold", reduces="sum of {} streams", length=lambda given: given["post"].shape[-1] + 1)
def hc_fold(a: Arithmetic, exact: Exact, *, x: Running, streams: Running, post: Running, comb: Running) -> Running:
    """For each outgoing stream a sum of M + 1 products, in any order."""
    rows, m = post.shape
    weights = joined([post.reshape(rows, m, 1), comb.reshape(rows, m, m).transpose(0, 2, 1)])  # [rows, outgoing, x and incoming]
    values = joined([_apart(x, 1), _apart(streams, m)], 1)
    return weights.matmul(values).reshape(*streams.shape)


@bound("elemwise.hc_collapse", reduces="sum of {} streams", length=lambda given: given["stream_count"])
def hc_collapse(
    a: Arithmetic, exact: Exact, *, mixes: Running, streams: Running, scale: np.ndarray, base: np.ndarray, stream_count: int, eps: float
) -> Running:
    return _weighted((mixes * scale + base).sigmoid() + eps, streams)


@bound("elemwise.hc_mean", reduces="mean of {} streams", length=lambda given: given["stream_count"])
def hc_mean(a: Arithmetic, exact: Exact, *, streams: Running, stream_count: int) -> Running:
    return _apart(streams, stream_count).mean(1)[:, 0]


@bound("elemwise.hc_mix", reduces="mean of {} streams", length=lambda given: given["stream_count"])
def hc_mix(a: Arithmetic, exact: Exact, *, gates: Running, normed: Running, stream_count: int) -> Running:
    return hc_mean(a, exact, streams=gates.sigmoid() * normed, stream_count=stream_count)


@bound("elemwise.hc_inject")
def hc_inject(a: Arithmetic, exact: Exact, *, o: Running, gates: Running, stream_count: int, hyper: Running) -> Running:
    opened = 2.0 * (gates / stream_count).sigmoid()
    return (_apart(hyper, stream_count) + opened.reshape(*gates.shape, 1) * _apart(o, 1)).reshape(*hyper.shape)


@bound("elemwise.ple_gate", reduces="dot product of {} terms", length=lambda given: given["value"].shape[-1])
def ple_gate(a: Arithmetic, exact: Exact, *, key: Running, query: Running, value: Running, stream_count: int) -> Running:
    """Where the error of a dot product reaches past 0, its sign is open, and the signed root is off by up to twice the root."""
    width = value.shape[1]
    agreement = _apart(key * query, stream_count).sum() / np.sqrt(width)
    least = Running(a, np.maximum(np.abs(agreement.value), 1e-6), agreement.error + a.unit * 1e-6)
    root = least.sqrt()
    flipped = np.where(np.abs(agreement.value) <= agreement.error, 2.0 * root.value, 0.0)
    opened = Running(a, np.sign(agreement.value) * root.value, root.error + flipped).sigmoid()
    return (opened * _apart(value, 1)).reshape(*key.shape)
