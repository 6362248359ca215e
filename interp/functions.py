"""Elementwise functions that several ops are made of, on float32 and float64 arrays alike."""

import math
from collections.abc import Iterable

import numpy as np


def sigmoid(x: np.ndarray) -> np.ndarray:
    """`1 / (1 + e^-x)`."""
    t = np.negative(x)
    np.exp(t, out=t)
    t += 1
    return np.divide(1, t, out=t)


def silu(x: np.ndarray) -> np.ndarray:
    """`x / (1 + e^-x)`."""
    t = np.negative(x)
    np.exp(t, out=t)
    t += 1
    return np.divide(x, t, out=t)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """`0.5 x (1 + tanh(0.7978845608028654 (x + 0.044715 x^3)))`, PyTorch's tanh form of GELU."""
    t = x * x
    t *= 0.044715
    t += 1
    t *= x
    t *= 0.7978845608028654
    np.tanh(t, out=t)
    t += 1
    t *= x
    t *= 0.5
    return t


def gelu(x: np.ndarray) -> np.ndarray:
    """`0.5 x (1 + erf(x / sqrt 2))`."""
    t = erf(x * math.sqrt(0.5))
    t += 1
    t *= x
    t *= 0.5
    return t


def sum_in_order(parts: Iterable[np.ndarray]) -> np.ndarray:
    """The sum of arrays, the first two first: the same order for every element, however many rows there are."""
    first, *others = parts
    total = first.copy()
    for part in others:
        total = total + part
    return total


def softplus(x: np.ndarray) -> np.ndarray:
    """`ln(1 + e^x)`; x itself above 20."""
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969): numerators and
# denominators, highest power first; near 0 in x^2, in between in |x|, far out in 1 / x^2. Accurate to float64.
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1, 2.98635138197400131e2,
     8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3, 1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3, 3.29079923573345963e3,
     4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip
_FAR = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1, 1.60837851487422766e-2,
     6.58749161529837803e-4),
    (1.0, 2.56852019228982242, 1.87295284992346725, 5.27905102951428412e-1, 6.05183413124413191e-2, 2.33520497626869185e-3),
)  # fmt: skip
_NEAR_END, _MIDDLE_END, _ONE_FROM = 0.46875, 4.0, 6.0


def erf(x: np.ndarray) -> np.ndarray:
    """The error function, computed in float64, as x's type."""
    values = np.asarray(x, np.float64)
    size = np.abs(values)
    result = np.where(size < _ONE_FROM, values, np.sign(values))  # NaN stays NaN: its sign is NaN
    near = size <= _NEAR_END
    square = np.square(values[near])
    result[near] = values[near] * _ratio(_NEAR, square)
    middle = (size > _NEAR_END) & (size <= _MIDDLE_END)
    at = size[middle]
    result[middle] = np.copysign(1 - np.exp(-at * at) * _ratio(_MIDDLE, at), values[middle])
    far = (size > _MIDDLE_END) & (size < _ONE_FROM)
    at = size[far]
    inverse = 1 / np.square(at)
    tail = (math.sqrt(1 / math.pi) - inverse * _ratio(_FAR, inverse)) / at
    result[far] = np.copysign(1 - np.exp(-at * at) * tail, values[far])
    return result.astype(x.dtype)


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], x: np.ndarray) -> np.ndarray:
    top, bottom = (np.polyval(part, x) for part in coefficients)
    return top / bottom
