"""What bounds are told of operands that stay inside a launch."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.arithmetic import NATIVE
from conformance.operands import rounded_activations
from conformance.running import Running
from poem.dtypes import activation


@settings(deadline=None, max_examples=60)
@given(st.sampled_from((0.0, 2.0**-9, 0.03, 1.0)), st.sampled_from((5, 128, 200)), st.integers(0, 2**31))
def test_inexact_activations_are_rounded_to_codes_within_the_error(relative: float, width: int, seed: int) -> None:
    """Whatever the activations are within their error, their codes' values lie within the error afterwards."""
    random = np.random.default_rng(seed)
    x = (random.standard_normal((3, width)) * 10.0 ** random.integers(-3, 4, (3, 1))).astype(np.float32).astype(np.float64)
    x[1, random.random(width) < 0.5] = 0
    error = relative * np.abs(x) * random.random(x.shape)
    found = rounded_activations(Running(NATIVE, x, error))
    np.testing.assert_array_equal(found.value, activation.dequantise(*activation.quantise(x), np.float64))
    room = np.broadcast_to(found.error, x.shape)
    for _ in range(8):
        moved = x + error * random.uniform(-1, 1, x.shape)
        off = np.abs(activation.dequantise(*activation.quantise(moved), np.float64) - found.value)
        worst = np.unravel_index(np.argmax(off - room), x.shape)
        assert off[worst] <= room[worst] * (1 + 1e-6), f"{x[worst]} +- {error[worst]} came out {off[worst]} off, bound {room[worst]}"
    if relative == 0:
        assert not found.inexact
