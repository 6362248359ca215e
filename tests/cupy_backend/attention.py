"""Running attention over paged caches in tests, its definition in float64, and how far the kernels may be from it."""

import math
from dataclasses import dataclass, replace

import ml_dtypes
import numpy as np
import pytest

from conformance.arithmetic import NATIVE
from conformance.bounds import Cells, local_bound
from cupy_backend.kernels import attn
from cupy_backend.launch import Launch
from poem.dtypes import Dtype
from poem.dtypes.cache import load
from poem.dtypes.cache import store as stored
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.paged import filled, give_lanes, ragged

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


def with_numbers(case: Case, q: np.ndarray, k: list[np.ndarray], v: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """The kernels on given numbers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(f"{__name__}.numbers", lambda _: (q, k, v))
        return run(case)
