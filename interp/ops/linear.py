"""ops.linear: matrix products, gated units and adapters. Mixtures of experts are in mixture.py."""

from collections.abc import Callable

import numpy as np

from interp import functions
from interp.call import Call
from interp.functions import gelu, sigmoid, silu
from interp.indices import within
from interp.ops.mixture import moe_bias_sum as moe_bias_sum
from interp.ops.mixture import moe_matmul_select as moe_matmul_select
from interp.ops.mixture import moe_route as moe_route
from interp.ops.mixture import moe_sigmoid_gate_add as moe_sigmoid_gate_add
from interp.ops.mixture import moe_weighted_sum as moe_weighted_sum
from poem.dtypes.tensor import Tensor


def matmul(call: Call, x: np.ndarray, w: Tensor, out: str | None) -> np.ndarray:
    """`x @ w^T`, by the activation rule of w."""
    return call.project(x, w)


def lm_head(call: Call, x: np.ndarray, w: Tensor, out: str | None) -> np.ndarray:
    """As matmul, over a vocabulary."""
    return call.project(x, w)


_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {"silu": silu, "gelu_tanh": functions.gelu_tanh, "gelu": gelu}


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


def gelu_tanh(call: Call, x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU."""
    return functions.gelu_tanh(x)


def group_routes(call: Call, x: np.ndarray, groups: int) -> np.ndarray:
    """Every row visits every group: `0 .. groups - 1` in each row."""
    return np.tile(np.arange(groups, dtype=np.int32), (len(x), 1))


def matmul_grouped(call: Call, x: np.ndarray, w: Tensor, routes: np.ndarray, groups: int) -> np.ndarray:
    """Each group of columns of x times its own rows of w."""
    width, height = x.shape[1] // groups, w.shape[0] // groups
    products = [
        call.project(x[:, group * width : (group + 1) * width], w, slice(group * height, (group + 1) * height)) for group in range(groups)
    ]
    return np.concatenate(products, axis=1)


def rel_bias(call: Call, x: np.ndarray, w: Tensor, heads: int, d_rel: int, extent: int) -> np.ndarray:
    """`x_h @ w` for each head's d_rel columns."""
    by_head = x.reshape(len(x) * heads, d_rel)
    return call.numeric.matmul(by_head, np.ascontiguousarray(call.weight(w).T)).reshape(len(x), heads * extent)


def lora_correct(call: Call, x: np.ndarray, bank_a: Tensor, bank_b: Tensor, routes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`y + bank_b[a] @ (bank_a[a] @ x)` for the rows with an adapter a; the inner product is rounded to x's dtype."""
    adapters = bank_a.shape[0]
    within(call, "routes", np.maximum(routes, 0), adapters, f"there are {adapters} adapters")
    corrected = y.copy()
    for adapter in np.unique(routes[routes >= 0]).tolist():
        rows = np.flatnonzero(routes == adapter)
        chosen = slice(adapter, adapter + 1)
        inner = call.numeric.round(call.project(x[rows], bank_a, chosen), call.dtype("x"))
        corrected[rows] += call.project(inner, bank_b, chosen)
    return corrected
