"""Builtins of the formats phase that make expressions over stored weights."""

import math
from typing import Annotated, Any

import starlark

from poem.dtypes import FLOATS
from poem.formats.declared import (
    UNARY,
    Bias,
    Cast,
    Concat,
    Constant,
    Expression,
    Fill,
    Gather,
    Reshape,
    Scale,
    Slice,
    Src,
    Stack,
    Stride,
    Transmute,
    Transpose,
    Unary,
    is_expression,
    parts_of,
)
from poem.language.binding import Unfit, Wants
from poem.language.builtins.record import builtin
from poem.language.evaluation import Call
from poem.language.values import (
    Count,
    Counts,
    Integer,
    Integers,
    Number,
    OfDtype,
    PlainNumber,
    PlainNumbers,
    Size,
    Sizes,
    Text,
    listed,
    text,
)
from poem.suggest import did_you_mean

Made = starlark.OpaquePythonObject


def _expression(given: Any) -> Expression:
    if not is_expression(given):
        raise Unfit
    return given


_names = listed("a list of names", text, 1)


def _stacked(given: Any) -> Any:
    if isinstance(given, str):
        return given
    return _names.convert(given) if isinstance(given, (list, tuple)) else _expression(given)


OfExpression = Annotated[Any, Wants("an expression", _expression)]
Expressions = Annotated[tuple[Any, ...], listed("a list of expressions", _expression, 1)]
StackedPart = Annotated[Any, Wants("a name, a list of names or an expression", _stacked)]


MAXIMUM_DEPTH = 64


def made(call: Call, expression: Expression) -> Made:
    """The expression as packages hold it. `formats.too-deep` if it nests too deep."""
    depths: dict[int, tuple[int, Expression]] = call.evaluation.delivered.setdefault("depths", {})
    depth = 1 + max((depths.get(id(part), (1, part))[0] for part in parts_of(expression)), default=0)
    if depth > MAXIMUM_DEPTH:
        raise call.error("formats.too-deep", f"{call.name}(): an expression nests more than {MAXIMUM_DEPTH} deep")
    depths[id(expression)] = depth, expression  # holding it keeps its id
    return Made(expression)


@builtin("formats")
def src(call: Call, name: Text) -> Made:
    """A stored weight."""
    return made(call, Src(name, call.where))


@builtin("formats")
def constant(call: Call, values: PlainNumbers, shape: Sizes, dtype: OfDtype) -> Made:
    """Numbers written in the package."""
    _leaf(call, dtype)
    if len(values) != math.prod(shape):
        raise call.error(
            "call.bad-value", f"constant(): {len(values)} values do not fill the shape {list(shape)}",
            expected=f"{math.prod(shape)} values", found=str(len(values)),
        )  # fmt: skip
    return made(call, Constant(values, shape, dtype.name, call.where))


@builtin("formats")
def fill(call: Call, value: PlainNumber, shape: Sizes, dtype: OfDtype) -> Made:
    """One value everywhere."""
    _leaf(call, dtype)
    return made(call, Fill(value, shape, dtype.name, call.where))


def _leaf(call: Call, dtype: Any) -> None:
    if not dtype.is_leaf:
        raise call.error("call.bad-value", f"{call.name}(): {dtype} holds groups of codes", expected="a plain dtype", found=dtype.name)


@builtin("formats")
def concat(call: Call, axis: Integer, parts: Expressions) -> Made:
    """Parts end to end."""
    return made(call, Concat(axis, parts, call.where))


@builtin("formats")
def stack(call: Call, part: StackedPart, over: Text, count: Size | None = None) -> Made:
    """One slice for each integer of a placeholder."""
    return made(call, Stack(part, over, count, call.where))


@builtin("formats", name="expression.slice", shown=".slice")
def slice(call: Call, of: OfExpression, axis: Integer, start: Count, length: Size) -> Made:
    """A run of entries."""
    return made(call, Slice(of, axis, start, length, call.where))


@builtin("formats", name="expression.stride", shown=".stride")
def stride(call: Call, of: OfExpression, axis: Integer, start: Count, length: Size, step: Size) -> Made:
    """Every step-th entry."""
    return made(call, Stride(of, axis, start, length, step, call.where))


@builtin("formats", name="expression.gather", shown=".gather")
def gather(call: Call, of: OfExpression, axis: Integer, indices: Counts) -> Made:
    """Chosen entries."""
    if not indices:
        raise call.error("call.bad-value", ".gather(): indices is empty", expected="at least one index", found="[]")
    return made(call, Gather(of, axis, indices, call.where))


@builtin("formats", name="expression.reshape", shown=".reshape")
def reshape(call: Call, of: OfExpression, shape: Integers) -> Made:
    """The same elements in another shape."""
    if not shape or any(extent < 1 and extent != -1 for extent in shape) or list(shape).count(-1) > 1:
        expected = "extents of at least 1, at most one -1"
        raise call.error("call.bad-value", ".reshape(): the shape cannot be used", expected=expected, found=str(list(shape)))
    return made(call, Reshape(of, shape, call.where))


@builtin("formats", name="expression.transpose", shown=".transpose")
def transpose(call: Call, of: OfExpression, axes: Integers) -> Made:
    """Axes in another order."""
    rank = len(axes)
    if not axes or sorted(axis + rank if axis < 0 else axis for axis in axes) != list(range(rank)):
        raise call.error("call.bad-value", ".transpose(): axes must name each axis once", expected="a permutation", found=str(list(axes)))
    return made(call, Transpose(of, axes, call.where))


@builtin("formats", name="expression.transmute", shown=".transmute")
def transmute(call: Call, of: OfExpression, shape: Sizes, dtype: OfDtype) -> Made:
    """The same bytes as another dtype."""
    _leaf(call, dtype)
    return made(call, Transmute(of, shape, dtype.name, call.where))


@builtin("formats", name="expression.cast", shown=".cast")
def cast(call: Call, of: OfExpression, dtype: OfDtype) -> Made:
    """Converted to a float."""
    if dtype.name not in FLOATS:
        raise call.error("call.bad-value", f".cast(): {dtype} is no float", expected=" ".join(FLOATS), found=dtype.name)
    return made(call, Cast(of, dtype.name, call.where))


@builtin("formats", name="expression.scale", shown=".scale")
def scale(call: Call, of: OfExpression, x: Number) -> Made:
    """Times x."""
    return made(call, Scale(of, x, call.where))


@builtin("formats", name="expression.bias", shown=".bias")
def bias(call: Call, of: OfExpression, x: Number) -> Made:
    """Plus x."""
    return made(call, Bias(of, x, call.where))


@builtin("formats", name="expression.unary", shown=".unary")
def unary(call: Call, of: OfExpression, name: Text) -> Made:
    """A function of each element."""
    if name not in UNARY:
        hint = did_you_mean(name, UNARY)
        raise call.error(
            "call.bad-value", f".unary(): there is no function `{name}`", expected=" ".join(UNARY), found=repr(name), hint=hint
        )
    return made(call, Unary(of, name, call.where))
