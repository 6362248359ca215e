"""Exact values and allowed errors of what devices round each in their own way: approximate functions, sums of the tensor cores."""

import math
from collections.abc import Callable, Mapping

import ml_dtypes
import numpy as np

from bench.on_gpu.selftest import Memory, Verdict

Judge = Callable[[Memory, Memory], Verdict]
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def within(name: str, got: np.ndarray, exact: np.ndarray, allowed: np.ndarray) -> list[str]:
    """The worst element that is off by more than it may, in words. NaN must be NaN, infinity must be infinity."""
    got = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        fine = (np.abs(got - exact) <= allowed) | (got == exact) | (np.isnan(got) & np.isnan(exact))
        excess = np.where(fine, 0.0, np.abs(got - exact) / np.maximum(allowed, 1e-300))
    if fine.all():
        return []
    at = int(np.argmax(np.where(fine, -1.0, np.nan_to_num(excess, nan=np.inf))))
    return [
        f"{np.count_nonzero(~fine)} of {fine.size} of {name} are off: [{at}] = {got[at]!r}, exact {exact[at]!r}, allowed {allowed[at]:.3g}"
    ]


def ulp(exact: np.ndarray, dtype: type = np.float32) -> np.ndarray:
    """A unit in the last place of the result's dtype, of subnormal ones that of the smallest normal."""
    limits = np.finfo(dtype)
    return np.exp2(np.floor(np.log2(np.clip(np.abs(exact), float(limits.tiny), float(limits.max)))) - limits.nmant)


# ------------------------------------------------------------------------------------------------------------------ functions
def approximations(memory: Memory, outputs: Memory) -> Verdict:
    """The errors that the PTX manual states for ex2, lg2, rcp, rsqrt and tanh; subnormal arguments and results count as 0."""
    x = memory["x"].astype(np.float64)
    flushed = np.where(np.abs(x) < 2.0**-126, np.copysign(0.0, x), x)
    problems = []
    with np.errstate(all="ignore"):
        exact = {
            "exp2": np.exp2(flushed), "log2": np.log2(flushed), "reciprocal": 1 / flushed, "rsqrt": 1 / np.sqrt(flushed),
            "tanh": np.tanh(x),
        }  # fmt: skip
        exact["rsqrt"] = np.where(flushed == 0, 1 / flushed, exact["rsqrt"])
        allowed = {
            "exp2": 2 * ulp(exact["exp2"]) + 2.0**-126,
            "log2": np.where((x > 0.5) & (x < 2), 2.0**-22, 2.0**-22 * np.abs(exact["log2"])),
            "reciprocal": ulp(exact["reciprocal"]) + 2.0**-126, "rsqrt": 2.0**-22.9 * np.abs(exact["rsqrt"]),
            "tanh": 2.0**-11 * np.abs(exact["tanh"]) + 2.0**-126,
        }  # fmt: skip
        for name, want in exact.items():
            rounded = np.where(np.abs(want) > float(np.finfo(np.float32).max), np.copysign(np.inf, want), want)
            problems += within(name, outputs[name], rounded, allowed[name])
    return Verdict(tuple(problems))


_erf = np.vectorize(math.erf, otypes=[np.float64])
# Units in the last place that CUDA's manual allows ("Mathematical Functions Appendix").
ULPS = {
    "expf": 2, "exp2f": 2, "expm1f": 2, "sinf": 2, "cosf": 2, "tanhf": 2, "erff": 2, "logf": 2, "log2f": 2, "log1pf": 2, "powf": 8,
    "rsqrtf": 2,
}  # fmt: skip


