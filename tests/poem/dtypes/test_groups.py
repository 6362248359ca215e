"""Groups: decoding is the formula element by element, encoding is the rule group by group, errors stay in what the format allows."""

import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from poem.dtypes import LEAF_BITS, NICKNAMES, Dtype
from poem.dtypes.facts import worst_error
from poem.dtypes.leaves import pack, unpack
from poem.dtypes.tensor import Tensor
from tests.poem.dtypes.definition import nearest_code, value_at
from tests.poem.dtypes.strategies import FLAVOURS, fits, planes, shapes, terms, weight

F32 = np.float32


def pattern(*words: str) -> np.ndarray:
    """float32 values from their bits in hex."""
    return np.array([int(word, 16) for word in words], np.uint32).view(np.float32)


def hexes(values: np.ndarray) -> str:
    return " ".join(f"{word:08x}" for word in np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(-1))


def bf16(*words: str) -> np.ndarray:
    return np.array([int(word, 16) for word in words], np.uint16).view(ml_dtypes.bfloat16)


def hex16(values: np.ndarray) -> list[str]:
    return [f"{word:04x}" for word in values.view(np.uint16).reshape(-1)]


def packed(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), np.uint8)


# ------------------------------------------------------------------------------------------------- the definition


@given(st.data(), terms(), st.integers(0, 2**32 - 1), st.sampled_from([np.float32, np.float64]))
def test_any_planes_of_any_term_decode_as_the_formula_says(data: st.DataObject, term, seed: int, number: type) -> None:
    dtype = Dtype(str(term))
    assume(dtype.is_quantised)
    shape = data.draw(shapes(dtype))
    assume(fits(dtype, shape))
    tensor = Tensor(dtype, shape, planes(dtype, shape, seed))
    got = tensor.decode(dtype=number)
    with np.errstate(all="ignore"):
        for index in np.ndindex(shape):
            want = value_at(term, tensor.planes, shape, index, number)
            assert got[index] == want or (np.isnan(got[index]) and np.isnan(want)), f"[{index}] got {got[index]!r}, want {want!r}"


@given(st.data(), st.sampled_from([*NICKNAMES, "bf16", "e4m3", "i32"]), st.integers(0, 2**32 - 1))
def test_decoding_rows_gives_the_rows_of_the_whole(data: st.DataObject, name: str, seed: int) -> None:
    dtype = Dtype(name)
    shape = data.draw(shapes(dtype, 130))
    tensor = Tensor.encode(weight(shape, seed), dtype)
    whole = tensor.decode()
    rows = data.draw(st.slices(shape[0]))
    np.testing.assert_array_equal(tensor.decode(rows), whole[rows])
    indices = np.array(data.draw(st.lists(st.integers(-shape[0], shape[0] - 1), max_size=5)), np.int64)
    np.testing.assert_array_equal(tensor.decode(indices), whole[indices])


def test_rows_that_start_inside_a_tile_decode_with_their_own_tile() -> None:
    w = np.outer(np.arange(1, 301), np.ones(130)).astype(np.float32)
    tensor = Tensor.encode(w, Dtype("e4m3tile128"))
    np.testing.assert_array_equal(tensor.decode(slice(100, 260)), tensor.decode()[100:260])


def test_a_vector_and_a_scalar_of_a_leaf_decode() -> None:
    assert Tensor.of(np.array([1.5, 2, 3], np.float32)).decode(slice(1, 3)).tolist() == [2, 3]
    assert Tensor.of(np.array(1.5, ml_dtypes.bfloat16)).decode() == 1.5


# ------------------------------------------------------------------------------------------------- the encoders


def affine(w: np.ndarray, width: int) -> tuple[float, float, list[int]]:
    """One group by the rule, in float32 scalars: gain, offset (bf16) and codes."""
    n = F32(2**width - 1)
    low, high = w.min(), w.max()
    edge_is_low = abs(low) > abs(high)
    step = max((high - low) / n, F32(1e-7))
    step = step if edge_is_low else -step
    edge = low if edge_is_low else high
    steps = np.rint(edge / step)
    step, offset = (edge / steps, edge) if steps != 0 else (step, F32(0))
    gain, offset = F32(ml_dtypes.bfloat16(step)), F32(ml_dtypes.bfloat16(offset))
    codes = [int(min(max(np.rint((value - offset) / gain), 0), n)) for value in w]
    return float(gain), float(offset), codes


