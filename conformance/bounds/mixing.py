"""Bounds of rotations and blends of whole rows, and of tables of biases."""

import numpy as np

from conformance.arithmetic import Arithmetic
from conformance.bounds.attn import weighted_values
from conformance.bounds.norms import rms
from conformance.bounds.record import bound
from conformance.running import Running, joined
from poem.batch import Geometry

Exact = tuple[np.ndarray, ...]


@bound("elemwise.hadamard", reduces="signed sum of {} terms", length=lambda given: given["block"])
def hadamard(a: Arithmetic, exact: Exact, *, x: Running, block: int, signs: np.ndarray | None) -> Running:
    """Every result is a signed sum over its block, divided by the root of the block."""
    summed = Running(a, np.abs(x.value), x.error).reshape(x.shape[0], -1, block).sum()
    error = np.broadcast_to(summed.error, (x.shape[0], x.shape[1] // block, block)).reshape(*x.shape)
    return Running(a, exact[0] * np.sqrt(block), error) / np.sqrt(block)


@bound("elemwise.relative_bucket_bias", copies=True)
def relative_bucket_bias(
    a: Arithmetic, exact: Exact, *, inputs: Geometry, embedding: np.ndarray, max_len: int, buckets: int, max_distance: int,
    bidirectional: bool,
) -> Running:  # fmt: skip
    """Copies of a weight: buckets are integers."""
    return Running(a, exact[0])


@bound("elemwise.res_blend", reduces="dot product of {} terms", length=lambda given: given["prefix"].shape[-1])
def res_blend(
    a: Arithmetic, exact: Exact, *, prefix: Running, blocks: list[Running], norm: np.ndarray, eps: float, proj: np.ndarray, scale: float,
    values: str,
) -> Running:  # fmt: skip
    """An attention over the history, whose keys are the normed rows and whose query is proj."""
    rows, width = prefix.shape
    history = joined([value.reshape(rows, 1, width) for value in (*blocks, prefix)], 1)  # [rows, values, width]
    normed = rms(history, eps) * norm
    scores = (scale * (normed * proj).sum()).reshape(rows, 1, -1)
    blended, _ = weighted_values(a, scores, np.ones(scores.shape, bool), normed if values == "normed" else history, None)
    return blended.reshape(rows, width)
