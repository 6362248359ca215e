"""Attention over paged caches lies within its derived bound of float64, whatever the batch, the pages and the order of threads."""

import functools
import math
from dataclasses import dataclass, replace
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conformance.arithmetic import NATIVE
from conformance.bounds import Cells, local_bound
from cupy_backend import sources
from cupy_backend.errors import KernelError
from cupy_backend.kernels import attn
from cupy_backend.launch import Array, Launch
from poem.batch import Chunk
from poem.dtypes import Dtype
from poem.dtypes.cache import load
from poem.dtypes.cache import store as stored
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.paged import filled, give_lanes, ragged
from tests.cupy_backend.running import schedules, with_fault
from tests.interp.attending import Attention

STORAGE = {"bf16": np.dtype(ml_dtypes.bfloat16), "f16": np.dtype(np.float16)}
F32 = np.float32


@dataclass(frozen=True)
class Case:
    """lanes: (cells before, new rows). What a failure prints, and what reproduces it."""

    lanes: tuple[tuple[int, int], ...]
    decode: bool
    head_dim: int = 64
    value_dim: int = 0  # 0: head_dim
    kv_heads: int = 2
    group: int = 2
    dtype: str = "bf16"
    cells: str = "bf16"
    page_size: int = 8
    pieces: int = 1
    window: int | None = None
    causal: bool = True
    softcap: float | None = None
    sinks: str = ""  # "f32", "bf16": of a weight; "rows": f32, one list for each row
    bias: int = 0  # extent
    log_scaling: tuple[float, float] | None = None
    masked: bool = False
    scales: tuple[float, float] | None = None
    rounded_weights: bool = False
    flavour: str = "normal"
    seed: int = 0

    @property
    def values(self) -> int:
        return self.value_dim or self.head_dim


def numbers(case: Case) -> tuple[np.ndarray, list[np.ndarray], list[np.ndarray]]:
    """q [rows, heads * head_dim] and, for each lane, the cells of k and v as they are stored."""
    generator = np.random.default_rng(case.seed)
    scale = {"normal": 1.0, "huge": 30.0, "integers": 1.0}[case.flavour]

    def draw(rows: int, width: int) -> np.ndarray:
        x = generator.integers(-2, 3, (rows, width)) if case.flavour == "integers" else generator.standard_normal((rows, width)) * scale
        return x.astype(STORAGE[case.dtype])

    q = draw(sum(new for _, new in case.lanes), case.kv_heads * case.group * case.head_dim)
    planes = []
    for width, factor in zip((case.head_dim, case.values), case.scales or (1.0, 1.0), strict=True):
        planes.append([stored(draw(b + n, case.kv_heads * width), Dtype(case.cells), F32(factor)) for b, n in case.lanes])
    return q, planes[0], planes[1]


def run(case: Case, **schedule: object) -> tuple[np.ndarray, np.ndarray]:
    """out and lse of the kernels; without one for a case with sinks."""
    memory = launched(case, **schedule)
    return memory["out"].copy(), np.zeros(0) if case.sinks else memory["lse"].copy()


def launched(case: Case, **schedule: object) -> Memory:
    """The device's memory after the kernels ran."""
    memory, launches = prepared(case, **schedule)
    memory.run(launches)
    return memory


def prepared(case: Case, **schedule: object) -> tuple[Memory, list[Launch]]:
    """The device's memory, and the launches to run on it."""
    q, k, v = numbers(case)
    given = ragged(case.lanes, case.page_size, case.seed, case.window, masks_of(case))
    memory = Memory(**schedule)
    lanes = give_lanes(memory, given.geometry)
    heads, value_dim = case.kv_heads * case.group, case.values
    planes = []
    for name, cells in (("k_cache", k), ("v_cache", v)):
        cache = filled(given, cells)
        planes.append(memory.give(name, cache, case.cells, cache.shape))
    shape = attn.shape_of(case.head_dim, value_dim, case.cells, decode=case.decode)
    tiles = attn.row_tiles(np.array([new for _, new in case.lanes]), given.geometry.kv_len, case.group, shape)
    tiles = memory.give("tiles", np.concatenate([tiles, np.array([[-1, 0]], np.int32)]))  # and one that is padding
    out = replace(memory.give("out", np.zeros((len(q), heads * value_dim), q.dtype)), direction="write")
    lse = None if case.sinks else memory.give("lse", np.zeros((len(q), heads), F32))
    scratch = attn.attention_scratch(len(q), heads, value_dim, case.pieces)
    mask = None
    if case.masked:
        bits, bounds = given.geometry.packed_masks
        mask = memory.give("mask", bits), memory.give("mask_indptr", bounds)
    scores = attn.Scores(case.softcap, memory.give("bias", bias_of(case)) if case.bias else None, case.log_scaling, mask)
    scales = None if case.scales is None else tuple(memory.give(f"scale{i}", np.array([x], F32)) for i, x in enumerate(case.scales))
    launches = attn.attention(
        memory.give("q", q), *planes, out, tiles=tiles, lanes=lanes, head_dim=case.head_dim, kv_heads=case.kv_heads,
        sm_scale=scale_of(case), decode=case.decode, pieces=case.pieces, window=case.window, causal=case.causal, scores=scores,
        sinks=memory.give("sinks", sinks_of(case)) if case.sinks else None, lse=lse, scales=scales, rounded_weights=case.rounded_weights,
        scratch=memory.give("scratch", np.zeros(scratch, np.uint8)) if scratch else None,
        counters=memory.give("counters", np.zeros(tiles.shape[0] * case.kv_heads, np.uint32)),
    )  # fmt: skip
    return memory, launches