@given(
    st.data(),
    st.sampled_from(["u8g64", "u4g64", "u4g32", "u2g32", "u2g64", "u2g128"]),
    st.integers(0, 2**32 - 1),
    st.sampled_from(FLAVOURS),
)
def test_affine_groups_are_encoded_by_the_rule(data: st.DataObject, name: str, seed: int, flavour: str) -> None:
    dtype = Dtype(name)
    shape = data.draw(shapes(dtype, 256))
    w = weight(shape, seed, flavour)
    tensor = Tensor.encode(w, dtype)
    width = int(name[1])
    codes = unpack(tensor.planes["code"], width).reshape(-1, dtype.group_size)
    for group, (values, got) in enumerate(zip(w.reshape(-1, dtype.group_size), codes, strict=True)):
        gain, offset, want = affine(values, width)
        assert float(tensor.planes["gain"].reshape(-1)[group]) == gain
        assert float(tensor.planes["offset"].reshape(-1)[group]) == offset
        assert got.tolist() == want, f"group {group}"


def scale_codes(values: np.ndarray, scale: np.float32, code: str) -> list[int]:
    with np.errstate(over="ignore"):
        return [nearest_code(float(value / scale), code) for value in values.reshape(-1)]


@given(st.data(), st.integers(0, 2**32 - 1), st.sampled_from(FLAVOURS))
def test_nvfp4_is_encoded_by_the_rule(data: st.DataObject, seed: int, flavour: str) -> None:
    shape = data.draw(shapes(Dtype("nvfp4"), 64))
    w = weight(shape, seed, flavour)
    tensor = Tensor.encode(w, Dtype("nvfp4"))
    bank = w.reshape(-1, *shape[-2:])
    outer = np.broadcast_to(tensor.planes["gain.gain"], (*shape[:-2], 1)).reshape(-1)
    inner = tensor.planes["gain.code"].reshape(len(bank), -1)
    codes = unpack(tensor.planes["code"], 4).reshape(len(bank), -1, 16)
    for entry, (matrix, scale) in enumerate(zip(bank, outer, strict=True)):
        peak = np.abs(matrix).max()
        assert scale == (F32(1) if peak == 0 else max(peak / F32(2688), F32(2.0**-126)))
        for block, values in enumerate(matrix.reshape(-1, 16)):
            top = np.abs(values).max()
            byte = 0x38 if top == 0 else max(1, nearest_code(float(top / (F32(6) * scale)), "e4m3"))
            assert inner[entry, block] == byte
            gain = F32(np.uint8(byte).view(ml_dtypes.float8_e4m3fn)) * scale
            assert codes[entry, block].tolist() == scale_codes(values, gain, "e2m1"), f"entry {entry}, block {block}"


@given(st.data(), st.integers(0, 2**32 - 1), st.sampled_from(FLAVOURS))
def test_mxfp4_is_encoded_by_the_rule(data: st.DataObject, seed: int, flavour: str) -> None:
    shape = data.draw(shapes(Dtype("mxfp4"), 96))
    w = weight(shape, seed, flavour)
    tensor = Tensor.encode(w, Dtype("mxfp4"))
    codes = unpack(tensor.planes["code"], 4).reshape(-1, 32)
    for block, (values, byte) in enumerate(zip(w.reshape(-1, 32), tensor.planes["gain"].reshape(-1), strict=True)):
        top = float(np.abs(values).max())
        want = 127 if top == 0 else min(max(math.frexp(top)[1] - 1 - 2 + 127, 0), 254)
        assert byte == want
        assert codes[block].tolist() == scale_codes(values, F32(2.0 ** (want - 127)), "e2m1"), f"block {block}"


@given(st.data(), st.sampled_from(["e4m3row", "e4m3tile128", "g2x3_e4m3_f32_n"]), st.integers(0, 2**32 - 1), st.sampled_from(FLAVOURS))
def test_rows_and_tiles_are_encoded_by_the_rule_partial_tiles_included(data: st.DataObject, name: str, seed: int, flavour: str) -> None:
    dtype = Dtype(name)
    shape = data.draw(shapes(dtype, 140))
    w = weight(shape, seed, flavour)
    tensor = Tensor.encode(w, dtype)
    group = dtype.term.group
    rows, columns = (1, shape[-1]) if group.kind == "row" else (group.rows, group.size)
    bank = w.reshape(-1, *shape[-2:])
    codes = tensor.planes["code"].reshape(bank.shape)
    gains = tensor.planes["gain"].reshape(len(bank), math.ceil(shape[-2] / rows), -1)
    for entry in range(len(bank)):
        for i, j in np.ndindex(gains.shape[1:]):
            tile = np.s_[entry, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns]
            scale = np.abs(bank[tile]).max() / F32(448)
            scale = F32(1) if scale == 0 else scale
            assert gains[entry, i, j] == scale
            assert codes[tile].reshape(-1).tolist() == scale_codes(bank[tile], scale, "e4m3"), f"tile {entry, i, j}"


