"""ops.elemwise: rotations and blends of whole rows, and bias tables by distance."""

import math
from functools import lru_cache

import numpy as np

from interp.call import Call
from interp.functions import sum_in_order
from interp.ops.norms import root_mean_square
from poem.batch import Geometry
from poem.dtypes.tensor import Tensor


def hadamard(call: Call, x: np.ndarray, block: int, signs: Tensor | None) -> np.ndarray:
    """Each run of `block` columns, signed, times the Hadamard matrix over `sqrt(block)`.

    `H_2n (a, b) = (H_n (a + b), H_n (a - b))`: sums and differences of neighbours, then of pairs, and so on.
    """
    rows, width = x.shape
    y = x
    if signs is not None:
        sign = call.weight(signs)
        y = y * sign[np.arange(width) % len(sign)]
    half = 1
    while half < block:
        pairs = y.reshape(rows, width // (2 * half), 2, half)
        y = np.stack([pairs[:, :, 0] + pairs[:, :, 1], pairs[:, :, 0] - pairs[:, :, 1]], axis=2)
        half *= 2
    return y.reshape(rows, width) / call.numeric.real(math.sqrt(block))


def relative_bucket_bias(
    call: Call, inputs: Geometry, embedding: Tensor, max_len: int, buckets: int, max_distance: int, bidirectional: bool
) -> np.ndarray:
    """T5's biases by head and signed distance: `[H, 2 max_len - 1]`, distance 0 in the middle column."""
    of_distance = [relative_bucket(distance, buckets, max_distance, bidirectional) for distance in range(1 - max_len, max_len)]
    return call.weight(embedding)[of_distance].T


@lru_cache(maxsize=4096)
def relative_bucket(distance: int, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of `key index - query index`: one for each near distance, then growing ones up to max_distance.

    Far from the query it is `e + floor(ln(m / e) / ln(max_distance / e) * (buckets - e))`, found without rounding as the most
    steps k with `(max_distance / e)^k <= (m / e)^(buckets - e)`.
    """
    base, magnitude = 0, max(-distance, 0)
    if bidirectional:
        buckets //= 2
        base, magnitude = (buckets if distance > 0 else 0), abs(distance)
    near = buckets // 2
    if magnitude < near:
        return base + magnitude
    far = buckets - near
    reached = magnitude**far
    step = 0
    while step < far - 1 and max_distance ** (step + 1) * near**far <= reached * near ** (step + 1):
        step += 1
    return base + near + step


def res_blend(
    call: Call, prefix: np.ndarray, blocks: list[np.ndarray], norm: Tensor, eps: float, proj: Tensor, scale: float, values: str
) -> np.ndarray:
    """A softmax blend of the blocks and the prefix, weighted by how their normed rows project."""
    gain, direction = call.weight(norm), call.weight(proj)
    history = [*blocks, prefix]
    normed = [value / root_mean_square(value, eps) * gain for value in history]
    logits = [call.numeric.real(scale) * np.add.reduce(row * direction, axis=1, keepdims=True) for row in normed]
    largest = np.max(logits, axis=0)
    weights = [np.exp(logit - largest) for logit in logits]
    total = sum_in_order(weights)
    blended = normed if values == "normed" else history
    return sum_in_order([weight / total * value for weight, value in zip(weights, blended, strict=True)])
