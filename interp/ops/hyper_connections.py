"""ops.elemwise: several residual streams: hyper-connections and the stream mixing of qwen_4.

M streams of width H lie side by side: `[rows, M * H]`.
"""

import math
from collections.abc import Iterable

import numpy as np

from interp.call import Call
from interp.functions import sigmoid, sum_in_order
from interp.ops.norms import root_mean_square
from poem.dtypes.tensor import Tensor


def _streams(x: np.ndarray, count: int) -> np.ndarray:
    """`[rows, M, H]`."""
    return x.reshape(len(x), count, x.shape[1] // count)


def _weighted(weights: np.ndarray, streams: np.ndarray) -> np.ndarray:
    """`sum_s weights[:, s] * streams[:, s]`, in the order of the streams."""
    return sum_in_order(weights[:, s, None] * streams[:, s] for s in range(streams.shape[1]))


def hc_expand(call: Call, x: np.ndarray, stream_count: int) -> np.ndarray:
    """x in every stream."""
    return np.tile(x, (1, stream_count))


def hc_rmsnorm_f32(call: Call, streams: np.ndarray, eps: float) -> np.ndarray:
    """All streams of a row over their root mean square."""
    return streams / root_mean_square(streams, eps)


def hc_project(call: Call, normed: np.ndarray, dynamic: Tensor, stream_count: int) -> np.ndarray:
    """`normed @ dynamic^T`."""
    return call.project(normed, dynamic)


def hc_gates(
    call: Call,
    mixes: np.ndarray,
    streams: np.ndarray,
    scale: Tensor,
    base: Tensor,
    stream_count: int,
    eps: float,
    alpha: float,
    sinkhorn: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The block's input, and post and comb by which hc_fold writes its result back."""
    m, real = stream_count, call.numeric.real
    scales = np.repeat(call.weight(scale), [m, m, m * m])
    logits = mixes * scales + call.weight(base)
    before = sigmoid(logits[:, :m]) + real(eps)
    post = real(alpha) * sigmoid(logits[:, m : 2 * m])
    comb = _doubly_normalised(logits[:, 2 * m :].reshape(-1, m, m), real(eps), sinkhorn)
    return _weighted(before, _streams(streams, m)), post, comb.reshape(-1, m * m)


def _doubly_normalised(logits: np.ndarray, eps: np.floating, sinkhorn: int) -> np.ndarray:
    """Softmax over each row of the matrices [rows, M, M], then Sinkhorn's turns of dividing columns and rows by their sums."""
    size = logits.shape[1]
    largest = logits.max(axis=2, keepdims=True)
    weights = np.exp(logits - largest)
    comb = weights / sum_in_order(weights[:, :, j, None] for j in range(size)) + eps
    comb = comb / (sum_in_order(comb[:, i, None, :] for i in range(size)) + eps)
    for _ in range(sinkhorn - 1):
        comb = comb / (sum_in_order(comb[:, :, j, None] for j in range(size)) + eps)
        comb = comb / (sum_in_order(comb[:, i, None, :] for i in range(size)) + eps)
    return comb


def hc_fold(call: Call, x: np.ndarray, streams: np.ndarray, post: np.ndarray, comb: np.ndarray) -> np.ndarray:
    """Stream j becomes `post_j * x + sum_i comb[i, j] * stream_i`."""
    count = post.shape[1]
    apart, mix = _streams(streams, count), comb.reshape(-1, count, count)
    return _side_by_side(post[:, j, None] * x + _weighted(mix[:, :, j], apart) for j in range(count))


def _side_by_side(streams: Iterable[np.ndarray]) -> np.ndarray:
    return np.concatenate(list(streams), axis=1)


def hc_collapse(
    call: Call, mixes: np.ndarray, streams: np.ndarray, scale: Tensor, base: Tensor, stream_count: int, eps: float
) -> np.ndarray:
    """The streams summed by the sigmoids of their mixes."""
    weights = sigmoid(mixes * call.weight(scale) + call.weight(base)) + call.numeric.real(eps)
    return _weighted(weights, _streams(streams, stream_count))


def hc_mean(call: Call, streams: np.ndarray, stream_count: int) -> np.ndarray:
    """The mean of the streams."""
    apart = _streams(streams, stream_count)
    return sum_in_order(apart[:, s] for s in range(stream_count)) / stream_count


def hc_mix(call: Call, gates: np.ndarray, normed: np.ndarray, stream_count: int) -> np.ndarray:
    """The mean of the streams, each element times the sigmoid of its gate."""
    return hc_mean(call, sigmoid(gates) * normed, stream_count)


def hc_inject(call: Call, o: np.ndarray, gates: np.ndarray, stream_count: int, hyper: np.ndarray) -> np.ndarray:
    """`hyper_s + 2 sigma(gates_s / M) * o`."""
    weights = 2 * sigmoid(gates / stream_count)
    return hyper + _side_by_side(weights[:, s, None] * o for s in range(stream_count))


def ple_gate(call: Call, key: np.ndarray, query: np.ndarray, value: np.ndarray, stream_count: int) -> np.ndarray:
    """The value in every stream, times the sigmoid of the signed root of `<key_s, query_s> / sqrt(H)`."""
    real = call.numeric.real
    width = key.shape[1] // stream_count
    agreement = np.add.reduce(_streams(key * query, stream_count), axis=2) / real(math.sqrt(width))
    weights = sigmoid(np.sign(agreement) * np.sqrt(np.maximum(np.abs(agreement), real(1e-6))))
    return _side_by_side(weights[:, s, None] * value for s in range(stream_count))
