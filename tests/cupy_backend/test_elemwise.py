"""elemwise.cu on the checked emulator, against float64 within the bounds that the differ derives for each op."""

from math import erf
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from cupy_backend.kernels import elemwise, linear
from cupy_backend.kernels.elemwise import Part, PerRun
from cupy_backend.launch import Array
from poem.dtypes import activation
from tests.cupy_backend.bounded import DTYPES, flavours, numbers, seeds, wide, within_bound
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.running import schedules

ARCH = "sm_90a"
# Rows of whole packs and ragged ones; for operands that are read by column each is an instantiation.
WIDTHS = (8, 1, 6, 72, 333, 1000)
shapes = st.tuples(st.integers(1, 5), st.sampled_from(WIDTHS))


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


def gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


# By function: the op, and its formula. Operands are called as the op's parameters; a capital letter stands for a column of numbers.
FORMULAS: dict[str, tuple[str, str, Any]] = {
    "Same": ("elemwise.cast", "x", lambda x: x),
    "Add": ("elemwise.add", "x y", lambda x, y: x + y),
    "Multiply": ("elemwise.mul", "x y", lambda x, y: x * y),
    "Standardize": ("elemwise.standardize", "x BIAS SCALE", lambda x, bias, scale: (x - bias) * scale),
    "Tanh": ("elemwise.tanh", "x", np.tanh),
    "Relu": ("elemwise.relu", "x", lambda x: np.maximum(x, 0)),
    "ReluSquared": ("elemwise.relu2", "x", lambda x: np.maximum(x, 0) ** 2),
    "Activated<SILU>": ("elemwise.silu", "x", lambda x: x * sigmoid(x)),
    "Activated<GELU_TANH>": ("linear.gelu_tanh", "x", gelu_tanh),
    "Gate": ("elemwise.gate_sigmoid_mul", "x gate", lambda x, gate: x * sigmoid(gate)),
}


@pytest.mark.parametrize("function", FORMULAS)
@settings(deadline=None, max_examples=10)
@given(shapes, st.sampled_from(("bf16", "f16", "f32")), flavours, schedules, seeds)
def test_each_element_is_the_function_of_the_operands_elements(
    function: str, shape: tuple[int, int], dtype: str, flavour: str, schedule: Schedule, seed: int
) -> None:
    op, names, formula = FORMULAS[function]
    memory = Memory(schedule)
    given_ = {}
    for number, name in enumerate(names.split()):
        one_row = name.isupper()
        drawn = numbers(seed + number, shape[1:] if one_row else shape, dtype, flavour)
        given_[name.lower()] = drawn.astype(np.float32) if one_row else drawn
    arrays = [memory.give(name, array) for name, array in given_.items()]
    memory.run(elemwise.elementwise(function, arrays, memory.out("out", *shape, dtype=dtype), arch=ARCH))
    exact = {name: array.astype(np.float64) for name, array in given_.items()}
    extra = {"dtype": dtype} if op == "elemwise.cast" else {}
    within_bound(op, [memory["out"]], [formula(*exact.values())], {**exact, **extra})


@settings(deadline=None, max_examples=20)
@given(shapes, st.sampled_from(("bf16", "f32")), flavours, schedules, seeds)
def test_a_result_has_its_own_dtype_and_operands_theirs(
    shape: tuple[int, int], dtype: str, flavour: str, schedule: Schedule, seed: int
) -> None:
    memory = Memory(schedule)
    x, y = numbers(seed, shape, "f32", flavour), numbers(seed + 1, shape, dtype, flavour)
    memory.run(elemwise.elementwise("Add", [memory.give("y", y), memory.give("x", x)], memory.out("out", *shape, dtype=dtype), arch=ARCH))
    want = (x + y.astype(np.float32)).astype(DTYPES[dtype])  # one float32 addition and one rounding: exact
    np.testing.assert_array_equal(memory["out"], want)


