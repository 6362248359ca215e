"""Perturbed runs: the factor on a spread follows from the risk, and the bounds hold for runs that round elsewhere."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from conformance.arithmetic import RISK
from conformance.golden import open_golden
from conformance.operands import APPENDS, Weights
from conformance.perturbed import RUNS, factor_for, run_perturbed, student_tail, uniform
from interp import Session
from poem.graph import Node
from tests.conformance.dense import dense, folder


@pytest.mark.parametrize(("t", "freedom", "probability"), [
    (2.228139, 10, 0.05), (4.586894, 10, 0.001), (2.119905, 16, 0.05), (4.014996, 16, 0.001), (1.962339, 1000, 0.05),
    (0.0, 16, 1.0),
])  # fmt: skip
def test_the_tail_of_students_t_is_that_of_the_tables(t: float, freedom: int, probability: float) -> None:
    assert student_tail(t, freedom) == pytest.approx(probability, rel=2e-4)


def test_the_tail_far_out_agrees_with_its_asymptote() -> None:
    """P(|T| > t) ~ C t^-n: doubling t divides it by 2^n, as far as it can be told from 0."""
    assert student_tail(200.0, 4) / student_tail(100.0, 4) == pytest.approx(2.0**-4, rel=1e-3)


def test_the_factor_leaves_the_stated_risk_to_all_elements_together() -> None:
    for elements in (1, 1000, 10**6):
        assert elements * student_tail(factor_for(elements), RUNS) == pytest.approx(RISK, rel=1e-3)


def test_a_run_with_the_factor_fails_as_often_as_stated() -> None:
    """At a risk that can be counted: 5 percent of errors pass the quantile of their measured spread."""
    rng = np.random.default_rng(0)
    moves, errors = rng.standard_normal((40000, RUNS)), rng.standard_normal(40000)
    spread = np.sqrt(np.mean(moves**2, axis=1))
    low, high = 0.0, 100.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_tail(middle, RUNS) > 0.05 else (low, middle)
    assert np.mean(np.abs(errors) > high * spread) == pytest.approx(0.05, abs=0.004)


def test_random_numbers_are_those_of_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]  # from seed 0
    assert uniform(0, 4).tolist() == [(number >> 11) * 2.0**-52 - 1.0 for number in published]
    assert uniform(-1, 3).shape == (3,)
    assert not np.intersect1d(uniform(0, 1000), uniform(1, 1000)).size


@pytest.mark.parametrize("seed", [1, 2])
def test_the_native_run_lies_within_the_spread_around_the_exact_run_and_uses_a_good_part_of_it(seed: int) -> None:
    graph, _, _, weights = dense("llama31-mini")
    tokens = open_golden(folder("llama31-mini")).tokens
    logits = graph.output("logits").id
    exact, native = Session(graph, weights, mode="exact"), Session(graph, weights, mode="native")
    run = run_perturbed(exact, Weights(graph, weights), tokens, [logits], sources=["original", "native"], seed=seed)
    from poem.batch import Chunk

    got = native.run([Chunk(native.add_sequence(), list(tokens), readouts="all")])["logits"]
    error = np.abs(got - run.exact[logits])
    factor = factor_for(error.size)
    assert (error <= factor * run.spread["native"][logits]).all(), "an error passes the bound"
    deviation = float(np.sqrt(np.mean((error / run.spread["native"][logits]) ** 2)))
    assert 0.3 < deviation < 3.0, f"native errors are {deviation:.2f} measured spreads: the model of rounding does not fit"


def test_a_seed_gives_the_same_bounds_again_and_another_seed_similar_ones() -> None:
    graph, _, _, weights = dense("llama31-mini")
    tokens = open_golden(folder("llama31-mini")).tokens
    logits = graph.output("logits").id
    session = Session(graph, weights, mode="exact")
    runs = [
        run_perturbed(session, Weights(graph, weights), tokens, [logits], sources=["original", "native"], seed=seed) for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(runs[0].exact[logits], runs[2].exact[logits])
    for source in ("original", "native"):
        spreads = [run.spread[source][logits] for run in runs]
        np.testing.assert_array_equal(spreads[0], spreads[1])
        assert np.mean(spreads[0]) == pytest.approx(np.mean(spreads[2]), rel=0.1)
        assert (spreads[0] > 0).all()


def test_only_the_sources_asked_for_are_perturbed() -> None:
    graph, _, _, weights = dense("llama31-mini", "f32")
    tokens = open_golden(folder("llama31-mini")).tokens
    logits = graph.output("logits").id
    run = run_perturbed(Session(graph, weights, mode="exact"), Weights(graph, weights), tokens, [logits], sources=["original"], seed=0)
    assert list(run.spread) == ["original"]


def test_what_an_implementation_errs_besides_is_part_of_the_spread() -> None:
    graph, _, _, weights = dense("llama31-mini")
    tokens = open_golden(folder("llama31-mini")).tokens
    logits = graph.output("logits").id
    last = next(node for node in graph.nodes if logits in node.results)
    asked = []

    def added(node: Node, given: Mapping[str, Any]) -> float:
        asked.append(node.id)
        return 3.0 if node is last else 0.0

    session = Session(graph, weights, mode="exact")
    run = run_perturbed(session, Weights(graph, weights), tokens, [logits], sources=["original"], seed=0, added=added)
    assert np.mean(run.spread["original"][logits] ** 2) == pytest.approx(3.0, rel=0.05), "uniform in -3..3 has variance 3"
    assert len(asked) == sum(node.op not in APPENDS for node in graph.nodes)
