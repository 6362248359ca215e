"""Builtins of the layout phase: weights, their cuts, and the walk that names them."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from poem.dtypes import Dtype
from poem.errors import PackageError
from poem.graph import Cut
from poem.language.binding import bind, parameters_of
from poem.language.builtins.everywhere import WEIGHT_WORDS
from poem.language.builtins.record import asked, builtin, check_phase, entry
from poem.language.crossing import facts_of_weight
from poem.language.declarations import Layout
from poem.language.evaluation import Call, Evaluation
from poem.language.frames import user_frames
from poem.language.limits import LIMITS
from poem.language.values import Anything, Sizes, Text, kind_of
from poem.language.walk import Unreadable, places
from poem.ops.operands import Weight

MAXIMUM_RANK = 8
MAXIMUM_EXTENT = 2**31 - 1
WEIGHT_NAME = re.compile(r"[A-Za-z0-9_.\-]+")


@entry
def deployment(evaluation: Evaluation) -> str:
    """What `layout` is told of the deployment, as JSON."""
    of = evaluation.deployment
    assert of is not None
    facts = {
        "id": of.model.id,
        "weights": [dtype.name for dtype in of.weights],
        "kv": of.kv.name,
        "parts": list(of.parts),
        "drafter": of.drafter,
        "tp": of.tp,
        "name": of.name,
    }
    return json.dumps(facts)


# -- weight() ----------------------------------------------------------------------------------------------------------
def _two(call: Call, shape: Anything, dtype: Anything) -> None: ...


def _three(call: Call, name: Text, shape: Anything, dtype: Anything) -> None: ...


_FORMS = {function: parameters_of(function) for function in (_two, _three)}


@asked
def weight(evaluation: Evaluation, stack: str, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Judge a call of weight() that is not surely right."""
    call = Call(evaluation, "weight", stack)
    check_phase(call, ("layout",))
    named = "name" in kwargs or (args and isinstance(args[0], str)) or len(args) >= 3
    given = bind("weight", _FORMS[_three if named else _two], args, kwargs, call.error, kind_of)
    shape, dtype = given["shape"], given["dtype"]
    _check_shape(call, shape)
    if not isinstance(dtype, Dtype) or dtype.name not in WEIGHT_WORDS:
        found = getattr(dtype, "name", None) or kind_of(dtype)
        if not hasattr(dtype, "name"):
            raise call.error("call.wrong-kind", f"weight(): dtype wants a dtype, found {found}", expected="a dtype", found=found)
        raise call.error("layout.bad-dtype", f"weight(): no weight is stored as {found}", expected=" ".join(WEIGHT_WORDS), found=found)
    if dtype.is_quantised:
        if len(shape) < 2:
            raise call.error(
                "layout.group", f"a weight of {dtype} needs rank 2 or more", expected="[..., rows, columns]", found=str(shape),
                hint="for norms and biases use compute(dtype)",
            )  # fmt: skip
        if shape[-1] % dtype.group_size:
            raise call.error(
                "layout.group",
                f"the last extent of a weight of {dtype} must be whole groups: {shape[-1]} is no multiple of {dtype.group_size}",
                expected=f"a multiple of {dtype.group_size}", found=str(shape[-1]),
            )  # fmt: skip
    name = given.get("name")
    if name is not None and not (WEIGHT_NAME.fullmatch(name) and len(name) <= LIMITS.name_bytes):
        raise call.error(
            "layout.bad-name", f"{name[:80]!r} is no name of a weight",
            expected=f"letters, digits, `_`, `.` and `-`, at most {LIMITS.name_bytes}",
        )  # fmt: skip
    return {"shape": list(shape), "dtype": dtype.name, "name": name}


def _check_shape(call: Call, shape: Any) -> None:
    expected = f"1 to {MAXIMUM_RANK} ints, every extent at least 1"
    if not isinstance(shape, list) or not 1 <= len(shape) <= MAXIMUM_RANK:
        found = f"{len(shape)} extents" if isinstance(shape, list) else kind_of(shape)
        raise call.error("layout.bad-shape", f"weight() wants a shape of positive integers, found {found}", expected=expected, found=found)
    for index, extent in enumerate(shape):
        if isinstance(extent, bool) or not isinstance(extent, int) or not 1 <= extent <= MAXIMUM_EXTENT:
            shown = repr(extent) if isinstance(extent, (bool, int, float, str)) else kind_of(extent)
            listed = "[" + ", ".join(repr(e) if isinstance(e, (bool, int, float)) else kind_of(e) for e in shape) + "]"
            hint = "an extent of 0 often comes from an integer division" if extent == 0 and not isinstance(extent, bool) else ""
            if isinstance(extent, float):
                hint = "`/` gives a float; `//` divides ints"
            raise call.error(
                "layout.bad-shape", "weight() wants a shape of positive integers", expected="every extent at least 1",
                found=f"{listed} ({shown} at index {index})", hint=hint,
            )  # fmt: skip


# -- cuts --------------------------------------------------------------------------------------------------------------
def _columns(call: Call, heads: Anything = None) -> None: ...


def _rows(call: Call) -> None: ...


def _packed(call: Call, segments: Sizes, heads: Sizes | None = None) -> None: ...


def _bank(call: Call, segments: Sizes) -> None: ...


_METHODS = {f.__name__[1:]: parameters_of(f) for f in (_columns, _rows, _packed, _bank)}


@entry
def cut_again(evaluation: Evaluation, stack: str) -> None:
    raise Call(evaluation, "", stack).error(
        "layout.bad-cut", "the weight is cut already", expected="one cut for a weight", hint="cut the uncut weight another way"
    )


