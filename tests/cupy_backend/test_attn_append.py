"""New rows land in their cells and nowhere else, cast as the cache holds them; turned on the way they are what rope and kv_append give."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.arithmetic import FUNCTION_ULPS, half_spacing
from cupy_backend.kernels import attn_append, rope
from cupy_backend.kernels.arrays import Columns, columns_of
from cupy_backend.kernels.attn_append import HeadNorm, Slots, Turn
from interp.ops.rope import channel_pairs, frequencies, position_columns
from poem.dtypes import Dtype
from poem.dtypes.cache import load, store
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.paged import Pass, ragged
from tests.cupy_backend.running import schedules

STORAGE = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16), "f32": np.dtype(np.float32)}
F32 = np.float32
seeds = st.integers(0, 2**31)
lanes = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 5)), min_size=1, max_size=4)
lanes = lanes.filter(lambda found: sum(new for _, new in found) > 0)


def rows_of(seed: int, rows: int, width: int, dtype: str) -> np.ndarray:
    """Numbers of many magnitudes, some beyond the range of 8 bits, and NaN."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, width)) * 2.0 ** generator.integers(-12, 12, (rows, width))
    x[generator.random((rows, width)) < 0.02] = np.nan
    return x.astype(STORAGE[dtype])


def slots(memory: Memory, given: Pass, padding: int = 2) -> Slots:
    """The cells of the new rows, with rows of padding behind."""
    pages = given.geometry.pages[0]
    page = np.concatenate([pages.write_page, np.zeros(padding, np.int32)])
    offset = np.concatenate([pages.write_offset, np.full(padding, -1, np.int32)])
    return Slots(memory.give("write_page", page), memory.give("write_offset", offset))


def untouched(given: Pass, width: int, dtype: str) -> np.ndarray:
    """A cache full of recognisable bytes."""
    cell = np.dtype(np.uint8) if dtype in ("e4m3", "e5m2") else STORAGE[dtype]
    return np.full((given.page_count, given.page_size, width * cell.itemsize), 0x3C, np.uint8).view(cell)


def same_cells(got: np.ndarray, want: np.ndarray, dtype: str, case: str) -> None:
    """Bits are equal; of NaN only that it is one."""
    a, b = (load(np.asarray(x), Dtype(dtype)) for x in (got, want))
    equal = (np.asarray(got).view(np.uint8).reshape(*a.shape, -1) == np.asarray(want).view(np.uint8).reshape(*b.shape, -1)).all(-1)
    bad = np.argwhere(~(equal | (np.isnan(a) & np.isnan(b))))
    assert not len(bad), f"{case}: cell {bad[0].tolist()} is {a[tuple(bad[0])]}, should be {b[tuple(bad[0])]}"


@settings(deadline=None, max_examples=25)
@given(lanes=lanes, dtype=st.sampled_from(("bf16", "f32")), cells=st.sampled_from(("bf16", "f16", "f32", "e4m3", "e5m2")),
       widths=st.tuples(st.sampled_from((8, 30, 65)), st.sampled_from((8, 16))), page_size=st.sampled_from((1, 4, 16)),
       scales=st.sampled_from(((1.0, 1.0), (0.3, 7.0))), seed=seeds, schedule=schedules)  # fmt: skip
def test_rows_land_in_their_cells_and_nowhere_else(lanes, dtype, cells, widths, page_size, scales, seed, schedule):
    given = ragged(lanes, page_size, seed)
    rows = given.geometry.rows + 2
    if cells not in ("e4m3", "e5m2"):
        scales = (1.0, 1.0)
    k, v = (rows_of(seed + n, rows, width, dtype) for n, width in enumerate(widths))
    memory = Memory(schedule)
    cells_of_rows = slots(memory, given)
    sources = [memory.give("k", k), memory.give("v", v)]
    before = [untouched(given, width, cells) for width in widths]
    planes = [memory.give(f"{name}_cache", plane, cells, plane.shape) for name, plane in zip("kv", before, strict=True)]
    of_cells = (
        None
        if scales == (1.0, 1.0)
        else (memory.give("k_scale", np.array(scales[:1], F32)), memory.give("v_scale", np.array(scales[1:], F32)))
    )
    memory.run(attn_append.kv_append(sources[0], sources[1], planes[0], planes[1], cells_of_rows, scales=of_cells))
    pages = given.geometry.pages[0]
    for name, x, plane, scale in zip("kv", (k, v), before, scales, strict=True):
        plane[pages.write_page, pages.write_offset] = store(x[:-2], Dtype(cells), F32(scale))
        case = f"{name}: {lanes}, {dtype} to {cells}, {widths}, pages of {page_size}, {scales}, seed {seed}"
        same_cells(memory[f"{name}_cache"], plane, cells, case)


