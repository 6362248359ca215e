"""ops.elemwise: row-local arithmetic, activations and gates.

Norms are in norms.py, rotary embeddings in rope.py and rope_axes.py, streams in hyper_connections.py, blends in mixing.py.
"""

import numpy as np

from interp import functions
from interp.call import Call
from interp.indices import rows_of
from interp.ops.hyper_connections import hc_collapse as hc_collapse
from interp.ops.hyper_connections import hc_expand as hc_expand
from interp.ops.hyper_connections import hc_fold as hc_fold
from interp.ops.hyper_connections import hc_gates as hc_gates
from interp.ops.hyper_connections import hc_inject as hc_inject
from interp.ops.hyper_connections import hc_mean as hc_mean
from interp.ops.hyper_connections import hc_mix as hc_mix
from interp.ops.hyper_connections import hc_project as hc_project
from interp.ops.hyper_connections import hc_rmsnorm_f32 as hc_rmsnorm_f32
from interp.ops.hyper_connections import ple_gate as ple_gate
from interp.ops.mixing import hadamard as hadamard
from interp.ops.mixing import relative_bucket_bias as relative_bucket_bias
from interp.ops.mixing import res_blend as res_blend
from interp.ops.norms import layernorm as layernorm
from interp.ops.norms import layernorm_no_scale as layernorm_no_scale
from interp.ops.norms import rmsnorm as rmsnorm
from interp.ops.norms import rmsnorm_gated as rmsnorm_gated
from interp.ops.norms import rmsnorm_gated_by as rmsnorm_gated_by
from interp.ops.norms import rmsnorm_grouped_plus_one as rmsnorm_grouped_plus_one
from interp.ops.norms import rmsnorm_no_scale as rmsnorm_no_scale
from interp.ops.norms import rmsnorm_per_head as rmsnorm_per_head
from interp.ops.norms import rmsnorm_per_head_plus_one as rmsnorm_per_head_plus_one
from interp.ops.norms import rmsnorm_plus_one as rmsnorm_plus_one
from interp.ops.norms import root_mean_square as root_mean_square
from interp.ops.rope import rope as rope
from interp.ops.rope_axes import rope_axes as rope_axes
from interp.ops.rope_axes import sinusoid as sinusoid
from poem.dtypes.tensor import Tensor

COPIES = ("copy", "hc_expand")


def add(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x + y`."""
    return x + y


def mul(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`x * y`."""
    return x * y


def residual_add(call: Call, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """`y + x`."""
    return y + x


def gated_residual_add(call: Call, r: np.ndarray, g: np.ndarray, y: np.ndarray, lane_of_row: np.ndarray | None) -> np.ndarray:
    """`r + g * y`, g by row or through lane_of_row."""
    return r + _by_row(call, "g", g, lane_of_row) * y


def modulate(call: Call, x: np.ndarray, m: np.ndarray, lane_of_row: np.ndarray | None, form: str) -> np.ndarray:
    """`x * (1 + s) + b` for m = [s | b], `x * (1 + m)`, or `tanh(m) * x`."""
    m = _by_row(call, "m", m, lane_of_row)
    if form == "tanh_gate":
        return np.tanh(m) * x
    if form == "scale":
        return x * (1 + m)
    return x * (1 + m[:, : x.shape[1]]) + m[:, x.shape[1] :]


def _by_row(call: Call, name: str, table: np.ndarray, lane_of_row: np.ndarray | None) -> np.ndarray:
    return table if lane_of_row is None else rows_of(call, "lane_of_row", lane_of_row, table, name)


def mul_scalar(call: Call, s: float, x: np.ndarray) -> np.ndarray:
    """`x * s`, s rounded to x's dtype."""
    return x * _number(call, s)


def _number(call: Call, number: float) -> np.ndarray:
    """A number as a value of x's dtype would hold it."""
    return call.numeric.round(np.array(number), call.dtype("x"))


def scale(call: Call, s: Tensor, x: np.ndarray) -> np.ndarray:
    """`x * s[0]`."""
    return x * call.weight(s)


def silu_scaled(call: Call, s: float, x: np.ndarray) -> np.ndarray:
    """`silu(s * x)`, s as it is."""
    return functions.silu(call.numeric.real(s) * x)


def clamp(call: Call, x: np.ndarray, lo: float, hi: float) -> np.ndarray:
    """x limited to lo .. hi, which are rounded to x's dtype; NaN gives lo."""
    return np.fmin(np.fmax(x, _number(call, lo)), _number(call, hi))


def clamp_learned(call: Call, x: np.ndarray, lo: Tensor, hi: Tensor) -> np.ndarray:
    """x limited to lo[0] .. hi[0]; NaN gives lo."""
    return np.fmin(np.fmax(x, call.weight(lo)), call.weight(hi))


def copy(call: Call, x: np.ndarray) -> np.ndarray:
    """x."""
    return x


def cast(call: Call, x: np.ndarray, dtype: str) -> np.ndarray:
    """x, to be rounded to dtype as it is stored."""
    return x


def add_bias(call: Call, bias: Tensor, x: np.ndarray) -> np.ndarray:
    """`x + bias` in every row."""
    return x + call.weight(bias)


def standardize(call: Call, x: np.ndarray, bias: Tensor, scale: Tensor) -> np.ndarray:
    """`(x - bias) * scale` in every row."""
    return (x - call.weight(bias)) * call.weight(scale)


def gate_sigmoid_mul(call: Call, x: np.ndarray, gate: np.ndarray) -> np.ndarray:
    """`x * sigma(gate)`."""
    return x * functions.sigmoid(gate)


def gate_sigmoid_mul_heads(call: Call, x: np.ndarray, gate: np.ndarray, head_dim: int, scale: float) -> np.ndarray:
    """Each head times `scale * sigma(gate)` of its own gate."""
    factors = call.numeric.real(scale) * functions.sigmoid(gate)
    return (x.reshape(*gate.shape, head_dim) * factors[:, :, None]).reshape(x.shape)


def silu(call: Call, x: np.ndarray) -> np.ndarray:
    """`x * sigma(x)`."""
    return functions.silu(x)


def gelu(call: Call, x: np.ndarray, tanh: bool) -> np.ndarray:
    """GELU by the error function, or by tanh."""
    return functions.gelu_tanh(x) if tanh else functions.gelu(x)


def tanh(call: Call, x: np.ndarray) -> np.ndarray:
    """`tanh(x)`."""
    return np.tanh(x)


def relu(call: Call, x: np.ndarray) -> np.ndarray:
    """`max(x, 0)`; NaN stays."""
    return np.where(x <= 0, 0, x)


def relu2(call: Call, x: np.ndarray) -> np.ndarray:
    """`max(x, 0)^2`; NaN stays."""
    return np.square(relu(call, x))
