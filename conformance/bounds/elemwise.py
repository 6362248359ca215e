"""Bounds of ops.elemwise: row-local arithmetic and activations, step by step as their formulas say.

Norms are in norms.py, rotary embeddings in rotary.py, streams in hyper_connections.py, blends in mixing.py.
"""

from collections.abc import Callable

import numpy as np

from conformance.arithmetic import Arithmetic, half_spacing
from conformance.bounds.record import bound
from conformance.running import Running

Exact = tuple[np.ndarray, ...]


@bound("elemwise.copy", copies=True)
def copy(a: Arithmetic, exact: Exact, *, x: Running) -> Running:
    return x


@bound("elemwise.add", "elemwise.residual_add")
def add(a: Arithmetic, exact: Exact, *, x: Running, y: Running) -> Running:
    return x + y


@bound("elemwise.mul")
def mul(a: Arithmetic, exact: Exact, *, x: Running, y: Running) -> Running:
    return x * y


@bound("elemwise.mul_scalar")
def mul_scalar(a: Arithmetic, exact: Exact, *, s: float, x: Running) -> Running:
    """Native mode rounds the scalar to x's dtype first, which is the result's."""
    return x * Running(a, s, _scalar_error(a, s))


def _scalar_error(a: Arithmetic, scalar: float) -> float:
    """The error of an f32 scalar that is rounded to the dtype of results."""
    return float(half_spacing(abs(scalar), a.results)) if a.results in ("bf16", "f16") else 0.0


@bound("elemwise.scale")
def scale(a: Arithmetic, exact: Exact, *, s: np.ndarray, x: Running) -> Running:
    return x * float(s[0])


@bound("elemwise.add_bias")
def add_bias(a: Arithmetic, exact: Exact, *, bias: np.ndarray, x: Running) -> Running:
    return x + bias


@bound("elemwise.clamp")
def clamp(a: Arithmetic, exact: Exact, *, x: Running, lo: float, hi: float) -> Running:
    """Exact but for the bounds, which native mode rounds to x's dtype; a NaN becomes one of them."""
    slack = max(_scalar_error(a, lo), _scalar_error(a, hi))
    inside = (x.value > lo + slack + x.error) & (x.value < hi - slack - x.error)
    return Running(a, exact[0], x.error + np.where(inside, 0.0, slack))


@bound("elemwise.clamp_learned")
def clamp_learned(a: Arithmetic, exact: Exact, *, x: Running, lo: np.ndarray, hi: np.ndarray) -> Running:
    """Exact: the bounds are weights."""
    return Running(a, exact[0], x.error)


@bound("elemwise.gate_sigmoid_mul_heads")
def gate_sigmoid_mul_heads(a: Arithmetic, exact: Exact, *, x: Running, gate: Running, head_dim: int, scale: float) -> Running:
    opened = (gate.sigmoid() * scale).reshape(*gate.shape, 1)
    return (x.reshape(x.shape[0], -1, head_dim) * opened).reshape(*x.shape)


@bound("elemwise.gated_residual_add")
def gated_residual_add(a: Arithmetic, exact: Exact, *, r: Running, g: Running, y: Running, lane_of_row: np.ndarray | None) -> Running:
    return r + (g if lane_of_row is None else g[lane_of_row]) * y


@bound("elemwise.modulate")
def modulate(a: Arithmetic, exact: Exact, *, x: Running, m: Running, lane_of_row: np.ndarray | None, form: str) -> Running:
    m = m if lane_of_row is None else m[lane_of_row]
    if form == "tanh_gate":
        return m.tanh() * x
    width = x.shape[1]
    scaled = x * (m[:, :width] + 1.0)
    return scaled if form == "scale" else scaled + m[:, width:]


@bound("elemwise.standardize")
def standardize(a: Arithmetic, exact: Exact, *, x: Running, bias: np.ndarray, scale: np.ndarray) -> Running:
    return (x - bias) * scale


@bound("elemwise.gate_sigmoid_mul")
def gate_sigmoid_mul(a: Arithmetic, exact: Exact, *, x: Running, gate: Running) -> Running:
    return x * gate.sigmoid()


@bound("elemwise.gelu")
def gelu(a: Arithmetic, exact: Exact, *, x: Running, tanh: bool) -> Running:
    return x.gelu_tanh() if tanh else x.gelu()


@bound("elemwise.cast")
def cast(a: Arithmetic, exact: Exact, *, x: Running, dtype: str) -> Running:
    """The rounding of the result, nothing else."""
    return x


@bound("elemwise.silu_scaled")
def silu_scaled(a: Arithmetic, exact: Exact, *, s: float, x: Running) -> Running:
    return (s * x).silu()


def _unary(op: str, formula: Callable[[Running], Running]) -> None:
    @bound(op)
    def step_by_step(a: Arithmetic, exact: Exact, *, x: Running) -> Running:
        return formula(x)


_unary("elemwise.silu", Running.silu)
_unary("elemwise.tanh", Running.tanh)
_unary("elemwise.relu", lambda x: x.clipped(0.0, np.inf))
_unary("elemwise.relu2", lambda x: x.clipped(0.0, np.inf) * x.clipped(0.0, np.inf))
