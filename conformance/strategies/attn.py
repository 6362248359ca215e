"""Examples of ops.attn over paged caches, and of the pattern that turns and stores keys in one launch."""

from collections.abc import Sequence

import numpy as np

from conformance.strategies.build import Build
from conformance.strategies.elemwise import FLOATS
from conformance.strategies.record import strategy
from conformance.strategies.rotary import FORMS, head_of, turned
from poem.batch import PageTable, geometry
from poem.ops.operands import CacheHandle, Value

# bf16 caches hold f32 values rounded; e4m3 ones take any.
CACHES = {"bf16": ("bf16", "e4m3"), "f32": ("f32", "bf16", "e4m3"), "f16": ("f16", "e4m3")}
HEAD_DIMS = ((64, 64), (128, 128), (32, 32), (96, 64), (256, 256), (192, 128), (16, 80))  # of keys, of values
GROUPS = ((2, 1), (1, 1), (4, 2), (8, 1), (3, 3), (6, 2), (11, 1))  # query heads, key heads
# Scores of products of huge or special numbers are no softmax but a choice; these say what attention is used for.
FLAVOURS = ("normal", "integers", "tiny", "cancelling", "special")


def _cache(b: Build, widths: Sequence[int], head_dim: int, window: int | None = None, more: tuple[str, ...] = ()) -> CacheHandle:
    """A cache row of some dtype, or of one of `more`, now and then with scales."""
    dtype = b.pick(*CACHES[b.dtype], *more)
    scales = b.pick((), (0.5, 2.0), (0.37, 1.9)) if dtype in ("e4m3", "e5m2") else ()
    return b.kv(widths, head_dim, dtype, window, scales[: len(widths)])


def _cells(b: Build, kv_heads: int, head_dim: int, value_dim: int, window: int | None = None) -> CacheHandle:
    """A cache row with the keys and values of this pass appended; now and then one plane for both, where they are of one width."""
    widths = kv_heads * head_dim, kv_heads * value_dim
    if head_dim == value_dim and b.pick(False, False, True):
        cells = _cache(b, widths[:1], head_dim, window, ("e5m2",))
        b.call("attn.kv_append_shared", b.value(widths[0]), cells)
    else:
        cells = _cache(b, widths, head_dim, window, ("e5m2",))
        if b.flavour == "cancelling":  # neighbouring cells of almost the same weight and opposite values: what weights lose stands alone
            keys, values = _neighbours(b, widths[0], 1.0, 0.05), _neighbours(b, widths[1], -1.0)
        else:
            keys, values = map(b.value, widths)
        b.call("attn.kv_append", keys, values, cells)
    return cells