@settings(deadline=None, max_examples=20)
@given(shapes, st.sampled_from(("bf16", "f32")), st.sampled_from(("f32", "bf16", "f16")), flavours, schedules, seeds)
def test_one_row_is_added_to_all_rows_and_one_element_multiplies_all(
    shape: tuple[int, int], dtype: str, weight: str, flavour: str, schedule: Schedule, seed: int
) -> None:
    memory = Memory(schedule)
    x, row, one = numbers(seed, shape, dtype, flavour), numbers(seed + 1, shape[1:], weight, flavour), numbers(seed + 2, (1,), weight)
    given_ = memory.give("x", x)
    for function, operand, name in (("Add", row, "row"), ("Multiply", one, "one")):
        out = memory.out(f"{function} out", *shape, dtype=dtype)
        memory.run(elemwise.elementwise(function, [given_, memory.give(name, operand)], out, arch=ARCH))
    exact = {"x": wide(x), "bias": wide(row), "s": wide(one)}
    within_bound("elemwise.add_bias", [memory["Add out"]], [exact["x"] + exact["bias"]], {name: exact[name] for name in ("x", "bias")})
    within_bound("elemwise.scale", [memory["Multiply out"]], [exact["x"] * exact["s"]], {name: exact[name] for name in ("x", "s")})


@settings(deadline=None, max_examples=15)
@given(shapes, st.sampled_from(("bf16", "f32")), flavours, schedules, seeds)
def test_numbers_are_operands(shape: tuple[int, int], dtype: str, flavour: str, schedule: Schedule, seed: int) -> None:
    memory, x = Memory(schedule), numbers(seed, shape, dtype, flavour)
    given_, x64 = memory.give("x", x), x.astype(np.float64)
    cases: tuple[tuple[str, str, tuple[float, ...], Any, dict[str, Any]], ...] = (
        ("Multiply", "elemwise.mul_scalar", (0.75,), x64 * 0.75, {"s": 0.75}),
        ("ScaledSilu", "elemwise.silu_scaled", (0.25,), 0.25 * x64 * sigmoid(0.25 * x64), {"s": 0.25}),
        ("Clamp", "elemwise.clamp", (-0.5, 1.5), np.clip(x64, -0.5, 1.5), {"lo": -0.5, "hi": 1.5}),
        ("Softcap", "attn.logit_softcap", (30.0,), 30 * np.tanh(x64 / 30), {"cap": 30.0}),
    )
    for function, op, operands, want, arguments in cases:
        memory.run(elemwise.elementwise(function, [given_, *operands], memory.out("out", *shape, dtype=dtype), arch=ARCH))
        within_bound(op, [memory["out"]], [want], {"x": x64, **arguments})


def test_nan_passes_a_rectifier_and_becomes_a_clamps_lower_bound() -> None:
    memory, x = Memory(), np.array([[np.nan, -0.0, np.inf, -np.inf]], np.float32)
    given_ = memory.give("x", x)
    for function, operands in (("Relu", ()), ("ReluSquared", ()), ("Clamp", (-1.0, 2.0)), ("Same", ())):
        memory.run(elemwise.elementwise(function, [given_, *operands], memory.out(function, 1, 4, dtype="f32"), arch=ARCH))
    np.testing.assert_array_equal(memory["Relu"], [[np.nan, 0, np.inf, 0]])
    np.testing.assert_array_equal(memory["ReluSquared"], [[np.nan, 0, np.inf, 0]])
    np.testing.assert_array_equal(memory["Clamp"], [[-1, 0, 2, -1]])
    np.testing.assert_array_equal(memory["Same"], x)


