"""Matrix products are within their bounds for every weight format, whatever the number of rows and however they are cut."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.errors import KernelError
from cupy_backend.kernels import elemwise, linear, linear_tables
from cupy_backend.launch import Array
from poem.dtypes import Dtype, activation
from poem.dtypes.tensor import Tensor
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.products import BF16, activations, agrees, bound, product, product_of_planes, taken, weight
from tests.cupy_backend.running import schedules

FORMATS = tuple(linear_tables.FORMATS)
EXACT = ("e4m3row", "e4m3tile128", "nvfp4", "mxfp4")  # formats whose codes are decoded without an offset
ROWS = (1, 8, 13, 32, 50, 100)  # a number for every tile, whole and ragged


def columns_of(word: str) -> int:
    known = {"bf16": 8, "e4m3row": 16, "e4m3tile128": 16, "e4m3tile128a8": 16, "nvfp4": 32, "mxfp4": 32}
    return known.get(word) or max(32, Dtype(word).group_size)


@pytest.mark.parametrize("word", FORMATS)
@settings(deadline=None, max_examples=8)
@given(
    rows=st.sampled_from(ROWS), outputs=st.integers(1, 140), columns=st.integers(1, 9),
    flavour=st.sampled_from(("normal", "huge", "cancelling", "uneven")), seed=st.integers(0, 2**31), schedule=schedules,
)  # fmt: skip
def test_products_are_within_their_bound(word, rows, outputs, columns, flavour, seed, schedule):
    width = columns * columns_of(word)
    x, w = activations(flavour, rows, width, seed), weight(word, outputs, width, seed % 8)
    exact = taken(x, w) @ w.decode(dtype=np.float64).T
    got = product(x, w, schedule=schedule)
    error = bound(taken(x, w), w, "f32", exact, w.dtype.act is not None)
    agrees(got.out, exact, error, word=word, flavour=flavour, seed=seed, kernel=got.launches[-1].kernel)


@pytest.mark.parametrize(("arch", "fp8_bits"), [("sm_80", 13), ("sm_89", 0), ("sm_90a", 0)])
@pytest.mark.parametrize("rows", [5, 40, 130])
def test_products_of_codes_are_as_exact_as_float32_where_the_tensor_cores_are(arch, fp8_bits, rows):
    x, w = activations("normal", rows, 400, 1), weight("e4m3tile128a8", 200, 400, 1)
    exact = taken(x, w) @ w.decode(dtype=np.float64).T
    got = product(x, w, arch=arch, fp8_bits=fp8_bits, warpgroups=arch == "sm_90a").out
    agrees(got, exact, bound(taken(x, w), w, "f32", exact, False), arch=arch, rows=rows)


@pytest.mark.parametrize("rows", [3, 16, 70])
@pytest.mark.parametrize("batch_invariant", [False, True])
@pytest.mark.parametrize("out_dtype", [np.float32, BF16])
@settings(deadline=None, max_examples=3)
@given(outputs=st.integers(1, 30).map(lambda n: n * 7), seed=st.integers(0, 2**31), schedule=schedules)
def test_small_integers_come_out_exactly_from_slices_in_any_order(rows, batch_invariant, out_dtype, outputs, seed, schedule):
    generator = np.random.default_rng(seed)
    x, w = (generator.integers(-3, 4, (n, 1544)).astype(BF16) for n in (rows, outputs))
    got = product(x, Tensor.of(w), out_dtype=out_dtype, batch_invariant=batch_invariant, schedule=schedule)
    assert got.launches[-1].grid[2] == (3 if rows <= 16 or not batch_invariant else 1)
    want = (x.astype(np.float32) @ w.astype(np.float32).T).astype(out_dtype)
    np.testing.assert_array_equal(got.out.astype(np.float32), want.astype(np.float32), err_msg=f"rows={rows} outputs={outputs} seed={seed}")
    assert not got.counters.any(), "counters are left 0 for the next launch"


@pytest.mark.parametrize("word", EXACT)
def test_weights_are_decoded_exactly(word):
    width = 256
    w = weight(word, 48, width, 3)
    planes = dict(w.planes)
    planes["code"] = np.random.default_rng(0).integers(0, 256, planes["code"].shape, np.uint8)  # every code, NaN among them
    if word == "mxfp4":
        planes["gain"] = np.random.default_rng(1).integers(0, 256, planes["gain"].shape, np.uint8)
        planes["gain"][planes["gain"] > 250] = 0xFF  # larger ones leave the range of bf16 as they leave that of float32
    w = Tensor(w.dtype, w.shape, planes)
    want = w.decode().T
    for first in range(0, width, 64):
        one_hot = np.zeros((64, width), BF16)
        one_hot[np.arange(64), np.arange(first, first + 64)] = 1
        nan_rows = np.isnan(w.decode()).any(axis=1)  # 0 times NaN is NaN
        got = product(one_hot, w).out
        assert np.isnan(got[:, nan_rows]).all()
        np.testing.assert_array_equal(got[:, ~nan_rows], want[first : first + 64, ~nan_rows], err_msg=f"{word}, columns from {first}")
    codes_without_nan = np.where((planes["code"] & 0x7F) == 0x7F, 0, planes["code"]) if word.startswith("e4m3") else planes["code"]
    planes["code"] = codes_without_nan
    if word == "mxfp4":
        planes["gain"][planes["gain"] == 0xFF] = 127
    w = Tensor(w.dtype, w.shape, planes)
    np.testing.assert_array_equal(product(one_hot, w).out, w.decode().T[first : first + 64], err_msg=word)


@pytest.mark.parametrize("word", ["bf16", *EXACT, "e4m3tile128a8"])
def test_nan_and_infinity_stay_in_their_row(word):
    x, w = activations("normal", 6, 256, 2), weight(word, 40, 256, 2)
    x[1, 5], x[2, 200], x[3, 0] = np.nan, np.inf, -np.inf
    got = product(x, w).out
    with np.errstate(invalid="ignore"):
        want = taken(x, w) @ w.decode(dtype=np.float64).T
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    infinite = np.isinf(want)
    np.testing.assert_array_equal(got[infinite], want[infinite])
    assert np.isfinite(got[[0, 4, 5]]).all()


@pytest.mark.parametrize("word", ["u4g64", "u8g64", "u2g64"])
def test_weights_with_offsets_turn_infinity_into_no_finite_number(word):
    x, w = activations("normal", 3, 256, 2), weight(word, 40, 256, 2)
    x[1, 5] = np.inf
    got = product(x, w).out
    assert not np.isfinite(got[1]).any()
    assert np.isfinite(got[[0, 2]]).all()


@pytest.mark.parametrize(("rows", "outputs"), [(1300, 200), (300, 520)])
def test_bands_of_tiles_cover_everything(rows, outputs):
    generator = np.random.default_rng(rows)
    x, w = (generator.integers(-3, 4, (n, 16)).astype(BF16) for n in (rows, outputs))
    np.testing.assert_array_equal(product(x, Tensor.of(w)).out, x.astype(np.float32) @ w.astype(np.float32).T)


@pytest.mark.parametrize("word", ["bf16", "u4g64", "nvfp4", "e4m3tile128a8"])
def test_a_row_has_the_same_bits_in_every_batch(word):
    width = 2048
    x, w = activations("normal", 70, width, 4), weight(word, 72, width, 4)
    whole = product(x, w, batch_invariant=True)
    assert "true" in whole.launches[-1].kernel, "70 rows are summed slice by slice in one block"
    for rows in (slice(0, 1), slice(3, 16), slice(20, 50)):
        part = product(x[rows], w, batch_invariant=True)
        np.testing.assert_array_equal(part.out.view(np.uint32), whole.out[rows].view(np.uint32), err_msg=f"{word} {rows}")


@pytest.mark.parametrize("act", ["silu", "gelu_tanh", "gelu"])
@pytest.mark.parametrize(("word", "rows"), [("bf16", 5), ("bf16", 60), ("u4g64", 16), ("e4m3tile128a8", 9), ("nvfp4", 33)])
def test_a_fused_gated_unit_equals_the_product_followed_by_the_unit(act, word, rows):
    inter, width = 80, 1024
    x, w = activations("normal", rows, width, 5), weight(word, 2 * inter, width, 5)
    # With batch_invariant both products are cut into the same slices, and so have the same bits before the unit.
    packed = product(x, w, out_dtype=BF16, batch_invariant=True).out
    memory = Memory()
    unit, out = elemwise.glu(memory.give("x", packed), act=act), memory.give("out", np.zeros((rows, inter), BF16))
    memory.run(elemwise.elementwise(*unit, out, arch="sm_90a"))
    fused = product(x, w, out_dtype=BF16, batch_invariant=True, act=act).out
    np.testing.assert_array_equal(fused.view(np.uint16), memory["out"].view(np.uint16), err_msg=f"{act} {word} {rows}")


@pytest.mark.parametrize("out_dtype", [np.float32, BF16])
@pytest.mark.parametrize(("word", "rows", "outputs", "warpgroups"), [
    ("bf16", 5, 83, False), ("bf16", 60, 80, False), ("e4m3row", 16, 80, False), ("e4m3tile128a8", 9, 144, False),
    ("bf16", 130, 264, True), ("e4m3tile128a8", 130, 136, True),
])  # fmt: skip
def test_a_bias_is_added_to_the_product_as_it_would_be_stored(word, rows, outputs, warpgroups, out_dtype):
    x, w = activations("normal", rows, 1024, 6), weight(word, outputs, 1024, 6)
    bias = activations("uneven", 1, outputs, 7)[0].astype(out_dtype)
    plain, biased = (product(x, w, out_dtype=out_dtype, warpgroups=warpgroups, bias=given_) for given_ in (None, bias))
    assert biased.launches[-1].source == ("linear_warpgroups.cu" if warpgroups else "linear.cu")
    want = (plain.out.astype(np.float32) + bias.astype(np.float32)).astype(out_dtype)
    assert biased.out.tobytes() == want.tobytes(), f"{word} {rows}: differs first at {np.argwhere(biased.out != want)[:1].tolist()}"


@pytest.mark.parametrize("word", ["bf16", "e4m3tile128a8"])
@pytest.mark.parametrize("out_dtype", [np.float32, BF16])
@settings(deadline=None, max_examples=3)
@given(
    rows=st.integers(128, 300), outputs=st.integers(1, 40).map(lambda n: n * 8), columns=st.integers(1, 20), seed=st.integers(0, 2**31),
    schedule=schedules,
)  # fmt: skip
def test_products_by_warpgroups_are_within_their_bound(word, out_dtype, rows, outputs, columns, seed, schedule):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(linear_tables.BLOCKS, "sm_90a", 2)  # so that a block takes several tiles
        x, w = activations("normal", rows, columns * 16, seed), weight(word, outputs, columns * 16, seed % 8)
        got = product(x, w, out_dtype=out_dtype, warpgroups=True, schedule=schedule)
    assert got.launches[-1].source == "linear_warpgroups.cu"
    exact = taken(x, w) @ w.decode(dtype=np.float64).T
    error = bound(taken(x, w), w, "f32" if out_dtype is np.float32 else "bf16", exact, w.dtype.act is not None)
    agrees(got.out, exact, error, word=word, rows=rows, outputs=outputs, columns=columns, seed=seed)


@pytest.mark.parametrize("word", ["bf16", "e4m3tile128a8"])
def test_gated_units_by_warpgroups_equal_the_product_followed_by_the_unit(word):
    rows, inter, width = 140, 192, 256
    x, w = activations("normal", rows, width, 5), weight(word, 2 * inter, width, 5)
    packed = product(x, w, out_dtype=BF16, warpgroups=True).out
    memory = Memory()
    unit, out = elemwise.glu(memory.give("x", packed), act="silu"), memory.give("out", np.zeros((rows, inter), BF16))
    memory.run(elemwise.elementwise(*unit, out, arch="sm_90a"))
    fused = product(x, w, out_dtype=BF16, warpgroups=True, act="silu")
    assert fused.launches[-1].source == "linear_warpgroups.cu"
    np.testing.assert_array_equal(fused.out.view(np.uint16), memory["out"].view(np.uint16), err_msg=word)


@pytest.mark.parametrize("warpgroups", [False, True])
def test_weights_that_lie_behind_each_other_keep_their_gains(warpgroups):
    x, dtype = activations("normal", 130, 256, 7), Dtype("e4m3tile128a8")
    parts = [weight("e4m3tile128a8", rows, 256, seed) for seed, rows in enumerate((48, 160, 64))]
    prepared = [linear.prepare(dtype, part.planes) for part in parts]
    joined = {name: np.concatenate([planes[name] for planes in prepared], 0 if name == "code" else -1) for name in prepared[0]}
    got = product_of_planes(x, dtype, joined, 272, warpgroups=warpgroups, fp8_bits=0).out
    for part, columns in zip(parts, np.split(got, (48, 208), axis=1), strict=True):
        exact = taken(x, part) @ part.decode(dtype=np.float64).T
        agrees(columns, exact, bound(taken(x, part), part, "f32", exact, False), rows=part.shape[0])


def test_gains_of_row_segments_go_to_their_rows():
    w = weight("nvfp4", 48, 64, 6)
    gains = np.array([0.5, 3.0], np.float32)
    segmented = Tensor(w.dtype, w.shape, dict(w.planes) | {"gain.gain": gains, "gain.rows": np.array([16, 32], np.int64)})
    prepared = linear.prepare(w.dtype, segmented.planes)
    np.testing.assert_array_equal(prepared["row_gain"], np.repeat(gains, [16, 32]))


@settings(deadline=None, max_examples=25)
@given(
    rows=st.integers(1, 20), columns=st.integers(1, 40), scale=st.integers(-30, 30), special=st.booleans(), seed=st.integers(0, 2**31),
    schedule=schedules,
)  # fmt: skip
def test_activations_are_rounded_as_the_rule_says(rows, columns, scale, special, seed, schedule):
    generator = np.random.default_rng(seed)
    x = (generator.standard_normal((rows, columns * 8)) * 2.0**scale).astype(BF16)
    x[:, : columns * 4] *= generator.random() < 0.7  # runs of zeros
    if special:
        x[generator.integers(rows), generator.integers(columns * 8)] = generator.choice([np.nan, np.inf, -np.inf])
    codes, scales = activation.quantise(x)
    memory = Memory(schedule)
    stride = -(-rows // 4) * 4
    given_codes = memory.give("codes", np.zeros_like(codes))
    given_scales = memory.give("scales", np.zeros((scales.shape[1], stride), np.float32))
    memory.run([linear.quantise_activations(memory.give("x", x), given_codes, given_scales)])
    np.testing.assert_array_equal(memory["scales"][:, :rows], scales.T)
    nan = (codes & 0x7F) == 0x7F  # NaN has no sign
    np.testing.assert_array_equal(np.where(nan, codes & 0x7F, codes), np.where(nan, memory["codes"] & 0x7F, memory["codes"]))


@settings(deadline=None, max_examples=400)
@given(
    rows=st.integers(1, 9000), outputs=st.integers(1, 200000), width=st.integers(1, 400).map(lambda n: n * 128),
    word=st.sampled_from(FORMATS), arch=st.sampled_from(tuple(linear_tables.BLOCKS)), batch_invariant=st.booleans(),
)  # fmt: skip
def test_every_cut_covers_the_columns_and_fits_the_device(rows, outputs, width, word, arch, batch_invariant):
    cut = linear_tables.cut(rows, outputs, width, Dtype(word), arch, batch_invariant=batch_invariant)
    assert cut.grid[0] * cut.tile.outputs >= outputs
    assert cut.grid[1] * cut.tile.rows >= rows
    assert cut.slice % cut.columns == 0
    if cut.splits > 1:
        assert (cut.splits - 1) * cut.slice < width <= cut.splits * cut.slice
        assert cut.grid[0] * cut.grid[1] <= linear_tables.COUNTERS
    assert cut.stages >= 3
    assert cut.stages * cut.stage_bytes + linear_tables.STATIC_SHARED <= linear_tables.SHARED[arch]
    if batch_invariant:
        one = linear_tables.cut(1, outputs, width, Dtype(word), arch, batch_invariant=True)
        assert cut.slice == one.slice
        assert cut.sliced or cut.splits == one.splits


@pytest.mark.parametrize(
    ("word", "rows", "width", "outputs", "act", "expected"),
    [
        ("u4g64", 2, 48, 8, None, "multiple of 32 columns"),
        ("u4g64", 2, 64, 24, "silu", "multiple of 16"),
        ("bf16", 2, 16, 8, "relu", "silu"),
    ],
)
def test_what_no_kernel_serves_is_refused(word, rows, width, outputs, act, expected):
    dtype = Dtype(word)
    x, out = Array("x", "read", (rows, width), "bf16"), Array("out", "write", (rows, outputs), "bf16")
    with pytest.raises(KernelError, match="no matrix product serves this") as refused:
        linear.matmul(x, {}, out, dtype=dtype, arch="sm_90a", act=act)
    assert refused.value.code == "kernel.unsupported"
    assert expected in refused.value.expected


def test_no_rows_need_no_launch():
    x, out = Array("x", "read", (0, 64), "bf16"), Array("out", "write", (0, 8), "bf16")
    assert linear.matmul(x, {}, out, dtype=Dtype("bf16"), arch="sm_90a") == []
    assert linear.matmul_scratch(0, 8, 64, dtype=Dtype("e4m3tile128a8"), arch="sm_90a") == 0


def test_weights_that_no_kernel_decodes_are_refused():
    with pytest.raises(KernelError, match="no matrix product takes weights of i8"):
        linear_tables.format_of(Dtype("i8"))
