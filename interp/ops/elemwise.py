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
    mean = np.square(x).mean(axis=-1, keepdims=True)
    return x / np.sqrt(mean + call.numeric.real(eps)) * call.weight(w)
