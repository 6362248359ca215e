"""The decoding loop: prompts in, token ids out, several sequences as one ragged batch."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from typing import Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from poem.batch import Batch, Chunk
from poem.dataclass import dataclass
from poem.errors import UsageError
from poem.sampling import Sampling, choose, log_probability, no_logits

ROWS_IN_A_PASS = 512  # more rows make a pass faster per row, and need more memory

Finish = Literal["stop", "length", "context"]


class Session(Protocol):
    """What generation needs of a backend's session."""

    def add_sequence(self) -> int: ...
    def drop_sequence(self, sequence: int) -> None: ...
    def length(self, sequence: int) -> int: ...
    def run(self, batch: Batch) -> dict[str, np.ndarray]: ...


@runtime_checkable
class Chooser(Protocol):
    """A session that chooses tokens where the logits are, as `poem.sampling.choose` would from the same draws."""

    def choose(self, batch: Batch, rules: Sequence[Sampling], draws: Sequence[float]) -> list[tuple[int, float]]: ...


class Token(NamedTuple):
    """A generated token.

    prompt: index of the prompt that it continues. id: the token. log_probability: of the token under the model's logits.
    finish: set on a prompt's last token; with "stop" the token is the stop itself and no part of the reply.
    """

    prompt: int
    id: int
    log_probability: float
    finish: Finish | None


@dataclass(slots=True)
class _Sequence:
    prompt: int
    id: int
    waiting: list[int]  # ids that the session has not seen
    random: np.random.Generator
    made: int = 0
    taken: list[int] = field(default_factory=list)


def generate(
    session: Session,
    prompt: Sequence[int],
    *,
    maximum: int,
    sampling: Sampling | None = None,
    stop_ids: Collection[int] = (),
    context: int | None = None,
) -> Iterator[int]:
    """The ids that continue one prompt, without the stop. Arguments and errors as `generate_batch`."""
    tokens = generate_batch(session, [prompt], maximum=maximum, sampling=sampling, stop_ids=stop_ids, context=context)
    return (token.id for token in tokens if token.finish != "stop")


def generate_batch(
    session: Session,
    prompts: Sequence[Sequence[int]],
    *,
    maximum: int,
    sampling: Sampling | None = None,
    stop_ids: Collection[int] = (),
    context: int | None = None,
    sequences: Sequence[int] | None = None,
    rows: int = ROWS_IN_A_PASS,
) -> Iterator[Token]:
    """Continue several prompts together; tokens come in the order in which they are made.

    Prompts enter in passes of at most `rows` rows, beside the next tokens of those that are already being continued.

    Args:
        session: an interpreter or backend session whose graph has the output `logits`.
        prompts: token ids, at least one each.
        maximum: how many tokens each prompt may be continued by.
        sampling: how tokens are chosen; the likeliest by default.
        stop_ids: ids that end a reply.
        context: how many tokens a sequence may hold at most; None for no limit.
        sequences: session sequences that the prompts continue; they stay with the caller, holding everything but the
            last token. None starts new ones and drops them at the end.
        rows: rows in a pass.

    Raises:
        UsageError: `generate.prompt` for an empty prompt or one that leaves no room in the context.
        PoemError: `generate.no-logits` for a model without that output; `generate.not-finite` for logits that are NaN.
    """
    sampling = sampling or Sampling()
    own = [session.add_sequence() for _ in prompts] if sequences is None else []
    ids = own if sequences is None else sequences
    try:
        active = [
            _Sequence(index, id, list(prompt), sampling.random(index)) for index, (id, prompt) in enumerate(zip(ids, prompts, strict=True))
        ]
        for sequence in active:
            _check_prompt(sequence.waiting, session.length(sequence.id), context)
        while active and maximum > 0:
            batch = _next_batch(active, rows)
            ready = [sequence for sequence in active if sequence.taken and not sequence.waiting]
            for sequence, (token, log_likelihood) in zip(ready, _choose(session, batch, ready, sampling), strict=True):
                sequence.made += 1
                sequence.waiting = [token]
                finish: Finish | None = None
                if token in stop_ids:
                    finish = "stop"
                elif sequence.made == maximum:
                    finish = "length"
                elif context is not None and session.length(sequence.id) == context:
                    finish = "context"
                if finish:
                    active.remove(sequence)
                yield Token(sequence.prompt, token, log_likelihood, finish)
    finally:
        for id in own:
            session.drop_sequence(id)


def _next_batch(active: Sequence[_Sequence], rows: int) -> list[Chunk]:
    """Every sequence with one token waiting, and as much of waiting prompts as fits. Those that have nothing waiting any more are
    read out."""
    left = max(1, rows - sum(len(sequence.waiting) == 1 for sequence in active))
    batch = []
    for sequence in active:
        count = 1 if len(sequence.waiting) == 1 else min(len(sequence.waiting), left)
        left -= count if len(sequence.waiting) > 1 else 0
        sequence.taken, sequence.waiting = sequence.waiting[:count], sequence.waiting[count:]
        if count:
            batch.append(Chunk(sequence.id, sequence.taken, readouts="none" if sequence.waiting else "last"))
    return batch


def _choose(session: Session, batch: Batch, ready: Sequence[_Sequence], sampling: Sampling) -> list[tuple[int, float]]:
    """One pass, and the next token of each sequence that is read out, with its log-probability."""
    if isinstance(session, Chooser):
        draws = [sequence.random.random() if sampling.temperature else 0.0 for sequence in ready]
        return session.choose(batch, [sampling] * len(ready), draws)
    outputs = session.run(batch)
    if "logits" not in outputs:
        raise no_logits(outputs)
    tokens = [choose(row, sampling, sequence.random) for sequence, row in zip(ready, outputs["logits"], strict=True)]
    return [(token, log_probability(row, token)) for token, row in zip(tokens, outputs["logits"], strict=True)]


def _check_prompt(prompt: Sequence[int], length: int, context: int | None) -> None:
    if not prompt:
        raise UsageError("generate.prompt", "the prompt is empty, so there is nothing to continue", hint="give it at least one token")
    if context is not None and length + len(prompt) > context:
        raise UsageError(
            "generate.prompt", "the prompt does not fit into the model's context", expected=f"at most {context} tokens",
            found=f"{length + len(prompt)}", hint="shorten the prompt, or start a new conversation",
        )  # fmt: skip
