"""Elements: how one number of each leaf is encoded and decoded, and how narrow codes are packed.

Formats of 8 bits and fewer are the OCP ones: e4m3 and e5m2 of "OCP 8-bit Floating Point Specification" 1.0, e2m1 and
e8m0 of "OCP Microscaling Formats (MX) Specification" 1.0. Encoding rounds to nearest, ties to even, and saturates;
decoding is exact.
"""

from functools import lru_cache
from typing import NamedTuple

import ml_dtypes
import numpy as np

from poem.dtypes.term import LEAF_BITS

# How a plane of a leaf lies in memory. 8-bit floats stay codes; sub-byte leaves are packed, low bits first.
STORAGE: dict[str, np.dtype] = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "bf16": np.dtype(ml_dtypes.bfloat16),
    "i64": np.dtype(np.int64), "i32": np.dtype(np.int32), "i16": np.dtype(np.int16), "i8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64), "u32": np.dtype(np.uint32), "u16": np.dtype(np.uint16), "u8": np.dtype(np.uint8),
    "bool": np.dtype(np.bool_),
    "e4m3": np.dtype(np.uint8), "e5m2": np.dtype(np.uint8), "e8m0": np.dtype(np.uint8),
    "e2m1": np.dtype(np.uint8), "u4": np.dtype(np.uint8), "u2": np.dtype(np.uint8),
}  # fmt: skip
STRIP = 1 << 16  # elements worked on at a time, so that temporaries stay in the second-level cache


class Minifloat(NamedTuple):
    """A float of 8 bits or fewer: sign, exponent with `bias`, `mantissa` bits. `nan` is None where NaN has no code."""

    mantissa: int
    bias: int
    largest: float
    nan: int | None


MINIFLOATS = {
    "e4m3": Minifloat(mantissa=3, bias=7, largest=448.0, nan=0x7F),
    "e5m2": Minifloat(mantissa=2, bias=15, largest=57344.0, nan=0x7E),
    "e2m1": Minifloat(mantissa=1, bias=1, largest=6.0, nan=None),
}
WHOLE_FLOATS = ("f64", "f32", "f16", "bf16")


def largest(leaf: str) -> float:
    """The largest value that a code of `leaf` can hold."""
    if leaf in MINIFLOATS:
        return MINIFLOATS[leaf].largest
    if leaf in ("e8m0", "bool"):
        return 2.0**127 if leaf == "e8m0" else 1.0
    if leaf in WHOLE_FLOATS:
        return float(ml_dtypes.finfo(STORAGE[leaf]).max)
    return float(2 ** (LEAF_BITS[leaf] - leaf.startswith("i")) - 1)


def is_unsigned(leaf: str) -> bool:
    """Whether `leaf` is an unsigned integer."""
    return leaf.startswith("u")


@lru_cache
def values_of_codes(leaf: str) -> np.ndarray:
    """The value of every code of a leaf of at most 8 bits, as float64: `[2 ** bits]`.

    A minifloat with exponent field e and mantissa m of M bits is `m * 2^(1-bias-M)` if e is 0, else `(2^M + m) * 2^(e-bias-M)`.
    """
    bits = LEAF_BITS[leaf]
    codes = np.arange(2**bits)
    if leaf == "e8m0":
        return np.where(codes == 0xFF, np.nan, np.ldexp(1.0, codes - 127))
    if leaf not in MINIFLOATS:
        return codes.astype(np.uint8).view(STORAGE[leaf]).astype(np.float64)
    mantissa, bias, _, nan = MINIFLOATS[leaf]
    magnitude = codes & (2 ** (bits - 1) - 1)
    exponent, fraction = magnitude >> mantissa, magnitude & (2**mantissa - 1)
    significand = np.where(exponent == 0, fraction, fraction + 2**mantissa)
    values = np.ldexp(significand.astype(np.float64), np.maximum(exponent, 1) - bias - mantissa)
    if leaf == "e4m3":
        values[magnitude == nan] = np.nan
    if leaf == "e5m2":
        values[exponent == 31] = np.where(fraction[exponent == 31] == 0, np.inf, np.nan)
    return np.where(codes >> (bits - 1), -values, values)


@lru_cache
def _values_of_bytes(leaf: str, dtype: np.dtype) -> np.ndarray:
    """The values of the elements of every byte: `[256, elements a byte]`. One lookup decodes a whole byte."""
    bits = LEAF_BITS[leaf]
    shifts = np.arange(0, 8, bits)
    codes = (np.arange(256)[:, None] >> shifts) & (2**bits - 1)
    return values_of_codes(leaf)[codes].astype(dtype)


