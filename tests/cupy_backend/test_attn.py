"""Attention over paged caches lies within its derived bound of float64, whatever the batch, the pages and the order of threads."""

import functools
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.errors import KernelError
from cupy_backend.kernels import attn
from cupy_backend.launch import Array
from poem.batch import Chunk
from poem.dtypes import Dtype
from poem.dtypes.cache import store as stored
from tests.cupy_backend import attention
from tests.cupy_backend.attention import (
    F32,
    STORAGE,
    Case,
    bounded,
    check,
    exact,
    launched,
    numbers,
    read,
    run,
    scale_of,
    with_numbers,
    within,
)
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.paged import filled, give_lanes, ragged
from tests.cupy_backend.running import schedules
from tests.interp.attending import Attention

CASES = {
    "one token after many": Case(((130, 1),), decode=True),
    "ragged decode in pieces": Case(((0, 1), (70, 1), (600, 1), (3, 0)), decode=True, pieces=3),
    "heads of 16": Case(((70, 1), (3, 1)), decode=True, head_dim=16),
    "heads of 32": Case(((70, 1),), decode=True, head_dim=32, cells="e4m3"),
    "prefill of 16": Case(((5, 20),), decode=False, head_dim=16),
    "prefill of 32": Case(((5, 20),), decode=False, head_dim=32, cells="e4m3", value_dim=64),
    "heads of 80": Case(((70, 1),), decode=True, head_dim=80),
    "heads of 96": Case(((40, 1), (9, 1)), decode=True, head_dim=96, page_size=1),
    "heads of 112": Case(((40, 1),), decode=True, head_dim=112, value_dim=80),
    "heads of 128, 20 to a group": Case(((200, 1),), decode=True, head_dim=128, kv_heads=1, group=20),
    "heads of 256": Case(((70, 1),), decode=True, head_dim=256, kv_heads=1, pieces=2),
    "keys of 192, values of 128": Case(((70, 1),), decode=True, head_dim=192, value_dim=128, kv_heads=1),
    "f16": Case(((70, 1),), decode=True, dtype="f16", cells="f16"),
    "f16, far apart scores": Case(((700, 3),), decode=True, dtype="f16", cells="f16", flavour="huge", pieces=2),
    "prefill of f16": Case(((60, 30),), decode=False, dtype="f16", cells="e4m3"),
    "e4m3 cells": Case(((140, 1), (5, 1)), decode=True, cells="e4m3", page_size=16, scales=(0.37, 1.9)),
    "e4m3 cells, heads of 96": Case(((70, 1),), decode=True, cells="e4m3", head_dim=96),
    "e4m3 cells, heads of 256": Case(((40, 1),), decode=True, cells="e4m3", head_dim=256, kv_heads=1),
    "e5m2 cells under f16": Case(((40, 1),), decode=True, dtype="f16", cells="e5m2"),
    "decode in a window": Case(((300, 1), (10, 1)), decode=True, window=100, pieces=2),
    "decode with sinks": Case(((70, 1), (0, 1)), decode=True, sinks="f32", pieces=2),
    "decode with sinks for each row": Case(((300, 1), (0, 1)), decode=True, sinks="rows", pieces=2),
    "decode with sinks of bf16": Case(((70, 1), (0, 1)), decode=True, sinks="bf16"),
    "decode of several tokens": Case(((300, 3), (9, 5)), decode=True, group=3, pieces=4, window=280),
    "decode with log scaling": Case(((600, 2), (5, 1)), decode=True, log_scaling=(8.0, 0.5), pieces=3),
    "decode with a bias": Case(((600, 2), (5, 1)), decode=True, bias=20, pieces=3),
    "decode under a mask": Case(((600, 3), (7, 1), (30, 2), (300, 1)), decode=True, masked=True, pieces=3),
    "decode with a softcap": Case(((70, 1),), decode=True, softcap=5.0),
    "prefill": Case(((0, 100),), decode=False),
    "chunks and single tokens": Case(((60, 1), (0, 40), (33, 0), (130, 9)), decode=False),
    "prefill of 80": Case(((5, 20),), decode=False, head_dim=80, value_dim=112),
    "prefill of 96": Case(((5, 20),), decode=False, head_dim=96, page_size=2),
    "prefill of 128": Case(((30, 40),), decode=False, head_dim=128, kv_heads=1, group=3, page_size=64),
    "prefill of 256": Case(((30, 17),), decode=False, head_dim=256, kv_heads=1, group=1),
    "prefill of e4m3": Case(((30, 40),), decode=False, cells="e4m3", scales=(2.3, 0.6)),
    "prefill in a window": Case(((150, 40), (0, 30)), decode=False, window=24, page_size=4),
    "prefill with all options": Case(
        ((80, 30),), decode=False, window=50, softcap=3.0, sinks="rows", bias=9, log_scaling=(4.0, 0.25), masked=True
    ),
    "prefill in pieces": Case(((700, 40), (0, 3)), decode=False, pieces=4),
    "prefill under a mask alone": Case(((20, 50), (3, 9)), decode=False, causal=False, masked=True),
    "prefill that sees everything": Case(((20, 50),), decode=False, causal=False),
    "prefill with rounded weights": Case(((10, 40),), decode=False, rounded_weights=True),
}


