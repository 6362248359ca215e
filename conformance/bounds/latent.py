"""Bounds of latent attention, and of merging parts of a softmax."""

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.attn import allowed_cells, by_lane, weighted_values
from conformance.bounds.norms import rms
from conformance.bounds.record import Cells, bound, integers
from conformance.running import Running
from poem.batch import Geometry

Exact = tuple[np.ndarray, ...]
integers("attn.mla_kv_append", results=0)


@bound("attn.mla_split_q", copies=True)
def mla_split_q(a: Arithmetic, exact: Exact, *, q: Running, heads: int, nope_dim: int, rope_dim: int) -> tuple[Running, ...]:
    by_head = q.reshape(q.shape[0], heads, -1)
    return by_head[..., :nope_dim].reshape(q.shape[0], -1), by_head[..., nope_dim:].reshape(q.shape[0], -1)


@bound("attn.mla_latents", reduces="mean of {} squares", length=lambda given: given["kv_lora_rank"])
def mla_latents(a: Arithmetic, exact: Exact, *, kv_a: Running, norm: np.ndarray, eps: float, kv_lora_rank: int) -> tuple[Running, Running]:
    """An rms norm of the latent; the rope part is a copy."""
    return rms(kv_a[:, :kv_lora_rank], eps) * norm, kv_a[:, kv_lora_rank:]


@bound("attn.mla_absorb_q", reduces="dot product of {} terms", length=lambda given: given["nope_dim"])
def mla_absorb_q(
    a: Arithmetic, exact: Exact, *, q_nope: Running, kv_b: np.ndarray, heads: int, kv_lora_rank: int, nope_dim: int, v_head_dim: int
) -> Running:
    """By head, a product with the key rows of kv_b."""
    rows = q_nope.shape[0]
    keys = kv_b.reshape(heads, nope_dim + v_head_dim, kv_lora_rank)[:, :nope_dim].astype(np.float64)
    by_head = q_nope.reshape(rows, heads, nope_dim).transpose(1, 0, 2)
    return by_head.matmul(keys).transpose(1, 0, 2).reshape(rows, -1)


@bound("attn.mla_absorb_out", reduces="dot product of {} terms", length=lambda given: given["kv_lora_rank"])
def mla_absorb_out(
    a: Arithmetic, exact: Exact, *, latent: Running, kv_b: np.ndarray, heads: int, kv_lora_rank: int, nope_dim: int, v_head_dim: int
) -> Running:
    """By head, a product with the value rows of kv_b."""
    rows = latent.shape[0]
    values = kv_b.reshape(heads, nope_dim + v_head_dim, kv_lora_rank)[:, nope_dim:].astype(np.float64)
    by_head = latent.reshape(rows, heads, kv_lora_rank).transpose(1, 0, 2)
    return by_head.matmul(values.transpose(0, 2, 1)).transpose(1, 0, 2).reshape(rows, -1)


@bound("attn.mla_attend", reduces="scores of {} terms", length=lambda given: given["kv_lora_rank"])
def mla_attend(
    a: Arithmetic, exact: Exact, *, q_latent: Running, q_pe: Running, cache: Cells, inputs: Geometry, heads: int, kv_lora_rank: int,
    sm_scale: float, selection: np.ndarray | None, ratio: int, lse: bool,
) -> Running | tuple[Running, ...]:  # fmt: skip
    """As attend, with one key head: scores are the sum of two dot products, and the latent is the value."""
    parts, logs = [], []
    for lane, start, end in inputs.lanes_with_rows:
        rows, new, cells = slice(start, end), end - start, int(inputs.kv_len[lane])
        latents, positional = cache.read(lane, 0, a), cache.read(lane, 1, a)
        queries = q_latent[rows].reshape(new, heads, -1).transpose(1, 0, 2)
        turned = q_pe[rows].reshape(new, heads, -1).transpose(1, 0, 2)
        scores = (queries.matmul(latents.transpose(1, 0)) + turned.matmul(positional.transpose(1, 0))) * sm_scale * 1.0
        chosen = None if selection is None else selection[rows]
        allowed = allowed_cells(inputs.positions[rows], cells, None, True, None, chosen, ratio)
        out, log = weighted_values(a, scores, allowed, latents, None)
        parts.append(out.transpose(1, 0, 2).reshape(new, -1))
        logs.append(log.transpose(1, 0, 2).reshape(new, -1))
    o = by_lane(a, parts, exact[0])
    return (o, by_lane(a, logs, exact[1])) if lse else o


@bound("attn.sink")
def sink(a: Arithmetic, exact: Exact, *, o: Running, lse: Running, sinks: np.ndarray, head_dim: int) -> Running:
    """o (1 / (1 + e^(sink - lse ln 2))), head by head; heads that saw nothing are copies. Of a quotient the factor may underflow, which a
    large o makes more of."""
    seen = np.isfinite(lse.value)
    log = Running(a, np.where(seen, lse.value, 0.0), np.where(seen, lse.error, 0.0)) * np.log(2.0)
    factor = 1.0 / ((sinks.astype(np.float64) - log).exp() + 1.0)
    by_head = o.reshape(o.shape[0], -1, head_dim)
    divided = by_head * factor.reshape(*factor.shape, 1)
    whole = seen[..., None]
    value, error = np.where(whole, divided.value, by_head.value), np.where(whole, divided.error, by_head.error)
    return Running(a, value, error).reshape(*o.shape)


@bound("attn.merge_lse")
def merge_lse(
    a: Arithmetic, exact: Exact, *, o1: Running, lse1: Running, o2: Running, lse2: Running, heads: int, head_dim: int
) -> tuple[Running, Running]:
    """Weights 2^(lse_i - max), whose errors are those of the exponents times ln 2; where one side saw nothing, the other is copied."""
    one, two = np.isfinite(lse1.value), np.isfinite(lse2.value)
    both = one & two
    top = np.where(both, np.maximum(lse1.value, lse2.value), 0.0)

    def weight(lse: Running) -> Running:
        given = Running(a, np.where(both, lse.value, 0.0), np.where(both, lse.error, 0.0))
        return ((given - top) * np.log(2.0)).exp()

    w1, w2 = weight(lse1), weight(lse2)
    total = w1 + w2
    sides = [side.reshape(side.shape[0], heads, head_dim) for side in (o1, o2)]
    mixed = (sides[0] * w1.reshape(*w1.shape, 1) + sides[1] * w2.reshape(*w2.shape, 1)) / total.reshape(*total.shape, 1)
    log = total.log() * (1.0 / np.log(2.0)) + top

    def chosen(merged: Running, first: Running, second: Running, spread: tuple[int, ...]) -> Running:
        masks = [mask.reshape(*mask.shape, *spread) for mask in (both, two & ~one)]
        parts = [[part.value, np.broadcast_to(part.error, part.shape)] for part in (merged, second, first)]
        value, error = (np.where(masks[0], parts[0][i], np.where(masks[1], parts[1][i], parts[2][i])) for i in (0, 1))
        return Running(a, value, error)

    return chosen(mixed, sides[0], sides[1], (1,)).reshape(*o1.shape), chosen(log, lse1, lse2, ())
