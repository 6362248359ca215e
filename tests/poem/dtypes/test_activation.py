"""a8: activations rounded to e4m3 in runs of 128 columns, and the product with weights in 128 x 128 tiles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.dtypes import Dtype
from poem.dtypes.activation import contract, dequantise, quantise
from poem.dtypes.tensor import Tensor
from tests.poem.dtypes.definition import nearest_code, value_of_code
from tests.poem.dtypes.strategies import weight

F32 = np.float32
A8 = Dtype("e4m3tile128a8")


def product_by_loops(x: np.ndarray, tensor: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The product with plain loops over rows, columns and runs, and the sum of the magnitudes of its terms.

    Sums over a run are exact (float64: products of e4m3 values have few bits); every later step is one float32 operation.
    """
    code, gain = tensor.planes["code"], tensor.planes["gain"]
    values = np.array([value_of_code("e4m3", c) for c in range(256)])
    total = np.zeros((len(x), len(code)), F32)
    magnitude = np.zeros(total.shape)
    for m in range(len(x)):
        for run in range(-(-x.shape[1] // 128)):
            here = slice(128 * run, min(128 * run + 128, x.shape[1]))
            with np.errstate(all="ignore"):
                scale = F32(np.max(np.abs(x[m, here])) / F32(448))
                scale = F32(1) if scale == 0 else scale
                quotients = x[m, here] / scale
            q = np.array([np.nan if np.isnan(v) else value_of_code("e4m3", nearest_code(float(v), "e4m3")) for v in quotients])
            for n in range(len(code)):
                products = q * values[code[n, here]]
                term = (F32(products.sum()) * scale) * gain[n // 128, run]
                total[m, n] = total[m, n] + term
                magnitude[m, n] += np.abs(products).sum() * float(scale) * float(gain[n // 128, run])
    return total, magnitude


@pytest.mark.parametrize(("rows", "columns", "height"), [(3, 128, 576), (3, 320, 130), (2, 7168, 5), (2, 100, 3), (0, 128, 4)])
def test_the_product_is_that_of_a_plain_loop(rows: int, columns: int, height: int) -> None:
    tensor = Tensor.encode(weight((height, columns), 1), A8)
    x = np.asarray(weight((rows, columns), 2), F32)
    want, magnitude = product_by_loops(x, tensor)
    got = contract(*quantise(x), tensor)
    # a run's float32 sum of at most 128 exact products errs by 127 units of its magnitude; each run adds three roundings
    bound = (127 + 3 * -(-columns // 128)) * 2.0**-24 * magnitude
    worst = np.max(np.abs(got - want) - bound, initial=-np.inf)
    assert worst <= 0, f"{worst} above the bound"
    assert got.shape == (rows, height)


def test_the_vector() -> None:
    k, j = np.arange(320), np.arange(64)
    x = np.where(k < 128, ((37 * k) % 101 - 50) / 32, 0.0)
    x[256:] = ((5 * j) % 23 - 11) * 2.0**-20
    codes, scales = quantise(x[None].astype(F32))
    assert [f"{word:08x}" for word in scales.view(np.uint32)[0]] == ["3b649249", "3f800000", "32c92492"]
    assert codes[0, :16].tobytes().hex() == "feef75fbdd7af8687cf372fdeb77fa00"
    assert codes[0, 120:136].tobytes().hex() == "7df273fce878fa5d0000000000000000"
    assert codes[0, 256:272].tobytes().hex() == "fef7e2727bfbf262777ef9ea6f7afdf5"
    assert (int(codes[0, :128].sum()), int(codes[0, 256:].sum())) == (22707, 11075)
    ones = Tensor(A8, (1, 320), {"code": np.full((1, 320), 0x38, np.uint8), "gain": np.array([[0.5, 0.25, 2]], F32)})
    assert contract(codes, scales, ones).view(np.uint32)[0, 0] == 0xBF9EEE3E


def test_runs_are_cut_from_the_first_column_and_the_last_may_be_short() -> None:
    x = np.zeros((1, 200), F32)
    x[0, 0], x[0, 128] = 448, 896
    codes, scales = quantise(x)
    assert scales.tolist() == [[1.0, 2.0]]
    assert codes[0, [0, 128]].tolist() == [0x7E, 0x7E]


def test_nan_spoils_its_run_alone() -> None:
    x = np.ones((1, 256), F32)
    x[0, 3] = np.nan
    values = dequantise(*quantise(x))
    assert np.isnan(values[0, :128]).all()
    np.testing.assert_allclose(values[0, 128:], 1)


def test_a_zero_run_has_scale_one_also_when_the_scale_underflows() -> None:
    x = np.zeros((2, 128), F32)
    x[1, 3] = 2.0**-149
    codes, scales = quantise(x)
    assert scales.tolist() == [[1], [1]]
    assert not codes.any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_run_that_is_not_finite_gives_nan_in_its_row_only(value: float) -> None:
    x = np.ones((3, 256), F32)
    x[1, 200] = value
    got = contract(*quantise(x), Tensor.encode(np.ones((4, 256), F32), A8))
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2]]).all()


@given(st.integers(0, 2**32 - 1), st.integers(1, 300), st.integers(1, 5))
def test_a_row_is_quantised_alone(seed: int, columns: int, rows: int) -> None:
    x = weight((rows, columns), seed)
    codes, scales = quantise(x)
    for row in range(rows):
        alone = quantise(x[row : row + 1])
        assert (alone[0].tobytes(), alone[1].tobytes()) == (codes[row].tobytes(), scales[row].tobytes())


def test_the_sums_of_runs_can_be_the_callers() -> None:
    x, tensor = weight((2, 256), 1), Tensor.encode(weight((3, 256), 2), A8)
    seen = []

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        seen.append((a.shape, b.shape, a.dtype))
        return a @ b.swapaxes(-1, -2)

    whole = contract(*quantise(x), tensor, matmul=matmul)
    assert seen == [((2, 2, 128), (2, 3, 128), F32)]
    np.testing.assert_array_equal(contract(*quantise(x), tensor, rows=slice(1, 3)), whole[:, 1:3])


@pytest.mark.parametrize("columns", [64, 128, 200])
def test_the_callers_products_are_asked_for_whole_runs_only_where_there_are_some(columns: int) -> None:
    x, tensor, seen = weight((2, columns), 1), Tensor.encode(weight((3, columns), 2), A8), []

    def matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        seen.append(a.shape)
        return a @ b.swapaxes(-1, -2)

    contract(*quantise(x), tensor, matmul=matmul)
    assert seen == {64: [(2, 64)], 128: [(1, 2, 128)], 200: [(1, 2, 128), (2, 72)]}[columns]


def test_what_a_product_takes_in_place_of_the_activations() -> None:
    codes, scales = quantise(np.array([[1, -3, 0.1, 7]], F32))
    assert scales.tolist() == [[7 / 448]]
    assert dequantise(codes, scales).tolist() == [[1.0, -3.0, 0.1015625, 7.0]]
