"""Groups: how a weight of any term is decoded from its planes and encoded into them.

A weight `[..., N, K]` is worked on as a matrix of rows: leading axes and N flattened, K columns. A factor (a gain or an
offset) becomes a list of `Factor`s, matrices over the same rows in which one value serves `width` columns. A gain that
is itself grouped with tail `n` contributes its codes and its own gain as separate factors, applied one after another:
`(code * gain.code) * gain.gain` rounds once for nvfp4, where multiplying the two gains first would round twice.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from poem.dtypes import leaves
from poem.dtypes.term import Group, Grouped, Leaf, Term, plane_path, planes

Planes = Mapping[str, np.ndarray]
Rows = slice | np.ndarray  # which rows of the matrix
Read = Callable[[slice], np.ndarray]  # gives rows of a matrix
EVERY = slice(None)
SMALLEST_NORMAL = 2.0**-126


class Factor(NamedTuple):
    """Values `[rows, J]` (or `[1, J]` for all rows); column k of the weight takes value `k // width`."""

    values: np.ndarray
    width: int


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of `[..., K]`; `(1, 1)` for a scalar."""
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def factor_shape(group: Group, shape: tuple[int, ...], segments: np.ndarray | None) -> tuple[int, ...]:
    """The shape of the factors of a weight of `shape`, where a whole-tensor factor may be segmented: `[*lead, P]`."""
    if segments is not None:
        return (*shape[:-2], len(segments))
    return group.factor_shape(shape)


def segmented_rows(term: Term, stored: Planes, shape: tuple[int, ...], path: str) -> int:
    """How many rows the segments at `path` (a plane `rows`) have to cover in a weight of `shape`."""
    walked = ""
    for name in path.split(".")[:-1]:
        assert isinstance(term, Grouped)
        shape = factor_shape(term.group, shape, stored.get(plane_path(walked, "rows")) if term.group.kind == "tensor" else None)
        below = term.gain if name == "gain" else term.offset
        assert below is not None
        term, walked = below, plane_path(walked, name)
    return shape[-2]


# ---------------------------------------------------------------------------------------------------------- decoding


