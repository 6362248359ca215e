"""Numbers of several flavours, and results compared with exact ones within the bounds that the differ derives."""

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from conformance.arithmetic import NATIVE
from conformance.bounds import local_bound

DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
FLAVOURS = ("normal", "large", "small", "zeros", "cancelling")
seeds = st.integers(0, 2**31)
flavours = st.sampled_from(FLAVOURS)


def numbers(seed: int, shape: tuple[int, ...], dtype: str, flavour: str = "normal") -> np.ndarray:
    """Numbers of a flavour, rounded to a dtype."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    if flavour == "cancelling":
        drawn = np.where(np.arange(shape[-1]) % 2, -1.0, 1.0) * np.round(8 * np.abs(drawn)) / 8
    if flavour == "zeros":
        drawn = drawn * (np.arange(shape[0]) % 2).reshape(-1, *[1] * (len(shape) - 1))
    large = 10.0 if dtype == "f16" else 100.0  # whose squares f16 holds
    return (drawn * {"large": large, "small": 1e-3}.get(flavour, 1.0)).astype(DTYPES[dtype])


def wide(x: np.ndarray | None) -> np.ndarray | None:
    """An array as float64, where there is one."""
    return None if x is None else x.astype(np.float64)


def within_bound(op: str, got: Sequence[np.ndarray], want: Sequence[np.ndarray], arguments: dict[str, Any]) -> None:
    """Compares results with exact ones within the op's bound; arguments: of the op, by parameter name, exact arrays."""
    words = {np.dtype(dtype): word for word, dtype in DTYPES.items()}
    bounds = local_bound(op, arguments, want, [words[result.dtype] for result in got], NATIVE)
    for number, (result, exact, bound) in enumerate(zip(got, want, bounds, strict=True)):
        assert not np.isnan(result.astype(np.float32)).any(), f"result {number} of {op} holds NaN"
        excess = np.abs(result.astype(np.float64) - exact) / np.maximum(bound.error, np.finfo(np.float64).tiny)
        worst = np.unravel_index(np.argmax(excess), excess.shape)
        assert excess[worst] <= 1, (
            f"result {number} of {op} at {[int(i) for i in worst]} is {result[worst]}, should be {exact[worst]}, off by "
            f"{excess[worst]:.2f} of its bound"
        )