def decode_into(out: np.ndarray, stored: np.ndarray, leaf: str) -> None:
    """Decodes `stored` `[..., bytes or elements]` of `leaf` into `out` `[..., elements]` (C-contiguous float32 or float64)."""
    if LEAF_BITS[leaf] > 8 or leaf in ("bool", "i8", "u8"):
        with np.errstate(over="ignore", invalid="ignore"):  # a float64 too large is infinite, a signalling NaN is NaN
            np.copyto(out, stored, casting="unsafe")
        return
    table = _values_of_bytes(leaf, out.dtype)
    bytes_ = stored.reshape(-1)
    target = out.reshape(len(bytes_), table.shape[1])
    step = STRIP // table.shape[1]
    bits: np.ndarray | None = np.empty(min(step, len(bytes_)), np.int16) if leaf in ("e4m3", "e5m2") and out.dtype == np.float32 else None
    for start in range(0, len(bytes_), step):
        strip = slice(start, start + step)
        if bits is None or not _decode_bits_into(target[strip, 0], bytes_[strip], leaf, bits):
            np.take(table, bytes_[strip], axis=0, mode="clip", out=target[strip])


class _AsBfloat16(NamedTuple):
    """How the code of an 8-bit float becomes a bf16: sign, exponent and mantissa move to their places, and a power of two is missing.

    shift: by what the code, as a signed number, is multiplied; places: bits of the bf16; scale: the power of two; special: the first code
    that is not finite; smallest: the smallest bf16 that arises, a subnormal.
    """

    shift: np.int16
    places: np.int16
    scale: np.float32
    special: int
    smallest: np.float32


@lru_cache
def _as_bfloat16(leaf: str) -> _AsBfloat16:
    mantissa, bias, _, _ = MINIFLOATS[leaf]
    shift = 7 - mantissa
    special = int(np.flatnonzero(~np.isfinite(values_of_codes(leaf)))[0])
    smallest = np.float32(2.0 ** (bias - 127) * values_of_codes(leaf)[1])
    return _AsBfloat16(np.int16(1 << shift), np.int16((0x7F << shift) - 0x8000), np.float32(2.0 ** (127 - bias)), special, smallest)


def _decode_bits_into(out: np.ndarray, codes: np.ndarray, leaf: str, bits: np.ndarray) -> bool:
    """Decodes finite codes of an 8-bit float, exactly and faster than by a table. False, and nothing of use in `out`, where a code is not
    finite or the processor flushes subnormals. bits: int16, room for the codes."""
    shift, places, scale, special, smallest = _as_bfloat16(leaf)
    signed = codes.view(np.int8)
    if np.maximum.reduce(signed) >= special or np.maximum.reduce(codes) >= special + 0x80 or smallest * scale == 0:
        return False
    bits = bits[: len(codes)]
    np.copyto(bits, signed)
    bits *= shift
    bits &= places
    np.copyto(out, bits.view(STORAGE["bf16"]))
    out *= scale
    return True


def places(leaf: str) -> int:
    """How many numbers `numbers_by_place` takes from a byte."""
    return 8 // LEAF_BITS[leaf] if leaf in ("u4", "u2") else 1


def numbers_by_place(out: np.ndarray, stored: np.ndarray, leaf: str) -> None:
    """Decodes codes `[rows, bytes]` of at most 8 bits into float32 `out` `[places, rows, bytes]`, without putting them in order: element
    `i * places + p` of a row becomes number `i` at place `p`. A leaf whose bytes are decoded by a table has one place."""
    bits = LEAF_BITS[leaf]
    if len(out) == 1:
        decode_into(out[0], stored, leaf)
        return
    rest = stored
    for numbers in out[:-1]:
        np.copyto(numbers, rest & np.uint8(2**bits - 1))
        rest = rest >> np.uint8(bits)
    np.copyto(out[-1], rest)


