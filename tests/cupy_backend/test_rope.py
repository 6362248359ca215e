"""rope.cu on the checked emulator: every form of rotary positions against float64 within the bounds that the differ derives."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.arithmetic import NATIVE, half_spacing
from conformance.bounds import local_bound
from cupy_backend.kernels import rope
from cupy_backend.plan.tables import Pairs, axes_pairs, ladder_pairs, rotary_pairs
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.running import normal, schedules

DTYPES: dict[str, Any] = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}
THETA = 10000.0
seeds = st.integers(0, 2**31)


class Turn(NamedTuple):
    """Attributes of an op, as its parameters are called."""

    form: str
    head_dim: int
    rotary_dim: int | None = None
    part: str = "first"
    sections: list[int] | None = None


TURNS = (
    Turn("half", 128), Turn("half", 80, 32), Turn("half", 96, 48, "last"), Turn("half", 20, 12), Turn("half", 7, 6),
    Turn("interleaved", 128), Turn("interleaved", 80, 48), Turn("interleaved", 96, 64, "last"), Turn("interleaved", 7, 6),
    Turn("interleaved", 12, 4, "last"),
    Turn("proportional", 128, 32), Turn("proportional", 24, 10),
    Turn("mrope_interleaved", 64, sections=[16, 8, 8]), Turn("mrope_interleaved", 128, 64, sections=[11, 11, 10]),
    Turn("mrope_chunked", 64, sections=[16, 8, 8]), Turn("mrope_chunked", 40, 24, sections=[2, 5, 5]),
    Turn("mrope_blocked", 64, sections=[0, 16, 16]), Turn("mrope_blocked", 40, sections=[3, 4, 2]),
    Turn("mrope_split", 64, sections=[0, 16, 16]), Turn("mrope_split", 48, sections=[3, 4, 2]),
)  # fmt: skip


def turned_by(turn: Turn) -> Iterator[tuple[int, int, int, float]]:
    """Each pair of a form: its channels, the column of its position, and its frequency. The table of forms, line by line."""
    d, r, sections = turn.head_dim, turn.rotary_dim or turn.head_dim, turn.sections or []
    o = d - r if turn.part == "last" else 0
    if turn.form == "mrope_blocked":
        total, i = sum(sections), 0
        for axis, count in enumerate(sections):
            for j in range(count):
                yield i, i + d // 2, axis, THETA ** (-2 * j / total)
                i += 1
        return
    if turn.form == "mrope_split":
        b = 0
        for axis, count in enumerate(sections):
            for j in range(count):
                yield b + j, b + count + j, axis, THETA ** (-j / count)
            b += 2 * count
        return
    for i in range(r // 2):
        f = THETA ** (-2 * i / r)
        if turn.form == "half":
            yield o + i, o + i + r // 2, 0, f
        elif turn.form == "interleaved":
            yield o + 2 * i, o + 2 * i + 1, 0, f
        elif turn.form == "proportional":
            yield i, i + d // 2, 0, THETA ** (-2 * i / d)
        elif turn.form == "mrope_chunked":
            yield i, i + r // 2, 0 if i < sections[0] else 1 if i < sections[0] + sections[1] else 2, f
        else:
            yield i, i + r // 2, next((a for a in (1, 2) if i % 3 == a and i < 3 * sections[a]), 0), f


def turned(x: np.ndarray, head_dim: int, positions: np.ndarray, pairs: list[tuple[int, int, int, float]], sign: int = 1) -> np.ndarray:
    """x with every pair turned, in float64."""
    heads = x.astype(np.float64).reshape(len(x), -1, head_dim)
    result, at = heads.copy(), positions.reshape(len(x), -1).astype(np.float64)
    for first, second, column, frequency in pairs:
        angle = sign * at[:, column] * frequency
        cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = heads[:, :, first], heads[:, :, second]
        result[:, :, first], result[:, :, second] = a * cos - b * sin, b * cos + a * sin
    return result.reshape(x.shape)


def run(memory: Memory, given_: list[np.ndarray], positions: np.ndarray, pairs: Pairs, head_dim: int, **how: Any) -> list[np.ndarray]:
    """What the kernel makes of one or two arrays."""
    names = ["q", "k"][: len(given_)]
    arrays = [memory.give(name, x) for name, x in zip(names, given_, strict=True)]
    packs = rope.packs(pairs.first, pairs.second, head_dim, arrays[0].dtype)
    made = [memory.give(f"{name}_out", np.zeros_like(x)) for name, x in zip(names, given_, strict=True)]
    turn = rope.Turn(
        memory.give("packs", packs.table), packs.vector, packs.neighbours, memory.give("frequencies", pairs.frequencies),
        memory.give("columns", pairs.columns) if positions.ndim > 1 else None, **how,
    )  # fmt: skip
    memory.run(rope.rope(arrays, memory.give("positions", positions), turn, made, head_dim=head_dim))
    return [memory[f"{name}_out"] for name in names]


def within(op: str, got: list[np.ndarray], want: list[np.ndarray], dtype: str, arguments: dict[str, Any]) -> None:
    """Compares results with exact ones within the op's bound."""
    bounds = local_bound(op, arguments, want, [dtype] * len(want), NATIVE)
    for number, (result, exact, bound) in enumerate(zip(got, want, bounds, strict=True)):
        off = np.abs(result.astype(np.float64) - exact)
        excess = off / np.maximum(np.broadcast_to(bound.error, exact.shape), np.finfo(np.float64).tiny)
        worst = np.unravel_index(np.argmax(excess), excess.shape)
        assert excess[worst] <= 1, f"result {number} at {worst}: {result[worst]}, should be {exact[worst]}; {excess[worst]:.2f} bounds off"


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(TURNS), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.sampled_from(("bf16", "f32")), st.booleans(),
       st.sampled_from((64, 4096, 131072)), schedules, seeds)  # fmt: skip
