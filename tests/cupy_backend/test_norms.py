"""norms.cu on the checked emulator, against float64 within the bounds that the differ derives for each op."""

from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend import sources
from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from cupy_backend.kernels import linear, norms
from cupy_backend.launch import Array, Launch
from tests.cupy_backend.bounded import DTYPES, flavours, numbers, seeds, wide, within_bound
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.running import line_of, schedules, with_fault

FIFO = Schedule()
# Rows of every kind: whole packs and ragged ones, one pack and several for a thread, fewer packs than threads. Each is an instantiation.
WIDTHS = (1, 6, 8, 72, 333, 530, 1000, 1200)
FORMS = (("bf16", False, True), ("bf16", True, False), ("f16", False, False), ("f32", True, True))  # dtype, plus one, with a residual
CODED_WIDTHS = (16, 144, 1000, 2064)
HEADS = (1, 7, 16, 48, 80, 128, 256, 1096)


def root_mean_square(x: np.ndarray, eps: float) -> np.ndarray:
    return np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float64(np.float32(eps)))


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """All instantiations together, which is quicker than one by one."""
    launches = []
    for width in WIDTHS:
        for dtype, plus_one, add in FORMS:
            x, gain = Array("x", "read", (1, width), dtype), Array("gain", "read", (width,), "f32")
            launches += norms.rmsnorm(x, gain, x, eps=1e-6, plus_one=plus_one, residual=x if add else None)
    for head_dim in HEADS:
        for dtype, plus_one in (("bf16", False), ("f32", True)):
            x, gain = Array("x", "read", (1, head_dim), dtype), Array("gain", "read", (head_dim,), dtype)
            launches += norms.rmsnorm(x, gain, x, size=head_dim, eps=1e-6, plus_one=plus_one)
    for width in WIDTHS:
        x, f32 = (Array("x", "read", (1, width), dtype) for dtype in ("bf16", "f32"))
        for of, gain, bias in ((x, f32, x), (f32, None, f32), (x, x, None), (x, None, None)):
            weights = [None if weight is None else Array("w", "read", (width,), weight.dtype) for weight in (gain, bias)]
            launches += norms.layernorm(of, *weights, of, eps=1e-5)
    for width in CODED_WIDTHS:
        x, gain = Array("x", "read", (1, width), "bf16"), Array("gain", "read", (width,), "bf16")
        codes, scales = Array("codes", "read", (1, width), "u8"), Array("scales", "read", (-(-width // 128), 4), "f32")
        for residual in (None, x):
            launches += norms.rmsnorm_codes(x, gain, codes, scales, eps=1e-6, plus_one=residual is None, residual=residual)
            launches += norms.rmsnorm(x, gain, x, eps=1e-6, plus_one=residual is None, residual=residual)
    EmulatedDevice().prepare(launches)


shapes = st.tuples(st.integers(1, 4), st.sampled_from(WIDTHS))


# ----------------------------------------------------------------------------------------------------------------------------- norms
@settings(max_examples=40)
@given(shapes, st.sampled_from(FORMS), flavours, schedules, seeds)
def test_rmsnorm_with_and_without_a_residual(
    shape: tuple[int, int], form: tuple[str, bool, bool], flavour: str, schedule: Schedule, seed: int
) -> None:
    dtype, plus_one, add = form
    memory = Memory(schedule)
    x, gain = numbers(seed, shape, dtype, flavour), numbers(seed + 1, shape[1:], "f32", "normal")
    residual = numbers(seed + 2, shape, dtype, flavour)
    operands = {"x": memory.give("x", x), "gain": memory.give("gain", gain), "out": memory.out("out", *shape, dtype=dtype)}
    launches = norms.rmsnorm(**operands, eps=1e-6, plus_one=plus_one, residual=memory.give("residual", residual) if add else None)
    memory.run(launches)
    normed = x.astype(np.float64)
    if add:
        normed = (x.astype(np.float32) + residual.astype(np.float32)).astype(DTYPES[dtype]).astype(np.float64)
        assert np.array_equal(memory["residual"].astype(np.float64), normed), "the sum is rounded once, exactly as the op stores it"
    w = gain.astype(np.float64)
    op = "elemwise.rmsnorm_plus_one" if plus_one else "elemwise.rmsnorm"
    exact = normed / root_mean_square(normed, 1e-6) * (1 + w if plus_one else w)
    within_bound(op, [memory["out"]], [exact], {"x": normed, "w": w, "eps": 1e-6})


@pytest.mark.parametrize("width", [4096, 16384, 20000, 36864])
def test_rmsnorm_of_wide_rows(width: int) -> None:
    """Rows that fill the registers of a thread, and rows that are read twice."""
    memory = Memory(Schedule("random", "late", 3))
    x, gain, residual = (numbers(seed, shape, "bf16", "normal") for seed, shape in ((1, (2, width)), (2, (width,)), (3, (2, width))))
    launches = norms.rmsnorm(
        memory.give("x", x),
        memory.give("gain", gain),
        memory.out("out", 2, width, dtype="bf16"),
        eps=1e-5,
        residual=memory.give("residual", residual),
    )
    memory.run(launches)
    normed = memory["residual"].astype(np.float64)
    exact = normed / root_mean_square(normed, 1e-5) * gain.astype(np.float64)
    within_bound("elemwise.rmsnorm", [memory["out"]], [exact], {"x": normed, "w": gain.astype(np.float64), "eps": 1e-5})


@settings(max_examples=30)
@given(
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from(HEADS),
    st.sampled_from((("bf16", False), ("f32", True))),
    flavours,
    schedules,
    seeds,
)
def test_rmsnorm_of_each_head(
    rows: int, heads: int, head_dim: int, form: tuple[str, bool], flavour: str, schedule: Schedule, seed: int
) -> None:
    dtype, plus_one = form
    memory = Memory(schedule)
    x, gain = numbers(seed, (rows, heads * head_dim), dtype, flavour), numbers(seed + 1, (head_dim,), dtype, "normal")
    operands = {"x": memory.give("x", x), "gain": memory.give("gain", gain), "out": memory.out("out", *x.shape, dtype=dtype)}
    memory.run(norms.rmsnorm(**operands, size=head_dim, eps=1e-6, plus_one=plus_one))
    runs, w = x.astype(np.float64).reshape(rows, heads, head_dim), gain.astype(np.float64)
    exact = (runs / root_mean_square(runs, 1e-6) * (1 + w if plus_one else w)).reshape(x.shape)
    op = "elemwise.rmsnorm_per_head_plus_one" if plus_one else "elemwise.rmsnorm_per_head"
    within_bound(op, [memory["out"]], [exact], {"x": x.astype(np.float64), "w": w, "head_dim": head_dim, "eps": 1e-6})


RUNS = (  # op, size of a run, runs of a row, whether the gain is the row's
    ("elemwise.rmsnorm_no_scale", 80, 3, False), ("elemwise.rmsnorm_no_scale", 333, 1, False),
    ("elemwise.rmsnorm_no_scale", 1096, 2, False),
    ("elemwise.rmsnorm_grouped_plus_one", 64, 5, True), ("elemwise.rmsnorm_grouped_plus_one", 1096, 2, True),
)  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.sampled_from(RUNS), flavours, schedules, seeds)
def test_runs_are_normed_without_a_gain_and_with_gains_of_their_own(
    rows: int, kind: tuple[str, int, int, bool], flavour: str, schedule: Schedule, seed: int
) -> None:
    op, size, count, own = kind
    memory = Memory(schedule)
    x, gain = numbers(seed, (rows, count * size), "bf16", flavour), numbers(seed + 1, (count * size,), "bf16") if own else None
    given_ = None if gain is None else memory.give("gain", gain)
    out = memory.out("out", *x.shape, dtype="bf16")
    memory.run(norms.rmsnorm(memory.give("x", x), given_, out, size=size, eps=1e-6, plus_one=own))
    runs = x.astype(np.float64).reshape(rows, count, size)
    exact = (runs / root_mean_square(runs, 1e-6)).reshape(x.shape)
    arguments = {"x": x.astype(np.float64), "eps": 1e-6, "head_dim": size}
    if gain is not None:
        exact = exact * (1 + gain.astype(np.float64))
        arguments = {"x": arguments["x"], "eps": 1e-6, "group": size, "w": gain.astype(np.float64)}
    within_bound(op, [memory["out"]], [exact], arguments)


GATED = (  # dtype of x, of the gate, act, gate first, size of a run, runs of a row, whether the gain is the row's
    ("bf16", "bf16", "silu", False, 128, 3, False), ("f32", "bf16", "sigmoid", False, 48, 2, False),
    ("bf16", "bf16", "silu", True, 96, 2, True),
    ("f32", "f32", "sigmoid", True, 1100, 2, True), ("f32", "bf16", "silu", True, 333, 1, False),
)  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 4), st.sampled_from(GATED), flavours, schedules, seeds)
def test_a_gate_multiplies_the_normed_run_or_the_run_before_it_is_normed(
    rows: int, kind: tuple[str, str, str, bool, int, int, bool], flavour: str, schedule: Schedule, seed: int
) -> None:
    dtype, gate_dtype, act, gate_first, size, count, own = kind
    memory = Memory(schedule)
    x, gate = numbers(seed, (rows, count * size), dtype, flavour), numbers(seed + 1, (rows, count * size), gate_dtype, "normal")
    gain = numbers(seed + 2, (count * size if own else size,), "f32")
    operands = [memory.give(name, array) for name, array in (("x", x), ("gate", gate), ("gain", gain))]
    out = memory.out("out", *x.shape, dtype=gate_dtype)
    memory.run(norms.rmsnorm_gated(*operands, out, size=size, eps=1e-5, act=act, gate_first=gate_first))
    g, w = gate.astype(np.float64), gain.astype(np.float64)
    opened = ((g if act == "silu" else 1) / (1 + np.exp(-g))).reshape(rows, count, size)
    runs, gains = x.astype(np.float64).reshape(rows, count, size), w.reshape(-1, size)
    read = runs * opened if gate_first else runs
    exact = read / root_mean_square(read, 1e-5) * gains * (1 if gate_first else opened)
    arguments = {"x": x.astype(np.float64), "gate": g, "w": w, "head_dim": size, "eps": 1e-5, "act": act, "gate_first": gate_first}
    within_bound("elemwise.rmsnorm_gated", [memory["out"]], [exact.reshape(x.shape)], arguments)


