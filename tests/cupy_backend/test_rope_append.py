"""rope_append: turned queries, and keys and values in their cells, against float64 and the cast of the cache."""

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.arithmetic import NATIVE, half_spacing
from conformance.running import Running
from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from cupy_backend.kernels.rope_append import rope_append
from cupy_backend.launch import Array
from poem.dtypes import Dtype
from poem.dtypes.cache import store
from poem.dtypes.leaves import STORAGE
from tests.cupy_backend.running import schedules

PAGE_SIZE = 4
HEADS = ((6, 6), (6, 4), (32, 32), (64, 32))  # channels of a head, and how many of them turn
DTYPES = (("bf16", "bf16"), ("bf16", "e4m3"), ("bf16", "e5m2"), ("bf16", "f32"), ("f16", "f16"), ("f32", "f32"))  # activations, cells


@dataclass(frozen=True)
class Case:
    """One launch. joined: q, k and v are columns of one matrix. void: how many rows, from the last, have no cell."""

    rows: int
    q_heads: int
    k_heads: int
    head_dim: int
    rotary: int
    dtype: str
    cells: str
    joined: bool
    void: int
    factor: float
    scales: tuple[float, float]
    seed: int


@st.composite
def cases(draw: Any) -> Case:
    head_dim, rotary = draw(st.sampled_from(HEADS))
    dtype, cells = draw(st.sampled_from(DTYPES))
    rows = draw(st.integers(1, 5))
    return Case(
        rows, draw(st.integers(1, 4)), draw(st.integers(1, 3)), head_dim, rotary, dtype, cells, draw(st.booleans()),
        draw(st.integers(0, rows - 1)), draw(st.sampled_from((1.0, 1.25))),
        draw(st.sampled_from(((1.0, 1.0), (0.5, 3.0)))) if cells in ("e4m3", "e5m2") else (1.0, 1.0), draw(st.integers(0, 2**31)),
    )  # fmt: skip