def functions(memory: Memory, outputs: Memory) -> Verdict:
    """CUDA's functions within their units in the last place; activations within what those leave of theirs."""
    x, p = memory["x"].astype(np.float64), memory["p"].astype(np.float64)
    with np.errstate(over="ignore"):
        sigmoid = 1 / (1 + np.exp(-x))
        exact = {
            "expf": np.exp(x), "exp2f": np.exp2(x), "expm1f": np.expm1(x), "sinf": np.sin(x), "cosf": np.cos(x), "tanhf": np.tanh(x),
            "erff": _erf(x), "logf": np.log(p), "log2f": np.log2(p), "log1pf": np.log1p(p), "powf": p**x,
            "rsqrtf": 1 / np.sqrt(p),
            "sigmoid": sigmoid, "silu": x * sigmoid,
            "gelu_tanh": 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3))),
            "gelu": 0.5 * x * (1 + _erf(x / math.sqrt(2))),
        }  # fmt: skip
    problems = []
    for (name, want), got in zip(exact.items(), outputs["out"].reshape(len(exact), -1), strict=True):
        # sigmoid: an exponential, a sum, a quotient and a product. gelu: 1 + tanh or erf, whose errors stay where the sum cancels.
        allowed = ULPS[name] * ulp(want) if name in ULPS else 8 * ulp(want) if name in ("sigmoid", "silu") else 2.0**-20 * np.abs(x)
        overflow = np.abs(want) > float(np.finfo(np.float32).max)
        problems += within(name, got, np.where(overflow, np.copysign(np.inf, want), want), allowed)
    return Verdict(tuple(problems))


def doubles(memory: Memory, outputs: Memory) -> Verdict:
    """CUDA allows 1 unit in the last place for exp, log and log1p and 2 for pow; the library here may be off by as much."""
    x, p = memory["x"], memory["p"]
    exact = {"exp": np.exp(x), "log": np.log(p), "log1p": np.log1p(p), "pow": p**x}
    problems = []
    for (name, want), got in zip(exact.items(), outputs["out"].reshape(len(exact), -1), strict=True):
        problems += within(name, got, want, 4 * ulp(want, np.float64))
    return Verdict(tuple(problems))