def _neighbours(b: Build, width: int, sign: float, apart: float = 0.0) -> Value:
    """Rows of which every second one is the one before it times `sign`, and so far apart from it."""

    def make(rows: int) -> np.ndarray:
        numbers = b.random.standard_normal((rows, width))
        numbers[1::2] = sign * numbers[: rows // 2 * 2 : 2] + apart * b.random.standard_normal((rows // 2, width))
        return numbers

    return b.floats(make, width)


def _slots(b: Build) -> tuple[Value, ...]:
    """None, or slots of rows by name: their own in another order, and for some rows none, as their offset is outside its page."""
    if not b.pick(False, True):
        return ()
    table, lengths, named = PageTable(b.page_size), dict[int, int](), []
    for chunks in b.chunks():
        for chunk in chunks:
            if chunk.sequence not in lengths:
                table.add(chunk.sequence)
            table.grow(chunk.sequence, lengths.get(chunk.sequence, 0) + len(chunk.tokens))
        pages = geometry(chunks, {chunk.sequence: lengths.get(chunk.sequence, 0) for chunk in chunks}, [table]).pages[0]
        lengths |= {chunk.sequence: lengths.get(chunk.sequence, 0) + len(chunk.tokens) for chunk in chunks}
        order = b.random.permutation(len(pages.write_page))
        outside = b.random.choice([-1, b.page_size], len(order))
        offsets = np.where(b.random.random(len(order)) < 0.3, outside, pages.write_offset[order])
        named.append((pages.write_page[order], offsets))
    return tuple(b.listed(parts, 1, "tokens") for parts in zip(*named, strict=True))


@strategy("attn.kv_append", exact=True)
def kv_append(b: Build) -> None:
    """Widths of some packs, of single elements, and of more packs than a block has threads."""
    widths = b.pick((8, 8), (64, 128), (7, 301), (1100, 40))
    cells = _cache(b, widths, 1)
    b.call("attn.kv_append", *map(b.value, widths), cells, *_slots(b))


@strategy("attn.kv_append_shared", exact=True)
def kv_append_shared(b: Build) -> None:
    width = b.pick(64, 8, 100, 301)
    b.call("attn.kv_append_shared", b.value(width), _cache(b, (width,), width), *_slots(b))


@strategy("attn.attend", dtypes=("bf16", "f32", "f16"), flavours=FLAVOURS)
def attend(b: Build) -> None:
    long = b.many_cells() > 1000
    if long:
        (head_dim, value_dim), (heads, kv_heads) = (16, 16), (1, 1)  # small, as it is long
    else:
        (head_dim, value_dim), (heads, kv_heads) = b.pick(*HEAD_DIMS), b.pick(*GROUPS)
    window = b.pick(None, 3, 1, 90)
    cells = _cells(b, kv_heads, head_dim, value_dim, window if b.pick(True, False) else None)
    options: dict[str, object] = {"window": window, "softcap": b.pick(None, 5.0, 0.75)}
    extra = b.pick("", "sinks", "bias", "sinks of a value", "log_scaling", "not causal", "mask", "mask alone", "bias, not causal")
    if extra == "sinks":
        options["sinks"] = b.weight(heads, dtype=b.pick(b.dtype, "f32"))
    elif extra.startswith("bias"):
        # Large where the cells before are many: the last piece has the largest score by far.
        options["bias"] = b.value(heads * 4, dtype="f32", scale=200.0 if long else 1.0)
    elif extra == "sinks of a value":
        options["sinks"] = b.value(heads)
    elif extra == "log_scaling":
        options["log_scaling"] = [4.0, 0.1]
    elif extra.startswith("mask"):
        options["mask"] = b.mask()
    if extra.endswith(("not causal", "alone")):
        options["causal"] = False
    if not extra.startswith("sinks"):
        options["lse"] = b.pick(False, True)
    # Scores that are far apart tell whether the largest is taken off; small ones are exact, so that nothing hides what weights lose. Of
    # infinite values a weight that underflows in float32 alone makes NaN, so special ones have scores of common size.
    scale = {"cancelling": 2.0**-5, "special": 1.0}.get(b.flavour) or b.pick(1.0, 60.0)
    q = b.value(heads * head_dim, scale=scale)
    b.call("attn.attend", q, cells, b.trace.handle, head_dim, kv_heads, head_dim**-0.5, **options)


@strategy("attn.plan_prefill", "attn.prefill", flavours=FLAVOURS)
def prefill(b: Build) -> None:
    head_dim, (heads, kv_heads), window = b.pick(64, 128), b.pick(*GROUPS), b.pick(None, 3)
    cells = _cells(b, kv_heads, head_dim, head_dim, window)
    plan = b.call("attn.plan_prefill", b.trace.handle, heads, kv_heads, head_dim, window=window)
    b.call("attn.prefill", b.value(heads * head_dim), plan, cells, window, head_dim, kv_heads, head_dim**-0.5)


def _turned_and_stored(b: Build, *, normed: bool) -> None:
    """Keys and queries turned, keys and values stored. Values come from an op, as the patterns ask. Now and then there are more heads,
    pairs or packs than a block has warps or threads."""
    form, (heads, kv_heads) = b.pick(*FORMS), b.pick(*GROUPS[:3], (9, 3))
    head_dim, rotary = head_of(b, form)
    widths = kv_heads * head_dim, b.pick(kv_heads * head_dim, 5, 264, 2056)
    q, k = b.value(heads * head_dim), b.value(widths[0])
    v = b.call("elemwise.add_bias", b.gain(widths[1]), b.value(widths[1]))
    cells = _cache(b, widths, head_dim)
    if normed:
        op = b.pick("elemwise.rmsnorm_per_head", "elemwise.rmsnorm_per_head_plus_one")
        q, k = (b.call(op, part, b.gain(head_dim), head_dim, 1e-5) for part in (q, k))
    q, k = turned(b, q, k, head_dim, rotary, form)
    b.call("attn.kv_append", k, v, cells)


@strategy("rope_append", dtypes=FLOATS)
def rope_append(b: Build) -> None:
    _turned_and_stored(b, normed=False)


@strategy("norm_rope_append", dtypes=FLOATS)
def norm_rope_append(b: Build) -> None:
    _turned_and_stored(b, normed=True)


@strategy("attn.dense", flavours=FLAVOURS)
def dense(b: Build) -> None:
    """Segments of rows; some rows lie behind the last of them."""
    head_dim, (heads, kv_heads) = b.pick(16, 5), b.pick(*GROUPS[:3])
    ends = [np.cumsum([0, *counts]) for counts in b.batch]
    bounds = [b.listed(ends, 1, "lanes+1") for _ in range(2)]
    q, k, v = (b.value(count * head_dim) for count in (heads, kv_heads, kv_heads))
    options: dict[str, object] = {"causal": b.pick(False, True), "lse": b.pick(False, True)}
    if b.pick(False, True):
        options["bias"] = b.value(7, heads, "f32")
    b.call("attn.dense", q, k, v, *bounds, head_dim, kv_heads, head_dim**-0.5, **options)


@strategy("attn.logit_softcap")
def logit_softcap(b: Build) -> None:
    b.call("attn.logit_softcap", b.value(b.pick(8, 100, 1001), scale=b.pick(1.0, 30.0)), b.pick(3.0, 30.0))


@strategy("attn.sink")
def sink(b: Build) -> None:
    heads, head_dim = b.pick(4, 3), b.pick(8, 64)
    b.call("attn.sink", b.value(heads * head_dim), b.value(heads, dtype="f32"), b.gain(heads), head_dim)


@strategy("attn.merge_lse")
def merge_lse(b: Build) -> None:
    heads, head_dim = b.pick(4, 3), b.pick(8, 64)
    sides = [operand for _ in range(2) for operand in (b.value(heads * head_dim), b.value(heads, dtype="f32"))]
    b.call("attn.merge_lse", *sides, heads, head_dim)