@settings(deadline=None, max_examples=30)
@given(shapes, st.sampled_from((("bf16", "f32", "bf16"), ("f32", None, "f32"), ("bf16", "bf16", None), ("bf16", None, None))), flavours,
       schedules, seeds)  # fmt: skip
def test_layernorm_with_and_without_gain_and_bias(
    shape: tuple[int, int], kind: tuple[str, str | None, str | None], flavour: str, schedule: Schedule, seed: int
) -> None:
    memory, (dtype, *weights) = Memory(schedule), kind
    x = numbers(seed, shape, dtype, flavour)
    gain, bias = (None if word is None else numbers(seed + 1 + i, shape[1:], word, "normal") for i, word in enumerate(weights))
    arrays = [None if array is None else memory.give(name, array) for name, array in (("gain", gain), ("bias", bias))]
    memory.run(norms.layernorm(memory.give("x", x), *arrays, memory.out("out", *shape, dtype=dtype), eps=1e-5))
    centred = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    exact = centred / root_mean_square(centred, 1e-5)
    exact = exact * (1 if gain is None else gain.astype(np.float64)) + (0 if bias is None else bias.astype(np.float64))
    arguments = {"x": x.astype(np.float64), "w": wide(gain), "b": wide(bias), "eps": 1e-5}
    within_bound("elemwise.layernorm", [memory["out"]], [exact], arguments)