@asked
def cut(evaluation: Evaluation, stack: str, method: str, shape: list[int], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The cut that a method of a weight declares, as [axis, segments, heads]."""
    call = Call(evaluation, f".{method}", stack)
    given = bind(f".{method}", _METHODS[method], args, kwargs, call.error, kind_of)

    def bad(message: str, **details: str) -> PackageError:
        return call.error("layout.bad-cut", f".{method}(): {message}", **details)

    axis = {"columns": 0, "rows": len(shape) - 1, "packed": 0, "bank": 1}[method]
    if method == "bank" and len(shape) != 3:
        raise bad("a bank is [experts, rows, columns]", expected="3 axes", found=str(shape))
    extent = shape[axis]
    segments: tuple[int, ...] = given.get("segments") or ()
    heads = given.get("heads")
    if segments and sum(segments) != extent:
        raise bad(
            f"the segments sum to {sum(segments)}, the extent of axis {axis} is {extent}",
            expected=f"a sum of {extent}", found=f"{list(segments)}, sum {sum(segments)}",
        )  # fmt: skip
    counts: tuple[int, ...] = ()
    if method == "columns" and heads is not None:
        if isinstance(heads, bool) or not isinstance(heads, int) or heads < 1:
            raise bad(
                "heads wants an int >= 1", expected="an int >= 1", found=repr(heads) if isinstance(heads, (bool, int)) else kind_of(heads)
            )
        counts = (heads,)
    elif heads is not None:
        counts = heads
        if len(counts) != len(segments):
            raise bad(
                f"heads has {len(counts)} counts for {len(segments)} segments", expected="one count per segment", found=str(list(counts))
            )
    for count, size in zip(counts, segments or (extent,), strict=False):
        if size % count:
            raise bad(f"{size} rows are no multiple of {count} heads", expected=f"a multiple of {count}", found=str(size))
    return [axis, list(segments), list(counts)]


@builtin("layout", shown=".registered")
def registered(call: Call) -> None:
    """Only reached when it is called with arguments."""


@builtin("layout", shown=".conv_taps_major")
def conv_taps_major(call: Call, c_in: Anything, taps: Anything) -> None:
    """A storage hint of media models."""
    raise call.error("media.not-available", ".conv_taps_major() comes with media models, which this version does not have")


# -- the walk ----------------------------------------------------------------------------------------------------------
@asked
def not_a_struct(evaluation: Evaluation, given: Any) -> None:
    raise evaluation.error(
        "layout.not-a-struct", f"layout must return a struct, found {kind_of(given)}", expected="a struct", found=kind_of(given)
    )


@entry
def too_deep(evaluation: Evaluation) -> None:
    raise evaluation.error(
        "layout.too-deep", f"the struct that layout returned nests more than {LIMITS.nesting} deep",
        expected=f"at most {LIMITS.nesting} levels", hint="does a list or dict contain itself?",
    )  # fmt: skip


@entry
def too_many(evaluation: Evaluation) -> None:
    raise evaluation.error("budget.size", f"the struct that layout returned holds more than {LIMITS.visited} things")


@entry
def laid_out(evaluation: Evaluation, text: str, keys: str, stack_of: str, stacks: Sequence[str], names: Mapping[str, str]) -> str:
    """Name the weights that layout returned, register them with the tracer, and give their numbers there."""
    where = [user_frames(stack) for stack in stacks]
    weights = [Weight(*_parts(key), where[int(index)]) for key, index in zip(keys.split("\n"), stack_of.split(" "), strict=False) if key]
    if not weights:
        raise evaluation.error("layout.no-weights", "the struct that layout returned holds no weight", expected="at least one weight(...)")
    if len(weights) > LIMITS.weights:
        raise evaluation.error("budget.size", f"a layout holds at most {LIMITS.weights} weights", found=str(len(weights)))
    first: dict[int, str] = {}  # the first path of each weight
    aliases: dict[int, list[str]] = {}
    try:
        found = places(text)
    except Unreadable:
        raise evaluation.error("internal.error", "the struct that layout returned cannot be walked") from None
    for number, path, bad_key in found:
        weight = weights[number]
        if bad_key:
            raise evaluation.error(
                "layout.bad-name", f"the dict key {bad_key[:80]} cannot be part of a weight's name", weight.where,
                expected="a string of letters, digits and `_`", found=bad_key[:80],
            )  # fmt: skip
        if len(path) > LIMITS.name_bytes:
            raise evaluation.error("layout.bad-name", f"a path of a weight is longer than {LIMITS.name_bytes} bytes", weight.where)
        if number in first:
            aliases[number].append(path)
        else:
            first[number], aliases[number] = path, []
            weight.name = names.get(str(number), path)
    owner: dict[str, int] = {}
    for number in first:
        for name in (weights[number].name, *aliases[number]):
            other = owner.setdefault(name, number)
            if other != number:
                raise evaluation.error(
                    "layout.duplicate-name", f"two weights are named `{name}`: those at `{first[other]}` and `{first[number]}`",
                    weights[number].where, expected="one weight for a name", found=f"`{first[other]}` and `{first[number]}`",
                )  # fmt: skip
    tracer = evaluation.tracer
    assert tracer is not None
    numbers = {number: tracer.add_param(weights[number], weights[number].name, aliases[number]).id for number in first}
    evaluation.delivered["layout"] = Layout(tuple(tracer.params), tuple(weights[number].where for number in first))
    return " ".join(str(numbers[number]) for number in range(len(weights)))


def _parts(key: str) -> tuple[tuple[int, ...], Dtype, str, Cut | None, bool]:
    shape, dtype, cut, registered = facts_of_weight(key)
    return shape, dtype, "", cut, registered
