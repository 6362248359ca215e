"""What the tests of op shelves share: an op with random operands and its definition, and what must hold of every op.

A `Case` names an op, draws operands for any number of rows, and defines the result with float64 arrays and plain loops, from the
published formula and not from the interpreter.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from interp import evaluate
from interp.evaluate import Given
from poem.dtypes.tensor import Tensor

Arguments = dict[str, Any]
DTYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}


@dataclass(frozen=True)
class Case:
    """One op in one form.

    draw(rng, rows, dtype) gives its arguments by name: values on the axes `tokens`, `tokens*k` and `patches` have that many rows, values of
    `dtype` where the op lets it be chosen. define(**arguments) gives the result, float64 arrays standing for values and weights.
    rounds_inside: the op rounds something besides its result, so that a bf16 result is not the rounded f32 result.
    """

    op: str
    draw: Callable[[np.random.Generator, int, str], Arguments]
    define: Callable[..., Any]
    form: str = ""
    rounds_inside: bool = False

    def __str__(self) -> str:
        return f"{self.op}{'-' if self.form else ''}{self.form}"


def value(rng: np.random.Generator, rows: int, width: int, dtype: str = "f32", axis: str = "tokens") -> Given:
    """Normal numbers, rounded to dtype."""
    return Given(rng.standard_normal((rows, width)).astype(DTYPES[dtype]).astype(np.float32), dtype, axis)


def indices(rng: np.random.Generator, rows: int, width: int, low: int, stop: int, axis: str = "tokens") -> Given:
    """Integers low .. stop - 1."""
    return Given(rng.integers(low, stop, (rows, width)), "i32", axis)


def weight(rng: np.random.Generator, *shape: int, dtype: str = "f32") -> Tensor:
    """Normal numbers."""
    return Tensor.of(rng.standard_normal(shape).astype(DTYPES[dtype]))


def given(values: Any, dtype: str = "f32") -> Given:
    return Given(np.array(values, float) if dtype in DTYPES else np.array(values), dtype)


def tensor(values: Any, kind: type = np.float32) -> Tensor:
    return Tensor.of(np.array(values, kind))


def plain(argument: Any) -> Any:
    """A value or weight as the array that a definition takes."""
    if isinstance(argument, Given):
        array = np.asarray(argument.rows)
        return array.astype(np.float64) if argument.dtype in DTYPES else array
    if isinstance(argument, Tensor):
        return argument.planes["data"] if argument.dtype.name in ("i32", "i64") else argument.decode(dtype=np.float64)
    return [plain(part) for part in argument] if isinstance(argument, list) else argument


def run(case: Case, arguments: Arguments, **settings: Any) -> tuple[np.ndarray, ...]:
    found = evaluate(case.op, **arguments, **settings)
    return tuple(_matrix(part) for part in (found if isinstance(found, tuple) else (found,)))


def defined(case: Case, arguments: Arguments) -> tuple[np.ndarray, ...]:
    found = case.define(**{name: plain(argument) for name, argument in arguments.items()})
    return tuple(_matrix(part) for part in (found if isinstance(found, tuple) else (found,)))


def _matrix(array: Any) -> np.ndarray:
    array = np.asarray(array)
    return array.reshape(len(array), math.prod(array.shape[1:]))


def close(got: np.ndarray, want: Any, what: str, tolerance: float) -> None:
    """|got - want| <= tolerance * the largest finite |want| of the row; NaN and infinities at the same places."""
    want = np.asarray(want, np.float64)
    assert got.shape == want.shape, f"{what}: shape {got.shape}, want {want.shape}"
    if want.size == 0:
        return
    size = np.abs(np.where(np.isfinite(want), want, 0)).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        bad = ~((got == want) | (np.isnan(got) & np.isnan(want)) | (np.abs(got - want) <= tolerance * np.maximum(size, 1e-30)))
    if bad.any():
        at = tuple(np.argwhere(bad)[0].tolist())
        raise AssertionError(f"{what}{list(at)}: got {got[at]!r}, want {want[at]!r} ({bad.sum()} of {bad.size} differ)")


def agrees_with_its_definition(case: Case, rows: int, seed: int) -> None:
    """In exact mode to 1e-11 of the row; in f32 within what about a hundred roundings of a row's magnitude may add."""
    arguments = case.draw(np.random.default_rng(seed), rows, "f32")
    want = defined(case, arguments)
    for mode, tolerance in (("exact", 1e-11), ("native", 128 * 2.0**-24)):
        if mode == "native" and case.rounds_inside:
            continue
        for place, (result, expected) in enumerate(zip(run(case, arguments, mode=mode), want, strict=True)):
            close(result, expected, f"{case} {mode} seed {seed} result {place}", tolerance)


def rounds_once(case: Case, dtype: str, seed: int) -> None:
    """A result of a narrow dtype is the f32 result on the same operands, rounded: nothing is rounded on the way."""
    narrow = case.draw(np.random.default_rng(seed), 5, dtype)
    wide = {name: _widened(argument, dtype) for name, argument in narrow.items()}
    for got, unrounded in zip(run(case, narrow), run(case, wide), strict=True):
        want = unrounded.astype(DTYPES[dtype]).astype(np.float32)
        same = (got == want) | (got == unrounded) | (np.isnan(got) & np.isnan(want))
        assert same.all(), f"{case} {dtype} seed {seed}: got {got[~same][:3]}, want {want[~same][:3]}"


def _widened(argument: Any, dtype: str) -> Any:
    if isinstance(argument, list):
        return [_widened(part, dtype) for part in argument]
    return argument._replace(dtype="f32") if isinstance(argument, Given) and argument.dtype == dtype else argument


def kept_rows(argument: Any, kept: Sequence[int], rows: int) -> Any:
    """The operand with some of its rows, in another order. Operands of other axes are as they were."""
    if isinstance(argument, list):
        return [kept_rows(part, kept, rows) for part in argument]
    if not isinstance(argument, Given) or not str(argument.axis).startswith(("tokens", "patches")):
        return argument
    array = np.asarray(argument.rows)
    blocks = array.reshape(rows, -1, array.shape[1])
    return argument._replace(rows=blocks[list(kept)].reshape(-1, array.shape[1]))


def rows_are_independent(case: Case, rows: int, kept: Sequence[int], seed: int, dtype: str) -> None:
    """The result of a row is the same, bit for bit, whatever other rows are beside it and in which order."""
    arguments = case.draw(np.random.default_rng(seed), rows, dtype)
    fewer = {name: kept_rows(argument, kept, rows) for name, argument in arguments.items()}
    for whole, part in zip(run(case, arguments), run(case, fewer), strict=True):
        want = whole.reshape(rows, -1)[list(kept)]
        got = part.reshape(len(kept), -1)
        bits = f"u{got.dtype.itemsize}"
        differ = (got.view(bits) != np.ascontiguousarray(want).view(bits)).any(axis=1)
        assert not differ.any(), f"{case} {dtype} seed {seed}: rows {np.flatnonzero(differ).tolist()} of {kept} out of {rows} differ"


def no_rows_give_no_rows(case: Case) -> None:
    """The results of no rows have no rows, and the width of any other."""
    random = np.random.default_rng(0)
    for none, some in zip(run(case, case.draw(random, 0, "f32")), run(case, case.draw(random, 1, "f32")), strict=True):
        assert none.shape == (0, some.shape[1]), f"{case}: {none.shape}, but a row is {some.shape[1]} wide"
        assert none.dtype == some.dtype
