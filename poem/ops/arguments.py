"""Checks of the arguments of attribute values (rope scalings, geometry): the same words as for the attributes of ops."""

import math
from typing import Any

from poem.ops.record import INT_LIMIT, OpRefusal, round_to_single


def bad_value(parameter: str, expected: str, found: Any) -> OpRefusal:
    """The refusal of an argument, to be raised."""
    return OpRefusal("call.bad-value", parameter, f"must be {expected}, found {found!r}", expected, repr(found))


def positive(parameter: str, given: Any) -> float:
    """A number greater than 0, rounded to f32 as every scalar of a trace is."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise bad_value(parameter, "a number greater than 0", given)
    try:
        single = round_to_single(given)
    except OverflowError:
        single = math.inf
    if not 0 < single < math.inf:
        raise bad_value(parameter, "a finite number greater than 0", given)
    return single


def count(parameter: str, given: Any, least: int = 1) -> int:
    """An int from `least` up."""
    if isinstance(given, bool) or not isinstance(given, int) or not least <= given < INT_LIMIT:
        raise bad_value(parameter, f"an int >= {least} below 2**31", given)
    return given


def flag(parameter: str, given: Any) -> bool:
    """True or False."""
    if not isinstance(given, bool):
        raise bad_value(parameter, "True or False", given)
    return given
