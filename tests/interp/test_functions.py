"""Elementwise functions against the mathematics library, in float64 and float32."""

import math
from collections.abc import Callable

import numpy as np
import pytest

from interp import functions

POINTS = np.concatenate([np.linspace(-30, 30, 4001), [0.46875, 4.0, 6.0, 1e-300, -1e-8, 88.0, -88.0, 700.0, -700.0]])


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else math.exp(x)


DEFINITIONS: dict[str, Callable[[float], float]] = {
    "erf": math.erf,
    "sigmoid": sigmoid,
    "silu": lambda x: x * sigmoid(x),
    "gelu": lambda x: 0.5 * x * (1 + math.erf(x / math.sqrt(2))),
    "gelu_tanh": lambda x: 0.5 * x * (1 + math.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
    "softplus": lambda x: x if x > 20 else math.log1p(math.exp(x)),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_function_is_its_definition(name: str) -> None:
    function, definition = getattr(functions, name), DEFINITIONS[name]
    want = np.array([definition(x) for x in POINTS.tolist()])
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_allclose(function(POINTS), want, rtol=4e-15, atol=3e-14)
        narrow = POINTS.astype(np.float32)
        single = function(narrow)
    assert single.dtype == np.float32
    exact = np.array([definition(x) for x in narrow.astype(float).tolist()])
    np.testing.assert_allclose(single, exact, rtol=1e-6, atol=1e-6 if "gelu" in name else 1e-38)


@pytest.mark.parametrize("name", DEFINITIONS)
def test_nan_stays_nan(name: str) -> None:
    assert np.isnan(getattr(functions, name)(np.array([np.nan, np.nan]))).all()


def test_erf_is_odd_and_reaches_one() -> None:
    x = np.array([0.0, -0.0, 0.3, 5.0, 40.0, np.inf])
    np.testing.assert_array_equal(functions.erf(-x), -functions.erf(x))
    assert functions.erf(x)[-2:].tolist() == [1.0, 1.0]