@given(
    st.data(), st.sampled_from(tuple(NICKNAMES)), st.integers(0, 2**32 - 1), st.sampled_from(["normal", "positive", "integers", "outliers"])
)
def test_the_error_stays_within_what_the_format_allows(data: st.DataObject, name: str, seed: int, flavour: str) -> None:
    dtype = Dtype(name)
    shape = data.draw(shapes(dtype, 256))
    w = weight(shape, seed, flavour)
    errors = np.abs(Tensor.encode(w, dtype).decode(dtype=np.float64) - w)
    group = dtype.term.group
    if group.kind in ("run", "row"):
        peaks = np.abs(w).reshape(*shape[:-1], -1, group.size or shape[-1]).max(axis=-1).repeat(group.size or shape[-1], axis=-1)
    else:
        peaks = np.full(shape, np.abs(w).max())
    allowed = worst_error(dtype) * peaks * (1 + 1e-6)
    if name == "nvfp4":  # blocks far below the largest of the tensor have a subnormal scale
        allowed = np.where(peaks > np.abs(w).max() * 2.0**-14, allowed, peaks)
    assert (errors <= allowed).all(), f"worst {np.max(errors / np.maximum(peaks, 1e-30)):.4f}, allowed {worst_error(dtype):.4f}"


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("e4m3row", 0.0265),
        ("e4m3tile128", 0.0265),
        ("u8g64", 0.0054),
        ("u4g32", 0.081),
        ("u4g64", 0.091),
        ("nvfp4", 0.095),
        ("mxfp4", 0.114),
        ("u2g64", 0.39),
    ],
)
def test_the_typical_error_on_normal_data_is_the_known_one(name: str, want: float) -> None:
    w = weight((256, 2048), 1)
    error = Tensor.encode(w, Dtype(name)).decode(dtype=np.float64) - w
    assert np.sqrt(np.mean(error**2) / np.mean(w.astype(float) ** 2)) == pytest.approx(want, rel=0.02)


@given(st.data(), st.sampled_from(["e4m3row", "e4m3tile128", "e4m3tile128a8", "nvfp4", "mxfp4"]), st.integers(0, 2**32 - 1))
def test_encoding_what_was_decoded_gives_the_same_codes(data: st.DataObject, name: str, seed: int) -> None:
    shape = data.draw(shapes(Dtype(name), 256))
    once = Tensor.encode(weight(shape, seed), Dtype(name))
    again = Tensor.encode(once.decode(), Dtype(name))
    assert once.planes["code"].tobytes() == again.planes["code"].tobytes()


@given(st.data(), terms(), st.integers(0, 2**32 - 1), st.sampled_from([flavour for flavour in FLAVOURS if flavour != "tiny"]))
def test_in_any_term_every_code_is_the_nearest_for_the_factors_as_stored(data: st.DataObject, term, seed: int, flavour: str) -> None:
    dtype = Dtype(str(term))
    assume(dtype.is_quantised)
    shape = data.draw(shapes(dtype))
    assume(fits(dtype, shape))
    w = weight(shape, seed, flavour)
    try:
        tensor = Tensor.encode(w, dtype)
    except ValueError as refusal:
        if any(known in str(refusal) for known in ("hold no negative values", "exponents of groups", "does not fit its format")):
            return
        raise
    width = LEAF_BITS[term.code]
    codes = unpack(tensor.planes["code"].view(np.uint8), width)
    others = []
    for other in (codes + 1, codes - 1, codes ^ 2 ** (width - 1)):  # the neighbours on both sides, and across zero
        plane = pack(other.astype(np.uint8) & np.uint8(2**width - 1), width).view(tensor.planes["code"].dtype)
        others.append(Tensor(dtype, shape, {**tensor.planes, "code": plane}).decode(dtype=np.float64))
    errors = np.abs(np.where(np.isfinite(others), others, np.inf) - w).min(axis=0)
    got = np.abs(tensor.decode(dtype=np.float64) - w)
    slack = 1e-6 * (np.abs(w) + np.abs(np.where(np.isfinite(others), others, 0)).max(axis=0))
    worst = np.unravel_index(np.argmax(got - errors - slack), shape)
    assert (got <= errors + slack).all(), f"{worst}: value {w[worst]}, error {got[worst]}, another code has {errors[worst]}"


