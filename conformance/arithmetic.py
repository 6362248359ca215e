"""How results were computed: the precision of the steps of an op, of its result and of the cells it reads.

An error bound is a statement about an `Arithmetic`: the distance of what it computes from the same formula on
real numbers. All constants follow from the number formats and from one stated risk.
"""

import math
from dataclasses import replace

import numpy as np

from poem.dataclass import dataclass

# The whole check may call a correct model wrong with this probability, under the model of rounding below.
RISK = 1e-6
# More rounding errors than any golden run commits: 2**40 of them share the risk.
ROUNDINGS = 2.0**40

# Significant bits and exponent of the smallest normal number. A half spacing at y is 2**(max(floor(log2 |y|), exponent) - bits).
PRECISION = {"f64": (53, -1022), "f32": (24, -126), "bf16": (8, -126), "f16": (11, -14), "e4m3": (4, -6), "e5m2": (3, -14)}
_BINADE = np.uint64(0x7FF0_0000_0000_0000)  # the sign and exponent bits of a positive float64
# The largest error that a vector library documents for exp, log, sin, cos, tanh and erf in f32, in units of the last
# place: SLEEF states 3.5 (its u35 functions, which torch uses), NumPy's own vector code 3.83 (log), CUDA 2.
FUNCTION_ULPS = 4


def unit_roundoff(dtype: str) -> float:
    """The largest relative error of rounding to nearest: 2**-bits. f32: 2**-24, bf16: 2**-8."""
    return 2.0 ** -PRECISION[dtype][0]


def half_spacing(magnitude: np.ndarray | float, dtype: str) -> np.ndarray:
    """The largest error of rounding a number of at most this magnitude to nearest, subnormals included.

    Tighter than `unit_roundoff * magnitude` by up to a factor of two: numbers of one binade share a spacing.
    """
    bits, smallest = PRECISION[dtype]
    normal = np.maximum(np.asarray(magnitude, np.float64), 2.0**smallest)
    return (normal.view(np.uint64) & _BINADE).view(np.float64) * 2.0**-bits  # without its fraction, a number is 2**floor(log2)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The precision of an implementation.

    unit: unit roundoff of every step inside an op.
    function: relative error of exp, log, sin, cos, tanh and erf.
    tiny: absolute error of a product or quotient that underflows; covers flushing subnormals to zero.
    results: the dtype results are stored in, or None for the dtype that the graph states.
    cells: the dtype kv cells are stored in, "" when they are kept as computed, or None for the dtype of the space.
    deviations: a sum of n roundings is taken to stay below `deviations * sqrt(n)` units (see `growth`).
    recorded: the dtype that what an original computed was narrowed to when it was recorded, "" for its own.
    special: operands may be infinite or NaN. A step that gives infinity or NaN has then no error: it must give just that.
    """

    unit: float
    function: float
    tiny: float
    results: str | None
    cells: str | None
    deviations: float = 0.0
    recorded: str = ""
    special: bool = False

    def growth(self, terms: int) -> float:
        """How many units of `unit * sum |terms|` the rounding error of a sum of products may reach, in any order of summation.

        The certain bound is n. Rounding errors behave as independent of mean zero, and then
        |error| <= d sqrt(n) u sum |terms| fails with probability at most 2 exp(-d^2 / 2) for each sum (Higham and Mary,
        "A new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019, theorem 2.4), so d =
        sqrt(2 ln(2 ROUNDINGS / RISK)) = 9.2 keeps the risk of a whole check. The smaller of the two is taken; n u / (1 - n u)
        in place of n u covers second-order terms.
        """
        reach = min(float(terms), self.deviations * math.sqrt(terms)) if self.deviations else float(terms)
        return reach / (1.0 - reach * self.unit)

    def only(self, source: str) -> "Arithmetic":
        """This arithmetic with one source of error left: "steps", "functions", "results" or "cells"."""
        return replace(
            self,
            unit=self.unit if source == "steps" else 0.0,
            tiny=self.tiny if source == "steps" else 0.0,
            function=self.function if source == "functions" else 0.0,
            results=self.results if source == "results" else "",
            cells=self.cells if source == "cells" else "",
        )


SOURCES = ("steps", "functions", "results", "cells")
DEVIATIONS = math.sqrt(2.0 * math.log(2.0 * ROUNDINGS / RISK))
_F32 = unit_roundoff("f32")
_FUNCTION = 2.0 * FUNCTION_ULPS * _F32  # a unit in the last place is at most 2 u |y|

# An f32 original: everything in f32, results and cells too. What parts it from exact mode.
ORIGINAL = Arithmetic(_F32, _FUNCTION, 2.0**-126, "f32", "", DEVIATIONS)
# Native mode: steps in f32, results and cells rounded to their dtypes. What parts it from exact mode.
NATIVE = Arithmetic(_F32, _FUNCTION, 2.0**-126, None, None, DEVIATIONS)
# What parts native mode from an f32 original: both take their steps in f32.
NATIVE_AND_ORIGINAL = Arithmetic(2.0 * _F32, 2.0 * _FUNCTION, 2.0**-125, None, None, DEVIATIONS)
# How much finer float64 is than f32; every bound is linear in the unit roundoff, but for terms of its square.
F64_OF_F32 = unit_roundoff("f64") / _F32
# What parts exact mode from a float64 original that was recorded in f32, where both keep the casts that dtypes state.
EXACT_AND_STATED = Arithmetic(2.0 * _F32 * F64_OF_F32, 2.0 * _FUNCTION * F64_OF_F32, 2.0**-1021, "f64", "", DEVIATIONS, "f32")
# What parts native mode from such an original.
NATIVE_AND_STATED = Arithmetic(_F32, _FUNCTION, 2.0**-126, None, "", DEVIATIONS, "f32")
