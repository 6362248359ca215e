"""ops.linear with quantised weights: decoded values, a8 activations in runs of 128, and independent rows."""

import numpy as np
import pytest

from interp import evaluate
from interp.evaluate import Given
from poem.dtypes import Dtype
from poem.dtypes.slicing import select, stack
from poem.dtypes.tensor import Tensor
from tests.interp import cases
from tests.interp.cases import indices, value
from tests.interp.linear_cases import exact, expert_products, grouped
from tests.poem.dtypes.test_activation import product_by_loops

QUANTISED = ("e4m3row", "e4m3tile128", "nvfp4", "mxfp4", "u8g64", "u4g64", "u2g32")


@pytest.mark.parametrize("name", QUANTISED)
@pytest.mark.parametrize("op", ["matmul", "lm_head"])
def test_a_quantised_weight_stands_for_its_decoded_values(op: str, name: str) -> None:
    rng = np.random.default_rng(1)
    w = Tensor.encode(rng.standard_normal((150, 128)).astype(np.float32), Dtype(name))
    x = value(rng, 5, 128)
    cases.close(exact(op, x, w), cases.plain(x) @ w.decode(dtype=np.float64).T, f"{op} {name}", 1e-12)


@pytest.mark.parametrize("name", QUANTISED)
def test_a_quantised_bank_stands_for_its_decoded_values(name: str) -> None:
    rng = np.random.default_rng(2)
    bank = Tensor.encode(rng.standard_normal((3, 20, 128)).astype(np.float32), Dtype(name))
    x, routes = value(rng, 6, 128), indices(rng, 6, 2, -1, 3)
    want = expert_products(cases.plain(x), bank.decode(dtype=np.float64), cases.plain(routes), 2)
    cases.close(exact("moe_matmul_select", x, bank, routes, 2), want, name, 1e-12)


def rounding_of_runs(x: np.ndarray, w: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The a8 product by loops, and how far sums of float32 may take it."""
    want, magnitude = product_by_loops(x, w)
    return want.astype(float), (127 + 3 * -(-x.shape[1] // 128)) * 2.0**-24 * magnitude


def test_an_a8_weight_meets_activations_in_runs_of_128() -> None:
    rng = np.random.default_rng(3)
    w = Tensor.encode(rng.standard_normal((140, 300)).astype(np.float32), Dtype("e4m3tile128a8"))
    x = value(rng, 4, 300)
    want, bound = rounding_of_runs(np.asarray(x.rows), w)
    assert (np.abs(evaluate("linear.matmul", x, w) - want) <= bound).all()
    weight_only = cases.plain(x) @ w.decode(dtype=np.float64).T
    cases.close(exact("matmul", x, w), weight_only, "exact mode leaves activations alone", 1e-12)
    assert np.abs(evaluate("linear.matmul", x, w) - weight_only).max() > 1e-3


def test_every_expert_of_an_a8_bank_meets_the_same_codes() -> None:
    rng = np.random.default_rng(4)
    matrices = [Tensor.encode(rng.standard_normal((130, 160)).astype(np.float32), Dtype("e4m3tile128a8")) for _ in range(3)]
    x, routes = value(rng, 5, 160), indices(rng, 5, 2, 0, 3)
    got = evaluate("linear.moe_matmul_select", x, stack(matrices), routes, 2).reshape(5, 2, -1)
    for token, slot in np.ndindex(5, 2):
        want, bound = rounding_of_runs(np.asarray(x.rows)[token : token + 1], matrices[int(routes.rows[token, slot])])
        assert (np.abs(got[token, slot] - want[0]) <= bound[0]).all()


def test_runs_of_a_grouped_a8_product_start_afresh_in_each_group() -> None:
    rng = np.random.default_rng(5)
    w = Tensor.encode(rng.standard_normal((256, 200)).astype(np.float32), Dtype("e4m3tile128a8"))
    x = Given((rng.standard_normal((3, 400)) * np.geomspace(1e-3, 1e3, 400)).astype(np.float32), "f32")
    got = grouped(x, w, 2)
    for group in (0, 1):
        want, bound = rounding_of_runs(x.rows[:, 200 * group : 200 * (group + 1)], select(w, 0, range(128 * group, 128 * (group + 1))))
        assert (np.abs(got[:, 128 * group : 128 * (group + 1)] - want) <= bound).all()


@pytest.mark.parametrize("name", ["u4g64", "nvfp4", "e4m3tile128a8"])
def test_rows_of_a_product_with_a_quantised_weight_do_not_know_each_other(name: str) -> None:
    rng = np.random.default_rng(6)
    w = Tensor.encode(rng.standard_normal((70, 256)).astype(np.float32), Dtype(name))
    x = value(rng, 37, 256, "bf16")
    whole = evaluate("linear.matmul", x, w)
    for kept in ([0], [36, 2, 2], list(range(5, 22))):
        part = evaluate("linear.matmul", x._replace(rows=x.rows[kept]), w)
        assert part.tobytes() == np.ascontiguousarray(whole[kept]).tobytes(), f"rows {kept}"
