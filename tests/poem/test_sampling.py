"""Sampling against distributions worked out with fractions, and draws against the distribution they come from."""

import math
from fractions import Fraction
from itertools import combinations

import numpy as np
import pytest

from poem.errors import PoemError, UsageError
from poem.sampling import Sampling, choose, log_probability, probabilities


class Uniform:
    """Stands for a generator whose next draw is known."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def logits_of(*weights: float) -> np.ndarray:
    """Logits whose softmax is `weights` over their sum; weights are powers of two, so the arithmetic is nearly exact."""
    return np.log(np.array(weights, np.float64))


def fewest(weights: list[Fraction], p: Fraction) -> set[int]:
    """By enumeration: the smallest set whose share is at least p; of equal sizes the likeliest, then the lowest ids."""
    for size in range(1, len(weights) + 1):
        sets = [chosen for chosen in combinations(range(len(weights)), size) if sum(weights[i] for i in chosen) >= p * sum(weights)]
        if sets:
            return set(max(sets, key=lambda chosen: (sum(weights[i] for i in chosen), [-i for i in chosen])))
    raise AssertionError


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_divides_the_logits(temperature: float) -> None:
    weights = [4.0, 16.0, 1.0, 0.25]
    want = np.array([weight ** (1 / temperature) for weight in weights])
    np.testing.assert_allclose(probabilities(logits_of(*weights), Sampling(temperature)), want / want.sum(), rtol=1e-14)


def test_float32_logits_are_widened_before_anything_else() -> None:
    logits = np.random.default_rng(0).normal(0, 5, 1000).astype(np.float32)
    want = np.exp(logits.astype(np.float64) - logits.max())
    np.testing.assert_allclose(probabilities(logits, Sampling(1.0)), want / want.sum(), rtol=1e-13)


@pytest.mark.parametrize("seed", range(30))
def test_cuts_keep_what_enumeration_keeps_in_the_order_top_k_top_p_min_p(seed: int) -> None:
    rng = np.random.default_rng(seed)
    weights = [Fraction(2) ** int(power) for power in rng.integers(-3, 4, 7)]
    top_k, top_p, min_p = int(rng.integers(0, 9)), Fraction(int(rng.integers(1, 100)), 97), Fraction(int(rng.integers(0, 4)), 11)
    top_p = min(top_p, Fraction(1))
    kept = set(sorted(range(7), key=lambda i: (-weights[i], i))[: top_k or None])
    if top_p < 1:
        kept_ids = sorted(kept)
        kept = {kept_ids[i] for i in fewest([weights[i] for i in kept_ids], top_p)}
    kept = {i for i in kept if weights[i] >= min_p * max(weights[j] for j in kept)}
    want = [float(weights[i] / sum(weights[j] for j in kept)) if i in kept else 0.0 for i in range(7)]
    got = probabilities(logits_of(*map(float, weights)), Sampling(1.0, top_k, float(top_p), float(min_p)))
    np.testing.assert_allclose(got, want, rtol=1e-13, err_msg=f"weights {weights}, top_k {top_k}, top_p {top_p}, min_p {min_p}")


def test_top_k_cuts_before_top_p_renormalises() -> None:
    logits = logits_of(8, 4, 4, 16)  # of 32: without top-k, 0.5 is reached by token 3 alone
    np.testing.assert_allclose(probabilities(logits, Sampling(1.0, top_k=2, top_p=0.66)), [0, 0, 0, 1])
    np.testing.assert_allclose(probabilities(logits, Sampling(1.0, top_k=2, top_p=0.67)), [1 / 3, 0, 0, 2 / 3], rtol=1e-14)


def test_temperature_comes_before_the_cuts() -> None:
    logits = logits_of(4, 1)  # at temperature 2 the shares are 2/3 and 1/3 instead of 4/5 and 1/5
    assert np.count_nonzero(probabilities(logits, Sampling(1.0, top_p=0.75))) == 1
    assert np.count_nonzero(probabilities(logits, Sampling(2.0, top_p=0.75))) == 2


def test_the_likeliest_are_those_with_the_largest_logits_however_little_they_differ() -> None:
    """Their weights are all 1 in float64."""
    logits = np.array([2e-19, -2e-19, 1e-18, 3e-18])
    assert probabilities(logits, Sampling(temperature=0.3, top_k=2)).tolist() == [0.0, 0.0, 0.5, 0.5]
    assert probabilities(logits, Sampling(temperature=0.3, top_p=0.25)).tolist() == [0.0, 0.0, 0.0, 1.0]


def test_temperature_zero_takes_the_largest_and_the_lowest_of_equals() -> None:
    logits = np.array([1.0, 3.0, 3.0, -np.inf], np.float32)
    assert choose(logits, Sampling(), Uniform(math.nan)) == 1
    assert choose(logits, Sampling(top_k=1, temperature=1.0), Uniform(0.99)) == 1


@pytest.mark.parametrize(("draw", "token"), [(0.0, 1), (0.2499, 1), (0.25, 3), (0.7499, 3), (0.75, 4), (0.9999999, 4)])
def test_a_draw_takes_the_first_token_whose_cumulated_probability_exceeds_it(draw: float, token: int) -> None:
    logits = np.log(np.array([0.0, 2.0, 0.0, 4.0, 2.0, 0.0]) + 0.0, where=np.array([0, 1, 0, 1, 1, 0], bool), out=np.full(6, -np.inf))
    assert choose(logits, Sampling(1.0), Uniform(draw)) == token


def test_draws_follow_a_seed_and_each_sequence_has_its_own() -> None:
    logits = np.zeros(1000)

    def draw(seed: int, sequence: int) -> list[int]:
        sampling = Sampling(1.0, seed=seed)
        random = sampling.random(sequence)
        return [choose(logits, sampling, random) for _ in range(20)]

    draws = [draw(7, 0), draw(7, 0), draw(7, 1), draw(8, 0)]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]
    assert draws[0] != draws[3]


def test_frequencies_of_many_draws_are_the_probabilities() -> None:
    sampling = Sampling(1.0, seed=3)
    logits, random, count = logits_of(1, 2, 1, 4), sampling.random(0), 20_000
    found = np.bincount([choose(logits, sampling, random) for _ in range(count)], minlength=4) / count
    want = np.array([1, 2, 1, 4]) / 8
    assert (abs(found - want) < 5 * np.sqrt(want * (1 - want) / count)).all(), f"seed 3: {found}, want {want}"


def test_log_probability_is_of_the_logits_themselves() -> None:
    logits = logits_of(1, 2, 1)
    assert log_probability(logits, 1) == pytest.approx(math.log(0.5), rel=1e-14)
    assert log_probability(logits - 1000, 0) == pytest.approx(math.log(0.25), rel=1e-12)


def test_extreme_temperatures_neither_overflow_nor_lose_the_likeliest() -> None:
    logits = np.array([-3e38, 0.0, 3e38], np.float32)
    np.testing.assert_array_equal(probabilities(logits, Sampling(1e-300)), [0, 0, 1])
    np.testing.assert_allclose(probabilities(np.array([1.0, 2.0]), Sampling(1e300)), [0.5, 0.5])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("logits", "word"),
    [([0, math.nan, math.nan], "nan at token 1 and 1 more"), ([0, math.inf], "inf at token 1"), ([-math.inf] * 2, "-inf")],
)
def test_logits_that_are_no_distribution_are_refused_with_the_token(logits: list[float], word: str, temperature: float) -> None:
    with pytest.raises(PoemError) as caught:
        choose(np.array(logits, np.float32), Sampling(temperature), Uniform(0.5))
    assert caught.value.code == "generate.not-finite"
    assert word in str(caught.value)


@pytest.mark.parametrize(
    "wrong",
    [{"temperature": -1.0}, {"temperature": math.nan}, {"temperature": math.inf}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.5},
     {"top_p": math.nan}, {"min_p": -0.1}, {"min_p": 2.0}, {"seed": -1}],
)  # fmt: skip
def test_values_out_of_range_are_refused_by_name(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))) as caught:
        Sampling(**wrong)
    assert caught.value.code == "generate.sampling"
