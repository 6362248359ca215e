"""KV casts: what a cache of each dtype returns for a value that was written."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.dtypes import KV_DTYPES, Dtype
from poem.dtypes.cache import load, store
from tests.poem.dtypes.definition import nearest_code, value_of_code
from tests.poem.dtypes.strategies import weight

F32 = np.float32


@pytest.mark.parametrize(
    ("value", "scale", "code", "read"),
    [
        (3.140625, 1, 0x45, 3.25),
        (250, 1, 0x78, 256),
        (500, 1, 0x7E, 448),
        (1000, 1, 0x7E, 448),
        (3.140625, 2, 0x3D, 3.25),
        (250, 2, 0x70, 256),
        (500, 2, 0x78, 512),
        (1000, 2, 0x7E, 896),
    ],
)
@pytest.mark.parametrize("storage", [ml_dtypes.bfloat16, np.float32])
def test_an_e4m3_cache_holds_this_code(value: float, scale: float, code: int, read: float, storage: type) -> None:
    stored = store(np.array([value], storage), Dtype("e4m3"), F32(scale))
    assert stored.tolist() == [code]
    assert load(stored, Dtype("e4m3"), F32(scale)).tolist() == [read]


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_every_bf16_value_is_cast_alike_by_the_table_and_by_the_encoder(name: str) -> None:
    values = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16)
    with np.errstate(invalid="ignore"):
        wide = values.astype(F32)
    np.testing.assert_array_equal(store(values, Dtype(name)), store(wide, Dtype(name)))
    finite = np.isfinite(wide)
    want = [nearest_code(float(value), name) for value in wide[finite]]
    np.testing.assert_array_equal(store(values, Dtype(name))[finite], want)


def test_the_cast_goes_through_the_bf16_value() -> None:
    value = np.array([1 + 2.0**-4 + 2.0**-20], F32)
    assert store(value, Dtype("e4m3")).tolist() == [0x39]
    assert store(value.astype(ml_dtypes.bfloat16), Dtype("e4m3")).tolist() == [0x38]


@given(st.sampled_from(["e4m3", "e5m2"]), st.integers(0, 2**32 - 1), st.sampled_from([0.5, 1.0, 3.0, 1e-3]))
def test_reading_gives_the_code_times_the_scale(name: str, seed: int, scale: float) -> None:
    values = weight((3, 8), seed).astype(ml_dtypes.bfloat16)
    got = load(store(values, Dtype(name), F32(scale)), Dtype(name), F32(scale))
    for value, read in zip(values.reshape(-1), got.reshape(-1), strict=True):
        code = nearest_code(float(F32(value) / F32(scale)), name)
        assert read == F32(value_of_code(name, code)) * F32(scale)


@pytest.mark.parametrize("name", ["bf16", "f16", "f32"])
def test_a_plain_cache_rounds_to_its_float(name: str) -> None:
    values = weight((4, 8), 3)
    wide = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "f32": np.float32}[name]
    np.testing.assert_array_equal(load(store(values, Dtype(name)), Dtype(name)), values.astype(wide).astype(F32))


def test_what_is_no_cache_dtype_is_refused() -> None:
    with pytest.raises(ValueError, match="found u4g64") as caught:
        store(np.ones(2, F32), Dtype("u4g64"))
    assert all(name in str(caught.value) for name in KV_DTYPES)
    with pytest.raises(ValueError, match="only e4m3 and e5m2 caches have scales"):
        store(np.ones(2, F32), Dtype("bf16"), F32(2))
