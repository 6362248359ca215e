"""Whether the bits of a row depend on what else is in its batch: every sequence runs once more, alone."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from conformance.isolated import Pass
from poem.axes import Axis, count, is_bounds
from poem.graph import Graph

if TYPE_CHECKING:
    from cupy_backend.session import Session

ONE_ROW = {"tokens": 1, "readouts": 1, "lanes": 1}  # axes whose rows belong to one chunk each; every row of an example is read out


def differs_alone(graph: Graph, session: "Session", passes: Sequence[Pass]) -> str:
    """Which output has other bits where a sequence is alone than in its batch, in words; "" if none has, where rows belong to no
    sequence, or where integers are given, which may be numbers of rows.

    KernelError for a launch that fails.
    """
    inputs = {input_.key: _axis(graph, input_.value) for input_ in graph.inputs}
    outputs = {output.name: _axis(graph, output.value) for output in graph.outputs}
    sequences = sorted({chunk.sequence for pass_ in passes for chunk in pass_.batch})
    apart = all(axis is not None and not is_bounds(axis) and count(axis, ONE_ROW) for axis in (*inputs.values(), *outputs.values()))
    if len(sequences) == 1 or not apart or any(values.dtype.kind != "f" for pass_ in passes for values in pass_.inputs.values()):
        return ""
    own = {sequence: session.add_sequence() for sequence in sequences}
    together = [_run(session, pass_, own) for pass_ in passes]
    for sequence in sequences:
        own[sequence] = session.add_sequence()
        for number, pass_ in enumerate(passes):
            place = next((i for i, chunk in enumerate(pass_.batch) if chunk.sequence == sequence and chunk.tokens), None)
            if place is None:
                continue
            given = {key: _parts(values, inputs[key], pass_)[place] for key, values in pass_.inputs.items()}
            for name, alone in _run(session, Pass((pass_.batch[place],), given), own).items():
                if not _same_bits(alone, _parts(together[number][name], outputs[name], pass_)[place]):
                    return f"`{name}` of sequence {sequence} in pass {number} has other bits alone than in its batch"
    return ""


def _axis(graph: Graph, value: int) -> Axis | None:
    type = graph.values[value].type
    return type.rows if type is not None else None


def _run(session: "Session", pass_: Pass, own: Mapping[int, int]) -> dict[str, np.ndarray]:
    return session.run([replace(chunk, sequence=own[chunk.sequence]) for chunk in pass_.batch], None, pass_.inputs)


def _parts(values: np.ndarray, axis: Axis | None, pass_: Pass) -> list[np.ndarray]:
    """The rows of each chunk."""
    assert axis is not None
    rows = [count(axis, {word: len(chunk.tokens) for word in ONE_ROW} | {"lanes": 1}) or 0 for chunk in pass_.batch]
    return np.split(values, np.cumsum(rows)[:-1])


def _same_bits(first: np.ndarray, second: np.ndarray) -> bool:
    """A NaN equals any other."""
    one, other = (np.where(np.isnan(values), np.nan, values) for values in (first, second))
    return one.shape == other.shape and one.tobytes() == other.tobytes()
