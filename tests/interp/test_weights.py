"""Products with quantised weights: strips, banks, and the a8 activation rule, from its steps written out."""

from typing import Any

import numpy as np
import pytest

from interp.numeric import Numeric
from interp.weights import WeightStore
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor

A8 = Dtype("e4m3tile128a8")


def store(**settings: Any) -> WeightStore:
    return WeightStore((), {}, Numeric(**settings), 1 << 30)


def a8_by_steps(x: np.ndarray, w: Tensor, exact: bool) -> np.ndarray:
    """The a8 product, run by run, with the codes of w decoded by ml_dtypes."""
    import ml_dtypes

    f4 = np.float32
    codes = w.planes["code"].view(ml_dtypes.float8_e4m3fn).astype(f4)
    gains = w.planes["gain"]
    rows, columns = x.shape
    total = np.zeros((rows, len(codes)), np.float64 if exact else f4)
    for start in range(0, columns, 128):
        run = x[:, start : start + 128].astype(f4)
        scale = np.abs(run).max(axis=1, keepdims=True) / f4(448)
        scale[scale == 0] = 1
        q = np.clip(run / scale, -448, 448).astype(ml_dtypes.float8_e4m3fn).astype(f4)
        gain = np.repeat(gains[:, start // 128], 128)[: len(codes)]
        if exact:
            factor = codes[:, start : start + 128].astype(float) * gain[:, None].astype(f4)
            total += (q.astype(float) * scale) @ factor.T
        else:
            product = (q.astype(float) @ codes[:, start : start + 128].T.astype(float)).astype(f4)
            total += product * scale * gain
    return total


@pytest.mark.parametrize("shape", [(130, 200), (256, 128), (64, 300)])
@pytest.mark.parametrize("setting", ["reference", "fast"])
@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_an_a8_product_sums_runs_of_exact_products_in_f32(shape: tuple[int, int], setting: str, memory: int) -> None:
    rng = np.random.default_rng(shape[1])
    w = Tensor.encode(rng.standard_normal(shape).astype(np.float32), A8)
    x = rng.standard_normal((5, shape[1])).astype(np.float32)
    weights = WeightStore((), {}, Numeric(setting=setting), memory)  # type: ignore[arg-type]
    got = weights.project(x, w)
    np.testing.assert_array_equal(weights.project(x, w), got)
    want = a8_by_steps(x, w, exact=False)
    # The sum inside a run is rounded at most 128 times, each by 2^-24 of the run's magnitude.
    magnitude = a8_by_steps(np.abs(x), Tensor(w.dtype, w.shape, {**w.planes, "code": w.planes["code"] & 0x7F}), exact=True)
    assert (np.abs(got - want) <= 130 * 2.0**-24 * magnitude).all()


def test_exact_mode_quantises_activations_only_with_casts() -> None:
    rng = np.random.default_rng(0)
    w = Tensor.encode(rng.standard_normal((130, 200)).astype(np.float32), A8)
    x = rng.standard_normal((3, 200))
    np.testing.assert_allclose(store(mode="exact").project(x, w), x @ w.decode(dtype=np.float64).T, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(store(mode="exact", casts=True).project(x, w), a8_by_steps(x, w, exact=True), rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("word", ["e4m3tile128a8", "e4m3tile128", "u4g64", "bf16"])
@pytest.mark.parametrize("setting", ["reference", "fast"])
def test_the_experts_of_a_bank_are_multiplied_like_matrices(word: str, setting: str) -> None:
    rng = np.random.default_rng(1)
    experts = rng.standard_normal((3, 130, 256)).astype(np.float32)
    bank = Tensor.encode(experts, Dtype(word))
    x = rng.standard_normal((2, 256)).astype(np.float32)
    alone = store(setting=setting)
    for expert in range(3):
        matrix = Tensor.encode(experts[expert], Dtype(word))
        got = alone.project(x, bank, slice(expert, expert + 1))
        np.testing.assert_allclose(got, alone.project(x, matrix), rtol=1e-5, atol=1e-5)
    assert alone.project(x, bank).shape == (2, 390)


@pytest.mark.parametrize("word", ["f32", "bf16", "e4m3row", "e4m3tile128", "nvfp4", "mxfp4", "u4g64", "u2g128"])
@pytest.mark.parametrize("memory", [0, 1 << 30])
def test_rows_are_taken_as_the_whole_decodes(word: str, memory: int) -> None:
    rng = np.random.default_rng(2)
    w = Tensor.encode(rng.standard_normal((200, 256)).astype(np.float32), Dtype(word))
    ids = np.array([199, 0, 7, 7, 128], np.int32)
    weights = WeightStore((), {}, Numeric(), memory)
    np.testing.assert_array_equal(weights.take(w, ids), w.decode()[ids])
    assert weights.take(w, ids[:0]).shape == (0, 256)
    np.testing.assert_array_equal(weights.decode(w, slice(5, 131)), w.decode()[5:131])


# -- products of the fast setting ----------------------------------------------------------------
def whole_numbers(seed: int, *shape: int) -> np.ndarray:
    """Small integers: sums of their products are exact in float32, in any order."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(5000, 30), (4096, 8), (40, 70), (33, 33), (1, 50), (50, 1)])
@pytest.mark.parametrize("memory", [0, 1 << 30])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_fast_product_has_every_column_in_its_place(shape: tuple[int, int], memory: int, rows: int) -> None:
    """High matrices are kept in parts, wide ones by rows, and without memory none."""
    w, x = whole_numbers(0, *shape), whole_numbers(1, rows, shape[1])
    weights = WeightStore((), {}, Numeric(setting="fast"), memory)
    tensor = Tensor.encode(w, Dtype("bf16"))
    for _ in range(2):
        np.testing.assert_array_equal(weights.project(x, tensor), x @ w.T)


@pytest.mark.parametrize("memory", [0, 30_000, 1 << 30])
def test_products_with_several_weights_stand_side_by_side(memory: int) -> None:
    """There may be memory for all of them, for some, or for none."""
    matrices = [whole_numbers(seed, height, 20) for seed, height in enumerate((300, 1, 7000, 64))]
    tensors = tuple(Tensor.encode(matrix, Dtype("bf16")) for matrix in matrices)
    x = whole_numbers(9, 2, 20)
    weights = WeightStore((), {}, Numeric(setting="fast"), memory)
    for _ in range(2):
        np.testing.assert_array_equal(weights.project_all(x, tensors), x @ np.concatenate(matrices).T)
