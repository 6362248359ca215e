"""What dtypes mean, element by element, with exact fractions and one float32 operation at a time.

Written from the published formats and the rules in docs/dtypes.md, not from the code under test, and slow.
"""

import bisect
import itertools
import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cache

import numpy as np

from poem.dtypes.term import Grouped, Leaf, Term

Planes = Mapping[str, np.ndarray]
Index = tuple[int, ...]
BITS = {"e4m3": 8, "e5m2": 8, "e2m1": 4, "e8m0": 8, "u8": 8, "u4": 4, "u2": 2, "i8": 8}


@cache
def value_of_code(leaf: str, code: int) -> float:
    """The number that a code of at most 8 bits stands for."""
    if leaf == "e8m0":
        return math.nan if code == 255 else 2.0 ** (code - 127)
    if leaf == "i8":
        return float(code - 256 if code > 127 else code)
    if leaf in ("u8", "u4", "u2"):
        return float(code)
    exponent_bits, mantissa_bits, bias = {"e4m3": (4, 3, 7), "e5m2": (5, 2, 15), "e2m1": (2, 1, 1)}[leaf]
    sign = -1.0 if code >> (exponent_bits + mantissa_bits) else 1.0
    exponent = (code >> mantissa_bits) % 2**exponent_bits
    mantissa = code % 2**mantissa_bits
    if leaf == "e4m3" and code & 0x7F == 0x7F:
        return math.nan
    if leaf == "e5m2" and exponent == 31:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / 2**mantissa_bits) * 2.0 ** (exponent - bias)


@cache
def finite_codes(leaf: str) -> list[tuple[Fraction, int]]:
    """Non-negative finite codes of a signed format or all codes of an unsigned integer, with exact values, ascending."""
    top = 2 ** BITS[leaf] if leaf.startswith("u") else 2 ** (BITS[leaf] - 1)
    return [(Fraction(value_of_code(leaf, code)), code) for code in range(top) if math.isfinite(value_of_code(leaf, code))]


@cache
def ties(leaf: str) -> list[float]:
    """The points halfway between neighbouring codes; few bits, so exact as floats."""
    codes = finite_codes(leaf)
    return [float((low + high) / 2) for (low, _), (high, _) in itertools.pairwise(codes)]


def nearest_code(value: float, leaf: str) -> int:
    """The code of a finite or infinite value: nearest, ties to the even code, saturating; the sign is kept even on zero."""
    negative = math.copysign(1, value) < 0
    magnitude = abs(value)
    if leaf.startswith("u"):
        negative, magnitude = False, max(value, 0.0)
    place = bisect.bisect_left(ties(leaf), magnitude)
    if place < len(ties(leaf)) and ties(leaf)[place] == magnitude:
        place += finite_codes(leaf)[place][1] % 2
    code = finite_codes(leaf)[place][1]
    if leaf == "i8":
        return int(np.int8(-code if negative else code))
    return code | negative << (BITS[leaf] - 1)


def element_of_plane(plane: np.ndarray, leaf: str, index: tuple[int, ...]) -> float:
    """One number of a plane; narrow codes sit low bits first in their byte."""
    bits = BITS.get(leaf, 8)
    if leaf not in BITS:
        return float(plane[index])
    if bits == 8:
        return value_of_code(leaf, int(plane[index]) & 0xFF)
    *lead, k = index
    byte = int(plane[(*lead, k * bits // 8)])
    return value_of_code(leaf, byte >> (k * bits % 8) & (2**bits - 1))


def value_at(term: Term, planes: Planes, shape: Index, index: Index, number: type, path: str = "") -> np.floating:
    """The decoded value of one element, in `number` (np.float32 or np.float64) arithmetic."""
    if isinstance(term, Leaf):
        return number(element_of_plane(planes[path or "data"], term.name, index))
    value, *gains = chain_at(term, planes, shape, index, number, path)
    offset = number(0)
    if term.offset is not None:
        offset = value_at(term.offset, planes, *factor_at(term, planes, shape, index, path), number, _below(path, "offset"))
    if term.tail == "z":
        value = value - offset
    for gain in gains:
        value = value * gain
    return value + offset if term.tail == "b" else value


def chain_at(term: Grouped, planes: Planes, shape: Index, index: Index, number: type, path: str) -> list[np.floating]:
    """The code of an element, then its gain; a gain without offset gives its code, its own gain and so on."""
    code = number(element_of_plane(planes[_below(path, "code")], term.code, index))
    below, where = factor_at(term, planes, shape, index, path)
    if isinstance(term.gain, Grouped) and term.gain.tail == "n":
        return [code, *chain_at(term.gain, planes, below, where, number, _below(path, "gain"))]
    return [code, value_at(term.gain, planes, below, where, number, _below(path, "gain"))]


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def factor_at(term: Grouped, planes: Planes, shape: Index, index: Index, path: str) -> tuple[Index, Index]:
    """The shape of an owner's factors, and the index of the one that an element uses."""
    group = term.group
    *lead, k = index if index else (0,)
    if group.kind == "run":
        return (*shape[:-1], shape[-1] // group.size), (*lead, k // group.size)
    if group.kind == "row":
        return shape[:-1], tuple(lead)
    if group.kind == "tile":
        below = (*shape[:-2], math.ceil(shape[-2] / group.rows), math.ceil(shape[-1] / group.size))
        return below, (*lead[:-1], lead[-1] // group.rows, k // group.size)
    segments = planes.get(_below(path, "rows"))
    if segments is None:
        return (), ()
    row, segment = lead[-1], 0
    while row >= segments[segment]:
        row -= segments[segment]
        segment += 1
    return (*shape[:-2], len(segments)), (*lead[:-1], segment)