# ----------------------------------------------------------------------------------------------------------------- parts, runs, rows
@settings(deadline=None, max_examples=20)
@given(shapes, st.sampled_from((("bf16", "f32", True), ("bf16", "bf16", False), ("f32", "f32", True))), flavours, schedules, seeds)
def test_rows_are_modulated_by_their_own_or_by_looked_up_rows(
    shape: tuple[int, int], kind: tuple[str, str, bool], flavour: str, schedule: Schedule, seed: int
) -> None:
    memory, (rows, width), (dtype, table, mapped) = Memory(schedule), shape, kind
    x, y = (numbers(seed + i, shape, dtype, flavour) for i in range(2))
    m = numbers(seed + 2, (3 if mapped else rows, 2 * width), table, flavour)
    which = np.random.default_rng(seed).integers(0, 3, rows).astype(np.int32)
    rows_of = memory.give("rows_of", which) if mapped else None
    given_, of = [memory.give(name, array) for name, array in (("x", x), ("y", y))], memory.give("m", m)
    scale, shift = Part(of, 0, mapped), Part(of, 1, mapped)
    x64, y64, m64 = x.astype(np.float64), y.astype(np.float64), m.astype(np.float64)
    mine = m64[which] if mapped else m64
    s, b = mine[:, :width], mine[:, width:]
    lanes = which if mapped else None
    cases: tuple[tuple[str, list[elemwise.Operand], str, np.ndarray, dict[str, Any]], ...] = (
        ("ScaleShift", [given_[0], scale, shift], "elemwise.modulate", x64 * (1 + s) + b, {"x": x64, "m": m64, "form": "scale_shift"}),
        ("ScaleByOneMore", [given_[0], shift], "elemwise.modulate", x64 * (1 + b), {"x": x64, "m": m64[:, width:], "form": "scale"}),
        ("TanhGate", [given_[0], scale], "elemwise.modulate", np.tanh(s) * x64, {"x": x64, "m": m64[:, :width], "form": "tanh_gate"}),
        ("AddGated", [given_[0], scale, given_[1]], "elemwise.gated_residual_add", x64 + s * y64,
         {"r": x64, "g": m64[:, :width], "y": y64}),
    )  # fmt: skip
    for function, operands, op, want, arguments in cases:
        out = memory.out("out", *shape, dtype=dtype)
        memory.run(elemwise.elementwise(function, operands, out, arch=ARCH, rows_of=rows_of))
        within_bound(op, [memory["out"]], [want], {**arguments, "lane_of_row": lanes})


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(1, 5), st.sampled_from((16, 6, 128)), st.sampled_from(("bf16", "f32")), flavours, schedules, seeds)
def test_each_head_has_a_gate(rows: int, heads: int, head_dim: int, dtype: str, flavour: str, schedule: Schedule, seed: int) -> None:
    memory = Memory(schedule)
    x, gate = numbers(seed, (rows, heads * head_dim), dtype, flavour), numbers(seed + 1, (rows, heads), "f32", flavour)
    operands: list[elemwise.Operand] = [memory.give("x", x), PerRun(memory.give("gate", gate), head_dim), 2.0]
    memory.run(elemwise.elementwise("ScaledGate", operands, memory.out("out", *x.shape, dtype=dtype), arch=ARCH))
    exact = {"x": x.astype(np.float64), "gate": gate.astype(np.float64)}
    want = exact["x"] * np.repeat(2 * sigmoid(exact["gate"]), head_dim, axis=1)
    within_bound("elemwise.gate_sigmoid_mul_heads", [memory["out"]], [want], {**exact, "head_dim": head_dim, "scale": 2.0})


# --------------------------------------------------------------------------------------------------------------------- gated units
class Unit(NamedTuple):
    """The options of a gated unit."""

    act: str = "silu"
    limit: float | None = None
    alpha: float | None = None
    beta: float | None = None
    up_cap: float | None = None

    def of(self, gate: np.ndarray, up: np.ndarray) -> np.ndarray:
        if self.limit is not None:
            gate, up = np.minimum(gate, self.limit), np.clip(up, -self.limit, self.limit)
        if self.alpha is not None:
            return (up + 1) * gate * sigmoid(self.alpha * gate)
        if self.act == "situ":
            assert self.beta is not None
            capped = up if self.up_cap is None else self.up_cap * np.tanh(up / self.up_cap)
            return self.beta * np.tanh(gate / self.beta) * sigmoid(gate) * capped
        return {"silu": lambda: gate * sigmoid(gate), "gelu_tanh": lambda: gelu_tanh(gate), "gelu": lambda: gelu(gate)}[self.act]() * up


UNITS = (
    Unit(), Unit("gelu_tanh"), Unit("gelu"), Unit(limit=0.5), Unit(limit=1.0, alpha=1.703125), Unit(alpha=1.703125),
    Unit("situ", beta=2.0), Unit("situ", beta=2.0, up_cap=1.0), Unit("situ", limit=1.0, beta=2.0, up_cap=1.0), Unit("gelu", limit=0.5),
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(UNITS), shapes, st.sampled_from((("bf16", True), ("f32", False))), flavours, schedules, seeds)
def test_gated_units_over_packed_halves_and_over_two_operands(
    unit: Unit, shape: tuple[int, int], kind: tuple[str, bool], flavour: str, schedule: Schedule, seed: int
) -> None:
    memory, (rows, inter), (dtype, packed) = Memory(schedule), shape, kind
    x = numbers(seed, (rows, 2 * inter), dtype, flavour)
    gate, up = np.ascontiguousarray(x[:, :inter]), np.ascontiguousarray(x[:, inter:])
    given_ = memory.give("x", x if packed else gate)
    computed = elemwise.glu(given_, None if packed else memory.give("up", up), **unit._asdict())
    memory.run(elemwise.elementwise(*computed, memory.out("out", rows, inter, dtype=dtype), arch=ARCH))
    want = unit.of(gate.astype(np.float64), up.astype(np.float64))
    arguments = {"x": wide(x if packed else gate), "up": None if packed else wide(up), "inter": inter, **unit._asdict()}
    within_bound("linear.glu", [memory["out"]], [want], arguments)


