"""The largest entry is exact, and tokens are those that poem.sampling chooses from the same draws."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.emulator import Schedule
from cupy_backend.errors import KernelError
from cupy_backend.kernels import sampling
from cupy_backend.launch import Array
from poem.sampling import Sampling, choose, log_probability
from tests.cupy_backend.launching import Memory
from tests.cupy_backend.running import schedules

DTYPES = (ml_dtypes.bfloat16, np.float16, np.float32)
FLAVOURS = ("normal", "ties", "specials", "all nan", "all minus infinity")
seeds = st.integers(0, 2**31)


def logits(flavour: str, rows: int, width: int, dtype: type, seed: int) -> np.ndarray:
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((rows, width)) * 4
    if flavour == "ties":
        x = generator.integers(-2, 3, (rows, width)) * 0.5
        x[x == 0] *= generator.choice([-1, 1], (x == 0).sum())  # zeros of both signs are equal
    if flavour == "specials":
        x = generator.choice([np.nan, np.inf, -np.inf, 1.0, -1.0, 0.0], (rows, width))
    if flavour.startswith("all"):
        x[:] = np.nan if flavour == "all nan" else -np.inf
    return x.astype(dtype)


@settings(deadline=None, max_examples=40)
@given(dtype=st.sampled_from(DTYPES), flavour=st.sampled_from(FLAVOURS), rows=st.integers(1, 5), width=st.integers(1, 700) | st.just(17000),
       seed=seeds, schedule=schedules)  # fmt: skip
def test_argmax_takes_the_lowest_of_the_largest_and_never_nan(dtype, flavour, rows, width, seed, schedule):
    x = logits(flavour, rows, width, dtype, seed)
    memory = Memory(schedule)
    scratch = memory.give("scratch", np.zeros(sampling.argmax_scratch(rows, width), np.uint8))
    ids = memory.give("ids", np.full((rows, 2), -7, np.int32))
    memory.run(sampling.argmax(memory.give("x", x), ids, column=1, scratch=scratch))
    wide = x.astype(np.float64)
    want = np.where(np.isnan(wide), -np.inf, wide).argmax(1)
    assert memory["ids"][:, 1].tolist() == want.tolist(), f"{flavour} [{rows}, {width}] {np.dtype(dtype)}, seed {seed}"
    assert (memory["ids"][:, 0] == -7).all(), "another column was touched"


class Given:
    """A generator whose only draw is given."""

    def __init__(self, draw: float) -> None:
        self.draw = draw

    def random(self) -> float:
        return self.draw


def sampled(x: np.ndarray, settings_of_rows: list[Sampling], draws: np.ndarray, schedule: Schedule) -> list[int]:
    memory = Memory(schedule)
    numbers = {name: memory.give(name, np.array([getattr(s, name) for s in settings_of_rows], np.int32 if name == "top_k" else np.float64))
               for name in ("temperature", "top_k", "top_p", "min_p")}  # fmt: skip
    ids = memory.give("ids", np.zeros(len(x), np.int32))
    memory.run(sampling.sample(
        memory.give("logits", x), ids, **numbers, uniform=memory.give("uniform", draws),
        log_probabilities=memory.out("log_probabilities", len(x), dtype="f64"),
    ))  # fmt: skip
    return memory["ids"].tolist()


@settings(deadline=None, max_examples=20)
@given(dtype=st.sampled_from(DTYPES), rows=st.integers(1, 3), width=st.integers(1, 3000), heat=st.sampled_from((0.0, 1.3)), seed=seeds)
def test_tokens_come_with_their_log_probability_under_the_logits_themselves(dtype, rows, width, heat, seed):
    x, memory = logits("normal", rows, width, dtype, seed), Memory()
    x[:, ::5] = -np.inf
    x[:, 0] = 2
    doubles = {"temperature": heat, "top_p": 0.9, "min_p": 0.0, "uniform": 0.7}
    given_ = {name: memory.give(name, np.full(rows, value)) for name, value in doubles.items()}
    ids, found = memory.out("ids", rows, dtype="i32"), memory.out("log_probabilities", rows, dtype="f64")
    memory.run(sampling.sample(
        memory.give("logits", x), ids, top_k=memory.give("top_k", np.zeros(rows, np.int32)), log_probabilities=found, **given_
    ))  # fmt: skip
    want = [log_probability(row, token) for row, token in zip(x, memory["ids"], strict=True)]
    np.testing.assert_allclose(memory["log_probabilities"], want, rtol=0, atol=2.0**-20, err_msg=f"seed {seed}")


rules = st.builds(
    Sampling,
    temperature=st.sampled_from((0.0, 0.3, 1.0, 2.5)),
    top_k=st.sampled_from((0, 1, 2, 5, 40, 10**6)),
    top_p=st.sampled_from((1.0, 0.9, 0.5, 0.1, 1e-9)),
    min_p=st.sampled_from((0.0, 0.05, 0.5, 1.0)),
)


@settings(deadline=None, max_examples=25)
@given(dtype=st.sampled_from(DTYPES), flavour=st.sampled_from(FLAVOURS[:2]), rule=st.lists(rules, min_size=1, max_size=3),
       width=st.integers(1, 3000), seed=seeds, schedule=schedules)  # fmt: skip
def test_tokens_are_those_that_poem_chooses_from_the_same_draws(dtype, flavour, rule, width, seed, schedule):
    x = logits(flavour, len(rule), width, dtype, seed)
    x[:, ::7] = np.where(np.arange(width)[::7] % 2, x[:, ::7], -np.inf)
    x[:, 0] = 1
    draws = np.random.default_rng(seed + 1).random(len(rule))
    want = [choose(row.astype(np.float64), s, Given(draw)) for row, s, draw in zip(x, rule, draws, strict=True)]
    got = sampled(x, rule, draws, schedule)
    assert got == want, f"{flavour} [{len(rule)}, {width}] {np.dtype(dtype)}, {rule}, draws {draws.tolist()}, seed {seed}"


@pytest.mark.parametrize(("draw", "top_k", "top_p", "want"), [
    (0.0, 0, 1.0, 1), (0.25, 0, 1.0, 2), (0.4999, 0, 1.0, 2), (0.5, 0, 1.0, 4), (0.75, 0, 1.0, 5), (0.9999, 0, 1.0, 5),
    (0.99, 3, 1.0, 4), (0.49, 2, 1.0, 1), (0.5, 2, 1.0, 2), (0.99, 0, 0.5, 2), (0.99, 0, 0.51, 4), (0.99, 0, 0.25, 1), (0.99, 3, 0.5, 2),
])  # fmt: skip
def test_four_equal_tokens_share_the_draws_in_order_of_their_ids(draw, top_k, top_p, want):
    x = np.full((1, 7), -np.inf, np.float32)
    x[0, [1, 2, 4, 5]] = 3.0
    rule = Sampling(temperature=0.7, top_k=top_k, top_p=top_p)
    assert sampled(x, [rule], np.array([draw]), Schedule()) == [want] == [choose(x[0], rule, Given(draw))]


@pytest.mark.parametrize("wrong", [[1.0, np.nan], [1.0, np.inf], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_no_distribution_gives_minus_one_and_leaves_its_neighbour_alone(wrong, temperature):
    x = np.array([wrong, [0.0, 5.0]], np.float32)
    assert sampled(x, [Sampling(temperature)] * 2, np.array([0.5, 0.5]), Schedule()) == [-1, 1]


@settings(deadline=None, max_examples=8)
@given(rows=st.integers(2, 4), seed=seeds)
def test_a_row_is_sampled_alike_whatever_else_is_in_the_batch(rows, seed):
    x, draws = logits("normal", rows, 900, np.float32, seed), np.random.default_rng(seed).random(rows)
    rule = Sampling(1.3, top_k=50, top_p=0.8)
    together = sampled(x, [rule] * rows, draws, Schedule())
    alone = [sampled(x[n : n + 1], [rule], draws[n : n + 1], Schedule("random", seed=n + 1))[0] for n in range(rows)]
    assert together == alone, f"seed {seed}"


def test_a_vocabulary_whose_weights_might_overflow_is_refused():
    arrays = {name: Array(name, "read", (1,), "f64") for name in ("temperature", "top_p", "min_p", "uniform")}
    logits, ids, top_k = (
        Array("x", "read", (1, sampling.MAXIMUM_VOCABULARY + 1), "f32"),
        Array("ids", "write", (1,), "i32"),
        Array("k", "read", (1,), "i32"),
    )
    with pytest.raises(KernelError) as caught:
        sampling.sample(logits, ids, top_k=top_k, log_probabilities=arrays["uniform"], **arrays)
    assert caught.value.code == "kernel.unsupported"
