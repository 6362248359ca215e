"""What can be said of a dtype from its term alone: formula, range, worst error, groups. `poem dtypes` and the docs print it."""

from collections.abc import Callable

import ml_dtypes
import numpy as np

from poem.dataclass import dataclass
from poem.dtypes import leaves
from poem.dtypes.dtype import FLOATS, KV_DTYPES, NICKNAMES, WEIGHT_DTYPES, Dtype
from poem.dtypes.term import LEAF_BITS, Grouped, Leaf, Plane, Term

LISTED = (*FLOATS, *NICKNAMES, *(leaf for leaf in LEAF_BITS if leaf not in FLOATS))


@dataclass(frozen=True, slots=True)
class Facts:
    """About one dtype.

    bits: per weight where N and K are at least 4096. shape, planes: an example of at least `[576, 512]`. largest, smallest: the largest
    and the smallest positive magnitude that decodes to a finite float32 (float64 for f64). worst_error: see `worst_error`.
    """

    dtype: Dtype
    bits: float
    use: str
    formula: str
    groups: str
    shape: tuple[int, ...]
    planes: list[Plane]
    largest: float
    smallest: float
    worst_error: float | None


def facts(dtype: Dtype) -> Facts:
    """Everything about a dtype that follows from its term."""
    shape = (576, _at_least(512, dtype))
    decoded = "f64" if dtype.name == "f64" else "f32"
    return Facts(
        dtype=dtype,
        bits=dtype.bits_per_weight((4096, _at_least(4096, dtype))),
        use=use(dtype),
        formula=formula(dtype.term),
        groups=group_rule(dtype),
        shape=shape,
        planes=dtype.planes(shape),
        largest=min(_of_codes_and_gains(dtype.term, leaves.largest), leaves.largest(decoded)),
        smallest=max(_of_codes_and_gains(dtype.term, smallest), smallest(decoded)),
        worst_error=worst_error(dtype),
    )


