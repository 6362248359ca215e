"""Rows and columns are copied bit by bit, and rows of quantised tables are what their format says."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.errors import KernelError
from cupy_backend.kernels import gather
from cupy_backend.launch import Array
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from tests.cupy_backend.bounded import flavours, numbers, within_bound
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.running import schedules

BF16 = ml_dtypes.bfloat16
PLAIN = (np.dtype(BF16), np.dtype(np.float16), np.dtype(np.float32))
QUANTISED = ("u4g64", "u4g32", "u2g32", "u8g64", "nvfp4", "mxfp4", "e4m3tile128", "e4m3row")


def bits(seed: int, *shape: int, dtype: np.dtype) -> np.ndarray:
    """Any bit patterns, NaN among them."""
    return np.random.default_rng(seed).integers(0, 256, (*shape[:-1], shape[-1] * dtype.itemsize), np.uint8).view(dtype)


def same_bits(got: np.ndarray, want: np.ndarray, **case: object) -> None:
    different = np.argwhere(np.ascontiguousarray(got).view(np.uint8) != np.ascontiguousarray(want).view(np.uint8))
    assert not len(different), f"{case}: bytes differ first at {different[0].tolist()}: got {got.shape}, want {want.shape}"


sizes = st.integers(1, 41)
seeds = st.integers(0, 2**31)


@settings(deadline=None, max_examples=30)
@given(dtype=st.sampled_from((*PLAIN, np.dtype(np.int32))), rows=sizes, width=sizes, count=sizes, seed=seeds, schedule=schedules)
def test_rows_are_gathered_bit_by_bit(dtype, rows, width, count, seed, schedule):
    x = bits(seed, rows, width, dtype=dtype)
    index = np.random.default_rng(seed).integers(0, rows, count, np.int32)
    memory = Memory(schedule)
    out = memory.give("out", np.zeros((count, width), dtype))
    memory.run(gather.gather_rows(memory.give("x", x), memory.give("rows", index), out))
    same_bits(memory["out"], x[index], dtype=dtype, rows=rows, width=width, count=count, seed=seed)


@settings(deadline=None, max_examples=30)
@given(dtype=st.sampled_from(PLAIN), rows=sizes, width=sizes, count=sizes, seed=seeds)
def test_packed_rows_are_zero_where_no_row_is_named(dtype, rows, width, count, seed):
    x = bits(seed, rows, width, dtype=dtype)
    index = np.random.default_rng(seed).integers(-1, rows, count, np.int32)
    memory = Memory()
    out = memory.give("out", np.zeros((count, width), dtype))
    memory.run(gather.pack_rows(memory.give("x", x), memory.give("rows", index), out))
    want = np.where((index >= 0)[:, None], x.view(f"u{dtype.itemsize}")[index], 0)
    same_bits(memory["out"].view(f"u{dtype.itemsize}"), want.astype(f"u{dtype.itemsize}"), index=index, seed=seed)


@settings(deadline=None, max_examples=20)
@given(dtype=st.sampled_from(PLAIN), vocab=st.integers(1, 20), spare=st.integers(0, 4), width=sizes, seed=seeds)
def test_ids_outside_the_vocabulary_read_row_0(dtype, vocab, spare, width, seed):
    table = bits(seed, vocab + spare, width, dtype=dtype)
    ids = np.random.default_rng(seed).integers(-3, vocab + spare + 3, 23, np.int32)
    memory = Memory()
    launches = gather.embed(
        memory.give("ids", ids), {"data": memory.give("table", table)}, memory.give("out", np.zeros((23, width), dtype)),
        dtype=Dtype({2: "bf16", 4: "f32"}[dtype.itemsize] if dtype != np.float16 else "f16"), vocab=vocab,
    )  # fmt: skip
    memory.run(launches)
    same_bits(memory["out"], table[np.where((ids >= 0) & (ids < vocab), ids, 0)], ids=ids, vocab=vocab, seed=seed)


@pytest.mark.parametrize("word", QUANTISED)
@settings(deadline=None, max_examples=6)
@given(rows=st.integers(1, 300), groups=st.integers(1, 3), seed=seeds)
def test_quantised_rows_are_decoded_as_their_format_says(word, rows, groups, seed):
    dtype = Dtype(word)
    width = groups * dtype.group_size if dtype.group_size > 1 else groups * 72
    generator = np.random.default_rng(seed)
    tensor = Tensor.encode((generator.standard_normal((rows, width)) * 3).astype(np.float32), dtype)
    ids = generator.integers(-1, rows + 2, 9, np.int32)
    memory = Memory()
    planes = dtype.planes((rows, width))
    table = {plane.path: memory.give(plane.path, tensor.planes[plane.path], plane.leaf, plane.shape) for plane in planes}
    out = memory.give("out", np.zeros((9, width), BF16))
    memory.run(gather.embed(memory.give("ids", ids), table, out, dtype=dtype, vocab=rows))
    want = tensor.decode(np.where((ids >= 0) & (ids < rows), ids, 0), np.float32).astype(BF16)
    same_bits(memory["out"], want, word=word, rows=rows, width=width, seed=seed)


def test_a_table_that_no_kernel_decodes_is_refused():
    dtype = Dtype("gt_e4m3_f32_n")
    table = {"code": Array("code", "read", (4, 16), "e4m3"), "gain": Array("gain", "read", (), "f32")}
    ids, out = Array("ids", "read", (2,), "i32"), Array("out", "write", (2, 16), "bf16")
    with pytest.raises(KernelError, match="no gather kernel serves this") as caught:
        gather.embed(ids, table, out, dtype=dtype, vocab=4)
    assert caught.value.code == "kernel.unsupported"


WIDTHS = ((1,), (3, 5), (16, 8, 8), (33, 1, 7, 64), (64, 64))


@settings(deadline=None, max_examples=30)
@given(dtype=st.sampled_from(PLAIN), rows=sizes, widths=st.sampled_from(WIDTHS), seed=seeds)
def test_splitting_columns_and_putting_them_together_again_changes_no_bit(dtype, rows, widths, seed):
    x = bits(seed, rows, sum(widths), dtype=dtype)
    memory = Memory()
    parts = [memory.give(f"part{number}", np.zeros((rows, width), dtype)) for number, width in enumerate(widths)]
    memory.run(gather.split_columns(memory.give("x", x), parts))
    for number, want in enumerate(np.split(x, np.cumsum(widths)[:-1], axis=1)):
        same_bits(memory[f"part{number}"], want, rows=rows, widths=widths, part=number, seed=seed)
    memory.run(gather.concat_columns(parts, memory.give("out", np.zeros_like(x))))
    same_bits(memory["out"], x, rows=rows, widths=widths, seed=seed)


@settings(deadline=None, max_examples=10)
@given(rows=sizes, heads=st.integers(1, 5), head_dim=st.sampled_from((1, 6, 16, 64)), seed=seeds)
def test_query_and_gate_alternate_by_head(rows, heads, head_dim, seed):
    x = bits(seed, rows, heads * 2 * head_dim, dtype=np.dtype(BF16))
    memory = Memory()
    q, gate = (memory.give(name, np.zeros((rows, heads * head_dim), BF16)) for name in ("q", "gate"))
    memory.run(gather.split_q_gate(memory.give("x", x), q, gate, head_dim=head_dim))
    by_head = x.reshape(rows, heads, 2, head_dim)
    for part, name in enumerate(("q", "gate")):
        same_bits(memory[name], by_head[:, :, part].reshape(rows, -1), name=name, rows=rows, heads=heads, head_dim=head_dim, seed=seed)


@settings(deadline=None, max_examples=20)
@given(dtype=st.sampled_from((*PLAIN, np.dtype(np.int32))), rows=sizes, stride=st.sampled_from((8, 33, 96)), first=st.integers(0, 7),
       width=st.sampled_from((1, 16, 25)), seed=seeds)  # fmt: skip
def test_columns_are_selected_bit_by_bit(dtype, rows, stride, first, width, seed):
    first = first % stride
    width = min(width, stride - first)
    x, memory = bits(seed, rows, stride, dtype=dtype), Memory()
    out = memory.give("out", np.zeros((rows, width), dtype))
    memory.run(gather.select_columns(memory.give("x", x), first, out))
    same_bits(memory["out"], x[:, first : first + width], dtype=dtype, rows=rows, stride=stride, first=first, width=width, seed=seed)


@settings(deadline=None, max_examples=40)
@given(dtype=st.sampled_from(PLAIN), sources=sizes, rows=sizes, width=sizes, kept=st.booleans(), padded=st.booleans(), seed=seeds,
       schedule=schedules)  # fmt: skip
def test_rows_are_scattered_and_of_several_the_last_wins(dtype, sources, rows, width, kept, padded, seed, schedule):
    """Routes below 0 lead nowhere. Of padded rows only the live ones count."""
    generator = np.random.default_rng(seed)
    src, y = (bits(seed + i, count, width, dtype=dtype) for i, count in enumerate((sources, rows)))
    routes = generator.integers(-1, rows, sources + 2).astype(np.int32)
    live = int(generator.integers(0, sources + 1)) if padded else sources
    memory = Memory(schedule)
    given_ = [memory.give(name, array) for name, array in (("src", src), ("routes", routes))]
    count = memory.give("live", np.array([live], np.int32)) if padded else None
    out = memory.give("out", np.zeros((rows, width), dtype))
    memory.run(gather.scatter_rows(*given_, memory.give("y", y) if kept else None, out, live=count))
    want = y.copy() if kept else np.zeros_like(y)
    for i in range(live):
        if routes[i] >= 0:
            want[routes[i]] = src[i]
    same_bits(memory["out"], want, routes=routes[:live].tolist(), rows=rows, width=width, kept=kept, seed=seed)


@settings(deadline=None, max_examples=20)
@given(rows=sizes, width=st.sampled_from((1, 8, 33, 72)), side=st.integers(1, 3), dtype=st.sampled_from(("bf16", "f32")), flavour=flavours,
       seed=seeds)  # fmt: skip
def test_runs_of_rows_are_averaged(rows, width, side, dtype, flavour, seed):
    x, memory = numbers(seed, (rows * side * side, width), dtype, flavour), Memory()
    memory.run(gather.mean_rows(memory.give("x", x), memory.out("out", rows, width, dtype=dtype), size=side * side))
    want = x.astype(np.float64).reshape(rows, -1, width).mean(1)
    within_bound("gather.pool_rows", [memory["out"]], [want], {"x": x.astype(np.float64), "side": side})


@settings(deadline=None, max_examples=20)
@given(rows=sizes, taps=st.integers(1, 4), width=st.sampled_from((1, 8, 33, 72)), dtype=st.sampled_from(("bf16", "f32")), flavour=flavours,
       seed=seeds)  # fmt: skip
def test_rows_of_a_table_are_summed_with_weights_and_ids_outside_read_row_0(rows, taps, width, dtype, flavour, seed):
    vocab, memory = 11, Memory()
    table, weights = numbers(seed, (vocab + 2, width), dtype, flavour), numbers(seed + 1, (rows, taps), "f32")
    ids = np.random.default_rng(seed).integers(-2, vocab + 3, (rows, taps), np.int32)
    given_ = [memory.give(name, array) for name, array in (("ids", ids), ("weights", weights))]
    out = memory.out("out", rows, width, dtype=dtype)
    memory.run(gather.embed_weighted(*given_, {"data": memory.give("table", table)}, out, dtype=Dtype(dtype), vocab=vocab))
    wide = table.astype(np.float64)
    want = (weights.astype(np.float64)[:, :, None] * wide[np.where((ids >= 0) & (ids < vocab), ids, 0)]).sum(1)
    arguments = {"ids": ids, "weights": weights.astype(np.float64), "table": wide, "vocab": vocab}
    within_bound("gather.embed_weighted", [memory["out"]], [want], arguments)
