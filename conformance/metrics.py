"""Distances between two tensors: units in the last place, normalised error, cosine."""

import ml_dtypes
import numpy as np

from conformance.arithmetic import half_spacing
from poem.dataclass import dataclass

_LEAST = 1e-300  # divides zero by something
# The floats that distances are counted in, as integers of the same width.
_CODES: dict[str, tuple[type, type[np.signedinteger]]] = {
    "f32": (np.float32, np.int32), "bf16": (ml_dtypes.bfloat16, np.int16), "f16": (np.float16, np.int16),
}  # fmt: skip


def ulp_distance(got: np.ndarray, want: np.ndarray, dtype: str = "f32") -> np.ndarray:
    """How many numbers of `dtype` lie from one to the other, elementwise, as int64.

    Both are rounded to `dtype` first. -0 and +0 are one number; infinity is one step past the largest; a NaN is at distance 0
    from a NaN and further from anything else than any two numbers are.
    """
    kind, code = _CODES[dtype]
    with np.errstate(over="ignore"):
        rounded: list[np.ndarray] = [np.ascontiguousarray(np.asarray(x).astype(kind)) for x in (got, want)]
    a, b = rounded
    sides = []
    for x in rounded:
        bits = x.view(code).astype(np.int64)
        sides.append(np.where(bits < 0, np.iinfo(code).min - bits, bits))  # sign and magnitude to one line of integers
    distance = np.abs(sides[0] - sides[1])
    nan = np.isnan(a) | np.isnan(b)
    return np.where(nan, np.where(np.isnan(a) & np.isnan(b), 0, np.int64(2) * np.iinfo(code).max + 2), distance)


def scaled_ulps(got: np.ndarray, want: np.ndarray, dtype: str = "f32") -> float:
    """The largest |got - want| in units in the last place, where the place is that of the row's root mean square or of the
    element, whichever is larger: elements near zero, where few numbers of a row are, would count billions.

    got, want: [rows, width]. inf where one is finite and the other is not.
    """
    if not want.size:
        return 0.0
    with np.errstate(all="ignore"):
        error = np.abs(got - want.astype(np.float64))
        scale = np.maximum(np.abs(want), np.sqrt(np.mean(want.astype(np.float64) ** 2, axis=-1, keepdims=True)))
        ulps = error / (2.0 * half_spacing(scale, dtype))
    special = ~np.isfinite(error)
    alike = (np.isnan(got) & np.isnan(want)) | (got == want)
    return float(np.where(special, np.where(alike, 0.0, np.inf), ulps).max())


def nmse(got: np.ndarray, want: np.ndarray) -> float:
    """Normalised mean square error, sum (got - want)^2 / sum want^2: 0 for equal tensors, inf against zeros."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    error, power = float(np.sum((got - want) ** 2)), float(np.sum(want**2))
    return error / power if power else (0.0 if error == 0.0 else float("inf"))


def cosine(got: np.ndarray, want: np.ndarray) -> float:
    """The cosine of the angle between two tensors taken as vectors; 1 for two zeros."""
    got, want = got.astype(np.float64).reshape(-1), want.astype(np.float64).reshape(-1)
    lengths = float(np.sqrt(got @ got) * np.sqrt(want @ want))
    return float(got @ want) / lengths if lengths else float(np.array_equal(got, want))


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one tensor is from another, and from its bound.

    fraction: the largest |got - want| / bound (0 where both are 0, inf where only the bound is or where NaN or infinity
        differ); the tensors agree when it is at most 1. index: where that is. special: how many elements are NaN or infinite
        on one side and not alike on the other.
    """

    fraction: float
    index: tuple[int, ...]
    special: int
    nmse: float
    cosine: float

    @property
    def agrees(self) -> bool:
        return self.fraction <= 1.0


def measure(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> Distance:
    """Compare two tensors of one shape under an elementwise bound. NaN and infinity come first."""
    fraction, special = fractions(got, want, bound)
    index = tuple(map(int, np.unravel_index(int(np.argmax(fraction)), fraction.shape))) if fraction.size else ()
    with np.errstate(all="ignore"):
        return Distance(float(fraction[index]) if fraction.size else 0.0, index, int(special.sum()), nmse(got, want), cosine(got, want))


def overflowed(got: np.ndarray, want: np.ndarray, bound: np.ndarray, dtype: str) -> np.ndarray:
    """`got`, where infinities that stand for results too large for `dtype`, within the bound, are replaced by those results."""
    largest = float(ml_dtypes.finfo(_CODES[dtype][0]).max)
    with np.errstate(invalid="ignore"):
        too_large = np.isinf(got) & np.isfinite(want) & (np.signbit(got) == np.signbit(want)) & (np.abs(want) + bound > largest)
    return np.where(too_large, want, got) if too_large.any() else got


def worst_fraction(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> float:
    """The largest of `fractions`."""
    error = np.abs(got - want)
    if np.isfinite(error).all() and (error <= bound).all():  # nothing is special, and zero is divided by zero at worst
        return float((error / np.maximum(bound, _LEAST)).max(initial=0.0))
    return float(fractions(got, want, bound)[0].max(initial=0.0))


def fractions(got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """|got - want| / bound elementwise, and where NaN or infinity are not alike (there the fraction is inf)."""
    with np.errstate(all="ignore"):
        single = np.asarray(got).astype(np.float32)
        alike = (np.isnan(single) & np.isnan(want)) | (single == want) | (got == want)
        special = ~(np.isfinite(single) & np.isfinite(want)) & ~alike
        error = np.abs(got - want.astype(np.float64))
        fraction = np.where(error == 0.0, 0.0, error / bound)
    fraction = np.where(special, np.inf, np.where(np.isfinite(single) & np.isfinite(want), fraction, 0.0))
    return np.where(np.isnan(fraction), np.inf, fraction), special