def test_one_plane_is_stored_alike_and_pages_that_do_not_exist_are_skipped():
    x = rows_of(1, 4, 16, "bf16")
    memory = Memory()
    page = memory.give("write_page", np.array([1, -1, 3, 0], np.int32))
    offset = memory.give("write_offset", np.array([1, 0, 0, 2], np.int32))
    cache = np.zeros((3, 2, 16), x.dtype)
    memory.run(attn_append.append(memory.give("x", x), memory.give("cache", cache), Slots(page, offset)))
    cache[1, 1] = x[0]
    same_cells(memory["cache"], cache, "bf16", "only row 0 names a slot that exists")


def test_rows_behind_the_counted_ones_are_stored_nowhere():
    x = {name: rows_of(seed, 3, width, "bf16") for seed, (name, width) in enumerate((("k", 8), ("v", 16)))}
    memory = Memory()
    named = Slots(memory.give("write_page", np.zeros(3, np.int32)), memory.give("write_offset", np.array([1, 3, 0], np.int32)))
    planes = [memory.give(f"{name}_cache", np.zeros((1, 4, rows.shape[1]), rows.dtype)) for name, rows in x.items()]
    given, count = [memory.give(name, rows) for name, rows in x.items()], memory.give("rows", np.array([2], np.int32))
    memory.run(attn_append.kv_append(*given, *planes, named, rows=count))
    alone = memory.give("cache", np.zeros((1, 4, 8), x["k"].dtype))
    memory.run(attn_append.append(given[0], alone, named, rows=count))
    for name, of in (("k_cache", "k"), ("v_cache", "v"), ("cache", "k")):
        want = np.zeros_like(memory[name])
        want[0, [1, 3]] = x[of][:2]
        same_cells(memory[name], want, "bf16", name)


FORMS = {
    "half": (64, 64, "half", "first", None),
    "half of the channels": (64, 32, "half", "first", None),
    "the last channels": (64, 16, "half", "last", None),
    "neighbours": (64, 64, "interleaved", "first", None),
    "the last neighbours": (96, 32, "interleaved", "last", None),
    "proportional": (64, 32, "proportional", "first", None),
    "three positions in turn": (64, 64, "mrope_interleaved", "first", (12, 10, 10)),
    "three positions in chunks": (64, 64, "mrope_chunked", "first", (8, 12, 12)),
    "three positions in blocks": (64, 64, "mrope_blocked", "first", (4, 8, 8)),
    "three positions, each with channels of its own": (64, 64, "mrope_split", "first", (8, 16, 8)),
    "neighbours from an odd channel": (7, 6, "interleaved", "last", None),
    "odd sizes": (18, 6, "half", "first", None),
}