def _at_least(columns: int, dtype: Dtype) -> int:
    step = dtype.quantum[1]
    return -(-columns // step) * step


def use(dtype: Dtype) -> str:
    """Where a package may write the dtype."""
    if dtype.act:
        return "weight, with 8-bit activations"
    if dtype.name in FLOATS:
        return "weight, KV, state"
    if dtype.name in WEIGHT_DTYPES:
        return "weight"
    if dtype.name in KV_DTYPES:
        return "KV"
    if dtype.is_quantised:
        return "a term of your own: encode and decode, not in packages"
    if dtype.name in ("e2m1", "e8m0", "u4", "u2"):
        return "inside terms"
    return "tables and masks"


def formula(term: Term) -> str:
    """How a value is computed, in the order in which it is rounded."""
    if isinstance(term, Leaf):
        return term.name
    code = term.code
    if term.tail == "z":
        code = f"({code} - {_bracketed(term.offset)})"
    product = f"{code} * {_chain(term.gain)}"
    return f"{product} + {_bracketed(term.offset)}" if term.tail == "b" else product


def _chain(term: Term) -> str:
    if isinstance(term, Grouped) and term.tail == "n":
        return f"{term.code} * {_chain(term.gain)}"
    return _bracketed(term)


def _bracketed(term: Term | None) -> str:
    assert term is not None
    return term.name if isinstance(term, Leaf) else f"({formula(term)})"


def group_rule(dtype: Dtype) -> str:
    """Which elements share factors, what shapes are taken and where a weight can be cut."""
    if isinstance(dtype.term, Leaf):
        return "none: every element stands alone"
    group = dtype.term.group
    share = {
        "run": f"{group.size} consecutive elements of K share a gain; K is a multiple of {group.size}",
        "tile": f"a tile of {group.rows} rows by {group.size} columns shares a gain; edge tiles may be partial",
        "row": "a row shares a gain",
        "tensor": "the whole weight shares a gain",
    }[group.kind]
    rows, columns = dtype.quantum
    return f"{share}; cut at multiples of {rows} along N and {columns} along K"


def smallest(leaf: str) -> float:
    """The smallest positive value that a code of `leaf` can hold."""
    if leaf in leaves.WHOLE_FLOATS:
        return float(ml_dtypes.finfo(leaves.STORAGE[leaf]).smallest_subnormal)
    if LEAF_BITS[leaf] > 8 or leaf == "bool":
        return 1.0
    values = leaves.values_of_codes(leaf)
    return float(values[values > 0].min())


def _of_codes_and_gains(term: Term, of_leaf: Callable[[str], float]) -> float:
    """The product of what `of_leaf` says of the code and of all gains."""
    if isinstance(term, Leaf):
        return of_leaf(term.name)
    return of_leaf(term.code) * _of_codes_and_gains(term.gain, of_leaf)


def worst_error(dtype: Dtype) -> float | None:
    """The worst error of encoding, derived from the format; None where the encoder has no such bound.

    A float leaf with M mantissa bits: relative to the value itself, in the range of normal numbers, `1 / (2^(M+1) + 1)`: the
    midpoint above a power of two. Groups: relative to the largest magnitude in the group.

    Tail `n` with float codes: a group whose gain is exact spans the codes up to the largest, L; the stored gain is off by a factor,
    so the largest magnitude lands at t on the code axis, with t in an interval around L. The error is the distance to the nearest
    code of the worst point up to t, over t.
    Affine with n = 2^b - 1: the step is at most 1/n of a range of twice the largest magnitude, aiming at zero may shorten the
    reach of the codes by 2 / (n + 1), and gain and offset of relative error d add 2 d and d: `2 / (n + 1) + 3 d`.
    Both hold for groups whose gain is a normal number of its format.
    """
    term = dtype.term
    if isinstance(term, Leaf):
        return rounding_error(term.name)
    if term.tail == "b" and leaves.is_unsigned(term.code) and isinstance(term.gain, Leaf) and isinstance(term.offset, Leaf):
        of_gain, of_offset = rounding_error(term.gain.name), rounding_error(term.offset.name)
        if of_gain is not None and of_offset is not None:
            return 2 / (leaves.largest(term.code) + 1) + 2 * of_gain + of_offset
    if term.tail == "n" and term.code in leaves.MINIFLOATS:
        reach = _reach(term)
        if reach is not None:
            return _worst_distance(term.code, *reach)
    return None


def rounding_error(leaf: str) -> float | None:
    """The worst relative error of a normal number rounded to a float leaf; None for other leaves."""
    if leaf in leaves.MINIFLOATS:
        mantissa = leaves.MINIFLOATS[leaf].mantissa
    elif leaf in leaves.WHOLE_FLOATS:
        mantissa = int(ml_dtypes.finfo(leaves.STORAGE[leaf]).nmant)
    else:
        return None
    return 1 / (2 ** (mantissa + 1) + 1)


def _reach(term: Grouped) -> tuple[float, float] | None:
    """Between which points of the code axis the largest magnitude of a group lands, its gain being rounded."""
    largest = leaves.largest(term.code)
    if term.gain == Leaf("e8m0"):  # the gain is a power of two: the largest magnitude lands in one binade
        binade = 2.0 ** np.floor(np.log2(largest))
        return binade, 2 * binade
    error = rounding_error(term.gain.name if isinstance(term.gain, Leaf) else term.gain.code)
    return None if error is None else (largest / (1 + error), largest / (1 - error))


def _worst_distance(code: str, low: float, high: float) -> float:
    """The largest `distance(x) / t` for x <= t in `[low, high]`, where distance is that to the nearest code."""
    values = leaves.values_of_codes(code)
    values = np.sort(values[np.isfinite(values) & (values >= 0)])
    middles = (values[1:] + values[:-1]) / 2
    tops = np.array([low, high, *middles[(middles > low) & (middles < high)]])
    points = np.minimum.outer(tops, np.concatenate([middles, [np.inf]]))  # each middle as far as it lies below the top, and the top
    distances = np.abs(points[..., None] - values).min(axis=-1).max(axis=-1)
    return float((distances / tops).max())
