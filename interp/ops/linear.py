"""ops.linear: matrix products, gated units and expert routing."""

from collections.abc import Callable

import numpy as np

from interp.call import Call
from interp.functions import gelu, gelu_tanh, sigmoid, silu
from poem.dtypes.tensor import Tensor


def matmul(call: Call, x: np.ndarray, w: Tensor, out: str | None) -> np.ndarray:
    """`x @ w^T`, by the activation rule of w."""
    return call.project(x, w)


def lm_head(call: Call, x: np.ndarray, w: Tensor, out: str | None) -> np.ndarray:
    """As matmul, over a vocabulary."""
    return call.project(x, w)


_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"silu": silu, "gelu_tanh": gelu_tanh, "gelu": gelu}


def glu(
    call: Call,
    x: np.ndarray,
    inter: int,
    act: str,
    up: np.ndarray | None,
    limit: float | None,
    alpha: float | None,
    beta: float | None,
    up_cap: float | None,
) -> np.ndarray:
    """An activated gate times the up projection; without `up` the gate is the first half of x."""
    real = call.numeric.real
    gate, up = (x[:, :inter], x[:, inter:]) if up is None else (x, up)
    if limit is not None:
        bound = real(limit)
        gate, up = np.fmin(gate, bound), np.fmin(np.fmax(up, -bound), bound)
    if alpha is not None:
        return (up + 1) * gate * sigmoid(gate * real(alpha))
    if act == "situ":
        assert beta is not None
        if up_cap is not None:
            up = real(up_cap) * np.tanh(up / real(up_cap))
        return real(beta) * np.tanh(gate / real(beta)) * sigmoid(gate) * up
    activated = _ACTIVATIONS[act](gate)
    activated *= up
    return activated