# ------------------------------------------------------------------------------------------------------------- tensor cores
def matrices_of(memory: Mapping[str, np.ndarray], dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The operands [16, K] and [8, K] that the registers of a warp hold (prelude/mma.cuh), as float64."""
    a, b = (np.ascontiguousarray(memory[name]).view(TYPES[dtype]).astype(np.float64).reshape(32, -1) for name in ("a", "b"))
    (rows_a, columns_a), (rows_b, columns_b) = places(dtype)
    k = columns_b.max() + 1
    left, right = np.zeros((16, k)), np.zeros((8, k))
    left[rows_a, columns_a], right[rows_b, columns_b] = a, b
    return left, right


def places(dtype: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Row and column of every element that lanes hold, [32, elements], of A and of B."""
    elements = 4 // np.dtype(TYPES[dtype]).itemsize
    half = 4 * elements
    lane, register, element = np.meshgrid(np.arange(32), np.arange(4), np.arange(elements), indexing="ij")
    rows, columns = lane // 4 + 8 * (register % 2), elements * (lane % 4) + element + half * (register // 2)
    of_a = rows.reshape(32, -1), columns.reshape(32, -1)
    lane, register, element = np.meshgrid(np.arange(32), np.arange(2), np.arange(elements), indexing="ij")
    rows, columns = lane // 4, elements * (lane % 4) + element + half * register
    return of_a, (rows.reshape(32, -1), columns.reshape(32, -1))


def sums_of(values: np.ndarray) -> np.ndarray:
    """The accumulators `[..., 32, 4]` of a warp, or of each warp, as a matrix `[..., 16, 8]`."""
    lane, register = np.meshgrid(np.arange(32), np.arange(4), indexing="ij")
    held = values.astype(np.float64).reshape(*values.shape[:-2], 32, 4)
    matrix = np.empty((*held.shape[:-2], 16, 8))
    matrix[..., lane // 4 + 8 * (register // 2), 2 * (lane % 4) + register % 2] = held
    return matrix


# Bits that the tensor cores keep below the largest of the terms that they add: at least those of the float32 result's significand
# (Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores", 2021), and 13 for 8-bit operands on Ada and Hopper.
KEPT = {"bf16": 23, "f16": 23, "e4m3": 13, "e5m2": 13}


def product_of(dtype: str) -> Judge:
    """A product of random operands: every term, the old sum among them, may be cut at the last bit kept, and the result is rounded."""

    def judge(memory: Memory, outputs: Memory) -> Verdict:
        a, b = matrices_of(memory, dtype)
        old = sums_of(memory["d"].reshape(32, 4))
        exact = a @ b.T + old
        largest = np.maximum((np.abs(a)[:, None, :] * np.abs(b)[None, :, :]).max(-1), np.abs(old))
        allowed = (a.shape[1] + 1) * 2.0 ** -KEPT[dtype] * largest + 2.0**-23 * np.abs(exact)
        got = sums_of(outputs["d"].reshape(32, 4))
        return Verdict(tuple(within("the product", got.reshape(-1), exact.reshape(-1), allowed.reshape(-1))))

    return judge


# Terms 1, -1 and 2^-(i + j): the sum is the last of them if it is kept. Row i and column j give the exponents.
ROW_STEP = {"bf16": 2, "f16": 2, "e4m3": 1, "e5m2": 1}
LARGEST_ROW = {"bf16": 30, "f16": 24, "e4m3": 9, "e5m2": 15}  # within subnormals


def _probe_operands(dtype: str, columns: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A `[16, K]`, B `[columns, K]`, and the exponents of the third term `[16, columns]`."""
    k = 32 // np.dtype(TYPES[dtype]).itemsize
    rows = np.minimum(np.arange(16) * ROW_STEP[dtype], LARGEST_ROW[dtype])
    a, b = np.zeros((16, k)), np.zeros((columns, k))
    a[:, 0], a[:, k // 2], b[:, 0], b[:, k // 2] = 1, -1, 1, 1
    a[:, k - 1], b[:, k - 1] = np.exp2(-rows), np.exp2(-np.arange(columns))
    return a, b, rows[:, None] + np.arange(columns)[None, :]


def probes(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The registers of a warp, `[32, ...]` words, whose product shows how many bits are kept."""
    a, b, _ = _probe_operands(dtype, 8)
    of_a, of_b = places(dtype)
    return tuple(np.ascontiguousarray(matrix[at].astype(TYPES[dtype])).view(np.uint32) for matrix, at in ((a, of_a), (b, of_b)))  # type: ignore[return-value]


def warpgroup_probes(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The registers of a warpgroup, and B in shared memory: 8 rows of 128 bytes, swizzled."""
    a, b, _ = _probe_operands(dtype, 8)
    registers = np.ascontiguousarray(a[places(dtype)[0]].astype(TYPES[dtype])).view(np.uint32)
    image = np.zeros((8, 8, 16), np.uint8)  # row, chunk, byte
    chunks = b.astype(TYPES[dtype]).view(np.uint8).reshape(8, 2, 16)
    for row in range(8):
        for chunk in range(2):
            image[row, chunk ^ row] = chunks[row, chunk]
    return np.tile(registers, (4, 1)), image.reshape(-1).view(np.uint32).reshape(-1, 4)


def kept_by(dtype: str) -> Judge:
    """How many bits below the largest term a warp's product keeps: at least `KEPT`."""
    return lambda memory, outputs: _kept(dtype, sums_of(outputs["d"].reshape(32, 4)))


def kept_by_warpgroups(dtype: str) -> Judge:
    """The same of a warpgroup's product, whose four warps compute the same."""

    def judge(memory: Memory, outputs: Memory) -> Verdict:
        of_warps = sums_of(outputs["d"].reshape(4, 32, 4))
        same = () if (of_warps == of_warps[:1]).all() else ("the warps of the warpgroup differ",)
        found = _kept(dtype, of_warps[0])
        return Verdict((*same, *found.problems), found.facts)

    return judge


def _kept(dtype: str, sums: np.ndarray) -> Verdict:
    exponents = _probe_operands(dtype, 8)[2]
    kept = sums == np.exp2(-exponents)
    lost = exponents[~kept]
    bits = int(lost.min()) - 1 if len(lost) else int(exponents.max())
    problems = (
        [] if bits >= KEPT[dtype] or not len(lost) else [f"{bits} bits are kept below the largest term, and {KEPT[dtype]} are counted on"]
    )
    odd = ~kept & (sums != 0)
    problems += [f"a term of 2^-{exponents[odd][0]} beside 1 and -1 gives {sums[odd][0]!r}"] if odd.any() else []
    return Verdict(tuple(problems), {"bits kept": bits, "of at most": int(exponents.max())})
