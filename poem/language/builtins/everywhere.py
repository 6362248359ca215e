"""Builtins of every phase: dtypes, numbers, rope scaling values, printing."""

import math
import sys
from typing import Any

from poem.dtypes import FLOATS, NICKNAMES, WORDS, Dtype
from poem.language.binding import Unfit
from poem.language.builtins.record import builtin, entry, handle
from poem.language.evaluation import Call, Evaluation
from poem.language.frames import user_frames
from poem.language.limits import LIMITS
from poem.language.values import Anything, Count, Flag, Integer, Number, Numbers, Size, Text, dtype, kind_of
from poem.ops import scaling
from poem.ops.operands import Scaling
from poem.ops.record import round_to_single

INTEGERS = ("i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8")
WEIGHT_WORDS = (*FLOATS, *INTEGERS, *NICKNAMES)


# -- crossing --------------------------------------------------------------------------------------------------------
def dtype_words() -> list[str]:
    """Every word of the `dtype` namespace."""
    return list(WORDS)


def weight_groups() -> dict[str, int]:
    """For each dtype of weights, what the last extent must be a multiple of; 0 for those that take any shape."""
    return {word: Dtype(word).group_size if Dtype(word).is_quantised else 0 for word in WEIGHT_WORDS}


def compute_words() -> dict[str, str]:
    """For each dtype that values are computed from, the dtype they are computed in."""
    return {word: Dtype(word).compute.name for word in (*FLOATS, "i64", "i32", *NICKNAMES)}


UNGUARDED = {f"_py_{f.__name__}": f for f in (dtype_words, weight_groups, compute_words)}


@entry
def budget(evaluation: Evaluation, name: str) -> int:
    """A limit of LIMITS."""
    return getattr(LIMITS, name)


@entry
def print(evaluation: Evaluation, stack: str, text: str) -> None:
    """A diagnostic line with file and line, on standard error."""
    where = user_frames(stack)
    place = f"{where[-1].file}:{where[-1].line}: " if where else ""
    sys.stderr.write(f"{place}{text}\n")


# -- numbers ---------------------------------------------------------------------------------------------------------
def _single(call: Call, result: float) -> float:
    try:
        rounded = round_to_single(result)
    except OverflowError:
        rounded = math.inf
    return _finite(call, rounded)


def _finite(call: Call, result: float) -> float:
    if not math.isfinite(result):
        raise call.error("call.bad-value", f"{call.name}() gives no finite number", expected="a finite result", found=str(result))
    return result


@builtin()
def f32(call: Call, x: Number) -> float:
    """x rounded to the nearest single."""
    return _single(call, x)


@builtin()
def powf32(call: Call, x: Number, y: Number) -> float:
    """x to the power y of singles, rounded once: the same on every platform, as NumPy's powf and expf are not."""
    try:
        return _single(call, math.pow(_single(call, x), _single(call, y)))
    except (OverflowError, ValueError):
        return _finite(call, math.nan)


@builtin()
def expf(call: Call, x: Number) -> float:
    """e to the power x of a single, rounded once."""
    try:
        return _single(call, math.exp(_single(call, x)))
    except OverflowError:
        return _finite(call, math.inf)


@builtin()
def sqrt(call: Call, x: Number) -> float:
    """The square root in double precision."""
    if x < 0:
        raise call.error("call.bad-value", "sqrt() of a negative number", expected="a number >= 0", found=repr(x))
    return math.sqrt(x)


@builtin()
def exp(call: Call, x: Number) -> float:
    """e to the power x in double precision."""
    try:
        return math.exp(x)
    except OverflowError:
        return _finite(call, math.inf)


MAXIMUM_PRIME_START = 1 << 53


def _is_prime(n: int) -> bool:
    """Deterministic Miller-Rabin; the twelve bases decide every n below 3.3e24 (Sorenson and Webster, 2015)."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
    if n < 2 or any(n % p == 0 for p in bases):
        return n in bases
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        x = pow(base, odd, n)
        if x in (1, n - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % n
            if x == n - 1:
                break
        else:
            return False
    return True


@builtin()
def prime_after(call: Call, n: Integer) -> int:
    """The least prime above n."""
    if n > MAXIMUM_PRIME_START:
        raise call.error("call.bad-value", "prime_after() takes n up to 2**53", expected="n <= 2**53", found=str(n)[:40])
    candidate = max(n + 1, 2)
    while not _is_prime(candidate):
        candidate += 1
    return candidate


MAXIMUM_DRAWN = 1 << 20


@builtin()
def numpy_integers(call: Call, seed: Integer, high: Integer, size: Count) -> list[int]:
    """The ints that NumPy's default generator draws for `integers(0, high, size)`; high is above 2**32, where the
    draws do not depend on the platform's default int."""
    if seed < 0:
        raise call.error("call.bad-value", "numpy_integers(): seed must not be negative", expected="seed >= 0", found=str(seed)[:40])
    if not 1 << 32 < high < 1 << 63:
        raise call.error("call.bad-value", "numpy_integers(): high is out of range", expected="2**32 < high < 2**63", found=str(high)[:40])
    if size > MAXIMUM_DRAWN:
        raise call.error("call.bad-value", "numpy_integers(): size is too large", expected=f"at most {MAXIMUM_DRAWN}", found=str(size))
    import numpy as np

    return [int(drawn) for drawn in np.random.default_rng(seed).integers(0, high, size)]


@builtin(name="compute")
def compute(call: Call, of: Anything) -> str:
    """The float that a weight of that dtype computes in. Only reached for what has none: the prelude knows the rest."""
    try:
        given = dtype(of)
        return given.compute.name
    except Unfit as unfit:
        raise call.error(
            unfit.code, "compute() wants a dtype", expected=unfit.expected or "a dtype", found=unfit.found or kind_of(of),
        ) from None  # fmt: skip
    except ValueError as fault:
        raise call.error("call.bad-value", f"compute(): {fault}", expected="a dtype of weights", found=of.name) from None


# -- rope scaling ----------------------------------------------------------------------------------------------------
def _scaling(made: Scaling) -> dict[str, Any]:
    return handle(made, f"scaling {made.as_attribute()!r}", kind=made.kind)


@builtin()
def linear(call: Call, factor: Number) -> dict[str, Any]:
    """Position interpolation, `poem.ops.scaling.linear`."""
    return _scaling(scaling.linear(factor))


@builtin()
def llama3(call: Call, factor: Number, low_freq_factor: Number, high_freq_factor: Number, original_max_position: Size) -> dict[str, Any]:
    """Llama 3.1's scaling, `poem.ops.scaling.llama3`."""
    return _scaling(scaling.llama3(factor, low_freq_factor, high_freq_factor, original_max_position))


@builtin()
def yarn(
    call: Call,
    *,
    factor: Number,
    original_max_position: Size,
    beta_fast: Number = 32.0,
    beta_slow: Number = 1.0,
    attention_factor: Number | None = None,
    truncate: Flag = True,
) -> dict[str, Any]:
    """YaRN, `poem.ops.scaling.yarn`."""
    made = scaling.yarn(
        factor=factor, original_max_position=original_max_position, beta_fast=beta_fast, beta_slow=beta_slow,
        attention_factor=attention_factor, truncate=truncate,
    )  # fmt: skip
    return _scaling(made)


@builtin()
def longrope(
    call: Call, short: Numbers, long: Numbers, original_max_position: Size, attention_factor: Number, use: Text = "auto"
) -> dict[str, Any]:
    """LongRoPE, `poem.ops.scaling.longrope`."""
    return _scaling(scaling.longrope(short, long, original_max_position, attention_factor, use))