def decode(stored: np.ndarray, leaf: str, dtype: type = np.float32) -> np.ndarray:
    """The values of `stored` `[..., bytes or elements]` of `leaf`, as float32 or float64. Exact where `dtype` can hold them."""
    per_byte = max(1, 8 // LEAF_BITS[leaf])
    shape = (*stored.shape[:-1], stored.shape[-1] * per_byte) if per_byte > 1 else stored.shape
    out = np.empty(shape, dtype)
    decode_into(out, stored, leaf)
    return out


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Packs uint8 codes `[..., K]` of `bits` bits (2, 4 or 8), low bits first: `[..., K * bits / 8]`.

    ValueError if a row is no whole number of bytes.
    """
    if bits == 8:
        return codes
    per_byte = 8 // bits
    if codes.shape[-1] % per_byte:
        raise ValueError(f"a row of {codes.shape[-1]} codes of {bits} bits is no whole number of bytes")
    packed = codes[..., ::per_byte].copy()
    for place in range(1, per_byte):
        packed |= codes[..., place::per_byte] << (place * bits)
    return packed


def unpack(packed: np.ndarray, bits: int) -> np.ndarray:
    """The uint8 codes `[..., K]` of packed bytes `[..., K * bits / 8]`."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return codes.reshape(*packed.shape[:-1], -1)


def encode(values: np.ndarray, leaf: str) -> np.ndarray:
    """`values` `[..., K]` as stored in `leaf`: nearest, ties to even; sub-byte codes packed.

    f16, bf16 and f32 overflow to infinity and keep NaN; e4m3 and e5m2 saturate and keep NaN; integers saturate. Formats
    narrower than 32 bits round the float32 of a value, so a float64 is rounded twice, on purpose. ValueError for NaN
    where the leaf has none, and for e8m0, whose exponents are chosen by the group they scale.
    """
    if leaf == "e8m0":
        raise ValueError("e8m0 holds the exponents of groups; single values are not encoded in it")
    if leaf in MINIFLOATS or leaf in ("u4", "u2"):
        return pack(encode_codes(values, leaf), LEAF_BITS[leaf])
    if leaf[0] in "iu":
        return _encode_integers(values, leaf)
    with np.errstate(over="ignore", invalid="ignore"):  # signalling NaN
        if leaf in ("f16", "bf16"):
            values = values.astype(np.float32, copy=False)
        return values.astype(STORAGE[leaf])


def encode_codes(values: np.ndarray, leaf: str) -> np.ndarray:
    """As `encode`, for leaves of at most 8 bits, with one code a byte: `[..., K]`, not packed."""
    if leaf not in MINIFLOATS:
        return _encode_integers(values, leaf)
    with np.errstate(over="ignore"):
        flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    if MINIFLOATS[leaf].nan is None and np.isnan(flat).any():
        raise ValueError(f"{leaf} has no code for NaN")
    table = codes_of_bfloat16(leaf)
    bits = flat.view(np.uint32)
    codes = np.empty(flat.shape, np.uint8)
    for start in range(0, len(bits), STRIP):
        strip = bits[start : start + STRIP]
        # No tie lies at an odd bf16 pattern, so its last bit can stand for everything below: "a little more than this".
        nearly = (strip >> 16) | ((strip & 0xFFFF) != 0)
        np.take(table, nearly, mode="clip", out=codes[start : start + STRIP])
    return codes.reshape(values.shape)


@lru_cache
def codes_of_bfloat16(leaf: str) -> np.ndarray:
    """The code of a minifloat for every bf16 bit pattern: uint8 `[65536]`. Ties go to the even code; e2m1 takes NaN for 0."""
    with np.errstate(invalid="ignore"):
        values = np.arange(1 << 16, dtype=np.uint16).view(STORAGE["bf16"]).astype(np.float64)
    top, nan = MINIFLOATS[leaf].largest, MINIFLOATS[leaf].nan
    finite = values_of_codes(leaf)
    finite = finite[: 1 + int(np.flatnonzero(finite == top)[0])]
    middles = (finite[1:] + finite[:-1]) / 2
    magnitude = np.abs(values)
    below, not_above = np.searchsorted(middles, magnitude, "left"), np.searchsorted(middles, magnitude, "right")
    codes = np.where(below % 2 == 0, below, not_above)
    codes[np.isnan(values)] = nan or 0
    sign = np.signbit(values) << (LEAF_BITS[leaf] - 1)
    return (codes | sign).astype(np.uint8)


def _encode_integers(values: np.ndarray, leaf: str) -> np.ndarray:
    """Codes of integers or floats, one element each: nearest integer, ties to even, clamped to the range of `leaf`."""
    bits = LEAF_BITS[leaf]
    low, high = (0, 2**bits - 1) if is_unsigned(leaf) else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    if values.dtype.kind in "iub":
        limits = np.iinfo(values.dtype if values.dtype.kind != "b" else np.uint8)
        return values.clip(max(low, limits.min), min(high, limits.max)).astype(STORAGE[leaf])
    if values.dtype != np.float64:
        values = values.astype(np.float32, copy=False)
    rounded = np.rint(values)
    if np.isnan(rounded).any():
        raise ValueError(f"{leaf} has no code for NaN")
    top = values.dtype.type(high)
    if int(top) == high:
        return rounded.clip(low, top).astype(STORAGE[leaf])
    top = np.nextafter(top, values.dtype.type(0))  # the range of a wide integer ends between two floats
    codes = rounded.clip(low, top).astype(STORAGE[leaf])
    codes[rounded > top] = high
    return codes