def scale_of(case: Case) -> float:
    return float(F32(1 / math.sqrt(case.head_dim)))


def sinks_of(case: Case) -> np.ndarray:
    """[heads], or [rows, heads]."""
    rows = [sum(new for _, new in case.lanes)] if case.sinks == "rows" else []
    drawn = np.random.default_rng(case.seed + 1).standard_normal([*rows, case.kv_heads * case.group])
    return drawn.astype(STORAGE.get(case.sinks, F32))


def bias_of(case: Case) -> np.ndarray:
    """[rows, heads * extent]."""
    shape = sum(new for _, new in case.lanes), case.kv_heads * case.group * case.bias
    return np.random.default_rng(case.seed + 2).standard_normal(shape).astype(F32)


def masks_of(case: Case) -> list[np.ndarray | None] | None:
    """One bool [new, cells] a lane; the first row of a lane sees nothing, and every third lane has no mask."""
    if not case.masked:
        return None
    generator = np.random.default_rng(case.seed + 3)
    masks: list[np.ndarray | None] = [generator.random((new, before + new)) < 0.6 for before, new in case.lanes]
    for mask in masks:
        assert mask is not None
        mask[:1] = False
    return [None if lane % 3 == 2 else mask for lane, mask in enumerate(masks)]


def exact(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """o and lse by their definition in float64, and o with |v| in place of v: what the weights' rounding is measured against."""
    q, k, v = numbers(case)
    heads, row, masks = case.kv_heads * case.group, 0, masks_of(case)
    o, magnitudes = np.zeros((len(q), heads, case.values)), np.zeros((len(q), heads, case.values))
    lse = np.full((len(q), heads), -np.inf)
    wide = q.astype(np.float64).reshape(len(q), heads, case.head_dim)
    bias = bias_of(case).astype(np.float64).reshape(len(q), heads, -1)
    sinks = np.broadcast_to(sinks_of(case).astype(np.float64) if case.sinks else -np.inf, (len(q), heads))
    for lane, ((before, new), k_cells, v_cells) in enumerate(zip(case.lanes, k, v, strict=True)):
        keys = read(case, k_cells, 0).reshape(before + new, case.kv_heads, case.head_dim)
        values = read(case, v_cells, 1).reshape(before + new, case.kv_heads, case.values)
        for i in range(new):
            position, cell = before + i, np.arange(before + new)
            distance = position - cell
            allowed = (cell <= position) if case.causal else np.ones(before + new, bool)
            if case.window is not None:
                allowed &= distance < case.window
            if masks is not None and (mask := masks[lane]) is not None:
                allowed &= mask[i]
            for head in range(heads if allowed.any() else 0):
                s = keys[:, head // case.group] @ wide[row, head] * scale_of(case)
                if case.softcap is not None:
                    s = case.softcap * np.tanh(s / case.softcap)
                near = (distance >= 0) & (distance < case.bias)
                s[near] += bias[row, head, distance[near]]
                if case.log_scaling is not None and position + 1 > case.log_scaling[0]:
                    s *= 1 + case.log_scaling[1] * math.log((position + 1) / case.log_scaling[0])
                s, top = s[allowed], max(s[allowed].max(), sinks[row, head])
                total = np.exp(s - top).sum() + np.exp(sinks[row, head] - top)
                weights = np.exp(s - top) / total
                o[row, head] = weights @ values[allowed, head // case.group]
                magnitudes[row, head] = weights @ np.abs(values[allowed, head // case.group])
                lse[row, head] = (np.log(total) + top) / math.log(2)
            row += 1
    return o.reshape(len(q), -1), lse, magnitudes.reshape(len(q), -1)


def read(case: Case, cells: np.ndarray, plane: int) -> np.ndarray:
    return load(cells, Dtype(case.cells), F32((case.scales or (1.0, 1.0))[plane])).astype(np.float64)


def check(case: Case, got: np.ndarray, lse: np.ndarray) -> None:
    """Fails where a result of the kernels is outside its bound."""
    o, want_lse, bound, lse_bound = bounded(case)
    within(case, "out", got, o, bound)
    if not case.sinks:
        within(case, "lse", lse, want_lse, lse_bound)


def bounded(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """o and lse on real numbers, and how far the kernels may be from each."""
    q, k, v = numbers(case)
    o, want_lse, magnitudes = exact(case)
    given = ragged(case.lanes, case.page_size, case.seed, case.window, masks_of(case))
    cells = Cells([(read(case, a, 0), read(case, b, 1)) for a, b in zip(k, v, strict=True)], "")
    bounds = local_bound(
        "attn.attend",
        {"q": q.astype(np.float64), "cache": cells, "inputs": given.geometry, "head_dim": case.head_dim, "kv_heads": case.kv_heads,
         "sm_scale": scale_of(case), "window": case.window, "causal": case.causal, "softcap": case.softcap, "mask": masks_of(case),
         "sinks": sinks_of(case).astype(np.float64) if case.sinks else None,
         "bias": bias_of(case).astype(np.float64) if case.bias else None, "selection": None, "ratio": 1,
         "log_scaling": case.log_scaling, "lse": not case.sinks},
        [o] if case.sinks else [o, want_lse], [case.dtype] if case.sinks else [case.dtype, "f32"], NATIVE, given.geometry,
    )  # fmt: skip
    largest = max((np.abs(read(case, cells, 1)).max(initial=0.0) for cells in v), default=0.0)
    extra = (attn.ROUNDED_WEIGHT_ERROR if case.rounded_weights else attn.WEIGHT_ERROR)[case.dtype] * magnitudes
    extra += attn.WEIGHT_FLOOR[case.dtype] * max(map(len, v)) * largest
    return o, want_lse, bounds[0].error + extra, np.zeros(0) if case.sinks else bounds[1].error


def within(case: Case, name: str, got: np.ndarray, want: np.ndarray, bound: np.ndarray) -> None:
    wide = got.astype(np.float64)
    with np.errstate(invalid="ignore"):
        off = ~((np.abs(wide - want) <= bound) | (wide == want))
    if off.any():
        at = tuple(np.argwhere(off)[0].tolist())
        raise AssertionError(
            f"{case}: {off.sum()} of {off.size} outside; {name}{list(at)}: got {got[at]}, want {want[at]}, "
            f"bound {np.broadcast_to(bound, want.shape)[at]}"
        )


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


FAULTS = {
    "a row sees one cell too many": ("cell > row.high)", "cell > row.high + 1)"),
    "a window that is one cell too wide": ("{position - window + 1,", "{position - window,"),
    "sums keep their old scale": ("      sum[i] *= shift;", "      ;"),
    "values keep their old scale": ("        o[n][i * 2] *= shift;", "        ;"),
    "the largest score of four lanes only": ("most[i] = fmaxf(most[i], __shfl_xor_sync(WARP, most[i], 2));", ";"),
    "a copy that is not waited for": ("    cp_async_wait<STAGES - 2>();", "    cp_async_wait<STAGES - 1>();"),
    "a tile that is read before all threads have it": ("<STAGES - 2>();\n    __syncthreads();", "<STAGES - 2>();\n"),
    "pages in the order of their numbers": ("(b.pages[number] - number)", "0"),
    "weights of one part": ("p[part][i] = parts[part];", "p[part][i] = part == 0 ? parts[part] : 0u;"),
}
FAULTS_OF_PIECES = {
    "an arrival without an order": ("atomic_add_acq_rel(counter, 1u)", "atomicAdd(counter, 1u)"),
    "an arrival before all threads have written": ("+ head;\n  __syncthreads();", "+ head;\n"),
    "pieces added up by the block that comes first": ("if (arrived[0] != pieces - 1) return;", "if (arrived[0] != 0) return;"),
    "counters that stay as they are": ("store_release(counter, 0u);", ";"),
    "pieces that all count alike": ("counts_for(state, most);\n      weights[piece", "1.0f;\n      weights[piece"),
    "weights read before they are there": ("f.y;\n  }\n  __syncthreads();", "f.y;\n  }\n"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path, monkeypatch):
    monkeypatch.setattr(attn, "SOURCE", str(with_fault(sources.find("attn.cu"), tmp_path, *FAULTS[name])))
    case = Case(((40, 100),), False, head_dim=16, kv_heads=1, group=1, window=90, seed=4)
    with pytest.raises((AssertionError, KernelError)) as caught:
        check(case, *run(case))
    assert getattr(caught.value, "code", "emu.").startswith("emu."), f"the fault does not even compile: {caught.value}"


@pytest.mark.parametrize("name", FAULTS_OF_PIECES)
def test_a_fault_in_adding_up_pieces_is_found(name, tmp_path, monkeypatch):
    monkeypatch.setattr(attn, "SOURCE", str(with_fault(sources.find("attn.cu"), tmp_path, *FAULTS_OF_PIECES[name])))
    case = Case(((900, 1),), True, pieces=3, head_dim=16, kv_heads=1, seed=4)
    memory, launches = prepared(case)

    def run_twice() -> None:
        for _ in range(2):
            memory.run(launches)
            check(case, memory["out"], memory["lse"])

    with pytest.raises((AssertionError, KernelError)) as caught:
        run_twice()
    assert getattr(caught.value, "code", "emu.").startswith("emu."), f"the fault does not even compile: {caught.value}"


@settings(deadline=None, max_examples=6)
@given(schedule=schedules, decode=st.booleans())
def test_which_block_comes_last_changes_no_bit_and_a_launch_can_be_repeated(schedule, decode):
    case = Case(((900, 3), (5, 1), (400, 2)), decode, pieces=3, seed=9)
    want, want_lse = run(case)
    memory, launches = prepared(case, schedule=schedule)
    for _ in range(2):
        memory["out"][:], memory["lse"][:], memory["scratch"][:] = 0, 0, 0xFF
        memory.run(launches)
        assert (memory["out"].tobytes(), memory["lse"].tobytes()) == (want.tobytes(), want_lse.tobytes()), f"{case}, {schedule}"
        assert not memory["counters"].any(), "counters are 0 again for the next launch"


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
        patch.setattr(f"{__name__}.numbers", lambda _: (q, *parts))
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


@settings(deadline=None, max_examples=4)
@given(seed=st.integers(0, 2**31))
def test_decoding_a_lane_gives_the_same_bits_alone_and_in_any_company(seed):
    together = Case(((5, 1), (150, 1), (640, 1)), True, pieces=attn.INVARIANT_PIECES, seed=seed)
    given, k, v = numbers(together)
    out, _ = run(together)
    for lane, chunk in enumerate(together.lanes):
        alone = replace(together, lanes=(chunk,), page_size=32)
        got, _ = with_numbers(alone, given[lane : lane + 1], [k[lane]], [v[lane]])
        assert got.tobytes() == out[lane : lane + 1].tobytes(), f"lane {lane} of {together}"


@settings(deadline=None, max_examples=4)
@given(cut=st.integers(1, 59), window=st.none() | st.integers(1, 40), seed=st.integers(0, 2**31))
def test_how_a_prompt_is_cut_into_passes_changes_no_bit(cut, window, seed):
    whole = Case(((0, 60),), False, window=window, seed=seed)
    q, k, v = numbers(whole)
    out, _ = run(whole)
    for first, stop in ((0, cut), (cut, 60)):
        part = replace(whole, lanes=((first, stop - first),), page_size=4)
        got, _ = with_numbers(part, q[first:stop], [k[0][:stop]], [v[0][:stop]])
        assert got.tobytes() == out[first:stop].tobytes(), f"rows {first}:{stop} of {whole}"


def with_numbers(case: Case, q: np.ndarray, k: list[np.ndarray], v: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The kernels on given numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.numbers", lambda _: (q, k, v))
        return run(case)


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


def test_the_number_of_pieces_depends_on_the_batch_only_where_it_may():
    for tiles in (1, 7, 500):
        assert attn.pieces_of(tiles, 8, decode=True, arch="sm_90a", batch_invariant=True) == attn.INVARIANT_PIECES
        assert attn.pieces_of(tiles, 8, decode=False, arch="sm_90a", batch_invariant=True) == 1
    for decode in (True, False):
        found = [attn.pieces_of(tiles, 8, decode=decode, arch="sm_90a", batch_invariant=False) for tiles in (1, 7, 500)]
        assert found == [attn.MAXIMUM_PIECES, 9, 1]


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
