"""The comparisons that type rules are made of. Each quotes a numbered rule of the op's docstring when it fails.

Texts are built only on failure: a traced call is on the path of every package load.
"""

from collections.abc import Sequence
from typing import Any, NoReturn

from poem import axes
from poem.dtypes import Dtype
from poem.ops.operands import CacheHandle, Value, Weight
from poem.ops.record import OpRefusal

F32 = Dtype("f32")


def refuse(rule: int, parameter: str, message: str, *, code: str = "forward.shape", expected: Any, found: Any) -> NoReturn:
    """Refuse the call, quoting a rule."""
    raise OpRefusal(code, parameter, message, str(expected), str(found), rule=rule)


def on_axis(value: Value, axis: str | int, rule: int, parameter: str) -> None:
    """The value's rows are those of `axis`."""
    if value.rows != axis:
        refuse(rule, parameter, f"is on the axis {value.rows}, not {axis}", code="forward.axis", expected=axis, found=value)


def has_width(value: Value, width: int, rule: int, parameter: str) -> None:
    """The value is `width` columns wide."""
    if value.width != width:
        refuse(rule, parameter, f"is {value.width} wide, not {width}", expected=f"width {width}", found=value)


def width_divides(value: Value, part: int, rule: int, parameter: str) -> int:
    """The value's width is a whole number of parts; returns how many."""
    if value.width % part:
        refuse(rule, parameter, f"is {value.width} wide, no multiple of {part}", expected=f"a multiple of {part}", found=value)
    return value.width // part


def of_dtype(value: Value, dtype: Dtype, rule: int, parameter: str, or_f32: bool = False) -> None:
    """The value is of `dtype`, or f32 where that may stand beside it."""
    if value.dtype is not dtype and not (or_f32 and value.dtype is F32):
        wanted = f"{dtype} or f32" if or_f32 and dtype is not F32 else str(dtype)
        refuse(rule, parameter, f"is {value.dtype}, not {wanted}", code="forward.dtype", expected=wanted, found=value)


def like(value: Value, other: Value, rule: int, parameter: str, or_f32: bool = False) -> None:
    """The value has the axis, width and dtype of `other`."""
    on_axis(value, other.rows, rule, parameter)
    has_width(value, other.width, rule, parameter)
    of_dtype(value, other.dtype, rule, parameter, or_f32)


def has_shape(weight: Weight, shape: tuple[int | None, ...], rule: int, parameter: str) -> None:
    """The weight has this shape; None stands for any extent."""
    found = weight.shape
    if found == shape:
        return
    if len(found) != len(shape) or any(b is not None and a != b for a, b in zip(found, shape, strict=True)):
        wanted = f"[{', '.join('any' if extent is None else str(extent) for extent in shape)}]"
        refuse(rule, parameter, f"is {list(found)}, not {wanted}", expected=wanted, found=weight)


def holds(condition: bool, rule: int, parameter: str, message: str, found: Any) -> None:
    """An attribute obeys a rule; `message` says what it must be."""
    if not condition:
        refuse(rule, parameter, f"must be {message}", code="forward.bad-attribute", expected=message, found=found)


def has_planes(cache: CacheHandle, planes: Sequence[int], rule: int, parameter: str) -> None:
    """The cache row has planes of exactly these widths."""
    if cache.cache.planes != tuple(planes):
        refuse(rule, parameter, f"has planes {list(cache.cache.planes)}, not {list(planes)}", expected=list(planes), found=cache)


def has_slab(state: CacheHandle, slab: tuple[int, ...], rule: int, parameter: str) -> None:
    """The state's slab is a float slab of exactly this shape."""
    if state.cache.slab != slab:
        refuse(rule, parameter, f"has a slab {list(state.cache.slab)}, not {list(slab)}", expected=list(slab), found=state)
    if state.cache.dtype not in ("f32", "f16", "bf16"):
        refuse(rule, parameter, f"holds {state.cache.dtype}", code="forward.dtype", expected="bf16, f16 or f32", found=state.cache.dtype)


def reaches(cache: CacheHandle, window: int | None, rule: int, parameter: str) -> None:
    """The cache's space keeps at least the `window` newest cells (None: all of them)."""
    kept = cache.space.window if cache.space else None
    if kept is not None and (window is None or window > kept):
        wanted = "every cell" if window is None else f"{window} cells"
        refuse(
            rule, parameter, f"is read over {wanted}, but its space keeps {kept}",
            code="forward.window", expected=f"a window of at most {kept}", found=wanted,
        )  # fmt: skip


def multiplied(value: Value, factor: int, rule: int, parameter: str) -> str | int:
    """The axis with `factor` rows for each row of the value."""
    try:
        return axes.times(value.rows, factor)
    except ValueError as fault:
        refuse(rule, parameter, str(fault), code="forward.axis", expected=f"an axis that can be multiplied by {factor}", found=value)


def divided(value: Value, factor: int, rule: int, parameter: str) -> str | int:
    """The axis with one row for each `factor` rows of the value."""
    try:
        return axes.over(value.rows, factor)
    except ValueError as fault:
        refuse(rule, parameter, str(fault), code="forward.axis", expected=f"an axis that can be divided by {factor}", found=value)


def written_slots(write_page: Value | None, write_offset: Value | None, rule: int) -> None:
    """The physical slots of an append: both or none, one column each, on tokens."""
    missing = "write_page" if write_page is None else "write_offset"
    if (write_page is None) != (write_offset is None):
        message = "is missing: write_page and write_offset go together"
        refuse(rule, missing, message, code="forward.bad-attribute", expected="both or none", found="one of them")
    for name, given in (("write_page", write_page), ("write_offset", write_offset)):
        if given is not None:
            on_axis(given, "tokens", rule, name)
            has_width(given, 1, rule, name)
