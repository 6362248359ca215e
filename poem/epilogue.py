"""Epilogues: Python that follows a pass and reads what each lane put out. A sampler is one."""

from collections.abc import Callable, Mapping
from typing import Protocol, TypeVar

import numpy as np

from poem.axes import count, is_bounds
from poem.batch import Batch
from poem.errors import UsageError
from poem.graph import Graph
from poem.suggest import did_you_mean

T = TypeVar("T")


class Session(Protocol):
    """What a pass needs of the interpreter's session, or of a backend's."""

    graph: Graph

    def run(self, batch: Batch) -> dict[str, np.ndarray]: ...


class Intrinsics:
    """What an epilogue may ask of the pass before it. lanes: how many sequences took part, in the order of the batch."""

    def __init__(self, graph: Graph, batch: Batch, outputs: Mapping[str, np.ndarray]) -> None:
        self.lanes = len(batch)
        self._graph, self._outputs = graph, outputs
        self._sizes = [{"tokens": len(chunk.tokens), "readouts": len(chunk.readout_indices()), "lanes": 1} for chunk in batch]

    def output(self, lane: int, name: str) -> np.ndarray:
        """The rows of a lane in an output: of its new tokens, of those that are read out, ...; all of an output of constant rows.

        UsageError (`run.output`) for a name or a lane that is none, and for an output whose rows belong to no one lane.
        """
        if name not in self._outputs:
            known = list(self._outputs)
            raise _refused(f"the pass puts out no `{name}`", ", ".join(known), repr(name), did_you_mean(name, known))
        if not 0 <= lane < self.lanes:
            raise _refused("the pass has no such lane", f"0 to {self.lanes - 1}", str(lane))
        rows, type = self._outputs[name], self._graph.output(name).type
        assert type is not None, "an output is a tensor"
        if isinstance(type.rows, int):
            return rows
        counts = [None if is_bounds(type.rows) else count(type.rows, sizes) for sizes in self._sizes[: lane + 1]]
        if None in counts:
            raise _refused(f"the rows of `{name}` belong to no one lane", "rows of tokens, readouts or lanes", f"rows of {type.rows}")
        *before, own = [number or 0 for number in counts]
        return rows[sum(before) : sum(before) + own]


def run_pass(session: Session, batch: Batch, epilogue: Callable[[Intrinsics], T]) -> T:
    """One pass of a session on either backend, and what the epilogue makes of its outputs."""
    return epilogue(Intrinsics(session.graph, batch, session.run(batch)))


def _refused(message: str, expected: str, found: str, hint: str = "") -> UsageError:
    return UsageError("run.output", message, phase="run", expected=expected, found=found, hint=hint)