def test_pairs_of_every_form_turn(turn, rows, q_heads, k_heads, dtype, inverse, longest, schedule, seed):
    x = [normal(seed + i, rows, heads * turn.head_dim, dtype=DTYPES[dtype]) for i, heads in enumerate((q_heads, k_heads)) if heads]
    shape = (rows, 3) if turn.form.startswith("mrope") else (rows,)
    positions = np.random.default_rng(seed).integers(0, longest, shape).astype(np.int32)
    pairs = rotary_pairs(theta=THETA, scaling=None, **turn._asdict())
    got = run(Memory(schedule), x, positions, pairs, turn.head_dim, inverse=inverse)
    want = [turned(one, turn.head_dim, positions, list(turned_by(turn)), -1 if inverse else 1) for one in x]
    arguments = {"q": x[0].astype(np.float64), "k": x[1].astype(np.float64) if len(x) > 1 else None, "positions": positions}
    within("elemwise.rope", got, want, dtype, {**arguments, **turn._asdict(), "theta": THETA, "scaling": None, "inverse": inverse})


@pytest.mark.parametrize("turn", TURNS, ids=str)
def test_channels_in_no_pair_are_copied_bit_by_bit(turn):
    x = np.random.default_rng(1).integers(0, 1 << 16, (3, 2 * turn.head_dim), np.uint16).view(ml_dtypes.bfloat16)
    positions = np.full((3, 3) if turn.form.startswith("mrope") else 3, 77, np.int32)
    pairs = rotary_pairs(theta=THETA, scaling=None, **turn._asdict())
    (got,) = run(Memory(), [x], positions, pairs, turn.head_dim)
    copied = sorted(set(range(turn.head_dim)) - {channel for pair in turned_by(turn) for channel in pair[:2]})
    bits = [array.view(np.uint16).reshape(3, 2, turn.head_dim)[:, :, copied] for array in (got, x)]
    np.testing.assert_array_equal(*bits)


AXES = (  # form, dims, rotary_dim, head_dim
    ("interleaved", (16, 8, 8), 32, 32), ("interleaved", (4, 6), 10, 15), ("split", (16, 8, 8), 32, 40), ("split", (6, 4), 10, 12),
    ("neox", (16, 16, 16), 48, 64), ("neox", (2, 6), 8, 11), ("neox", (0, 8, 8), 16, 16),
)  # fmt: skip


