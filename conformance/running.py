"""Running error analysis: a value on real numbers, and how far f32 arithmetic may be from it.

Every step of a formula adds its own rounding and carries on the errors of its operands (Wilkinson's running error
analysis; Higham, "Accuracy and Stability of Numerical Algorithms", section 3.3). Values are float64, so that a bound
of an op is its formula, written once more.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from conformance.arithmetic import PRECISION, Arithmetic, half_spacing

Number = float | np.ndarray


class Running:
    """`value`: the formula on real numbers. `error`: a bound of |computed - value|, broadcastable to it."""

    __slots__ = ("arithmetic", "error", "value")
    __array_priority__ = 1000.0  # so that `array * running` comes here

    def __init__(self, arithmetic: Arithmetic, value: Number, error: Number = 0.0) -> None:
        self.arithmetic, self.value, self.error = arithmetic, np.asarray(value, np.float64), error

    # -- steps ---------------------------------------------------------------------------------
    def _rounded(self, value: np.ndarray, error: Number, underflow: bool = False) -> "Running":
        """A step whose operands alone cause `error`: one rounding more."""
        step = self.arithmetic.unit * (np.abs(value) + error)
        return self._step(value, error + step + (self.arithmetic.tiny if underflow else 0.0))

    def _function(self, value: np.ndarray, error: Number) -> "Running":
        """A library function whose operand alone causes `error`."""
        return self._step(value, error + self.arithmetic.function * (np.abs(value) + error) + self.arithmetic.tiny)

    def _step(self, value: np.ndarray, error: Number) -> "Running":
        """What a step gives. Infinity and NaN are exact: no error takes a finite number for them."""
        if self.arithmetic.special:
            error = np.where(np.isfinite(value), error, 0.0)
        return Running(self.arithmetic, value, error)

    def _other(self, other: "Running | Number") -> "Running":
        """Arrays are operands, known exactly. A number is a constant of the formula: f32 holds it, or rounds it."""
        if isinstance(other, Running):
            return other
        is_constant = not isinstance(other, np.ndarray) and float(np.float32(other)) != other
        return Running(self.arithmetic, other, self.arithmetic.unit * np.abs(other) if is_constant else 0.0)

    def __add__(self, other: "Running | Number") -> "Running":
        other = self._other(other)
        return self._rounded(self.value + other.value, self.error + other.error)

    __radd__ = __add__

    def __neg__(self) -> "Running":
        return Running(self.arithmetic, -self.value, self.error)

    def __sub__(self, other: "Running | Number") -> "Running":
        return self + -self._other(other)

    def __rsub__(self, other: "Running | Number") -> "Running":
        return self._other(other) + -self

    def __mul__(self, other: "Running | Number") -> "Running":
        other = self._other(other)
        error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
        return self._rounded(self.value * other.value, error, underflow=True)

    __rmul__ = __mul__

    def __truediv__(self, other: "Running | Number") -> "Running":
        other = self._other(other)
        with np.errstate(divide="ignore", invalid="ignore"):
            value = self.value / other.value
            room = np.abs(other.value) - other.error
            error = np.where(room > 0, (self.error + np.abs(value) * other.error) / room, np.inf)
        return self._rounded(value, error, underflow=True)

    def __rtruediv__(self, other: "Running | Number") -> "Running":
        return self._other(other) / self

    # -- copies ----------------------------------------------------------------------------------
    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def errors(self) -> np.ndarray:
        """`error`, one number an element."""
        error = self.error
        return error if isinstance(error, np.ndarray) and error.shape == self.value.shape else np.broadcast_to(error, self.value.shape)

    @property
    def inexact(self) -> bool:
        """Whether there may be an error."""
        return isinstance(self.error, np.ndarray) or self.error != 0.0

    def _moved(self, move: "Callable[[np.ndarray], np.ndarray]") -> "Running":
        error = move(self.errors) if self.inexact else 0.0
        return Running(self.arithmetic, move(self.value), error)

    def __getitem__(self, index: Any) -> "Running":
        return self._moved(lambda array: array[index])

    def reshape(self, *shape: int) -> "Running":
        return self._moved(lambda array: array.reshape(*shape))

    def transpose(self, *axes: int) -> "Running":
        return self._moved(lambda array: array.transpose(*axes))

    def stored(self, dtype: str | None) -> "Running":
        """Rounded to a dtype. The last step of an op already rounded to f32, so only narrower ones count; "" is none."""
        error = self.errors
        if dtype and PRECISION[dtype][0] < PRECISION["f32"][0]:
            error = error + half_spacing(np.abs(self.value) + error, dtype)
        return Running(self.arithmetic, self.value, error)

    # -- reductions ----------------------------------------------------------------------------
    def sum(self, axis: int = -1) -> "Running":
        """The sum over an axis, kept as an extent of 1, in any order."""
        terms = self.value.shape[axis]
        error = self.errors
        inherited = error.sum(axis, keepdims=True)
        steps = self.arithmetic.growth(terms) * self.arithmetic.unit * (np.abs(self.value) + error).sum(axis, keepdims=True)
        return self._step(self.value.sum(axis, keepdims=True), inherited + steps)

    def mean(self, axis: int = -1) -> "Running":
        return self.sum(axis) / self.value.shape[axis]

    def matmul(self, other: "Running | np.ndarray") -> "Running":
        """The matrix product `self @ other`, each entry summed in any order."""
        other = self._other(other)
        terms = self.value.shape[-1]
        mine, its = np.abs(self.value), np.abs(other.value)
        worst = (mine + self.error) @ (its + other.error)
        inherited = worst - mine @ its if self.inexact or other.inexact else 0.0
        steps = self.arithmetic.growth(terms) * self.arithmetic.unit * worst + terms * self.arithmetic.tiny
        return self._step(self.value @ other.value, inherited + steps)

    # -- functions -----------------------------------------------------------------------------
    def sqrt(self) -> "Running":
        value = np.sqrt(self.value)
        return self._rounded(value, value - np.sqrt(np.maximum(self.value - self.error, 0.0)))

    def rsqrt(self) -> "Running":
        """1 / sqrt: a library function, or a root and a division."""
        with np.errstate(divide="ignore"):
            value = 1.0 / np.sqrt(self.value)
            lowest = self.value - self.error
            error = np.where(lowest > 0, 1.0 / np.sqrt(np.maximum(lowest, 1e-300)) - value, np.inf)
        return self._function(value, error)

    def exp(self) -> "Running":
        value = np.exp(self.value)
        return self._function(value, value * np.expm1(np.minimum(self.error, 700.0)))

    def log(self) -> "Running":
        """The natural logarithm. Its slope is steepest at the smallest operand."""
        lowest = np.maximum(self.value - self.error, 1e-300)
        value = np.log(self.value)
        return self._function(value, value - np.log(lowest))

    def tanh(self) -> "Running":
        return self._sloped(np.tanh, lambda x: 1.0 - np.tanh(x) ** 2)

    def erf(self) -> "Running":
        """Vector libraries compute it as 1 - p(t) e^(-x^2) by formula 7.1.26 of Abramowitz and Stegun, "Handbook of Mathematical
        Functions", which is within 1.5e-7 and whose terms, of magnitude 1, round: an absolute error, also where erf is small."""
        sloped = self._sloped(_erf, lambda x: 2.0 / np.sqrt(np.pi) * np.exp(-x * x))
        absolute = self.arithmetic.function + (1.5e-7 if self.arithmetic.function else 0.0)
        return Running(self.arithmetic, sloped.value, sloped.error + absolute)

    def sin(self) -> "Running":
        """The error of the angle passes on at a slope of at most 1."""
        return self._function(np.sin(self.value), self.error)

    def cos(self) -> "Running":
        return self._function(np.cos(self.value), self.error)

    def _sloped(self, function: Callable[[np.ndarray], np.ndarray], slope: Callable[[np.ndarray], np.ndarray]) -> "Running":
        """An odd function whose slope falls away from 0: the steepest slope within the error is the one nearest to 0."""
        return self._function(function(self.value), self.error * slope(np.maximum(np.abs(self.value) - self.error, 0.0)))

    def where(self, mask: np.ndarray) -> "Running":
        """The same where the mask holds, and exactly 0 elsewhere, whatever stands there."""
        return Running(self.arithmetic, np.where(mask, self.value, 0.0), np.where(mask, self.error, 0.0))

    def clipped(self, low: Number, high: Number) -> "Running":
        """`fmin(fmax(x, low), high)`: exact, and never steeper than 1. NaN gives low, or high where low is -inf."""
        raised = self.value if np.all(low == -np.inf) else np.fmax(self.value, low)
        return Running(self.arithmetic, np.fmin(raised, high), self.error)

    # -- functions made of several steps -------------------------------------------------------
    def sigmoid(self) -> "Running":
        """1 / (1 + e^-x), or e^x / (1 + e^x). With s the result, the exponential's error enters with the factor 1 - s, the sum and the
        quotient round once each. An error of x moves s by at most the factor e^error, at a slope of at most 1/4, and by less than 1."""
        with np.errstate(over="ignore"):
            value = 1.0 / (1.0 + np.exp(-self.value))
        inherited = np.minimum(np.minimum(value * np.expm1(np.minimum(self.error, 700.0)), 0.25 * self.error), 1.0)
        steps = (value + inherited) * (self.arithmetic.function * (1.0 - value) + 2.0 * self.arithmetic.unit)
        return Running(self.arithmetic, value, inherited + steps * (1.0 + 4.0 * self.arithmetic.function) + self.arithmetic.tiny)

    def silu(self) -> "Running":
        """x * sigmoid(x)."""
        return self * self.sigmoid()

    def softplus(self) -> "Running":
        """ln(1 + e^x), and x above 20, where the two differ by less than e^-20 < 2.1e-9."""
        inside = Running(self.arithmetic, np.minimum(self.value, 20.0), self.error)
        low = (1.0 + inside.exp()).log()
        high = self.value > 20.0
        return Running(self.arithmetic, np.where(high, self.value, low.value), np.where(high, self.error + 2.1e-9, low.error))

    def gelu_tanh(self) -> "Running":
        """0.5 x (1 + tanh(0.7978845608028654 (x + 0.044715 x^3)))."""
        inner = 0.7978845608028654 * (self + 0.044715 * (self * self * self))
        return 0.5 * self * (1.0 + inner.tanh())

    def gelu(self) -> "Running":
        """0.5 x (1 + erf(x / sqrt 2))."""
        return 0.5 * self * (1.0 + (self * 0.7071067811865476).erf())


def joined(parts: Sequence[Running], axis: int = -1) -> Running:
    """Parts one behind the other."""
    errors = [part.errors for part in parts]
    return Running(parts[0].arithmetic, np.concatenate([part.value for part in parts], axis), np.concatenate(errors, axis))


def _erf(x: np.ndarray) -> np.ndarray:
    """The error function, in float64."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)