def paired(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The channels of a head that turn together, pair by pair."""
    head_dim, rotary, form, part, sections = FORMS[name]
    channels, pairs = np.arange(head_dim), channel_pairs(head_dim, rotary, form, part, sections)
    return np.concatenate([channels[each.first] for each in pairs]), np.concatenate([channels[each.second] for each in pairs])


def turn_of(memory: Memory, name: str, dtype: str, widest: int, factor: float = 1.0, inverse: bool = False) -> tuple[Turn, np.ndarray]:
    """A form as the kernel takes it, and its frequencies."""
    head_dim, rotary, form, _, sections = FORMS[name]
    packs = rope.packs(*paired(name), head_dim, dtype, widest)
    table = frequencies(10000.0, rotary, head_dim, form, None, sections).astype(F32)
    columns = position_columns(rotary, form, sections)
    given = None if columns is None else memory.give("columns", columns.astype(np.int32))
    frequency = memory.give("frequencies", table)
    return Turn(memory.give("packs", packs.table), packs.vector, packs.neighbours, frequency, given, factor, inverse), table


def turned(
    x: np.ndarray, name: str, positions: np.ndarray, table: np.ndarray, factor: float = 1.0, inverse: bool = False,
    error: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """x after rope in float64 with the angles of float32, and how far float32 may be off: products, a sum, and sine and cosine.

    error: how far x itself may be off.
    """
    head_dim, rotary, form, _, sections = FORMS[name]
    first, second = paired(name)
    columns = position_columns(rotary, form, sections)
    at = positions if columns is None else positions[:, columns]
    angles = (at.astype(F32) * table).astype(np.float64)[:, None]
    cos, sin = np.cos(angles) * F32(factor), np.sin(angles) * F32(factor) * (-1 if inverse else 1)
    heads = x.astype(np.float64).reshape(len(x), -1, head_dim)
    off = np.broadcast_to(error, x.shape).reshape(heads.shape)
    want, bound = heads.copy(), off.copy()
    a, b, off_a, off_b = heads[:, :, first], heads[:, :, second], off[:, :, first], off[:, :, second]
    want[:, :, first], want[:, :, second] = a * cos - b * sin, b * cos + a * sin
    steps = (np.abs(a) + off_a + np.abs(b) + off_b) * abs(factor) * (2 * FUNCTION_ULPS + 4) * 2.0**-24
    bound[:, :, first], bound[:, :, second] = off_a * abs(cos) + off_b * abs(sin) + steps, off_b * abs(cos) + off_a * abs(sin) + steps
    return want.reshape(x.shape), bound.reshape(x.shape)


def within(got: np.ndarray, want: np.ndarray, bound: np.ndarray, dtype: str, case: str) -> None:
    """Fails where a result is further from the exact one than its bound and its own rounding."""
    off = np.argwhere(~(np.abs(got.astype(np.float64) - want) <= bound + half_spacing(np.abs(want) + bound, dtype)))
    assert not len(off), f"{case}{off[0].tolist()} is {got[tuple(off[0])]}, should be {want[tuple(off[0])]}"


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None, max_examples=3)
@given(lanes=lanes, dtype=st.sampled_from(("bf16", "f32")), cells=st.sampled_from(("bf16", "e4m3")), v_width=st.sampled_from((16, 10)),
       factor=st.sampled_from((1.0, 1.25)), inverse=st.booleans(), seed=seeds, schedule=schedules)  # fmt: skip
def test_turning_and_storing_at_once_is_turning_and_then_storing(name, lanes, dtype, cells, v_width, factor, inverse, seed, schedule):
    head_dim, kv_heads, q_heads = FORMS[name][0], 2, 4
    given = ragged(lanes, 4, seed)
    rows, generator = given.geometry.rows + 2, np.random.default_rng(seed)
    widths = q_heads * head_dim, kv_heads * head_dim, v_width
    q, k, v = (generator.standard_normal((rows, width)).astype(STORAGE[dtype]) for width in widths)
    positions = generator.integers(0, 3000, (rows, 3 if FORMS[name][4] else 1), np.int32)
    memory = Memory(schedule)
    cells_of_rows = slots(memory, given)
    array = memory.give("qkv", np.concatenate([q, k, v], axis=1))
    bounds = np.cumsum([0, q.shape[1], k.shape[1]])
    sources = [Columns(array, int(first), x.shape[1]) for first, x in zip(bounds, (q, k, v), strict=True)]
    widest = attn_append.vector_of(*sources)
    turn, table = turn_of(memory, name, dtype, widest, factor, inverse)
    k_plane, v_plane = untouched(given, k.shape[1], cells), untouched(given, v_width, cells)
    planes = [memory.give(f"{n}_cache", plane, cells, plane.shape) for n, plane in (("k", k_plane), ("v", v_plane))]
    q_out = memory.give("q_out", np.zeros_like(q))
    memory.run(
        attn_append.rope_append(*sources, memory.give("positions", positions), turn, q_out, *planes, cells_of_rows, head_dim=head_dim)
    )

    case = f"{name}, {lanes}, {dtype} to {cells}, factor {factor}, inverse {inverse}, seed {seed}"
    within(memory["q_out"], *turned(q, name, positions, table, factor, inverse), dtype, f"{case}: q")

    # The cells of k are the bits that a second launch gives for the same rows as queries, cast: rounded to the activation in between.
    again = Memory()
    turn, _ = turn_of(again, name, dtype, widest, factor, inverse)
    other = again.give("k_turned", np.zeros_like(k))
    nothing = [again.give(n, plane, cells, plane.shape) for n, plane in (("k_cache", k_plane[:, :, : k.shape[1]]), ("v_cache", v_plane))]
    skipped = Slots(again.give("write_page", np.full(rows, -1, np.int32)), again.give("write_offset", np.zeros(rows, np.int32)))
    inputs = [again.give(n, x) for n, x in (("as_q", k), ("k", k), ("v", v), ("positions", positions))]
    again.run(attn_append.rope_append(*inputs, turn, other, *nothing, skipped, head_dim=head_dim))
    pages = given.geometry.pages[0]
    k_plane[pages.write_page, pages.write_offset] = store(again["k_turned"][:-2], Dtype(cells))
    v_plane[pages.write_page, pages.write_offset] = store(v[:-2], Dtype(cells))
    same_cells(memory["k_cache"], k_plane, cells, f"k of {case}")
    same_cells(memory["v_cache"], v_plane, cells, f"v of {case}")


@settings(deadline=None, max_examples=12)
@given(name=st.sampled_from(("half", "neighbours", "half of the channels", "odd sizes")), dtype=st.sampled_from(("bf16", "f16", "f32")),
       gains=st.sampled_from(("bf16", "f32")), plus_one=st.booleans(), seed=seeds, schedule=schedules)  # fmt: skip
def test_heads_are_normed_and_rounded_before_they_turn(name, dtype, gains, plus_one, seed, schedule):
    head_dim, eps = FORMS[name][0], 1e-5
    generator, rows = np.random.default_rng(seed), 3
    memory = Memory(schedule)
    x = {n: (generator.standard_normal((rows, heads * head_dim)) * 3).astype(STORAGE[dtype]) for n, heads in (("q", 9), ("k", 2), ("v", 1))}
    gain = {n: (1 + generator.standard_normal(head_dim) / 4 - plus_one).astype(STORAGE[gains]) for n in "qk"}
    positions = generator.integers(0, 3000, rows, np.int32)
    sources = [memory.give(n, array) for n, array in x.items()]
    turn, table = turn_of(memory, name, dtype, attn_append.vector_of(*map(columns_of, sources)))
    planes = [memory.give(f"{n}_cache", np.zeros((1, rows, x[n].shape[1]), STORAGE[dtype])) for n in "kv"]
    of_rows = Slots(memory.give("write_page", np.zeros(rows, np.int32)), memory.give("write_offset", np.arange(rows, dtype=np.int32)))
    norm = HeadNorm(memory.give("q_gain", gain["q"]), memory.give("k_gain", gain["k"]), eps, plus_one)
    out = memory.give("q_out", np.zeros_like(x["q"]))
    memory.run(attn_append.rope_append(
        *sources, memory.give("positions", positions), turn, out, *planes, of_rows, head_dim=head_dim, norm=norm,
    ))  # fmt: skip
    for n, got in (("q", memory["q_out"]), ("k", memory["k_cache"][0])):
        heads = x[n].astype(np.float64).reshape(rows, -1, head_dim)
        normed = heads / np.sqrt((heads**2).mean(-1, keepdims=True) + eps) * (gain[n].astype(np.float64) + plus_one)
        normed = normed.reshape(x[n].shape)
        error = np.abs(normed) * (head_dim + 8) * 2.0**-24
        error += half_spacing(np.abs(normed) + error, dtype)
        case = f"{name}, {dtype}, gains of {gains}, plus_one {plus_one}, seed {seed}: {n}"
        within(got, *turned(normed, name, positions[:, None], table, error=error), dtype, case)


def test_rows_of_long_lanes_take_the_second_frequencies():
    memory = Memory()
    x = np.ones((3, 4), F32)
    table = np.array([[0.0, 0.0], [1.0, 0.5]], F32)
    lanes = memory.give("lane_of_row", np.array([0, 1, -1], np.int32)), memory.give("kv_len", np.array([4, 5], np.int32))
    packs = memory.give("packs", np.array([[0, 2]], np.int32))
    turn = Turn(packs, 2, False, memory.give("frequencies", table), switch=(*lanes, 4))
    cache = [memory.give(name, np.zeros((1, 3, 4), F32)) for name in ("k_cache", "v_cache")]
    of_rows = Slots(memory.give("write_page", np.zeros(3, np.int32)), memory.give("write_offset", np.arange(3, dtype=np.int32)))
    inputs = [memory.give(name, x) for name in "qkv"]
    out = memory.give("q_out", np.zeros_like(x))
    positions = memory.give("positions", np.full(3, 2, np.int32))
    memory.run(attn_append.rope_append(*inputs, positions, turn, out, *cache, of_rows, head_dim=4))
    assert memory["q_out"][0].tolist() == memory["q_out"][2].tolist() == [1, 1, 1, 1]
    want = [np.cos(2) - np.sin(2), np.cos(1) - np.sin(1), np.cos(2) + np.sin(2), np.cos(1) + np.sin(1)]
    assert np.abs(memory["q_out"][1] - want).max() < 1e-6
    assert memory["k_cache"][0].tobytes() == memory["q_out"].tobytes()