@given(cases(), schedules)
@settings(max_examples=40, deadline=None)
def test_queries_turn_and_cells_hold_the_casts_of_turned_keys_and_of_values(case: Case, schedule: Schedule) -> None:
    rng = np.random.default_rng(case.seed)
    dtype = STORAGE[case.dtype]
    widths = (case.q_heads * case.head_dim, case.k_heads * case.head_dim, case.k_heads * case.head_dim)
    parts = [rng.standard_normal((case.rows, width)).astype(np.float32).astype(dtype) for width in widths]
    positions = rng.integers(0, 5000, case.rows).astype(np.int32)
    frequencies = (rng.random(case.rotary // 2) * 0.5).astype(np.float32)
    cells_at = rng.permutation(3 * PAGE_SIZE)[: case.rows]
    pages, offsets = (cells_at // PAGE_SIZE).astype(np.int32), (cells_at % PAGE_SIZE).astype(np.int32)
    kept = case.rows - case.void
    pages[kept:] = -1
    stored = STORAGE[case.cells]
    before = [rng.integers(0, 200, (3, PAGE_SIZE, width * stored.itemsize), np.uint8).view(stored) for width in widths[1:]]
    memory = {
        "positions": positions, "frequencies": frequencies, "pages": pages, "offsets": offsets,
        "q_out": np.zeros((case.rows, widths[0]), dtype), "k_cells": before[0].copy(), "v_cells": before[1].copy(),
    }  # fmt: skip
    arrays, strides = _parts(memory, parts, widths, case)

    def array(name: str, word: str) -> Array:
        return Array(name, "read", memory[name].shape, word)

    launches = rope_append(
        arrays, strides, array("positions", "i32"), array("frequencies", "f32"), array("pages", "i32"), array("offsets", "i32"),
        array("q_out", case.dtype), (array("k_cells", case.cells), array("v_cells", case.cells)), widths=widths, head_dim=case.head_dim,
        factor=case.factor, scales=case.scales,
    )  # fmt: skip
    for launch in launches:
        EmulatedDevice(schedule=schedule).run(launch, memory)

    turned_q, turned_k = (_turned(part, positions, frequencies, case) for part in parts[:2])
    _within(memory["q_out"].astype(np.float64), turned_q, case.dtype, f"q of {case}")
    for plane, scale, name in ((0, case.scales[0], "k_cells"), (1, case.scales[1], "v_cells")):
        got, want = memory[name].reshape(3 * PAGE_SIZE, -1), before[plane].reshape(3 * PAGE_SIZE, -1).copy()
        rows = _stored(parts[2], case, scale) if plane else got[cells_at].copy()
        if plane == 0:
            _keys_agree(got[cells_at[:kept]], turned_k, case, scale)
        want[cells_at[:kept]] = rows[:kept]
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8), err_msg=f"{name} of {case}")


def _parts(
    memory: dict[str, np.ndarray], parts: list[np.ndarray], widths: tuple[int, ...], case: Case
) -> tuple[tuple[Array, Array, Array], tuple[int, int, int]]:
    if not case.joined:
        memory |= {f"part {i}": part for i, part in enumerate(parts)}
        arrays = [Array(f"part {i}", "read", (part.size,), case.dtype) for i, part in enumerate(parts)]
        return (arrays[0], arrays[1], arrays[2]), (widths[0], widths[1], widths[2])
    memory["joined"] = np.concatenate(parts, axis=1)
    total, step = sum(widths), STORAGE[case.dtype].itemsize
    arrays = [
        Array("joined", "read", ((case.rows - 1) * total + width,), case.dtype, sum(widths[:i]) * step) for i, width in enumerate(widths)
    ]
    return (arrays[0], arrays[1], arrays[2]), (total, total, total)


def _turned(part: np.ndarray, positions: np.ndarray, frequencies: np.ndarray, case: Case) -> Running:
    """The turned channels on real numbers, with the error of f32 steps: the angle is the f32 product, as ops.elemwise.rope says."""
    x = part.astype(np.float64).reshape(case.rows, -1, case.head_dim)
    angle = Running(NATIVE, (positions.astype(np.float32)[:, None] * frequencies).astype(np.float64))[:, None]
    cos, sin = angle.cos() * case.factor, angle.sin() * case.factor
    half = case.rotary // 2
    a, b = Running(NATIVE, x[:, :, :half]), Running(NATIVE, x[:, :, half : case.rotary])
    to_a, to_b = a * cos - b * sin, b * cos + a * sin
    value = np.concatenate([to_a.value, to_b.value, x[:, :, case.rotary :]], axis=2)
    error = np.concatenate([to_a.error, to_b.error, np.zeros_like(x[:, :, case.rotary :])], axis=2)
    return Running(NATIVE, value.reshape(part.shape), error.reshape(part.shape))


def _within(got: np.ndarray, want: Running, dtype: str, what: str) -> None:
    bound = want.stored(dtype).error
    worst = np.unravel_index(np.argmax(np.abs(got - want.value) - bound), got.shape)
    assert np.all(np.abs(got - want.value) <= bound), f"{what}[{worst}] = {got[worst]}, want {want.value[worst]} within {bound[worst]}"


def _stored(values: np.ndarray, case: Case, scale: float) -> np.ndarray:
    given = values if values.dtype == ml_dtypes.bfloat16 else values.astype(np.float32)
    return store(given, Dtype(case.cells), np.float32(scale))


def _keys_agree(got: np.ndarray, want: Running, case: Case, scale: float) -> None:
    """Each key's cell is the cast of a value of the activations' dtype within the bound of the turn."""
    stored = want.stored(case.dtype)
    values, error = stored.value[: len(got)], stored.error[: len(got)]
    magnitude = (np.abs(values) + error) / scale
    error = error + np.asarray(half_spacing(magnitude, case.cells)) * scale + 2.0**-22 * magnitude * scale
    decoded = got.astype(np.float64) * scale if case.cells not in ("e4m3", "e5m2") else _decoded(got, case.cells) * scale
    assert np.all(np.abs(decoded - values) <= error), f"keys of {case}: {decoded} where {values} is within {error}"


def _decoded(codes: np.ndarray, dtype: str) -> np.ndarray:
    known: dict[str, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
    return codes.view(np.uint8).view(known[dtype]).astype(np.float64)


def test_cells_of_a_dtype_that_no_kernel_has_are_refused() -> None:
    part, integers = Array("x", "read", (64,), "bf16"), Array("i", "read", (1,), "i32")
    cells = Array("c", "update", (1, 4, 64), "u8")
    with pytest.raises(KernelError) as caught:
        rope_append(
            (part, part, part), (64, 64, 64), integers, Array("f", "read", (32,), "f32"), integers, integers,
            Array("q", "write", (1, 64), "bf16"), (cells, cells), widths=(64, 64, 64), head_dim=64, factor=1.0,
        )  # fmt: skip
    assert (caught.value.code, caught.value.found) == ("kernel.unsupported", "u8")
