"""ops.elemwise: row-local arithmetic, norms and rotary positions."""

import numpy as np

from interp.call import Call
from interp.ops.rope import rope as rope
from poem.dtypes.tensor import Tensor


def residual_add(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`y + x`."""
    return y + x


def rmsnorm(call: Call, x: np.ndarray, w: Tensor, eps: float) -> np.ndarray:
    """`x / sqrt(mean(x^2) + eps) * w`, over the whole row."""
    y = x / root_mean_square(x, eps)
    y *= call.weight(w)
    return y


def root_mean_square(x: np.ndarray, eps: float) -> np.ndarray:
    """`sqrt(mean(x^2) + eps)` over the last axis, which is kept with extent 1."""
    mean = np.add.reduce(x * x, axis=-1, keepdims=True)
    mean /= x.shape[-1]
    mean += eps
    return np.sqrt(mean, out=mean)
