"""A pass and its ragged batch: what both backends are handed besides the Graph and the weights.

A `Batch` is a list of `Chunk`s, one per sequence that takes part in the pass; `PageTable` says in which
physical pages of a kv space a sequence's cells lie. One sequence is a batch of one; a chunk without new
tokens is legal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True, slots=True)
class Chunk:
    """The new tokens of one sequence.

    sequence: the id that the runner gave when the sequence joined.
    tokens: token ids, in order; may be empty.
    readouts: which of the new rows are read out: the last, all, none, or indices into `tokens`.
    mask: bool [new rows, kv length after this pass], True where a row may attend; None without a mask.
    commit: how many of the new rows state slabs keep (speculative rows are dropped); None keeps all.
    """

    sequence: int
    tokens: Sequence[int]
    readouts: Literal["last", "all", "none"] | Sequence[int] = "last"
    mask: np.ndarray | None = None
    commit: int | None = None

    def readout_indices(self) -> list[int]:
        """The indices of `readouts` inside this chunk."""
        count = len(self.tokens)
        if self.readouts == "last":
            return [count - 1] if count else []
        if self.readouts == "all":
            return list(range(count))
        if self.readouts == "none":
            return []
        return [int(index) for index in self.readouts]


Batch = Sequence[Chunk]
