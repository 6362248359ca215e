"""Decoding token by token through the caches, against the original's greedy continuation."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from poem.batch import Batch, Chunk
from poem.dataclass import dataclass
from poem.graph import Node


class Session(Protocol):
    """What decoding needs of the interpreter's session, or of a backend's."""

    def add_sequence(self) -> int: ...
    def drop_sequence(self, sequence: int) -> None: ...
    def run(self, batch: Batch, observe: Any = None) -> dict[str, np.ndarray]: ...


@dataclass(frozen=True, slots=True)
class Step:
    """One decoded token. tie: the ids differ, and the original's two candidates lie closer than the bounds allow to tell."""

    position: int
    got: int
    want: int
    tie: bool

    @property
    def agrees(self) -> bool:
        return self.got == self.want or self.tie


@dataclass(frozen=True, slots=True)
class Decoded:
    """A prompt and its continuation, run with the cache.

    logits [steps, vocabulary]: after the prompt, then after each token of the original but the last. watched: of the prompt's
    pass, by value id.
    """

    logits: np.ndarray
    watched: dict[int, np.ndarray]


def decode(session: Session, ids: Sequence[int], prompt: int, watched: frozenset[int], *, together: bool = False) -> Decoded:
    """Run the prompt in one pass and the original's continuation `ids[prompt:]` one token at a time.

    The original's tokens are fed, not those chosen here, so that every step is compared. together: the continuation is one pass
    too, for a session in which a token gives the same alone and in a chunk.
    """
    seen: dict[int, np.ndarray] = {}

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> None:
        for id, result in zip(node.results, results, strict=True):
            if id in watched:
                seen[id] = result

    sequence = session.add_sequence()
    logits = [session.run([Chunk(sequence, list(ids[:prompt]), readouts="all")], observe)["logits"][-1:]]
    fed = list(ids[prompt:-1])
    for tokens in [fed] if together and fed else [[token] for token in fed]:
        logits.append(session.run([Chunk(sequence, tokens, readouts="all")])["logits"])
    session.drop_sequence(sequence)
    return Decoded(np.concatenate(logits), seen)


def compare_ids(logits: np.ndarray, want_logits: np.ndarray, want_ids: Sequence[int], bound: np.ndarray, start: int) -> list[Step]:
    """The token each step would choose, against the original's. Ties go to the lower id, as in the original.

    want_ids: the original's choices. bound [steps, vocabulary]: of the logits. start: position of the first.
    """
    steps = []
    for i, want in enumerate(want_ids):
        got = int(np.argmax(np.where(np.isnan(logits[i]), -np.inf, logits[i])))
        margin = float(want_logits[i, want]) - float(want_logits[i, got])
        steps.append(Step(start + i, got, int(want), got != want and margin <= float(bound[i, want] + bound[i, got])))
    return steps
