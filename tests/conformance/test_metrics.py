"""Distances: units in the last place, normalised error, cosine, and what NaN and infinity do to them."""

import ml_dtypes
import numpy as np
import pytest

from conformance.metrics import cosine, fractions, measure, nmse, ulp_distance

NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("got", "want", "distance"), [
    (1.0, 1.0, 0),
    (1.0, 1.0 + 2.0**-23, 1),
    (1.0, 1.0 - 2.0**-24, 1),  # numbers lie twice as close below a power of two
    (0.0, -0.0, 0),
    (2.0**-149, -(2.0**-149), 2),
    (INF, float(np.finfo(np.float32).max), 1),
    (NAN, NAN, 0),
])  # fmt: skip
def test_ulps_count_the_f32_numbers_from_one_to_the_other(got: float, want: float, distance: int) -> None:
    assert ulp_distance(np.array([got]), np.array([want])).tolist() == [distance]
    assert ulp_distance(np.array([want]), np.array([got])).tolist() == [distance]


def test_ulps_count_in_bf16_too() -> None:
    assert ulp_distance(np.array([1.0]), np.array([1.0 + 2.0**-7]), "bf16").tolist() == [1]
    assert ulp_distance(np.array([1.0]), np.array([-1.0]), "bf16").tolist() == [2 * int(np.array(1.0, ml_dtypes.bfloat16).view(np.int16))]


def test_a_nan_is_further_from_a_number_than_any_two_numbers() -> None:
    widest = ulp_distance(np.array([INF]), np.array([-INF]))[0]
    assert ulp_distance(np.array([NAN]), np.array([1.0]))[0] > widest


def test_nmse_and_cosine_of_hand_computed_vectors() -> None:
    assert nmse(np.array([3.0, 5.0]), np.array([3.0, 4.0])) == pytest.approx(1 / 25)
    assert nmse(np.zeros(2), np.zeros(2)) == 0.0
    assert nmse(np.ones(2), np.zeros(2)) == INF
    assert cosine(np.array([1.0, 1.0]), np.array([1.0, 0.0])) == pytest.approx(2**-0.5)
    assert cosine(np.zeros(2), np.zeros(2)) == 1.0


def test_the_worst_element_is_the_one_closest_to_its_own_bound() -> None:
    distance = measure(np.array([[1.0, 2.5]]), np.array([[1.1, 2.0]]), np.array([[0.01, 1.0]]))
    assert distance.index == (0, 0)
    assert distance.fraction == pytest.approx(10.0)
    assert not distance.agrees


@pytest.mark.parametrize(("got", "want", "alike"), [
    (NAN, NAN, True), (INF, INF, True), (INF, -INF, False), (NAN, 1.0, False), (1.0, INF, False), (INF, NAN, False),
])  # fmt: skip
def test_nan_and_infinity_must_be_at_the_same_places_with_the_same_sign(got: float, want: float, alike: bool) -> None:
    fraction, special = fractions(np.array([got, 1.0]), np.array([want, 1.0]), np.array([1.0, 1.0]))
    assert special.tolist() == [not alike, False]
    assert fraction.tolist() == [0.0 if alike else INF, 0.0]


def test_a_result_past_the_range_of_f32_is_the_infinity_that_an_f32_original_has() -> None:
    fraction, special = fractions(np.array([1e39]), np.array([np.inf], np.float32), np.array([1.0]))
    assert fraction.tolist() == [0.0]
    assert not special.any()


def test_an_exact_copy_fits_a_bound_of_zero_and_nothing_else_does() -> None:
    zero = np.zeros(2)
    assert measure(np.array([1.0, 2.0]), np.array([1.0, 2.0]), zero).agrees
    assert measure(np.array([1.0, 2.0 + 1e-12]), np.array([1.0, 2.0]), zero).fraction == INF