@pytest.mark.parametrize("name", CASES)
def test_attention_is_within_its_bound(name):
    check(CASES[name], *run(CASES[name]))


@pytest.mark.parametrize("name", CASES)
def test_no_two_rows_of_a_matrix_share_a_bank(name):
    for counters in launched(CASES[name]).counters:
        assert counters.matrix_wavefronts == counters.matrix_phases, f"{name}: {counters}"


@pytest.mark.parametrize(("lanes", "cells", "options"), [
    (((0, 30), (0, 7)), "bf16", {"window": 11}), (((0, 25),), "e4m3", {"softcap": 3.0}), (((0, 18), (0, 3)), "bf16", {}),
])  # fmt: skip
def test_the_interpreter_and_the_kernels_agree_within_both_bounds(lanes, cells, options):
    case = Case(lanes, False, cells=cells, seed=21, **options)
    generator, rows = np.random.default_rng(case.seed), sum(new for _, new in lanes)
    widths = [case.kv_heads * case.group * case.head_dim, case.kv_heads * case.head_dim, case.kv_heads * case.values]
    q, k, v = (generator.standard_normal((rows, width)).astype(STORAGE["bf16"]) for width in widths)
    op = Attention(case.kv_heads * case.group, case.kv_heads, case.head_dim, case.values, scale_of(case), "bf16", cells, options=options)
    session = op.session()
    sequences = [session.add_sequence() for _ in lanes]
    inputs = {name: x.astype(F32) for name, x in (("q", q), ("k", k), ("v", v))}
    batch = [Chunk(sequence, [0] * new) for sequence, (_, new) in zip(sequences, lanes, strict=True)]
    want = session.run(batch, inputs=inputs)["o"]
    bounds = np.cumsum([0, *(new for _, new in lanes)])
    parts = [[stored(x[a:b], Dtype(cells)) for a, b in pairwise(bounds)] for x in (k, v)]
    got, _ = with_numbers(case, q, *parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attention, "numbers", lambda _: (q, *parts))
        bound = bounded(case)[2]
    within(case, "out", got, want.astype(np.float64), 2 * bound)


lanes_of_decode = st.lists(st.tuples(st.integers(0, 300), st.integers(0, 3)), min_size=1, max_size=4)
lanes_of_prefill = st.lists(st.tuples(st.integers(0, 90), st.integers(0, 30)), min_size=1, max_size=3)
options = {
    "cells": st.sampled_from(("bf16", "e4m3")), "page_size": st.sampled_from((1, 2, 5, 16, 48, 64)),
    "window": st.none() | st.integers(1, 120),
    "softcap": st.none() | st.just(2.0), "sinks": st.sampled_from(("", "f32", "bf16", "rows")), "bias": st.sampled_from((0, 0, 7)),
    "log_scaling": st.none() | st.just((16.0, 0.3)), "masked": st.booleans(), "flavour": st.sampled_from(("normal", "integers", "huge")),
    "seed": st.integers(0, 2**31),
}  # fmt: skip
groups, pieces = st.sampled_from((1, 4, 17)), st.sampled_from((1, 2, 5))
decodes = st.builds(Case, lanes_of_decode.map(tuple), st.just(True), group=groups, pieces=pieces, **options)
prefills = st.builds(
    Case, lanes_of_prefill.map(tuple), st.just(False), group=st.sampled_from((1, 3)), pieces=pieces, causal=st.booleans(), **options
)


@settings(deadline=None, max_examples=12)
@given(case=decodes | prefills, schedule=schedules)
def test_any_ragged_batch_in_any_order_of_threads_is_within_its_bound(case, schedule):
    if sum(new for _, new in case.lanes):
        check(case, *run(case, schedule=schedule))


def test_rounding_weights_to_one_number_leaves_the_tighter_bound():
    case = Case(((0, 64),), False, seed=3)
    o, _, magnitudes = exact(case)
    two, one = (np.abs(run(replace(case, rounded_weights=rounded))[0].astype(np.float64) - o) for rounded in (False, True))
    assert (one - two).max() > 2.0**-16 * magnitudes.max(), "one number is as good as two: the test sees no difference"


