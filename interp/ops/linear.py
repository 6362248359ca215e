"""ops.linear: matrix products, gated units and expert routing."""

import numpy as np

from interp.call import Call
from poem.dtypes.tensor import Tensor


def matmul(call: Call, x: np.ndarray, w: Tensor, out: str | None) -> np.ndarray:
    """`x @ w^T`, by the activation rule of w."""
    return call.project(x, w)


def lm_head(call: Call, x: np.ndarray, w: Tensor, out: str | None) -> np.ndarray:
    """As matmul, over a vocabulary."""
    return call.project(x, w)
