"""Launches of elemwise.cu: ops that compute an element of their result from one element of each operand.

What is computed is a function of elemwise.cu, `Add` or `Activated<SILU>`; how each operand is read follows from its shape.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from cupy_backend.kernels.arrays import TYPES, reading, type_of, unsupported, writing
from cupy_backend.launch import Argument, Array, Launch, Scalar
from poem.dtypes.term import LEAF_BITS

SOURCE = "elemwise.cu"
THREADS = 256
# Blocks of a kernel that strides over its elements: two waves of the device's multiprocessors, eight blocks on each.
GRID = {"sm_80": 1728, "sm_89": 2272, "sm_90a": 2112, "sm_100a": 2368, "sm_120a": 3008}
MOST_PACKS = 2**31 - 1
CODED_TOGETHER = 4  # columns that a thread rounds to codes
MISSING = Scalar(0, "u64")  # a null pointer


class Part(NamedTuple):
    """One of several parts, side by side in the rows of an array, that are each as wide as the result. mapped: its rows are looked up."""

    array: Array
    number: int
    mapped: bool = False


class PerRun(NamedTuple):
    """An array that has one element for each run of `size` columns of the result."""

    array: Array
    size: int


# An array of the result's shape, one row for all rows `[width]`, one element for all `[1]`, or a number.
Operand = Array | Part | PerRun | float


def elementwise(
    function: str, operands: Sequence[Operand], out: Array, *, arch: str, rows_of: Array | None = None, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """out `[N, width]` = function of the operands, element by element. rows_of: i32 `[N]`, the row of mapped parts that each row takes.

    All floats; dtypes may differ.
    """
    width, count = out.shape[-1], math.prod(out.shape)
    arrays = [operand if isinstance(operand, Array) else operand.array for operand in operands if not isinstance(operand, float)]
    vector = 128 // min(LEAF_BITS[array.dtype] for array in (out, *arrays))
    kinds = [_kind(operand, out.shape) for operand in operands]
    if any(_is_by_column(kind) for kind in kinds):
        vector = math.gcd(vector, width, *(operand.size for operand in operands if isinstance(operand, PerRun)))
    packs = -(-count // vector)
    if packs > MOST_PACKS:
        raise unsupported("the kernel computes fewer elements", expected=f"at most {MOST_PACKS * vector}", found=str(count))
    arguments: dict[str, Argument] = {
        "out": writing(out), "rows_of": MISSING if rows_of is None else reading(rows_of), "count": Scalar(count, "i64"),
        "width": Scalar(width, "i32"), **_arguments(operands),
    }  # fmt: skip
    kernel = f"elementwise<{', '.join([function, str(vector), type_of(out), *kinds])}>"
    return [Launch(SOURCE, kernel, (min(-(-packs // THREADS), GRID[arch]), 1, 1), (THREADS, 1, 1), arguments, nodes=nodes)]


def elementwise_codes(
    function: str, operands: Sequence[Operand], codes: Array, scales: Array, *, dtype: str, rows_of: Array | None = None,
    nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """`elementwise`, rounded to `dtype` and then by the activation rule a8: codes `[N, width]`, scales f32 `[runs of 128 columns, N']`.

    N' is at least N; further scales are 1.
    """
    (rows, width), (runs, stride) = codes.shape, scales.shape
    if width % CODED_TOGETHER or any(operand.size % CODED_TOGETHER for operand in operands if isinstance(operand, PerRun)):
        raise unsupported("no kernel rounds rows of this width to codes", expected=f"a multiple of {CODED_TOGETHER}", found=str(width))
    sizes = {"rows": rows, "width": width, "stride": stride}
    arguments: dict[str, Argument] = {
        "codes": writing(codes), "scales": writing(scales), "rows_of": MISSING if rows_of is None else reading(rows_of),
        **{name: Scalar(size, "i32") for name, size in sizes.items()}, **_arguments(operands),
    }  # fmt: skip
    kernel = f"elementwise_codes<{', '.join([function, TYPES[dtype], *(_kind(operand, codes.shape) for operand in operands)])}>"
    return [Launch(SOURCE, kernel, (runs, -(-stride // (THREADS // 32)), 1), (THREADS, 1, 1), arguments, nodes=nodes)]


def _arguments(operands: Sequence[Operand]) -> dict[str, Argument]:
    found: dict[str, Argument] = {}
    for number, operand in enumerate(operands):
        if isinstance(operand, float):
            found[f"operand_{number}"] = Scalar(operand, "f32")
        else:
            found[f"operand_{number}"] = reading(operand if isinstance(operand, Array) else operand.array)
    return found


def _kind(operand: Operand, shape: tuple[int, ...]) -> str:
    """How an operand of a result of this shape is read, as elemwise.cu calls it."""
    if isinstance(operand, float):
        return "Number"
    if isinstance(operand, PerRun):
        return f"Run<{type_of(operand.array)}, {operand.size}>"
    if isinstance(operand, Part):
        parts = operand.array.shape[1] // shape[1]
        return f"Part<{type_of(operand.array)}, {parts}, {operand.number}, {'true' if operand.mapped else 'false'}>"
    kinds = {(1,): "One", shape[-1:]: "Columns", shape: "Whole"}
    assert operand.shape in kinds, f"an operand {operand.shape} of a result {shape}"
    return f"{kinds[operand.shape]}<{type_of(operand)}>"


def _is_by_column(kind: str) -> bool:
    return kind.startswith(("Columns", "Part", "Run"))


def glu(
    x: Array, up: Array | None = None, *, act: str = "silu", limit: float | None = None, alpha: float | None = None,
    beta: float | None = None, up_cap: float | None = None,
) -> tuple[str, list[Operand]]:  # fmt: skip
    """Function and operands of a gated unit, by the formula of `linear.glu`: of gates x and `up`, or of x `[N, 2 * inter]`, gates first."""
    operands: list[Operand] = [Part(x, 0), Part(x, 1)] if up is None else [x, up]
    function = f"Glu<{act.upper()}>"
    if alpha is not None:
        function = "GluAlpha"
    elif act == "situ":
        function = "GluSitu" if up_cap is None else "GluSituCapped"
    operands += [number for number in (limit, alpha, beta, up_cap) if number is not None]
    return f"Limited<{function}>" if limit is not None else function, operands
