"""ops.elemwise: root-mean-square and layer norms."""

import numpy as np

from interp.call import Call
from interp.functions import sigmoid, silu
from poem.dtypes.tensor import Tensor


def root_mean_square(x: np.ndarray, eps: float) -> np.ndarray:
    """`sqrt(mean(x^2) + eps)` over the last axis, which is kept with extent 1."""
    return np.sqrt(np.add.reduce(x * x, axis=-1, keepdims=True) / x.shape[-1] + eps)


def _normed_runs(x: np.ndarray, size: int, eps: float) -> np.ndarray:
    """Each run of `size` columns divided by its root mean square: [rows, runs, size]."""
    runs = x.reshape(len(x), x.shape[1] // size, size)
    return runs / root_mean_square(runs, eps)


def rmsnorm(call: Call, x: np.ndarray, w: Tensor, eps: float) -> np.ndarray:
    """`x / sqrt(mean(x^2) + eps) * w`, over the whole row."""
    return x / root_mean_square(x, eps) * call.weight(w)


def rmsnorm_plus_one(call: Call, x: np.ndarray, w: Tensor, eps: float) -> np.ndarray:
    """rmsnorm with the gain `1 + w`."""
    return x / root_mean_square(x, eps) * (1 + call.weight(w))


def rmsnorm_per_head(call: Call, x: np.ndarray, w: Tensor, head_dim: int, eps: float) -> np.ndarray:
    """rmsnorm of each head, one gain for all heads."""
    return (_normed_runs(x, head_dim, eps) * call.weight(w)).reshape(x.shape)


def rmsnorm_per_head_plus_one(call: Call, x: np.ndarray, w: Tensor, head_dim: int, eps: float) -> np.ndarray:
    """rmsnorm of each head with the gain `1 + w`."""
    return (_normed_runs(x, head_dim, eps) * (1 + call.weight(w))).reshape(x.shape)


def rmsnorm_no_scale(call: Call, x: np.ndarray, head_dim: int, eps: float) -> np.ndarray:
    """rmsnorm of each run of head_dim columns, without a gain."""
    return _normed_runs(x, head_dim, eps).reshape(x.shape)


def rmsnorm_grouped_plus_one(call: Call, x: np.ndarray, w: Tensor, group: int, eps: float) -> np.ndarray:
    """rmsnorm of each run of `group` columns, with a gain `1 + w` for every column of the row."""
    return _normed_runs(x, group, eps).reshape(x.shape) * (1 + call.weight(w))


def rmsnorm_gated(
    call: Call, x: np.ndarray, gate: np.ndarray, w: Tensor, head_dim: int, eps: float, act: str, gate_first: bool
) -> np.ndarray:
    """rmsnorm of each run of head_dim columns times the activated gate, or of x times the activated gate."""
    activated = silu(gate) if act == "silu" else sigmoid(gate)
    gain = call.weight(w).reshape(-1, head_dim)  # one for all runs, or one for each
    if gate_first:
        return (_normed_runs(x * activated, head_dim, eps) * gain).reshape(x.shape)
    return (_normed_runs(x, head_dim, eps) * gain).reshape(x.shape) * activated


def rmsnorm_gated_by(call: Call, x: np.ndarray, gate: np.ndarray, w: Tensor, heads: int, eps: float) -> np.ndarray:
    """rmsnorm of each head times the sigmoid of the gate."""
    return rmsnorm_gated(call, x, gate, w, x.shape[1] // heads, eps, "sigmoid", False)


def layernorm(call: Call, x: np.ndarray, w: Tensor | None, b: Tensor | None, eps: float) -> np.ndarray:
    """`(x - m) / sqrt(v + eps) * w + b`, with the row's mean m and biased variance v."""
    centred = x - np.add.reduce(x, axis=1, keepdims=True) / x.shape[1]
    y = centred / root_mean_square(centred, eps)
    if w is not None:
        y *= call.weight(w)
    if b is not None:
        y += call.weight(b)
    return y


def layernorm_no_scale(call: Call, x: np.ndarray, eps: float) -> np.ndarray:
    """layernorm without gain and bias."""
    return layernorm(call, x, None, None, eps)