@pytest.mark.parametrize("width", [16384, 40000])
def test_layernorm_of_wide_rows(width: int) -> None:
    memory = Memory(Schedule("random", "late", 3))
    x, gain = numbers(1, (2, width), "bf16"), numbers(2, (width,), "bf16")
    memory.run(norms.layernorm(memory.give("x", x), memory.give("gain", gain), None, memory.out("out", 2, width, dtype="bf16"), eps=1e-5))
    centred = x.astype(np.float64) - x.astype(np.float64).mean(1, keepdims=True)
    exact = centred / root_mean_square(centred, 1e-5) * gain.astype(np.float64)
    arguments = {"x": x.astype(np.float64), "w": gain.astype(np.float64), "b": None, "eps": 1e-5}
    within_bound("elemwise.layernorm", [memory["out"]], [exact], arguments)


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 6), st.sampled_from(CODED_WIDTHS), st.booleans(), flavours | st.just("specials"), schedules, seeds)
def test_codes_for_a_product_are_those_of_the_stored_norm(
    rows: int, width: int, add: bool, flavour: str, schedule: Schedule, seed: int
) -> None:
    memory, stride, plus_one = Memory(schedule), -(-rows // 4) * 4, not add
    x, gain = numbers(seed, (rows, width), "bf16", flavour), numbers(seed + 1, (width,), "bf16", "normal")
    if flavour == "specials":
        x[0, ::7], x[-1, ::5] = np.inf, np.nan
    given_, weight = memory.give("x", x), memory.give("gain", gain)
    found = []
    for way in ("together", "apart"):
        residual = memory.give("residual", numbers(seed + 2, (rows, width), "bf16", flavour)) if add else None
        codes = memory.out(f"codes {way}", rows, width, dtype="u8")
        scales = memory.out(f"scales {way}", -(-width // 128), stride, dtype="f32")
        if way == "together":
            memory.run(norms.rmsnorm_codes(given_, weight, codes, scales, eps=1e-6, plus_one=plus_one, residual=residual))
        else:
            normed = memory.out("normed", rows, width, dtype="bf16")
            memory.run(norms.rmsnorm(given_, weight, normed, eps=1e-6, plus_one=plus_one, residual=residual))
            memory.run([linear.quantise_activations(normed, codes, scales)])
        found.append((memory[f"codes {way}"], memory[f"scales {way}"], memory["residual"] if add else x))
    for together, apart, what in zip(*found, ("codes", "scales", "residual"), strict=True):
        assert together.tobytes() == apart.tobytes(), f"{what} of {rows} x {width}, {flavour}, seed {seed}: {together}, should be {apart}"


def test_a_row_of_zeros_is_normed_to_zeros_and_one_with_infinity_or_nan_to_nan() -> None:
    memory = Memory()
    x = np.zeros((4, 64), ml_dtypes.bfloat16)
    x[1, 3], x[2, 5], x[3] = np.inf, np.nan, 1
    launches = norms.rmsnorm(
        memory.give("x", x), memory.give("gain", np.ones(64, ml_dtypes.bfloat16)), memory.out("out", 4, 64, dtype="bf16"), eps=1e-6
    )
    memory.run(launches)
    got = memory["out"].astype(np.float64)
    assert (got[0] == 0).all()
    assert np.isnan(got[1, 3]) and (np.delete(got[1], 3) == 0).all()  # noqa: PT018
    assert np.isnan(got[2]).all()
    assert (got[3] == 1).all()


# -------------------------------------------------------------------------------------------------------------------- planted faults
class Fault(NamedTuple):
    name: str
    text: str
    replacement: str
    code: str
    says: str
    line: str
    schedule: Schedule = FIFO


BARRIER = "  __syncthreads();\n  v = partial[0];"
GAIN = "if (gain) load_floats(w, gain + column);"
STORE = "multiply<PLUS_ONE>(v, scale, gain, column);\n    store_floats(out + start"
READ = "    load_floats(v, x + column);\n    if constexpr (ADD)"
START = "start = (int64_t)blockIdx.x * width;\n  const Row<T, VEC, true>"
DEREFERENCE = "return *reinterpret_cast<const Pack"
FAULTS = [
    Fault("missing barrier", BARRIER, "\n  v = partial[0];", "emu.unwritten", "never written", "v = partial[0]"),
    Fault(
        "missing barrier, in reverse order", BARRIER, "\n  v = partial[0];", "emu.unwritten", "never written", "v = partial[0]",
        Schedule("lifo"),
    ),
    Fault(
        "barrier for some", BARRIER, "  if (threadIdx.x < 40) __syncthreads(); else\n  __syncthreads(), v = partial[0];",
        "emu.divergence", "__syncthreads is reached at two places", "",
    ),
    Fault(
        "partial sums not all written", "if (threadIdx.x % 32 == 0) partial", "if (threadIdx.x % 64 == 0) partial",
        "emu.unwritten", "never written, at static shared memory + 4", "v += partial[i]",
    ),
    Fault(
        "past the partial sums", "for (int i = 1; i < WARPS; ++i) v", "for (int i = 1; i <= WARPS; ++i) v",
        "emu.bounds", "index 4 of an array", "v += partial[i]",
    ),
    Fault(
        "misaligned load", READ, READ.replace("column)", "column + (column == 560))"),
        "emu.misaligned", "which must be aligned to 16 bytes", DEREFERENCE,
    ),
    Fault(
        "past the gain", GAIN, GAIN.replace("column)", "column + (column == 992) * VEC)"),
        "emu.bounds", "past the end of `gain` [1000] bf16, at `gain`[1000]", DEREFERENCE,
    ),
    Fault(
        "row not stored", STORE, STORE.replace("    store", "    if (column) store"),
        "emu.incomplete", "`out`[0, 0] of [2, 1000] bf16 was never written", "",
    ),
    Fault(
        "every block the first row", START, START.replace("(int64_t)blockIdx.x * width", "0"),
        "emu.conflict", "`residual`[0, 0], which block 0 writes", DEREFERENCE,
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    source = sources.folder() / "norms.cu"
    found = {fault.name: with_fault(source, tmp_path_factory.mktemp("fault"), fault.text, fault.replacement) for fault in FAULTS}
    EmulatedDevice().prepare(Launch(str(path), norm().kernel, (1, 1, 1), (32, 1, 1), {}) for path in found.values())
    return found


def norm(source: Path | None = None) -> Launch:
    rows, width = 2, 1000
    arrays = {name: Array(name, "read", (rows, width), "bf16") for name in ("x", "residual", "out")}
    launch = norms.rmsnorm(arrays["x"], Array("gain", "read", (width,), "bf16"), arrays["out"], eps=1e-6, residual=arrays["residual"])[0]
    return Launch(str(source or launch.source), launch.kernel, launch.grid, launch.block, launch.arguments)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_at_its_line(fault: Fault, planted: dict[str, Path]) -> None:
    path = planted[fault.name]
    device = EmulatedDevice(schedule=fault.schedule)
    memory = {
        name: device.upload(numbers(1, shape, "bf16", "normal"))
        for name, shape in (("x", (2, 1000)), ("residual", (2, 1000)), ("gain", (1000,)))
    }
    memory["out"] = device.empty((2, 1000), "bf16")
    with pytest.raises(KernelError) as caught:
        device.run(norm(path), memory)
    error = caught.value
    assert (error.code, fault.says in error.message) == (fault.code, True), f"want {fault.code}: {fault.says}\ngot {error.render()}"
    if fault.line:
        assert error.line == line_of(path, fault.line), error.render()