def test_a_limit_takes_the_place_of_nan() -> None:
    memory = Memory()
    x = memory.give("x", np.array([[np.nan, 3, 2, np.nan]], np.float32))
    memory.run(elemwise.elementwise(*elemwise.glu(x, limit=1.0), memory.out("out", 1, 2, dtype="f32"), arch=ARCH))
    np.testing.assert_allclose(memory["out"], [[0.731059, -0.731059]], atol=1e-6)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 9), st.sampled_from((16, 128, 144, 1040)), st.sampled_from((UNITS[0], UNITS[4], None)), flavours, schedules, seeds)
def test_codes_for_a_product_are_those_of_the_stored_result(
    rows: int, width: int, unit: Unit | None, flavour: str, schedule: Schedule, seed: int
) -> None:
    """A gated unit, or a column added, in one launch with the rounding to codes and in two."""
    memory, shapes = Memory(schedule), linear.codes_shapes(rows, width)
    x = memory.give("x", numbers(seed, (rows, width if unit is None else 2 * width), "bf16", flavour))
    row = memory.give("row", numbers(seed + 1, (width,), "bf16"))
    computed = ("Add", [x, row]) if unit is None else elemwise.glu(x, **unit._asdict())
    together, apart = (
        (memory.out(f"{way} codes", *shapes[0], dtype="u8"), memory.out(f"{way} scales", *shapes[1], dtype="f32")) for way in ("1", "2")
    )
    memory.run(elemwise.elementwise_codes(*computed, *together, dtype="bf16"))
    stored = memory.out("stored", rows, width, dtype="bf16")
    memory.run([*elemwise.elementwise(*computed, stored, arch=ARCH), linear.quantise_activations(stored, *apart)])
    codes, scales = activation.quantise(memory["stored"].astype(np.float32))
    for way in ("1", "2"):
        np.testing.assert_array_equal(memory[f"{way} codes"], codes, err_msg=f"{rows} x {width}, {unit}, {flavour}, seed {seed}")
        np.testing.assert_array_equal(memory[f"{way} scales"][:, :rows], scales.T)
        np.testing.assert_array_equal(memory[f"{way} scales"][:, rows:], 1)


# ------------------------------------------------------------------------------------------------------------------------ the launch
def test_only_operands_that_are_read_by_column_split_the_rows_into_packs() -> None:
    """Rows of 333 columns: 16 bytes at a time as long as no operand has to know the column."""
    x, row = Array("x", "read", (4, 333), "bf16"), Array("row", "constant", (333,), "bf16")
    (flat,), (by_column,) = (elemwise.elementwise("Add", [x, other], x, arch=ARCH) for other in (x, row))
    assert flat.kernel == "elementwise<Add, 8, bf16, Whole<bf16>, Whole<bf16>>"
    assert by_column.kernel == "elementwise<Add, 1, bf16, Whole<bf16>, Columns<bf16>>"


def test_more_elements_than_the_kernel_counts_are_refused() -> None:
    x = Array("x", "read", (1 << 20, 1 << 15), "bf16")
    with pytest.raises(KernelError) as caught:
        elemwise.elementwise("Tanh", [x], x, arch=ARCH)
    assert caught.value.code == "kernel.unsupported"


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """The instantiations of packed gated units together, which is quicker than one by one."""
    launches = []
    for width in WIDTHS:
        packed, out, plain = (
            Array("x", "read", (1, size), dtype) for size, dtype in ((2 * width, "bf16"), (width, "bf16"), (width, "f32"))
        )
        for unit in UNITS:
            launches += elemwise.elementwise(*elemwise.glu(packed, **unit._asdict()), out, arch=ARCH)
            launches += elemwise.elementwise(*elemwise.glu(plain, plain, **unit._asdict()), plain, arch=ARCH)
    EmulatedDevice().prepare(launches)
