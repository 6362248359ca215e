"""Elements: every code decodes as published, every value goes to the nearest code, narrow codes pack low bits first."""

import math
import struct

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.dtypes import Dtype, leaves
from poem.dtypes.tensor import Tensor
from tests.poem.dtypes.definition import BITS, nearest_code, ties, value_of_code

MINIFLOATS = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2, "e2m1": ml_dtypes.float4_e2m1fn}
THEIRS = {**MINIFLOATS, "e8m0": ml_dtypes.float8_e8m0fnu}


def f32(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def bits(values: np.ndarray) -> list[int]:
    return values.view(np.uint32).reshape(-1).tolist()


def explain(got: np.ndarray, want: np.ndarray, inputs: np.ndarray) -> str:
    where = np.flatnonzero(got != want)
    first = where[0] if len(where) else 0
    return f"{len(where)} differ; [{first}] input {inputs[first]!r}: got {got[first]:#x}, want {want[first]:#x}"


@pytest.mark.parametrize("leaf", BITS)
def test_every_code_decodes_to_the_published_value(leaf: str) -> None:
    got = leaves.values_of_codes(leaf)
    want = [value_of_code(leaf, code) for code in range(2 ** BITS[leaf])]
    np.testing.assert_array_equal(got, want)
    assert np.signbit(got[~np.isnan(got)]).tolist() == [math.copysign(1, value) < 0 for value in want if not math.isnan(value)]


@pytest.mark.parametrize("leaf", THEIRS)
def test_every_code_decodes_as_in_ml_dtypes(leaf: str) -> None:
    codes = np.arange(2 ** BITS[leaf], dtype=np.uint8)
    np.testing.assert_array_equal(leaves.values_of_codes(leaf), codes.view(THEIRS[leaf]).astype(np.float64))


@pytest.mark.parametrize("leaf", ["e4m3", "e5m2", "e8m0"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_decoding_a_plane_of_all_codes_gives_their_values(leaf: str, dtype: type) -> None:
    got = Tensor(Dtype(leaf), (2, 128), {"data": np.arange(256, dtype=np.uint8).reshape(2, 128)}).decode(dtype=dtype)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.reshape(-1), [value_of_code(leaf, code) for code in range(256)])


@pytest.mark.parametrize("leaf", ["e2m1", "u4", "u2"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_byte_of_narrow_codes_decodes_low_bits_first(leaf: str, dtype: type) -> None:
    width = BITS[leaf]
    got = leaves.decode(np.arange(256, dtype=np.uint8), leaf, dtype).reshape(256, -1)
    for byte in range(256):
        want = [value_of_code(leaf, byte >> shift & (2**width - 1)) for shift in range(0, 8, width)]
        assert got[byte].tolist() == want, f"byte {byte:#04x}"


@pytest.mark.parametrize("leaf", ["e4m3", "e5m2"])
@pytest.mark.parametrize("flushed", [False, True])
def test_finite_codes_decode_by_their_bits_as_by_the_table(leaf: str, flushed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Codes without NaN and infinity are decoded by their bits, which are a subnormal float32 on the way: not where those are flushed."""
    if flushed:
        made = leaves._as_bfloat16(leaf)._replace(smallest=np.float32(0))
        monkeypatch.setattr(leaves, "_as_bfloat16", lambda leaf: made)
    values = np.array([value_of_code(leaf, code) for code in range(256)], np.float32)
    codes = np.flatnonzero(np.isfinite(values)).astype(np.uint8)
    for chosen in (codes, codes[:1], codes[-3:]):
        assert bits(leaves.decode(chosen, leaf)) == bits(values[chosen])


def test_byte_e4_holds_the_two_bit_codes_0_1_2_3() -> None:
    assert leaves.unpack(np.array([0xE4], np.uint8), 2).tolist() == [0, 1, 2, 3]
    assert leaves.pack(np.array([0, 1, 2, 3], np.uint8), 2).tolist() == [0xE4]


@given(st.sampled_from([2, 4, 8]), st.integers(1, 5), st.integers(1, 9), st.integers(0, 2**32 - 1))
def test_unpacking_reverts_packing(width: int, rows: int, count: int, seed: int) -> None:
    codes = np.random.default_rng(seed).integers(0, 2**width, (rows, count * 8 // width), dtype=np.uint8)
    packed = leaves.pack(codes, width)
    assert packed.shape == (rows, count)
    np.testing.assert_array_equal(leaves.unpack(packed, width), codes)


def test_a_row_that_is_no_whole_number_of_bytes_is_not_packed() -> None:
    with pytest.raises(ValueError, match="7 codes of 4 bits"):
        leaves.pack(np.zeros((2, 7), np.uint8), 4)


@pytest.mark.parametrize("leaf", MINIFLOATS)
def test_all_ties_and_their_neighbours_go_to_the_nearest_code(leaf: str) -> None:
    middles = np.array(ties(leaf), np.float32)
    values = np.concatenate([middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))])
    values = np.concatenate([values, -values])
    got = leaves.encode_codes(values, leaf)
    want = np.array([nearest_code(float(value), leaf) for value in values], np.uint8)
    assert (got == want).all(), explain(got, want, values)


@pytest.mark.parametrize("leaf", MINIFLOATS)
def test_every_finite_code_encodes_to_itself(leaf: str) -> None:
    for code in range(2 ** BITS[leaf]):
        value = value_of_code(leaf, code)
        if math.isfinite(value):
            assert leaves.encode_codes(np.array([value]), leaf)[0] == code


@pytest.mark.parametrize("leaf", MINIFLOATS)
def test_every_bf16_value_encodes_as_clamp_then_cast(leaf: str) -> None:
    values = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    compare_with_clamp_then_cast(values, leaf)


@pytest.mark.parametrize("leaf", MINIFLOATS)
def test_millions_of_float32_patterns_encode_as_clamp_then_cast(leaf: str) -> None:
    compare_with_clamp_then_cast(np.random.default_rng(7).integers(0, 2**32, 2_000_000, dtype=np.uint32).view(np.float32), leaf)


def compare_with_clamp_then_cast(values: np.ndarray, leaf: str) -> None:
    values = values[~np.isnan(values)]
    top = value_of_code(leaf, {"e4m3": 0x7E, "e5m2": 0x7B, "e2m1": 7}[leaf])
    want = np.clip(values, -top, top).astype(MINIFLOATS[leaf]).view(np.uint8)
    got = leaves.encode_codes(values, leaf)
    assert (got == want).all(), explain(got, want, values)


E2M1 = [(0.25, 0), (f32(0x3E800001), 1), (0.75, 2), (1.25, 2), (f32(0x3FA00001), 3), (1.75, 4), (2.5, 4), (f32(0x40200001), 5)]
E2M1 += [(3.5, 6), (5, 6), (f32(0x40A00001), 7), (7, 7), (math.inf, 7), (-0.0, 8), (-0.25, 8), (-0.1, 8), (-0.75, 10), (-math.inf, 15)]
E4M3 = [(0, 0x00), (-0.0, 0x80), (2.0**-10, 0x00), (f32(0x3A800001), 0x01), (2.0**-9, 0x01), (1.5 * 2.0**-9, 0x02)]
E4M3 += [(2.5 * 2.0**-9, 0x02), (7.5 * 2.0**-9, 0x08), (2.0**-6, 0x08), (-(2.0**-6), 0x88), (0.0166015625, 0x08), (1, 0x38)]
E4M3 += [(1.0625, 0x38), (1.125, 0x39), (1.1875, 0x3A), (f32(0x3F880008), 0x39), (17, 0x58), (18, 0x59), (19, 0x5A), (240, 0x77)]
E4M3 += [(248, 0x78), (256, 0x78), (272, 0x78), (416, 0x7D), (432, 0x7E), (440, 0x7E), (448, 0x7E), (449, 0x7E), (464, 0x7E)]
E4M3 += [(f32(0x43E80CCD), 0x7E), (480, 0x7E), (1e30, 0x7E), (math.inf, 0x7E), (-f32(0x43E80CCD), 0xFE), (-math.inf, 0xFE)]
E4M3 += [(math.nan, 0x7F), (-math.nan, 0xFF), (-(2.0**-11), 0x80)]
E5M2 = [(1.125, 0x3C), (1.375, 0x3E), (2.0**-17, 0x00), (57344, 0x7B), (61439, 0x7B), (61440, 0x7B), (math.inf, 0x7B)]
E5M2 += [(-math.inf, 0xFB), (math.nan, 0x7E), (-math.nan, 0xFE)]


@pytest.mark.parametrize(
    ("leaf", "value", "code"), [(leaf, *case) for leaf, cases in (("e2m1", E2M1), ("e4m3", E4M3), ("e5m2", E5M2)) for case in cases]
)
def test_a_value_encodes_to_this_code(leaf: str, value: float, code: int) -> None:
    got = leaves.encode_codes(np.array([value], np.float32), leaf)[0]
    assert got == code, f"{leaf}({value!r}): got {got:#04x}, want {code:#04x}"


@pytest.mark.parametrize(
    ("code", "value"),
    [
        (0x01, 0.001953125),
        (0x07, 0.013671875),
        (0x08, 0.015625),
        (0x09, 0.017578125),
        (0x38, 1),
        (0x77, 240),
        (0x7E, 448),
        (0xB8, -1),
        (0xFE, -448),
    ],
)
def test_an_e4m3_code_decodes_to_this_value(code: int, value: float) -> None:
    assert leaves.decode(np.array([code], np.uint8), "e4m3")[0] == value


@pytest.mark.parametrize(
    ("code", "pattern"), [(0x00, 0x00400000), (0x01, 0x00800000), (0x7F, 0x3F800000), (0x80, 0x40000000), (0xFE, 0x7F000000)]
)
def test_an_e8m0_code_decodes_to_this_float32_even_where_it_is_subnormal(code: int, pattern: int) -> None:
    assert bits(leaves.decode(np.array([code], np.uint8), "e8m0")) == [pattern]


def test_e8m0_code_ff_is_nan() -> None:
    assert np.isnan(leaves.decode(np.array([0xFF], np.uint8), "e8m0"))


BF16 = [(0x3F808000, 0x3F80), (0x3F808001, 0x3F81), (0x3F818000, 0x3F82), (0x3F828000, 0x3F82), (0x3F838000, 0x3F84), (0x3F807FFF, 0x3F80)]
BF16 += [(0x7F7F7FFF, 0x7F7F), (0x7F7F8000, 0x7F80), (0x7F7FFFFF, 0x7F80), (0x7F800001, 0x7FC0), (0xFF800001, 0xFFC0)]
BF16 += [(0xFFFFFFFF, 0xFFC0), (0x00008000, 0x0000), (0x00008001, 0x0001), (0x00018000, 0x0002), (0x80000000, 0x8000)]
BF16 += [(0x80008001, 0x8001), (0x007FFFFF, 0x0080)]


@pytest.mark.parametrize(("pattern", "want"), BF16)
def test_a_float32_pattern_rounds_to_this_bf16_pattern(pattern: int, want: int) -> None:
    got = leaves.encode(np.array([pattern], np.uint32).view(np.float32), "bf16").view(np.uint16)[0]
    assert got == want, f"{pattern:08x}: got {got:04x}, want {want:04x}"


def test_bf16_rounding_of_random_patterns_is_that_of_integer_arithmetic() -> None:
    patterns = np.random.default_rng(3).integers(0, 2**32, 500_000, dtype=np.uint32)
    patterns = patterns[~np.isnan(patterns.view(np.float32))]
    want = ((patterns.astype(np.uint64) + 0x7FFF + ((patterns >> 16) & 1)) >> 16).astype(np.uint16)
    got = leaves.encode(patterns.view(np.float32), "bf16").view(np.uint16)
    assert (got == want).all(), explain(got, want, patterns)


def test_narrow_floats_round_the_float32_of_a_float64_twice_on_purpose() -> None:
    assert leaves.encode_codes(np.array([1 + 2.0**-4 + 2.0**-40]), "e4m3")[0] == 0x38


def test_floats_overflow_to_infinity_without_a_warning(recwarn: pytest.WarningsRecorder) -> None:
    assert leaves.encode(np.array([1e30]), "f16")[0] == np.inf
    assert leaves.encode(np.array([1e300]), "f32")[0] == np.inf
    assert leaves.encode(np.array([-1e300]), "bf16")[0] == -np.inf
    assert not recwarn.list


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("stored", "want"),
    [
        (np.array([0x7F81, 0xFFFF], np.uint16).view(ml_dtypes.bfloat16), [math.nan, math.nan]),
        (np.array([0x7C01], np.uint16).view(np.float16), [math.nan]),
        (np.array([0x7F800001], np.uint32).view(np.float32), [math.nan]),
        (np.array([1e300, -1e300, math.nan]), [math.inf, -math.inf, math.nan]),
    ],
)
def test_floats_decode_without_a_warning(stored: np.ndarray, want: list[float], dtype: type) -> None:
    got = Tensor.of(stored).decode(dtype=dtype)
    np.testing.assert_array_equal(got, stored if dtype is np.float64 and stored.dtype == np.float64 else want)


@pytest.mark.parametrize(
    ("leaf", "low", "high"),
    [
        (f"{sign}{width}", 0 if sign == "u" else -(2 ** (width - 1)), 2 ** (width - (sign == "i")) - 1)
        for sign in "iu"
        for width in (8, 16, 32, 64)
    ],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integers_round_half_to_even_and_saturate(leaf: str, low: int, high: int, dtype: type) -> None:
    values = np.array([-np.inf, -1e30, 0.5, 1.5, 2.5, 3.4999, 1e30, np.inf], dtype)
    assert leaves.encode(values, leaf).tolist() == [low, low, 0, 2, 2, 3, high, high]


def test_integers_of_another_width_are_clamped_never_wrapped() -> None:
    assert leaves.encode(np.array([-5, 3, 300], np.int64), "u8").tolist() == [0, 3, 255]
    assert leaves.encode(np.array([5, 200], np.uint8), "i8").tolist() == [5, 127]
    assert leaves.encode(np.array([2**62 + 1]), "i64").tolist() == [2**62 + 1]
    assert leaves.unpack(leaves.encode(np.array([-1, 7, 15, 16]), "u4"), 4).tolist() == [0, 7, 15, 15]


@pytest.mark.parametrize("leaf", ["e2m1", "i8", "u4", "i32"])
def test_nan_is_refused_where_it_has_no_code(leaf: str) -> None:
    with pytest.raises(ValueError, match=f"{leaf} has no code for NaN"):
        leaves.encode(np.array([1, np.nan]), leaf)


def test_e8m0_encodes_no_single_values() -> None:
    with pytest.raises(ValueError, match="exponents of groups"):
        leaves.encode(np.ones(2), "e8m0")


@given(
    st.sampled_from([leaf for leaf in leaves.STORAGE if leaf != "e8m0"]), st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**32 - 1)
)
def test_decoded_values_encode_to_the_same_bytes(leaf: str, rows: int, count: int, seed: int) -> None:
    shape = (rows, 4 * count)
    plane = Tensor.encode(np.random.default_rng(seed).standard_normal(shape) * 5, Dtype(leaf))
    again = Tensor.encode(plane.decode(dtype=np.float64), Dtype(leaf))
    assert plane.planes["data"].tobytes() == again.planes["data"].tobytes()
