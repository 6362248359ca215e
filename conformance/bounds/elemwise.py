"""Bounds of ops.elemwise: row-local arithmetic and activations, step by step as their formulas say."""

from collections.abc import Callable

import numpy as np

from conformance.arithmetic import Arithmetic, half_spacing
from conformance.bounds.record import bound, copies
from conformance.running import Running

Exact = tuple[np.ndarray, ...]
copies("elemwise.copy")


@bound("elemwise.add", "elemwise.residual_add")
def add(a: Arithmetic, exact: Exact, *, x: np.ndarray, y: np.ndarray) -> Running:
    return Running(a, x) + y


@bound("elemwise.mul")
def mul(a: Arithmetic, exact: Exact, *, x: np.ndarray, y: np.ndarray) -> Running:
    return Running(a, x) * y


@bound("elemwise.mul_scalar")
def mul_scalar(a: Arithmetic, exact: Exact, *, s: float, x: np.ndarray) -> Running:
    """Native mode rounds the scalar to x's dtype first, which is the result's."""
    return Running(a, x) * Running(a, s, _scalar_error(a, s))


def _scalar_error(a: Arithmetic, scalar: float) -> float:
    """The error of an f32 scalar that is rounded to the dtype of results."""
    return float(half_spacing(np.float64(abs(scalar)), a.results)) if a.results in ("bf16", "f16") else 0.0


@bound("elemwise.scale")
def scale(a: Arithmetic, exact: Exact, *, s: np.ndarray, x: np.ndarray) -> Running:
    return Running(a, x) * s[0]


@bound("elemwise.add_bias")
def add_bias(a: Arithmetic, exact: Exact, *, bias: np.ndarray, x: np.ndarray) -> Running:
    return Running(a, x) + bias


@bound("elemwise.clamp")
def clamp(a: Arithmetic, exact: Exact, *, x: np.ndarray, lo: float, hi: float) -> Running:
    """Exact but for the bounds, which native mode rounds to x's dtype."""
    slack = max(_scalar_error(a, lo), _scalar_error(a, hi))
    return Running(a, exact[0], np.where((x <= lo + slack) | (x >= hi - slack), slack, 0.0))


@bound("elemwise.standardize")
def standardize(a: Arithmetic, exact: Exact, *, x: np.ndarray, bias: np.ndarray, scale: np.ndarray) -> Running:
    return (Running(a, x) - bias) * scale


@bound("elemwise.gate_sigmoid_mul")
def gate_sigmoid_mul(a: Arithmetic, exact: Exact, *, x: np.ndarray, gate: np.ndarray) -> Running:
    return Running(a, x) * Running(a, gate).sigmoid()


@bound("elemwise.gelu")
def gelu(a: Arithmetic, exact: Exact, *, x: np.ndarray, tanh: bool) -> Running:
    return Running(a, x).gelu_tanh() if tanh else Running(a, x).gelu()


@bound("elemwise.cast")
def cast(a: Arithmetic, exact: Exact, *, x: np.ndarray, dtype: str) -> Running:
    """The rounding of the result, nothing else."""
    return Running(a, x)


@bound("elemwise.silu_scaled")
def silu_scaled(a: Arithmetic, exact: Exact, *, s: float, x: np.ndarray) -> Running:
    return (s * Running(a, x)).silu()


def _unary(op: str, formula: Callable[[Running], Running]) -> None:
    @bound(op)
    def step_by_step(a: Arithmetic, exact: Exact, *, x: np.ndarray) -> Running:
        return formula(Running(a, x))


_unary("elemwise.silu", Running.silu)
_unary("elemwise.tanh", Running.tanh)
_unary("elemwise.relu", lambda x: x.clipped(0.0, np.inf))
_unary("elemwise.relu2", lambda x: x.clipped(0.0, np.inf) * x.clipped(0.0, np.inf))
