"""Products of floats of any dtype and width, on the checked emulator, against float64 within the bound of the op."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.kernels import linear, linear_plain
from cupy_backend.launch import Array
from poem.dtypes import Dtype
from tests.cupy_backend.bounded import DTYPES, flavours, numbers, seeds, within_bound
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.running import schedules

# Of x, of w, of the result.
KINDS = (("f32", "f32", "f32"), ("f16", "f16", "f16"), ("bf16", "f32", "bf16"), ("bf16", "bf16", "bf16"), ("f16", "bf16", "f32"))
sizes = st.sampled_from((1, 3, 8, 9, 64, 70))


@settings(deadline=None, max_examples=50)
@given(
    st.sampled_from(KINDS), sizes, st.sampled_from((1, 5, 63, 64, 130)), st.sampled_from((1, 7, 16, 33, 100)), flavours, schedules, seeds
)
def test_products_of_floats_of_any_width(kind, rows, outputs, width, flavour, schedule, seed):
    memory, (x_dtype, w_dtype, dtype) = Memory(schedule), kind
    x, w = numbers(seed, (rows, width), x_dtype, flavour), numbers(seed + 1, (outputs, width), w_dtype, "normal")
    memory.run(linear_plain.matmul(memory.give("x", x), memory.give("w", w), memory.out("out", rows, outputs, dtype=dtype)))
    wide = {"x": x.astype(np.float64), "w": w.astype(np.float64)}
    within_bound("linear.matmul", [memory["out"]], [wide["x"] @ wide["w"].T], {**wide, "out": None})


@settings(deadline=None, max_examples=10)
@given(st.integers(1, 70), seeds)
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(rows, seed):
    x, w = numbers(seed, (rows, 50), "f32"), numbers(seed + 1, (33, 50), "f32")
    found = []
    for part in (x, x[rows // 2 :][:1]):
        memory = Memory()
        memory.run(linear_plain.matmul(memory.give("x", part), memory.give("w", w), memory.out("out", len(part), 33, dtype="f32")))
        found.append(memory["out"])
    np.testing.assert_array_equal(found[0][rows // 2], found[1][0])


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_bias_is_added_to_the_product_as_it_would_be_stored(dtype):
    x, w, bias = numbers(1, (9, 33), "f32"), numbers(2, (70, 33), "f32"), numbers(3, (70,), dtype, "large")
    found = []
    for added in (None, bias):
        memory = Memory()
        given_ = None if added is None else memory.give("bias", added)
        out = memory.out("out", 9, 70, dtype=dtype)
        memory.run(linear_plain.matmul(memory.give("x", x), memory.give("w", w), out, bias=given_))
        found.append(memory["out"])
    np.testing.assert_array_equal(found[1], (found[0].astype(np.float32) + bias.astype(np.float32)).astype(DTYPES[dtype]))


def test_a_row_with_an_infinity_leaves_the_others_alone_and_is_no_nan_past_the_width():
    x, w, memory = np.ones((2, 17), np.float32), np.ones((3, 17), np.float32), Memory()
    x[0, 16] = np.inf
    memory.run(linear_plain.matmul(memory.give("x", x), memory.give("w", w), memory.out("out", 2, 3, dtype="f32")))
    np.testing.assert_array_equal(memory["out"], [[np.inf] * 3, [17] * 3])


@pytest.mark.parametrize(("x", "weight", "width", "out", "source"), [
    ("bf16", "bf16", 64, "bf16", "linear.cu"), ("bf16", "bf16", 64, "f32", "linear.cu"), ("bf16", "u4g64", 64, "bf16", "linear.cu"),
    ("bf16", "bf16", 63, "bf16", "linear_plain.cu"), ("bf16", "bf16", 64, "f16", "linear_plain.cu"),
    ("f32", "f32", 64, "f32", "linear_plain.cu"), ("bf16", "f16", 64, "bf16", "linear_plain.cu"),
])  # fmt: skip
def test_products_that_tensor_cores_take_are_not_among_them(x, weight, width, out, source):
    dtype = Dtype(weight)
    shapes = {"data": (32, width), "code": (32, width // 2), "gain": (1, 32), "offset": (1, 32)}
    w = {path: Array(path, "constant", shape, weight if path == "data" else "u8") for path, shape in shapes.items()}
    arrays = Array("x", "read", (4, width), x), w, Array("out", "write", (4, 32), out)
    (launch,) = linear.matmul(*arrays, dtype=dtype, arch="sm_90a")
    assert launch.source == source
