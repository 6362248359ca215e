"""The decoding loop on a model whose next token is known: batches, passes, stops, limits."""

from collections.abc import Sequence

import numpy as np
import pytest

from poem.batch import Batch
from poem.errors import PoemError, UsageError
from poem.generate import Token, generate, generate_batch
from poem.sampling import Sampling

VOCABULARY = 97


def next_token(ids: Sequence[int]) -> int:
    """What the model says after `ids`: a mixture of all of them, so that a lost or misplaced token shows."""
    state = 1
    for i in ids:
        state = (state * 31 + i + 7) % 1_000_003
    return state % VOCABULARY


class Model:
    """A session whose logits are largest at `next_token` of everything its sequence holds."""

    def __init__(self) -> None:
        self.held: dict[int, list[int]] = {}
        self.joined = 0
        self.passes: list[list[tuple[int, int]]] = []  # of each pass: (rows, readouts) of each chunk

    def add_sequence(self) -> int:
        self.joined += 1
        self.held[self.joined] = []
        return self.joined

    def drop_sequence(self, sequence: int) -> None:
        del self.held[sequence]

    def length(self, sequence: int) -> int:
        return len(self.held[sequence])

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        rows = []
        for chunk in batch:
            held = self.held[chunk.sequence]
            held += chunk.tokens
            for _ in chunk.readout_indices():
                rows.append(np.arange(VOCABULARY) == next_token(held))
        self.passes.append([(len(chunk.tokens), len(chunk.readout_indices())) for chunk in batch])
        return {"logits": np.array(rows, np.float32).reshape(len(rows), VOCABULARY)}


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    ids = list(prompt)
    for _ in range(count):
        ids.append(next_token(ids))
    return ids[len(prompt) :]


def by_prompt(tokens: list[Token], count: int) -> list[list[int]]:
    return [[token.id for token in tokens if token.prompt == prompt] for prompt in range(count)]


def test_each_token_continues_everything_before_it() -> None:
    assert list(generate(Model(), [1, 2, 3], maximum=10)) == greedy([1, 2, 3], 10)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 512])
def test_prompts_of_any_length_run_together_as_they_run_alone(rows: int) -> None:
    rng = np.random.default_rng(rows)
    prompts = [rng.integers(0, VOCABULARY, length).tolist() for length in (1, 5, 30, 2, 17)]
    tokens = list(generate_batch(Model(), prompts, maximum=6, rows=rows))
    assert by_prompt(tokens, 5) == [greedy(prompt, 6) for prompt in prompts]


def test_a_pass_holds_no_more_rows_than_asked_for() -> None:
    model = Model()
    list(generate_batch(model, [[1] * 50, [2] * 20], maximum=8, rows=16))
    assert max(sum(rows for rows, _ in chunks) for chunks in model.passes) <= 16
    assert model.passes[0] == [(16, 0)], "no row of an unfinished prompt is read out"


def test_sampled_tokens_do_not_depend_on_the_passes_or_the_other_prompts() -> None:
    class Flat(Model):
        def run(self, batch: Batch) -> dict[str, np.ndarray]:
            return {"logits": super().run(batch)["logits"] * 2}

    sampling = Sampling(1.0, seed=5)
    prompts = [[1, 2, 3], [4] * 40]
    alone = list(generate(Flat(), prompts[0], maximum=12, sampling=sampling))
    for rows in (3, 512):
        assert by_prompt(list(generate_batch(Flat(), prompts, maximum=12, sampling=sampling, rows=rows)), 2)[0] == alone
    assert alone != greedy(prompts[0], 12)


def test_a_stop_ends_its_own_prompt_and_is_no_part_of_the_reply() -> None:
    prompts = [[1, 2, 3], [9]]
    stop = greedy(prompts[0], 4)[3]
    assert list(generate(Model(), prompts[0], maximum=20, stop_ids={stop})) == greedy(prompts[0], 3)
    tokens = list(generate_batch(Model(), prompts, maximum=20, stop_ids={stop}))
    last = [token for token in tokens if token.prompt == 0][-1]
    assert (last.id, last.finish) == (stop, "stop")
    assert len([token for token in tokens if token.prompt == 1]) > 4


def test_the_last_token_says_why_it_is_the_last() -> None:
    tokens = list(generate_batch(Model(), [[1, 2, 3]], maximum=3))
    assert [token.finish for token in tokens] == [None, None, "length"]
    tokens = list(generate_batch(Model(), [[1, 2, 3]], maximum=30, context=5))
    assert [token.finish for token in tokens] == [None, None, "context"]
    assert [token.id for token in tokens] == greedy([1, 2, 3], 3)


def test_log_probabilities_are_those_of_the_logits() -> None:
    token = next(generate_batch(Model(), [[1]], maximum=1))
    assert token.log_probability == pytest.approx(1 - np.log(np.e + VOCABULARY - 1))


def test_nothing_is_made_when_nothing_is_asked_for() -> None:
    model = Model()
    assert list(generate(model, [1], maximum=0)) == []
    assert not model.passes


def test_sequences_leave_the_session_at_the_end_and_when_generation_is_given_up() -> None:
    model = Model()
    list(generate(model, [1], maximum=3))
    tokens = generate_batch(model, [[1], [2]], maximum=30)
    next(tokens)
    assert len(model.held) == 2
    tokens.close()
    assert not model.held


def test_a_callers_sequence_is_continued_and_stays() -> None:
    model = Model()
    sequence = model.add_sequence()
    first = [token.id for token in generate_batch(model, [[1, 2]], maximum=4, sequences=[sequence])]
    assert model.held == {sequence: [1, 2, *first[:-1]]}
    second = [token.id for token in generate_batch(model, [[first[-1], 8]], maximum=4, sequences=[sequence])]
    assert second == greedy([1, 2, *first, 8], 4)


def test_an_empty_prompt_is_refused() -> None:
    model = Model()
    with pytest.raises(UsageError) as caught:
        list(generate(model, [], maximum=3))
    assert caught.value.code == "generate.prompt"
    assert not model.held


def test_a_prompt_longer_than_the_context_is_refused_with_both_lengths() -> None:
    with pytest.raises(UsageError) as caught:
        list(generate(Model(), [1] * 9, maximum=3, context=8))
    assert (caught.value.code, caught.value.expected, caught.value.found) == ("generate.prompt", "at most 8 tokens", "9")


def test_a_model_without_logits_is_refused_with_what_it_has() -> None:
    class Scores(Model):
        def run(self, batch: Batch) -> dict[str, np.ndarray]:
            return {"scores": super().run(batch)["logits"]}

    with pytest.raises(PoemError) as caught:
        list(generate(Scores(), [1], maximum=3))
    assert (caught.value.code, caught.value.found) == ("generate.no-logits", "scores")