@pytest.mark.parametrize("name", NICKNAMES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused_in_groups(name: str, value: float) -> None:
    w = np.ones((3, 256), np.float32)
    w[1, 77] = value
    with pytest.raises(ValueError, match="NaN or infinity"):
        Tensor.encode(w, Dtype(name))


def test_a_factor_that_would_be_infinite_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit its format"):
        Tensor.encode(np.full((1, 64), 3.4e38, np.float32), Dtype("u4g64"))
    with pytest.raises(ValueError, match="does not fit its format"):
        Tensor.encode(np.full((1, 4), 1e30, np.float32), Dtype("gr_e4m3_f16_n"))


def test_negative_values_are_refused_in_unsigned_codes_without_an_offset() -> None:
    with pytest.raises(ValueError, match="hold no negative values"):
        Tensor.encode(np.array([[1, -1.0]], np.float32), Dtype("gr_u8_f32_n"))


def test_zero_points_are_encoded_as_the_code_of_zero() -> None:
    tensor = Tensor.encode(np.array([[-1, 0, 1, 2.0]], np.float32), Dtype("g4_u2_f32_z_u8"))
    assert (unpack(tensor.planes["code"], 2).tolist(), tensor.planes["offset"].tolist()) == ([[0, 1, 2, 3]], [[1]])
    assert tensor.decode().tolist() == [[-1, 0, 1, 2]]


def test_a_float64_weight_is_rounded_to_float32_first() -> None:
    w = weight((4, 64), 5).astype(np.float64) + 1e-12
    for name in NICKNAMES:
        wide = np.tile(w, 2)
        got, want = Tensor.encode(wide, Dtype(name)), Tensor.encode(wide.astype(np.float32), Dtype(name))
        assert all(got.planes[path].tobytes() == want.planes[path].tobytes() for path in want.planes)


# ------------------------------------------------------------------------------------------------- vectors


def test_codes_1_and_7_under_extreme_mxfp4_scales() -> None:
    codes = np.zeros((3, 16), np.uint8)
    codes[:, 0] = 0x71
    tensor = Tensor(Dtype("mxfp4"), (3, 32), {"code": codes, "gain": np.array([[0x00], [0xFC], [0xFD]], np.uint8)})
    got = tensor.decode()[:, :2]
    assert hexes(got[0]) == "00200000 01400000"
    assert hexes(got[1]) == "7d800000 7f400000"
    assert hexes(got[2, 1]) == "7f800000"


def test_the_mxfp4_vector() -> None:
    tensor = Tensor.encode(((np.arange(32) - 10) / 4)[None].astype(np.float32), Dtype("mxfp4"))
    assert tensor.planes["gain"].tolist() == [[0x7F]]
    assert tensor.planes["code"].tobytes().hex() == "ccccabaa890021224344545566666676"


def test_the_u4g64_vector() -> None:
    w = ((np.arange(64) - 16) / 8)[None].astype(np.float32)
    code = "efeeeeddddccccbbbbabaa9a9989887877776666555544443433232212110100"
    tensor = Tensor.encode(w, Dtype("u4g64"))
    assert (hex16(tensor.planes["gain"]), hex16(tensor.planes["offset"])) == (["bf09"], ["40bc"])
    assert tensor.planes["code"].tobytes().hex() == code
    got = tensor.decode()[0]
    assert got[:6].tolist() == [-2.15234375] + [-1.6171875] * 5
    assert got[-3:].tolist() == [5.875] * 3
    assert np.abs(got - w).max() == 0.265625
    negated = Tensor.encode(-w, Dtype("u4g64"))
    assert (hex16(negated.planes["gain"]), hex16(negated.planes["offset"])) == (["3f09"], ["c0bc"])
    assert negated.planes["code"].tobytes().hex() == code


@pytest.mark.parametrize(("value", "offset", "decoded"), [(0, "0000", 0), (0.75, "3f40", 0.75)])
def test_a_constant_u4g64_group(value: float, offset: str, decoded: float) -> None:
    tensor = Tensor.encode(np.full((1, 64), value, np.float32), Dtype("u4g64"))
    assert (hex16(tensor.planes["gain"]), hex16(tensor.planes["offset"])) == (["b3d7"], [offset])
    assert not tensor.planes["code"].any()
    assert (tensor.decode() == decoded).all()


def test_a_negative_gain_decodes_downwards() -> None:
    planes = {"code": packed("1032547698badcfe")[None], "gain": bf16("be80")[None], "offset": bf16("4000")[None]}
    assert Tensor(Dtype("g16_u4_bf16_b_bf16"), (1, 16), planes).decode()[0].tolist() == [2 - code / 4 for code in range(16)]


NVFP4_INPUT = "0000 3dcd be4d 3e9a becd 3f00 bf1a 3f33 bf4d 3f66 bf80 3f8d 3d4d bd4d 3f0d bfa0"
NVFP4_DECODED = (
    "00000000 3dd55555 be555555 3ea00000 bed55555 3ed55555 bf200000 3f200000 "
    "bf555555 3f555555 bf555555 3fa00000 00000000 80000000 3f200000 bfa00000"
)


def test_the_nvfp4_vector() -> None:
    w = np.zeros((1, 32), np.float32)
    w[0, :16] = bf16(*NVFP4_INPUT.split()).astype(np.float32)
    w[0, 16] = 2.5
    tensor = Tensor.encode(w, Dtype("nvfp4"))
    assert hexes(tensor.planes["gain.gain"]) == "3a73cf3d"
    assert tensor.planes["gain.code"][0, 0] == 0x76
    assert tensor.planes["code"][0, :8].tobytes().hex() == "103a4c5d6e7e80f5"
    assert hexes(tensor.decode()[0, :16]) == NVFP4_DECODED


@pytest.mark.parametrize(("small", "scales", "code", "decoded"), [(0.0, [0x7E, 0x38], 0, 0.0), (4e-6, [0x7E, 0x01], 4, 3.633e-6)])
def test_nvfp4_blocks_far_below_the_largest(small: float, scales: list[int], code: int, decoded: float) -> None:
    w = np.zeros((1, 32), np.float32)
    w[0, [0, 20]] = 2.5, small
    tensor = Tensor.encode(w, Dtype("nvfp4"))
    assert tensor.planes["gain.code"].tolist() == [scales]
    assert unpack(tensor.planes["code"], 4)[0, 20] == code
    assert tensor.decode()[0, 20] == pytest.approx(decoded, rel=1e-3)


def test_the_vector_of_partial_tiles() -> None:
    w = np.array([[1, -2, 3, 4, 5], [0.5, 0.25, -6, 7, 8], [100, -200, 0.1, 0.2, -0.3]], np.float32)
    tensor = Tensor.encode(w, Dtype("g2x2_e4m3_f32_n"))
    assert hexes(tensor.planes["gain"]) == "3b924925 3c800000 3c924925 3ee49249 39ea0ea1 3a2f8af9"
    assert tensor.planes["code"].tobytes().hex() == "76fe747879" + "6e66fc7e7e" + "76fe767efe"
    want = w.copy()
    want[0, 4] = pattern("40a4924a")[0]
    np.testing.assert_array_equal(tensor.decode(), want)


def test_the_vector_of_partial_128_by_128_tiles() -> None:
    w = np.ones((130, 129), np.float32)
    w[128:], w[:, 128] = 2, 4
    w[128:, 128] = 8
    tensor = Tensor.encode(w, Dtype("e4m3tile128"))
    assert hexes(tensor.planes["gain"]) == "3b124925 3c124925 3b924925 3c924925"
    np.testing.assert_array_equal(tensor.decode(), w)


def test_the_e4m3row_vector() -> None:
    tensor = Tensor.encode(np.array([[1, 2, -3]], np.float32), Dtype("e4m3row"))
    assert (hexes(tensor.planes["gain"]), tensor.planes["code"].tobytes().hex()) == ("3bdb6db7", "7179fe")


def test_words_of_other_packers_are_our_bytes() -> None:
    assert unpack(np.array([0x76543210, 0xFEDCBA98], "<u4").view(np.uint8), 4).tolist() == list(range(16))
    assert np.array([0x03020100], "<u4").view(np.uint8).tolist() == [0, 1, 2, 3]


def test_symmetric_int4_is_exact_as_an_affine_group() -> None:
    planes = {"code": np.full((1, 1), 0x33, np.uint8), "gain": bf16("3e80")[None], "offset": bf16("c000")[None]}
    assert Tensor(Dtype("g2_u4_bf16_b_bf16"), (1, 2), planes).decode().tolist() == [[-1.25, -1.25]]


def test_every_expert_of_an_nvfp4_bank_has_its_own_scale() -> None:
    w = weight((3, 4, 32), 9) * np.array([1, 10, 100], np.float32)[:, None, None]
    tensor = Tensor.encode(w, Dtype("nvfp4"))
    assert tensor.planes["gain.gain"].shape == (3, 1)
    assert tensor.planes["gain.rows"].tolist() == [4]
    for expert in range(3):
        alone = Tensor.encode(w[expert], Dtype("nvfp4"))
        np.testing.assert_array_equal(tensor.decode(slice(expert, expert + 1))[0], alone.decode())
