"""Running matrix products in tests, and how far they may be from the exact result."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from conformance.arithmetic import NATIVE, half_spacing
from conformance.bounds.linear import sums_of
from cupy_backend.emulator import Schedule
from cupy_backend.kernels import linear, linear_tables
from cupy_backend.launch import Launch
from poem.dtypes import Dtype, activation
from poem.dtypes.tensor import Tensor
from tests.cupy_backend.launching import Memory

BF16 = ml_dtypes.bfloat16
PLANES = {"data": "bf16", "code": "u8", "offset": "bf16", "row_gain": "f32"}
# What mma.sync keeps of 8-bit products: each of 33 terms is cut to 13 bits below the largest, four times within a run of 128.
FP8_ERROR = 4 * 33 * 2.0**-13


class Product(NamedTuple):
    out: np.ndarray
    launches: list[Launch]
    counters: np.ndarray


def product(x: np.ndarray, w: Tensor, **options: Any) -> Product:
    return product_of_planes(x, w.dtype, linear.prepare(w.dtype, w.planes), w.shape[0], **options)


def product_of_planes(
    x: np.ndarray, dtype: Dtype, prepared: dict[str, np.ndarray], w_rows: int, *, out_dtype: type = np.float32, arch: str = "sm_90a",
    batch_invariant: bool = False, act: str | None = None, bias: np.ndarray | None = None, warpgroups: bool = False,
    schedule: Schedule | None = None, fp8_bits: int = 13, source: Path | None = None,
) -> Product:  # fmt: skip
    memory = Memory(schedule or Schedule())
    memory.device.fp8_bits = fp8_bits
    rows, width = x.shape
    outputs = w_rows // (2 if act else 1)
    words = PLANES | {"gain": linear_tables.format_of(dtype).gain}
    planes = {name: memory.give(f"w.{name}", plane, words[name]) for name, plane in prepared.items()}
    nbytes = linear.matmul_scratch(rows, outputs, width, dtype=dtype, arch=arch, batch_invariant=batch_invariant, act=act)
    launches = linear.matmul(
        memory.give("x", x), planes, memory.give("out", np.zeros((rows, outputs), out_dtype)), dtype=dtype, arch=arch,
        batch_invariant=batch_invariant, act=act, bias=None if bias is None else memory.give("bias", bias),
        warpgroups=warpgroups, scratch=memory.give("scratch", np.zeros(max(1, nbytes), np.uint8)),
        counters=memory.give("counters", np.zeros(linear_tables.COUNTERS, np.uint32)),
    )  # fmt: skip
    if source is not None:
        launches[-1] = replace(launches[-1], source=str(source))
    memory.run(launches)
    return Product(memory["out"], launches, memory["counters"])


@functools.cache
def weight(word: str, outputs: int, width: int, seed: int) -> Tensor:
    """Rows of very different sizes, some groups far from 0."""
    generator = np.random.default_rng(seed)
    values = generator.standard_normal((outputs, width)) * np.exp2(generator.integers(-3, 4, (outputs, 1)))
    values[:, : width // 4] += generator.integers(-2, 3, (outputs, 1)) * 2.0
    return Tensor.encode(values.astype(np.float32), Dtype(word))


def activations(flavour: str, rows: int, width: int, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, width))
    if flavour == "huge":
        x *= 2.0**100
    if flavour == "cancelling":
        x[:, 1::2] = -x[:, ::2][:, : x[:, 1::2].shape[1]]
    if flavour == "uneven":
        x *= np.exp2(generator.integers(-20, 20, (rows, width)))
    return x.astype(BF16)


def taken(x: np.ndarray, w: Tensor) -> np.ndarray:
    """The activations that the product takes, by the activation rule of w."""
    return activation.dequantise(*activation.quantise(x), np.float64) if w.dtype.act else x.astype(np.float64)


def bound(x: np.ndarray, w: Tensor, out_dtype: str, exact: np.ndarray, fp8: bool) -> np.ndarray:
    """growth u sum |x w|: additions, and for every group of columns a gain, an offset and their addition. The two parts that an offset
    is taken apart into are together up to three times the weight."""
    kernel = linear_tables.format_of(w.dtype)
    width = x.shape[1]
    steps = width + 4 * (width // min(64, kernel.group or 64)) + 64
    magnitude = sums_of(np.abs(x), np.abs(w.decode(dtype=np.float64))) * (3 if kernel.has_offset else 1)
    error = (NATIVE.growth(steps) * NATIVE.unit + (FP8_ERROR if fp8 else 0.0)) * magnitude + steps * NATIVE.tiny
    return error + half_spacing(np.abs(exact) + error, out_dtype)


def agrees(got: np.ndarray, exact: np.ndarray, error: np.ndarray, **case: object) -> None:
    wrong = np.argwhere(~(np.abs(got.astype(np.float64) - exact) <= error))
    if len(wrong):
        at = tuple(wrong[0])
        raise AssertionError(f"out{list(at)} = {got[at]}, but should be {exact[at]} within {error[at]} [{case}]; {len(wrong)} are wrong")