@settings(deadline=None, max_examples=30)
@given(st.sampled_from(AXES), st.integers(1, 4), st.integers(1, 5), st.sampled_from(("bf16", "f32")), schedules, seeds)
def test_each_axis_turns_its_own_channels_by_positions_that_may_be_fractional(case, rows, heads, dtype, schedule, seed):
    form, dims, rotary_dim, head_dim = case
    x, thetas = normal(seed, rows, heads * head_dim, dtype=DTYPES[dtype]), [100.0, 10000.0, 256.0][: len(dims)]
    positions = normal(seed + 1, rows, len(dims), dtype=np.float32, scale=20.0)
    pairs = axes_pairs(dims=dims, thetas=thetas, form=form, rotary_dim=rotary_dim, axes=len(dims))
    (got,) = run(Memory(schedule), [x], positions, pairs, head_dim)
    expected, start = [], 0
    for axis, (dim, theta) in enumerate(zip(dims, thetas, strict=True)):
        for i in range(dim // 2):
            number = start // 2 + i
            channels = {"interleaved": (start + 2 * i, start + 2 * i + 1), "split": (start + i, start + dim // 2 + i),
                        "neox": (number, number + rotary_dim // 2)}[form]  # fmt: skip
            expected.append((*channels, axis, theta ** (-2 * i / dim)))
        start += dim
    want, x64 = turned(x, head_dim, positions, expected), np.abs(x.astype(np.float64))
    # The frequency and the angle round once each; cos and sin are 2 ulp off, and two products and a sum round. No angle is larger than
    # the largest position, no channel larger than the largest of its head.
    angle = np.abs(positions).max(1, keepdims=True).astype(np.float64)
    largest = np.repeat(x64.reshape(rows, heads, head_dim).max(2), head_dim, axis=1)
    steps = 2 * largest * 2.0**-24 * (2 * angle + 6)
    bound = steps + half_spacing(np.abs(want) + steps, dtype)
    assert (np.abs(got.astype(np.float64) - want) <= bound).all(), f"{case} {rows}x{heads} {dtype}, seed {seed}"


LADDERS = (  # dims, width, head_dim
    ((4, 4), 16, 8), ((4, 4, 4), 16, 8), ((2, 2), 4, 4), ((40, 40, 40), 128, 32), ((192,), 192, 64), ((682, 682, 682), 2048, 64),
)  # fmt: skip


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(LADDERS), st.integers(1, 3), st.sampled_from(("bf16", "f32")), schedules, seeds)
def test_frequencies_of_a_ladder_rise_through_all_heads(case, rows, dtype, schedule, seed):
    dims, width, head_dim = case
    axes, half, thetas = len(dims), head_dim // 2, [100.0, 10000.0, 256.0][: len(dims)]
    x, positions = normal(seed, rows, width, dtype=DTYPES[dtype]), normal(seed + 1, rows, axes, dtype=np.float32)
    (got,) = run(Memory(schedule), [x], positions, ladder_pairs(dims=dims, thetas=thetas, width=width, head_dim=head_dim, axes=axes), width)
    pad, expected = (width - sum(dims)) // 2, []
    for slot in range(pad, width // 2):
        axis, rung = (slot - pad) % axes, (slot - pad) // axes
        first = slot // half * head_dim + slot % half
        expected.append((first, first + half, axis, thetas[axis] ** (rung / max(dims[0] // 2 - 1, 1))))
    want, x64 = turned(x, width, positions, expected), np.abs(x.astype(np.float64))
    angles, partners = np.zeros((rows, width)), x64.copy()
    for first, second, axis, frequency in expected:
        angles[:, [first, second]] = np.abs(positions[:, axis : axis + 1]) * frequency
        partners[:, first] = partners[:, second] = np.maximum(x64[:, first], x64[:, second])
    steps = 2 * partners * 2.0**-24 * (2 * angles + 6)  # as above
    bound = steps + half_spacing(np.abs(want) + steps, dtype)
    assert (np.abs(got.astype(np.float64) - want) <= bound).all(), f"{case} {rows} rows {dtype}, seed {seed}"
    untouched = sorted(set(range(width)) - {channel for pair in expected for channel in pair[:2]})
    np.testing.assert_array_equal(got[:, untouched], x[:, untouched])


def test_rows_of_long_lanes_turn_by_the_second_frequencies():
    memory = Memory()
    packs, x = memory.give("packs", np.array([[0, 2]], np.int32)), memory.give("q", np.ones((3, 8), np.float32))
    lanes = memory.give("lane_of_row", np.array([0, 1, -1], np.int32)), memory.give("kv_len", np.array([4, 5], np.int32))
    frequencies = memory.give("frequencies", np.array([[0.0, 0.0], [1.0, 0.5]], np.float32))
    turn, out = rope.Turn(packs, 2, False, frequencies, switch=(*lanes, 4)), memory.give("q_out", np.zeros((3, 8), np.float32))
    memory.run(rope.rope([x], memory.give("positions", np.full(3, 2, np.int32)), turn, [out], head_dim=4))
    assert memory["q_out"][0].tolist() == memory["q_out"][2].tolist() == [1] * 8
    angles = np.array([2.0, 1.0])
    want = np.concatenate([np.cos(angles) - np.sin(angles), np.cos(angles) + np.sin(angles)])
    np.testing.assert_allclose(memory["q_out"][1], np.tile(want, 2), rtol=1e-6)


def test_a_pair_turns_by_the_scalings_factor():
    x, positions = normal(3, 2, 64), np.array([5, 900], np.int32)
    pairs = rotary_pairs(theta=THETA, scaling=None, **Turn("half", 64)._asdict())
    plain, scaled = (run(Memory(), [x.astype(np.float32)], positions, pairs, 64, factor=factor)[0] for factor in (1.0, 4.0))
    np.testing.assert_array_equal(scaled, 4 * plain)


@pytest.mark.parametrize(("scaling", "want"), [
    (None, [1, 0.1, 0.01, 0.001]),
    ({"kind": "linear", "factor": 4.0}, [0.25, 0.025, 0.0025, 0.00025]),
    ({"kind": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position": 64},
     [1, 0.013042256, 0.00125, 0.000125]),
    ({"kind": "yarn", "factor": 4.0, "original_max_position": 64, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": True},
     [1, 0.0625, 0.0025, 0.00025]),
    ({"kind": "yarn", "factor": 4.0, "original_max_position": 64, "beta_fast": 8.0, "beta_slow": 1.0, "truncate": False},
     [1, 0.0256643944, 0.0025, 0.00025]),
    ({"kind": "longrope", "short": [1.0, 1.5, 2.0, 4.0], "long": [9.0] * 4, "original_max_position": 64, "use": "short"},
     [1, 0.0666666667, 0.005, 0.00025]),
])  # fmt: skip
def test_frequencies_are_those_of_the_specifications_vectors(scaling, want):
    pairs = rotary_pairs(theta=THETA, scaling=scaling, **Turn("half", 8)._asdict())
    np.testing.assert_allclose(pairs.frequencies, want, rtol=1e-7)


@pytest.mark.parametrize(("turn", "dtype", "vector", "neighbours"), [
    (TURNS[0], "bf16", 8, False), (TURNS[0], "f32", 4, False), (Turn("interleaved", 128), "bf16", 8, True),
    (Turn("half", 80, 32), "bf16", 8, False), (Turn("half", 20, 12), "bf16", 2, False), (Turn("interleaved", 7, 6), "bf16", 1, False),
    (Turn("mrope_split", 64, sections=[0, 16, 16]), "bf16", 8, False),
])  # fmt: skip
def test_a_thread_turns_as_many_channels_as_a_load_of_16_bytes_holds_if_the_pairs_allow(turn, dtype, vector, neighbours):
    pairs = rotary_pairs(theta=THETA, scaling=None, **turn._asdict())
    packs = rope.packs(pairs.first, pairs.second, turn.head_dim, dtype)
    assert (packs.vector, packs.neighbours) == (vector, neighbours)