@pytest.mark.parametrize("case", [
    Case(((0, 40), (3, 1)), False, seed=5), Case(((50, 30),), False, window=9, seed=6), Case(((20, 9),), False, cells="e4m3", seed=7),
    Case(((300, 1),), True, window=70, seed=8), Case(((300, 4),), True, pieces=2, seed=8), Case(((10, 6),), True, cells="e4m3", window=8),
], ids=["causal", "window", "e4m3", "decode", "decode of several", "decode of several, e4m3, window"])  # fmt: skip
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_value_that_is_not_finite_reaches_only_the_rows_that_see_it(case, bad):
    q, k, v = numbers(case)
    at = case.lanes[0][0] + case.lanes[0][1] // 2 if case.lanes[0][1] > 1 else case.lanes[0][0] - 75
    spoilt = [cells.copy() for cells in v]
    spoilt[0][at, 3] = stored(np.array([bad], F32), Dtype(case.cells))[0]
    with np.errstate(invalid="ignore"):
        shown = read(case, spoilt[0], 1)[at, 3]
    clean, _ = run(case)
    got, _ = with_numbers(case, q, k, spoilt)
    rows = case.lanes[0][0] + np.arange(case.lanes[0][1])
    seeing = np.zeros(len(got), bool)
    seeing[: len(rows)] = (at <= rows) & ((case.window is None) | (rows - at < (case.window or 0)))
    touched = np.zeros(got.shape, bool)
    touched[seeing, 3 : case.group * case.values : case.values] = True  # the heads of the first group
    if not np.isfinite(shown):
        np.testing.assert_array_equal(got[touched].astype(F32), shown, f"{case}: rows that see the cell do not show it")
    step = 2.0**-7 * np.abs(clean.astype(F32)) + 2.0**-14
    off = ~touched & ~(np.abs(got.astype(F32) - clean.astype(F32)) <= step)
    assert not off.any(), f"{case}: {np.argwhere(off)[0].tolist()} is {got[off][0]}, without the cell {clean[off][0]}"


@pytest.mark.parametrize(("decode", "pieces"), [(False, 1), (True, 1), (True, 3)])
@pytest.mark.parametrize("sinks", ["", "f32"])
def test_scores_that_overflow_below_leave_nothing_but_the_sink(decode, pieces, sinks):
    case = Case(((20, 1),), decode, pieces=pieces, sinks=sinks)
    q, k, v = numbers(case)
    q[:], k[0][:] = 1e20, -1e20
    got, lse = with_numbers(case, q, k, v)
    assert (got == 0).all() if sinks else np.isnan(got).all(), f"got {got[0, :4]}"
    assert (lse == -np.inf).all(), f"lse is {lse}"


@given(size=st.integers(1, 2**20) | st.integers(1, 100), page=st.integers(0, 2**31 - 1), beside=st.integers(-1, 1))
def test_cells_are_divided_by_the_page_size_exactly(size, page, beside):
    division = {name: scalar.value for name, scalar in attn._page_division(size).items()}
    cell = min(max(page // size * size + beside, 0), 2**31 - 1)
    assert 0 < division["page_magic"] < 2**32
    assert (2 * cell * division["page_magic"] >> 32) >> division["page_shift"] == cell // size, f"{cell} // {size}"


def test_single_tokens_and_chunks_go_their_own_ways_into_one_result():
    case = Case(((60, 1), (0, 20), (5, 1), (9, 3)), False, seed=11)
    q, k, v = numbers(case)
    pass_ = ragged(case.lanes, case.page_size, case.seed)
    memory = Memory()
    lanes = give_lanes(memory, pass_.geometry)
    planes = [memory.give(name, filled(pass_, cells), case.cells) for name, cells in (("k_cache", k), ("v_cache", v))]
    out = replace(memory.give("out", np.full((len(q), q.shape[1]), np.nan, q.dtype)), direction="update")
    rows_of_lane = np.array([new for _, new in case.lanes])
    given_q = memory.give("q", q)
    for name, decode, limits in (("several", False, {"least": 2}), ("single", True, {"most": 1})):
        shape = attn.shape_of(case.head_dim, case.values, case.cells, decode=decode)
        tiles = memory.give(name, attn.row_tiles(rows_of_lane, pass_.geometry.kv_len, case.group, shape, **limits))
        memory.run(attn.attention(
            given_q, *planes, out, tiles=tiles, lanes=lanes, head_dim=case.head_dim, kv_heads=case.kv_heads, sm_scale=scale_of(case),
            decode=decode,
        ))  # fmt: skip
    check(case, memory["out"], exact(case)[1])


def test_what_no_kernel_serves_is_refused():
    arrays = {name: Array(name, "read", (1,), "i32") for name in ("qo_indptr", "kv_len", "page_indptr", "page_indices")}
    tiles = Array("tiles", "read", (1, 2), "i32")
    call = functools.partial(attn.attention, tiles=tiles, lanes=attn.Lanes(**arrays), kv_heads=1, sm_scale=1.0, decode=True)
    cache = Array("c", "read", (4, 8, 64), "bf16")
    q, out = Array("q", "read", (1, 64), "bf16"), Array("o", "write", (1, 64), "bf16")
    wide = replace(cache, dtype="f32")
    for operands, head_dim in (
        ((q, wide, wide, out), 64), ((replace(q, dtype="f16"), cache, cache, out), 64),
        ((q, cache, cache, out), 8),
    ):  # fmt: skip
        with pytest.raises(KernelError) as caught:
            call(*operands, head_dim=head_dim)
        assert caught.value.code == "kernel.unsupported"
