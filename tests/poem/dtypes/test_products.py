"""Products with packed weights are those with their decoded values, within the rounding of another order of sums."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from poem.dtypes import NICKNAMES, Dtype, products
from poem.dtypes.tensor import Tensor
from poem.dtypes.term import Grouped, Term
from tests.poem.dtypes.strategies import fits, planes, shapes, terms, weight

U = 2.0**-24


def magnitude(x: np.ndarray, tensor: Tensor) -> np.ndarray:
    """`sum_k |x_k| (|code_k * gain| + |offset|)` for each row of the weight, in float64."""
    term = tensor.dtype.term
    assert isinstance(term, Grouped)
    scaled = Tensor(
        Dtype(str(Grouped(term.group, term.code, term.gain, "n"))), tensor.shape,
        {path: plane for path, plane in tensor.planes.items() if not path.startswith("offset")},
    ).decode(dtype=np.float64)  # fmt: skip
    offset = tensor.decode(dtype=np.float64) - scaled
    return np.abs(x.astype(float)) @ (np.abs(scaled) + np.abs(offset)).reshape(-1, tensor.shape[-1]).T


def close(got: np.ndarray, x: np.ndarray, tensor: Tensor, case: str) -> None:
    columns = tensor.shape[-1]
    want = x.astype(float) @ tensor.decode(dtype=np.float64).reshape(-1, columns).T
    # Below 2^-126 a rounding errs by up to half of 2^-149, however small the number.
    bound = 2 * (columns + 4) * (U * magnitude(x, tensor) + 2.0**-149)
    over = ~(np.abs(got - want) <= bound)
    assert got.dtype == np.float32
    assert not over.any(), f"{case}: at {np.argwhere(over)[0]} got {got[over][0]!r}, want {want[over][0]!r} within {bound[over][0]:.3g}"


def moderate(dtype: Dtype, shape: tuple[int, ...], seed: int) -> Tensor:
    """Random planes whose numbers are all finite and of moderate size."""
    found = planes(dtype, shape, seed)
    for plane in dtype.planes(shape):
        if plane.leaf == "e8m0":
            found[plane.path] = found[plane.path] % 16 + 120
        elif plane.leaf in ("e4m3", "e5m2"):
            found[plane.path] = found[plane.path] & 0xBB  # no code of all ones, which would be NaN or infinity
    return Tensor(dtype, shape, found)


@given(st.data(), terms(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_a_product_with_any_term_is_that_with_its_values(data: st.DataObject, term: Term, rows: int, seed: int) -> None:
    dtype = Dtype(str(term))
    assume(dtype.is_quantised)
    shape = data.draw(shapes(dtype))
    assume(fits(dtype, shape))
    tensor = moderate(dtype, shape, seed)
    x = weight((rows, shape[-1]), seed)
    close(products.project(x, tensor), x, tensor, f"{dtype} {shape}, seed {seed}")


@pytest.mark.parametrize("name", [name for name in NICKNAMES if Dtype(name).is_quantised])
@pytest.mark.parametrize("shape", [(300, 768), (3, 100, 256)])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_product_with_a_named_dtype_goes_over_strips(
    name: str, shape: tuple[int, ...], rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "STRIP", 7 * shape[-1])
    tensor, x = Tensor.encode(weight(shape, 1), Dtype(name)), weight((rows, shape[-1]), 2)
    close(products.project(x, tensor), x, tensor, name)
    np.testing.assert_array_equal(products.project(x, tensor, slice(33, 190)).shape, (rows, 157))
    matrix = np.prod(shape[:-1], dtype=int)
    whole, part = products.project(x, tensor, slice(0, matrix)), products.project(x, tensor, slice(33, 190))
    assert np.abs(whole[:, 33:190] - part).max() <= 4 * (shape[-1] + 4) * U * magnitude(x, tensor).max()


@pytest.mark.parametrize("name", ["bf16", "f32", "f16", "e4m3"])
def test_a_product_with_floats_is_exact_where_its_sums_are(name: str) -> None:
    rng = np.random.default_rng(3)
    tensor = Tensor.encode(rng.integers(-8, 9, (50, 70)).astype(np.float32), Dtype(name))
    x = rng.integers(-9, 9, (2, 70)).astype(np.float32)
    np.testing.assert_array_equal(products.project(x, tensor), x @ tensor.decode().T)


@pytest.mark.parametrize("name", ["u4g64", "u2g32", "nvfp4", "e4m3tile128"])
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_activations_that_are_not_finite_meet_the_decoded_weights(name: str, value: float) -> None:
    """A code of 0 is not a weight of 0 where there are offsets, so infinity may not be multiplied by codes."""
    tensor = Tensor.encode(weight((40, 128), 4), Dtype(name))
    x = weight((1, 128), 5)
    x[0, 70] = value
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(products.project(x, tensor), np.dot(x, tensor.decode().T))


def test_a_factor_that_is_not_finite_gives_what_decoded_weights_give() -> None:
    tensor = Tensor.encode(weight((4, 64), 6), Dtype("nvfp4"))
    scales = tensor.planes["gain.code"].copy()
    scales[1, 2] = 0x7F
    broken = Tensor(tensor.dtype, tensor.shape, {**tensor.planes, "gain.code": scales})
    assert np.isnan(products.project(weight((1, 64), 7), broken)).tolist() == [[False, True, False, False]]
