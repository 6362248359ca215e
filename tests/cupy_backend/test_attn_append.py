"""New rows land in their cells and nowhere else, cast as the cache holds them; turned on the way they are what rope and kv_append give."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.arithmetic import FUNCTION_ULPS, half_spacing
from cupy_backend.errors import KernelError
from cupy_backend.kernels import attn
from cupy_backend.kernels.attn import Columns, Turn
from cupy_backend.launch import Array
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


def slots(memory: Memory, given: Pass, padding: int = 2) -> tuple[Array, Array]:
    """write_page and write_offset, with rows of padding behind."""
    pages = given.geometry.pages[0]
    page = np.concatenate([pages.write_page, np.zeros(padding, np.int32)])
    offset = np.concatenate([pages.write_offset, np.full(padding, -1, np.int32)])
    return memory.give("write_page", page), memory.give("write_offset", offset)


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
       joined=st.booleans(), scales=st.sampled_from(((1.0, 1.0), (0.3, 7.0))), seed=seeds, schedule=schedules)  # fmt: skip
def test_rows_land_in_their_cells_and_nowhere_else(lanes, dtype, cells, widths, page_size, joined, scales, seed, schedule):
    given = ragged(lanes, page_size, seed)
    rows = given.geometry.rows + 2
    if cells not in ("e4m3", "e5m2"):
        scales = (1.0, 1.0)
    k, v = (rows_of(seed + n, rows, width, dtype) for n, width in enumerate(widths))
    memory = Memory(schedule)
    page, offset = slots(memory, given)
    if joined:  # both lie behind four columns of something else
        array = memory.give("kv", np.concatenate([np.zeros((rows, 4), k.dtype), k, v], axis=1))
        sources = [Columns(array, 4, widths[0]), Columns(array, 4 + widths[0], widths[1])]
    else:
        sources = [memory.give("k", k), memory.give("v", v)]
    before = [untouched(given, width, cells) for width in widths]
    planes = [memory.give(f"{name}_cache", plane, cells, plane.shape) for name, plane in zip("kv", before, strict=True)]
    of_cells = (
        None
        if scales == (1.0, 1.0)
        else (memory.give("k_scale", np.array(scales[:1], F32)), memory.give("v_scale", np.array(scales[1:], F32)))
    )
    memory.run(attn.kv_append(sources[0], sources[1], planes[0], planes[1], page, offset, scales=of_cells))
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
    memory.run(attn.append(memory.give("x", x), memory.give("cache", cache), page, offset))
    cache[1, 1] = x[0]
    same_cells(memory["cache"], cache, "bf16", "only row 0 names a slot that exists")


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
    "odd sizes": (18, 6, "half", "first", None),
}


def turn_of(memory: Memory, name: str, factor: float, inverse: bool) -> tuple[Turn, np.ndarray]:
    """A form as the kernel takes it, and its frequencies."""
    head_dim, rotary, form, part, sections = FORMS[name]
    (pairs,) = channel_pairs(head_dim, rotary, form, part, sections)
    table = frequencies(10000.0, rotary, head_dim, form, None, sections).astype(F32)
    columns = position_columns(rotary, form, sections)
    neighbours = pairs.first.step == 2
    return Turn(
        memory.give("frequencies", table), pairs.first.start, 0 if neighbours else pairs.second.start - pairs.first.start, neighbours,
        None if columns is None else memory.give("columns", columns.astype(np.int32)), None, factor, inverse,
    ), table  # fmt: skip


def turned(
    x: np.ndarray, name: str, positions: np.ndarray, table: np.ndarray, factor: float, inverse: bool
) -> tuple[np.ndarray, np.ndarray]:
    """x after rope in float64 with the angles of float32, and how far float32 may be off: products, a sum, and sine and cosine."""
    head_dim, rotary, form, part, sections = FORMS[name]
    (pairs,) = channel_pairs(head_dim, rotary, form, part, sections)
    columns = position_columns(rotary, form, sections)
    at = positions if columns is None else positions[:, columns]
    angles = (at.astype(F32) * table).astype(np.float64)[:, None]
    cos, sin = np.cos(angles) * F32(factor), np.sin(angles) * F32(factor) * (-1 if inverse else 1)
    heads = x.astype(np.float64).reshape(len(x), -1, head_dim)
    want, bound = heads.copy(), np.zeros_like(heads)
    a, b = heads[:, :, pairs.first], heads[:, :, pairs.second]
    want[:, :, pairs.first], want[:, :, pairs.second] = a * cos - b * sin, b * cos + a * sin
    bound[:, :, pairs.first] = bound[:, :, pairs.second] = (np.abs(a) + np.abs(b)) * abs(factor) * (2 * FUNCTION_ULPS + 4) * 2.0**-24
    return want.reshape(x.shape), bound.reshape(x.shape)


@pytest.mark.parametrize("name", FORMS)
@settings(deadline=None, max_examples=3)
@given(lanes=lanes, dtype=st.sampled_from(("bf16", "f32")), cells=st.sampled_from(("bf16", "e4m3")), factor=st.sampled_from((1.0, 1.25)),
       inverse=st.booleans(), seed=seeds, schedule=schedules)  # fmt: skip
def test_turning_and_storing_at_once_is_turning_and_then_storing(name, lanes, dtype, cells, factor, inverse, seed, schedule):
    head_dim, kv_heads, q_heads, v_width = FORMS[name][0], 2, 3, 10
    given = ragged(lanes, 4, seed)
    rows, generator = given.geometry.rows + 2, np.random.default_rng(seed)
    widths = q_heads * head_dim, kv_heads * head_dim, v_width
    q, k, v = (generator.standard_normal((rows, width)).astype(STORAGE[dtype]) for width in widths)
    axes = 3 if FORMS[name][4] else 1
    positions = generator.integers(0, 3000, (rows, axes), np.int32)
    memory = Memory(schedule)
    page, offset = slots(memory, given)
    turn, table = turn_of(memory, name, factor, inverse)
    array = memory.give("qkv", np.concatenate([q, k, v], axis=1))
    bounds = np.cumsum([0, q.shape[1], k.shape[1]])
    sources = [Columns(array, int(first), x.shape[1]) for first, x in zip(bounds, (q, k, v), strict=True)]
    k_plane, v_plane = untouched(given, k.shape[1], cells), untouched(given, v_width, cells)
    planes = [memory.give(f"{n}_cache", plane, cells, plane.shape) for n, plane in (("k", k_plane), ("v", v_plane))]
    q_out = memory.give("q_out", np.zeros_like(q))
    memory.run(attn.rope_append(*sources, memory.give("positions", positions), turn, q_out, *planes, page, offset, head_dim=head_dim))

    case = f"{name}, {lanes}, {dtype} to {cells}, factor {factor}, inverse {inverse}, seed {seed}"
    want, bound = turned(q, name, positions, table, factor, inverse)
    bound = bound + half_spacing(np.abs(want) + bound, dtype)
    off = np.argwhere(~(np.abs(memory["q_out"].astype(np.float64) - want) <= bound))
    assert not len(off), f"{case}: q{off[0].tolist()} is {memory['q_out'][tuple(off[0])]}, should be {want[tuple(off[0])]}"

    # The cells of k are the bits that a second launch gives for the same rows as queries, cast: rounded to the activation in between.
    again = Memory()
    turn, _ = turn_of(again, name, factor, inverse)
    other = again.give("k_turned", np.zeros_like(k))
    nothing = [again.give(n, plane, cells, plane.shape) for n, plane in (("k_cache", k_plane[:, :, : k.shape[1]]), ("v_cache", v_plane))]
    skipped = again.give("write_page", np.full(rows, -1, np.int32)), again.give("write_offset", np.zeros(rows, np.int32))
    inputs = [again.give(n, x) for n, x in (("as_q", k), ("k", k), ("v", v), ("positions", positions))]
    again.run(attn.rope_append(*inputs, turn, other, *nothing, *skipped, head_dim=head_dim))
    pages = given.geometry.pages[0]
    k_plane[pages.write_page, pages.write_offset] = store(again["k_turned"][:-2], Dtype(cells))
    v_plane[pages.write_page, pages.write_offset] = store(v[:-2], Dtype(cells))
    same_cells(memory["k_cache"], k_plane, cells, f"k of {case}")
    same_cells(memory["v_cache"], v_plane, cells, f"v of {case}")


def test_each_row_takes_its_own_list_of_frequencies():
    memory = Memory()
    x = np.ones((2, 4), F32)
    table = np.array([[0.0, 0.0], [1.0, 0.5]], F32)
    turn = Turn(memory.give("frequencies", table), 0, 2, table_of_row=memory.give("tables", np.array([0, 1], np.int32)))
    cache = [memory.give(name, np.zeros((1, 2, 4), F32)) for name in ("k_cache", "v_cache")]
    slots_of_rows = memory.give("write_page", np.zeros(2, np.int32)), memory.give("write_offset", np.arange(2, dtype=np.int32))
    inputs = [memory.give(name, x) for name in "qkv"]
    out = memory.give("q_out", np.zeros_like(x))
    memory.run(attn.rope_append(*inputs, memory.give("positions", np.full(2, 2, np.int32)), turn, out, *cache, *slots_of_rows, head_dim=4))
    assert memory["q_out"][0].tolist() == [1, 1, 1, 1]
    want = [np.cos(2) - np.sin(2), np.cos(1) - np.sin(1), np.cos(2) + np.sin(2), np.cos(1) + np.sin(1)]
    assert np.abs(memory["q_out"][1] - want).max() < 1e-6
    assert memory["k_cache"][0].tobytes() == memory["q_out"].tobytes()


def test_neighbours_from_an_odd_channel_are_refused():
    memory = Memory()
    x = [memory.give(name, np.zeros((1, 8), F32)) for name in "qkv"]
    cache = memory.give("cache", np.zeros((1, 1, 8), F32))
    one = memory.give("one", np.zeros(1, np.int32))
    turn = replace(Turn(memory.give("frequencies", np.zeros(2, F32))), origin=1, neighbours=True)
    with pytest.raises(KernelError) as caught:
        attn.rope_append(*x, one, turn, memory.give("out", np.zeros((1, 8), F32)), cache, cache, one, one, head_dim=8)
    assert caught.value.code == "kernel.unsupported"
