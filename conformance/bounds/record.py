"""The record of bounds: one function per op, from operands to how far arithmetic may be from the exact result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from conformance.arithmetic import PRECISION, Arithmetic, half_spacing
from conformance.running import Running
from poem.batch import Geometry

# A bound function gets the arithmetic, the exact results, and the op's operands (float64 or integer arrays, `Cells`,
# `Geometry`) and attributes by parameter name. It returns, per result, a `Running` before it is stored; None for integers.
BoundFunction = Callable[..., Running | None | tuple[Running | None, ...]]


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a cache row as they were appended, before any cast.

    lanes: per lane, the planes `[kv_len, width]`. dtype: what the space stores. scales: per plane, or None for 1.
    """

    lanes: Sequence[tuple[np.ndarray, ...]]
    dtype: str
    scales: tuple[float, ...] | None = None

    def read(self, lane: int, plane: int, arithmetic: Arithmetic) -> Running:
        """A plane as attention reads it: exact, or within the rounding of the cells' dtype."""
        planes = self.lanes[lane]
        plane = min(plane, len(planes) - 1)
        cells = planes[plane]
        dtype = self.dtype if arithmetic.cells is None else arithmetic.cells
        if not dtype or PRECISION[dtype][0] >= 24:
            return Running(arithmetic, cells)
        scale = self.scales[plane] if self.scales else 1.0
        magnitude = np.abs(cells) / scale
        error = half_spacing(magnitude, dtype)
        if dtype == "e4m3":
            error = np.maximum(error, magnitude - 448.0)
        return Running(arithmetic, cells, error * scale)


@dataclass(frozen=True, slots=True)
class Bound:
    """How one op errs.

    function: the bound, or None where the result is a copy of bits, an integer or nothing.
    reduces: what the longest sum of the op runs over, for reports: "dot product of {} terms".
    length: how many terms that is, from the arguments.
    by_lane: the function also takes `geometry`.
    """

    function: BoundFunction | None
    reduces: str = ""
    length: Callable[[Mapping[str, Any]], int] | None = None
    by_lane: bool = False


BOUNDS: dict[str, Bound] = {}


def bound(
    *ops: str, reduces: str = "", length: Callable[[Mapping[str, Any]], int] | None = None, by_lane: bool = False
) -> Callable[[BoundFunction], BoundFunction]:
    """Register the decorated function as the bound of these ops."""

    def register(function: BoundFunction) -> BoundFunction:
        for op in ops:
            BOUNDS[op] = Bound(function, reduces, length, by_lane)
        return function

    return register


def copies(*ops: str) -> None:
    """Register ops whose results are bits of their operands, integers, or nothing: got must equal want."""
    for op in ops:
        BOUNDS[op] = Bound(None)


def local_bound(
    op: str,
    arguments: Mapping[str, Any],
    exact: Sequence[np.ndarray],
    dtypes: Sequence[str],
    arithmetic: Arithmetic,
    geometry: Geometry | None = None,
) -> tuple[np.ndarray, ...]:
    """Elementwise bounds of |computed - exact| for each result of one op on exactly these operands.

    exact: the results on real numbers. dtypes: the graph's dtypes of the results. geometry: of the pass, for ops whose rows
    depend on their lane. KeyError for an op without a bound.
    """
    record = BOUNDS[op]
    if record.function is None:
        return tuple(np.zeros(result.shape) for result in exact)
    if arithmetic.results is None:
        arithmetic = replace(arithmetic, results=dtypes[0])
        listed_dtypes = list(dtypes)
    else:
        listed_dtypes = [arithmetic.results] * len(dtypes)
    extra = {"geometry": geometry} if record.by_lane else {}
    made = record.function(arithmetic, exact, **arguments, **extra)
    listed = made if isinstance(made, tuple) else (made,)
    return tuple(
        np.zeros(result.shape) if running is None else _stored(running, dtype)
        for running, result, dtype in zip(listed, exact, listed_dtypes, strict=True)
    )


def _stored(running: Running, dtype: str) -> np.ndarray:
    """The error after the result is rounded to its dtype. The last step of an op already rounded to f32."""
    error = np.broadcast_to(running.error, running.value.shape)
    if not dtype or PRECISION[dtype][0] >= PRECISION["f32"][0]:
        return error
    return error + half_spacing(np.abs(running.value) + error, dtype)
