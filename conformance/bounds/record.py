"""The record of bounds: one function per op, from operands to how far arithmetic may be from the exact result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from conformance.arithmetic import PRECISION, Arithmetic, half_spacing
from conformance.running import Running
from poem.batch import Geometry
from poem.dataclass import dataclass
from poem.ops import REGISTRY

# A bound function gets the arithmetic, the exact results, and the op's operands and attributes by parameter name: float values
# as `Running`, weights and integers as arrays, `Cells`, `Geometry`. It returns, per result, a `Running` before it is stored; None
# for integers.
BoundFunction = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Cells:
    """The cells of a cache row as they were appended, before any cast.

    lanes: per lane, the planes `[kv_len, width]`, arrays or `Running`. dtype: what the space stores. scales: per plane, or None
    for 1.
    """

    lanes: Sequence[tuple[np.ndarray | Running, ...]]
    dtype: str
    scales: tuple[float, ...] | None = None

    def read(self, lane: int, plane: int, arithmetic: Arithmetic) -> Running:
        """A plane as attention reads it: exact, or within the rounding of the cells' dtype."""
        planes = self.lanes[lane]
        plane = min(plane, len(planes) - 1)
        cells = as_running(arithmetic, planes[plane])
        dtype = self.dtype if arithmetic.cells is None else arithmetic.cells
        if not dtype or PRECISION[dtype][0] >= 24:
            return cells
        scale = self.scales[plane] if self.scales else 1.0
        magnitude = (np.abs(cells.value) + cells.error) / scale
        error = half_spacing(magnitude, dtype)
        if dtype == "e4m3":
            error = np.maximum(error, magnitude - 448.0)
        return Running(arithmetic, cells.value, cells.error + error * scale)


@dataclass(frozen=True, slots=True)
class Bound:
    """How one op errs.

    function: the bound; for a copy, the op itself on `Running` operands.
    copies: results are bits of operands, integers or nothing: they are not rounded again.
    reduces: what the longest sum of the op runs over, for reports: "dot product of {} terms".
    length: how many terms that is, from the arguments.
    by_lane: the function also takes `geometry`.
    weights: which parameters are weights.
    """

    function: BoundFunction
    copies: bool = False
    reduces: str = ""
    length: Callable[[Mapping[str, Any]], int] | None = None
    by_lane: bool = False
    weights: frozenset[str] = frozenset()


BOUNDS: dict[str, Bound] = {}


def bound(
    *ops: str,
    copies: bool = False,
    reduces: str = "",
    length: Callable[[Mapping[str, Any]], int] | None = None,
    by_lane: bool = False,
) -> Callable[[BoundFunction], BoundFunction]:
    """Register the decorated function as the bound of these ops."""

    def register(function: BoundFunction) -> BoundFunction:
        for op in ops:
            weights = frozenset(parameter.name for parameter in REGISTRY[op].parameters if parameter.kind.word == "weight")
            BOUNDS[op] = Bound(function, copies, reduces, length, by_lane, weights)
        return function

    return register


def integers(*ops: str, results: int = 1) -> None:
    """Register ops whose results are integers, or nothing (`results=0`)."""

    @bound(*ops, copies=True)
    def none(a: Arithmetic, exact: tuple[np.ndarray, ...], **given: Any) -> tuple[None, ...]:
        return (None,) * results


def local_bound(
    op: str,
    arguments: Mapping[str, Any],
    exact: Sequence[np.ndarray],
    dtypes: Sequence[str],
    arithmetic: Arithmetic,
    geometry: Geometry | None = None,
    *,
    rounded: bool = True,
) -> tuple[Running, ...]:
    """For each result of one op, the exact value and a bound of |computed - exact|.

    arguments: operands and attributes by parameter name, weights decoded. A float value is an array, exact as given, or a
        `Running`, whose error is carried on; `Cells` likewise.
    exact: the results on real numbers. dtypes: the graph's dtypes of the results. geometry: of the pass, for ops whose rows
        depend on their lane. rounded: with the last rounding, to the result's dtype.
    KeyError for an op without a bound.
    """
    record = BOUNDS[op]
    if arithmetic.results is None:
        arithmetic, stored = replace(arithmetic, results=dtypes[0]), list(dtypes)
    else:
        stored = [arithmetic.results] * len(dtypes)
    given = {name: value if name in record.weights else as_running(arithmetic, value) for name, value in arguments.items()}
    if record.by_lane:
        given["geometry"] = geometry
    made = record.function(arithmetic, exact, **given)
    listed = made if isinstance(made, tuple) else (made,)
    return tuple(
        Running(arithmetic, result) if running is None else _told(running if record.copies or not rounded else running.stored(dtype))
        for running, result, dtype in zip(listed, exact, stored, strict=True)
    )


def _told(running: Running) -> Running:
    """An error that no number tells, such as of 0 times a quotient by what may be 0, is infinite."""
    unknown = np.isnan(running.error)
    return Running(running.arithmetic, running.value, np.where(unknown, np.inf, running.error)) if unknown.any() else running


def as_running(arithmetic: Arithmetic, value: Any) -> Any:
    """A float array as an exact `Running`, one element by element if it is a list; anything else as it is."""
    if isinstance(value, Running):
        return Running(arithmetic, value.value, value.error)
    if isinstance(value, list) and value and isinstance(value[0], (np.ndarray, Running)):
        return [as_running(arithmetic, item) for item in value]
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return Running(arithmetic, value)
    return value
