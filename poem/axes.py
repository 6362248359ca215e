"""Row axes: which rows a value has.

An axis is a word, a word with one factor (`tokens*4`: four rows a token; `patches/4`: one row for four patches), a bounds
axis (`lanes+1`), or an int for a constant number of rows. Two axes are the same when they are equal.
"""

import math
from collections.abc import Mapping

AXES = ("tokens", "readouts", "lanes", "patches", "images", "voxels", "clips")

Axis = str | int


def times(axis: Axis, factor: int) -> Axis:
    """`factor` rows for each row of `axis`: `tokens` -> `tokens*2`, `patches/4` -> `patches`.

    Row a*factor + s is slot s of row a. ValueError for a bounds axis, and when no single factor can say the result.
    """
    if isinstance(axis, int):
        return axis * factor
    base, up, down = _factors(axis)
    if factor != 1 and (down % factor and factor % down):
        raise ValueError(f"is on {axis}, which cannot be multiplied by {factor}")
    return _axis(base, up * factor, down)


def over(axis: Axis, factor: int) -> Axis:
    """One row for each `factor` rows of `axis`: `patches` -> `patches/4`, `tokens*4` -> `tokens`.

    Row j stands for rows j*factor .. j*factor + factor - 1. ValueError for a bounds axis, for a constant that is no
    multiple, and when no single factor can say the result.
    """
    if isinstance(axis, int):
        if axis % factor:
            raise ValueError(f"has {axis} rows, no multiple of {factor}")
        return axis // factor
    base, up, down = _factors(axis)
    if factor != 1 and (up % factor and factor % up):
        raise ValueError(f"is on {axis}, which cannot be divided by {factor}")
    return _axis(base, up, down * factor)


def bounds(axis: Axis) -> Axis:
    """The axis of a bounds list ("indptr") over `axis`: `lanes` -> `lanes+1`."""
    return axis + 1 if isinstance(axis, int) else f"{axis}+1"


def is_bounds(axis: Axis) -> bool:
    """Whether values on `axis` can be bounds lists."""
    return isinstance(axis, int) or axis.endswith("+1")


def count(axis: Axis, sizes: Mapping[str, int]) -> int | None:
    """How many rows an axis has where words have `sizes`; None for a word that has none."""
    if isinstance(axis, int):
        return axis
    base, plus, _ = axis.partition("+")
    word, up, down = _factors(base)
    return sizes[word] * up // down + bool(plus) if word in sizes else None


def _factors(axis: str) -> tuple[str, int, int]:
    """The word, and by how much its rows are multiplied and divided; one of the two is 1."""
    if is_bounds(axis):
        raise ValueError(f"is on {axis}, an axis of bounds")
    base, star, count = axis.partition("*")
    if star:
        return base, int(count), 1
    base, _, count = axis.partition("/")
    return base, 1, int(count or 1)


def _axis(base: str, up: int, down: int) -> str:
    common = math.gcd(up, down)
    up, down = up // common, down // common
    return f"{base}*{up}" if up > 1 else f"{base}/{down}" if down > 1 else base