def decode(
    term: Term, stored: Planes, shape: tuple[int, ...], *, rows: Rows = EVERY, dtype: type = np.float32, path: str = ""
) -> np.ndarray:
    """The values `[rows, K]` of the rows of a weight of `shape`.

    All steps are in `dtype` (float32 or float64), in this order: code (minus the offset, tail `z`), times the gain, plus
    the offset (tail `b`). `path` is where the term's planes are among `stored`.
    """
    count, columns = matrix_shape(shape)
    if isinstance(term, Leaf):
        return leaves.decode(stored[path or "data"].reshape(count, -1)[rows], term.name, dtype)
    codes = stored[plane_path(path, "code")].reshape(count, -1)[rows]
    gains = factors_of(term, term.gain, "gain", stored, shape, rows, dtype, path)
    offsets = [] if term.offset is None else factors_of(term, term.offset, "offset", stored, shape, rows, dtype, path)
    out: np.ndarray = np.empty((len(codes), columns), dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # infinite and NaN factors give what IEEE arithmetic gives
        offset = product(offsets) if offsets else None
        for strip in strips(*out.shape):
            values = out[strip]
            leaves.decode_into(values, codes[strip], term.code)
            if offset is not None and term.tail == "z":
                _apply(np.subtract, values, offset, strip)
            for gain in gains:
                _apply(np.multiply, values, gain, strip)
            if offset is not None and term.tail == "b":
                _apply(np.add, values, offset, strip)
    return out


def strips(rows: int, columns: int) -> Iterator[slice]:
    """Ranges of rows that together are a matrix, each of about `leaves.STRIP` elements."""
    step = max(1, leaves.STRIP // max(1, columns))
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


def _apply(ufunc: np.ufunc, values: np.ndarray, factor: Factor, strip: slice) -> None:
    """Combines each column of `values` in place with its factor."""
    rows, columns = values.shape
    factors = factor.values if len(factor.values) == 1 else factor.values[strip]
    whole = columns // factor.width
    grouped = values[:, : whole * factor.width].reshape(rows, whole, factor.width)
    ufunc(grouped, factors[:, :whole, None], out=grouped)
    if whole * factor.width < columns:
        rest = values[:, whole * factor.width :]
        ufunc(rest, factors[:, whole : whole + 1], out=rest)


def product(factors: list[Factor]) -> Factor:
    """One factor that multiplies as all of them, the first having the narrowest columns."""
    first, *others = factors
    for other in others:
        values = np.repeat(other.values, other.width // first.width, axis=1)[:, : first.values.shape[1]]
        first = Factor(first.values * values, first.width)
    return first


def factors_of(
    owner: Grouped, term: Term, name: str, stored: Planes, shape: tuple[int, ...], rows: Rows, dtype: type, path: str
) -> list[Factor]:
    """The factors that the gain or offset `term` of `owner` (called `name`) gives to `rows` of the matrix of a weight of `shape`."""
    segments = stored.get(plane_path(path, "rows")) if owner.group.kind == "tensor" else None
    below = factor_shape(owner.group, shape, segments)
    inner = plane_path(path, name)
    if owner.group.kind in ("run", "tile"):
        kept = _rows_of_tiles(owner.group, shape, rows) if owner.group.kind == "tile" else rows
        return [Factor(f.values, f.width * owner.group.size) for f in _chain(term, stored, below, kept, dtype, inner)]
    return _one_a_row(_chain(term, stored, below, EVERY, dtype, inner), owner.group, shape, below, segments, rows)


def _chain(term: Term, stored: Planes, shape: tuple[int, ...], rows: Rows, dtype: type, path: str) -> list[Factor]:
    """A term over `shape` as factors to multiply in order."""
    if isinstance(term, Leaf) or term.tail != "n":
        return [Factor(decode(term, stored, shape, rows=rows, dtype=dtype, path=path), 1)]
    codes = stored[plane_path(path, "code")].reshape(matrix_shape(shape)[0], -1)[rows]
    gains = factors_of(term, term.gain, "gain", stored, shape, rows, dtype, path)
    return [Factor(leaves.decode(codes, term.code, dtype), 1), *gains]


def _one_a_row(
    chain: list[Factor], group: Group, shape: tuple[int, ...], below: tuple[int, ...], segments: np.ndarray | None, rows: Rows
) -> list[Factor]:
    """Turns factors with one element a row (or a segment of rows, or in all) into factors of the rows."""
    count, columns = matrix_shape(below)
    if group.kind == "row":
        picked = rows
    elif segments is None:
        picked = EVERY
    else:
        picked = segment_of_rows(segments, shape)[rows]
    found = []
    for values, width in chain:
        every = np.broadcast_to(np.repeat(values, width, axis=1)[:, :columns], (count, columns))
        found.append(Factor(every.reshape(-1, 1)[picked], matrix_shape(shape)[1]))
    return found


def segment_of_rows(segments: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """For each row of the matrix of `[*lead, N, K]`: the index of its value in the flattened factor `[*lead, P]`."""
    in_one = np.repeat(np.arange(len(segments)), segments)
    return (np.arange(math.prod(shape[:-2]))[:, None] * len(segments) + in_one).reshape(-1)


def _rows_of_tiles(group: Group, shape: tuple[int, ...], rows: Rows) -> np.ndarray:
    """For each wanted row of the matrix of `[*lead, N, K]`: the row of its tiles in the matrix of the factors."""
    *_, height, _ = shape
    lead, row = np.divmod(np.arange(matrix_shape(shape)[0])[rows], height)
    return lead * -(-height // group.rows) + row // group.rows


# ---------------------------------------------------------------------------------------------------------- encoding


def encode(term: Term, values: np.ndarray, path: str = "") -> dict[str, np.ndarray]:
    """The planes of a term that hold `values` `[..., N, K]` as nearly as the format's rule allows.

    The value is widened (or rounded) to float32 and every step is float32. Factors come first, then codes are rounded with the
    *stored* factors. By the term's form:

    * tail `n`, gain a float: `gain = max|w| / largest code`, 1 for an empty group.
    * tail `n`, gain e8m0: the exponent `floor(log2 max|w|) - floor(log2 largest code)`, the rule of the OCP MX specification.
    * tail `n`, gain itself coded: the gain's own gain first (`max|w| / (largest code * largest gain code)`, at least
      2^-126, for nvfp4), then each gain code from `max|w| / (largest code * gain's gain)`, never 0.
    * tail `b`, unsigned codes (affine): the value of larger magnitude is met exactly, and zero as nearly as it can be.
    * tail `b`, signed codes: the offset is the middle of the group, the rest is as in tail `n`.
    * tail `z`: the offset is the code that means zero.

    ValueError for NaN or infinity, for a factor that overflows its leaf, and for negative values in unsigned codes with
    no offset.
    """
    if isinstance(term, Leaf):
        planes(term, values.shape)
        return {path or "data": leaves.encode(values, term.name)}
    return encode_groups(term, values.reshape(matrix_shape(values.shape)).__getitem__, values.shape, path)


def encode_groups(term: Grouped, read: Read, shape: tuple[int, ...], path: str = "") -> dict[str, np.ndarray]:
    """As `encode`, for values that need not be there all at once: `read(rows)` gives rows of the matrix of `shape`, some at a time and
    in order, once to find the extremes of the groups and once to round."""
    planes(term, shape)  # refuses what does not divide
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):  # what overflows is refused below, by name
        return _encode_groups(term, read, shape, path)


def _encode_groups(term: Grouped, read: Read, shape: tuple[int, ...], path: str) -> dict[str, np.ndarray]:
    low, high = _extremes(read, term.group, shape)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("NaN or infinity cannot be stored in groups of codes")
    stored = _segments(term.group, shape, path)
    if term.tail == "n":
        if leaves.is_unsigned(term.code) and (low < 0).any():
            raise ValueError(f"{term.code} codes without an offset hold no negative values")
        stored |= _encode_gain(term.gain, np.maximum(np.abs(low), np.abs(high)), leaves.largest(term.code), plane_path(path, "gain"))
    else:
        stored |= _encode_gain_and_offset(term, low, high, path)
    stored[plane_path(path, "code")] = _encode_codes(term, read, stored, shape, path)
    return stored


def _segments(group: Group, shape: tuple[int, ...], path: str) -> dict[str, np.ndarray]:
    """A bank has a whole-tensor factor for each of its entries: one segment of all N rows."""
    if group.kind == "tensor" and len(shape) > 2:
        return {plane_path(path, "rows"): np.array([shape[-2]], np.int64)}
    return {}


def _extremes(read: Read, group: Group, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """The least and the greatest value of each group, as float32 of the factor's shape. NaN propagates."""
    rows, columns = matrix_shape(shape)
    width = group.size if group.kind in ("run", "tile") else columns
    starts = np.arange(0, columns, width)
    low, high = (np.empty((rows, len(starts)), np.float32) for _ in range(2))
    for strip in strips(rows, columns):
        values = read(strip).astype(np.float32, copy=False)
        np.minimum.reduceat(values, starts, axis=1, out=low[strip])
        np.maximum.reduceat(values, starts, axis=1, out=high[strip])
    return _of_groups(np.minimum, low, group, shape), _of_groups(np.maximum, high, group, shape)


def _of_groups(ufunc: np.ufunc, extremes: np.ndarray, group: Group, shape: tuple[int, ...]) -> np.ndarray:
    """Extremes of the runs of each row [rows, J] as those of the groups, in the factor's shape."""
    if group.kind == "tile":
        return ufunc.reduceat(extremes.reshape(*shape[:-1], -1), np.arange(0, shape[-2], group.rows), axis=-2)
    if group.kind == "tensor":
        return ufunc.reduce(extremes.reshape(*shape[:-2], -1), axis=-1).reshape((*shape[:-2], 1) if len(shape) > 2 else ())
    return extremes.reshape(group.factor_shape(shape))


def _encode_gain(term: Term, peak: np.ndarray, largest: float, path: str, least: float = 0.0) -> dict[str, np.ndarray]:
    """The planes of positive gains for groups of largest magnitude `peak`: `peak / gain` comes near `largest`, the largest code."""
    if isinstance(term, Leaf):
        return {path: _encode_plain_gain(term.name, peak, largest, least)}
    if term.tail != "n":
        return encode(term, _one_if_zero(peak / np.float32(largest)), path)
    matrix = peak.reshape(matrix_shape(peak.shape))
    _, higher = _extremes(matrix.__getitem__, term.group, peak.shape)
    stored = _segments(term.group, peak.shape, path)
    stored |= _encode_gain(term.gain, higher, largest * leaves.largest(term.code), plane_path(path, "gain"), SMALLEST_NORMAL)
    outer = product(factors_of(term, term.gain, "gain", stored, peak.shape, EVERY, np.float32, path))
    quotients = matrix.copy()
    _apply(np.divide, quotients, _divisor(Factor(np.float32(largest) * outer.values, outer.width)), EVERY)
    codes = leaves.encode_codes(quotients, term.code)
    codes = np.maximum(codes, codes.dtype.type(1))
    codes[matrix == 0] = leaves.encode_codes(np.ones(1), term.code)[0]
    packed = leaves.pack(codes, leaves.LEAF_BITS[term.code])
    stored[plane_path(path, "code")] = packed.reshape((*peak.shape[:-1], packed.shape[1]) if peak.shape else ())
    return stored


def _encode_plain_gain(leaf: str, peak: np.ndarray, largest: float, least: float) -> np.ndarray:
    if leaf == "e8m0":
        _, exponent = np.frexp(peak)  # peak = m * 2^exponent with m in [0.5, 1)
        _, exponent_of_largest = np.frexp(largest)
        return np.where(peak == 0, 127, np.clip(exponent - exponent_of_largest + 127, 0, 254)).astype(np.uint8)
    gain = peak / np.float32(largest)
    if leaf in leaves.MINIFLOATS:
        gain = np.maximum(gain, np.float32(leaves.values_of_codes(leaf)[1]))
    else:
        gain = _one_if_zero(np.maximum(gain, np.float32(least)))
    return leaves.encode(np.where(peak == 0, np.float32(1), gain), leaf)


def _divisor(factor: Factor) -> Factor:
    """Where a factor underflowed to 0 every code means 0: dividing by infinity picks code 0."""
    return Factor(np.where(factor.values == 0, np.float32(np.inf), factor.values), factor.width)


def _one_if_zero(gain: np.ndarray) -> np.ndarray:
    return np.where(gain == 0, np.float32(1), gain)


def _encode_gain_and_offset(term: Grouped, low: np.ndarray, high: np.ndarray, path: str) -> dict[str, np.ndarray]:
    """The planes of the gains and offsets of groups between `low` and `high`."""
    assert term.offset is not None
    gain_path, offset_path = plane_path(path, "gain"), plane_path(path, "offset")
    steps = np.float32(leaves.largest(term.code))
    if not leaves.is_unsigned(term.code):
        middle = (low + high) / 2 if term.tail == "b" else np.zeros_like(low)
        stored = encode(term.offset, middle, offset_path)
        middle = decode(term.offset, stored, low.shape, path=offset_path).reshape(low.shape)
        return stored | _encode_gain(term.gain, np.maximum(high - middle, middle - low), float(steps), gain_path)
    if term.tail == "z":
        low, high = np.minimum(low, 0), np.maximum(high, 0)
        gain = _one_if_zero((high - low) / steps)
        offset = np.rint(-low / gain)
    else:
        edge_is_low = np.abs(low) > np.abs(high)
        gain = np.maximum((high - low) / steps, np.float32(1e-7))
        gain = np.where(edge_is_low, gain, -gain)
        edge = np.where(edge_is_low, low, high)
        steps_to_zero = np.rint(edge / gain)
        reaches = steps_to_zero != 0
        gain = np.divide(edge, steps_to_zero, out=gain, where=reaches)
        offset = np.where(reaches, edge, np.float32(0))
    return encode(term.gain, gain, gain_path) | encode(term.offset, offset, offset_path)


def _encode_codes(term: Grouped, read: Read, stored: Planes, shape: tuple[int, ...], path: str) -> np.ndarray:
    """The code plane: every element rounded with the factors as they are stored."""
    rows, columns = matrix_shape(shape)
    gain = product(factors_of(term, term.gain, "gain", stored, shape, EVERY, np.float32, path))
    offset = None
    if term.offset is not None:
        offset = product(factors_of(term, term.offset, "offset", stored, shape, EVERY, np.float32, path))
    for factor in (gain, offset):
        if factor is not None and not np.isfinite(factor.values).all():
            raise ValueError("a gain or offset does not fit its format: it would be infinite")
    divisor = _divisor(gain)
    packed = np.empty((rows, columns * leaves.LEAF_BITS[term.code] // 8), leaves.STORAGE[term.code])
    for strip in strips(rows, columns):
        values = read(strip).astype(np.float32)
        if offset is not None and term.tail == "b":
            _apply(np.subtract, values, offset, strip)
        _apply(np.divide, values, divisor, strip)
        if offset is not None and term.tail == "z":
            _apply(np.add, values, offset, strip)
        packed[strip] = leaves.encode(values, term.code)
    return packed.reshape((*shape[:-1], packed.shape[1]) if shape else ())
