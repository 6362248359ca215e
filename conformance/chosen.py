"""Tokens that a session chooses on its device: those that `poem.sampling` chooses of the same logits and draws."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from conformance.isolated import Judged, Pass
from conformance.metrics import measure
from interp import Session as Interpreter
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.graph import Graph
from poem.sampling import Sampling, check_logits, choose, log_probability

if TYPE_CHECKING:
    from cupy_backend.session import Session

LOG_PROBABILITY_ERROR = 2.0**-20  # what sampling.cu states
LEAST_WEIGHT = 2.0**-46  # of the largest; a token below it is never drawn, as sampling.cu states
NO_DISTRIBUTION = "generate.not-finite"


class Choice(NamedTuple):
    """How the token of one row is chosen, and by which draw."""

    rule: Sampling
    draw: float


def run_chosen(
    graph: Graph, weights: Mapping[str, Tensor], session: "Session", passes: Sequence[Pass], choices: Sequence[Sequence[Choice]]
) -> list[Judged]:
    """The tokens of some passes over the output `logits`, and their log-probabilities. choices: for each pass one of each row.

    A pass is refused where the logits of a row are no distribution.
    """
    definition, judged = Interpreter(graph, weights), list[Judged]()
    sequences: dict[int, tuple[int, int]] = {}
    for pass_, chosen in zip(passes, choices, strict=True):
        for chunk in pass_.batch:
            if chunk.sequence not in sequences:
                sequences[chunk.sequence] = definition.add_sequence(), session.add_sequence()
        own, its = ([replace(chunk, sequence=sequences[chunk.sequence][which]) for chunk in pass_.batch] for which in range(2))
        want = [_chosen(row, choice) for row, choice in zip(definition.run(own)["logits"], chosen, strict=True)]
        try:
            got = session.choose(its, [choice.rule for choice in chosen], [choice.draw for choice in chosen])
        except PoemError as error:
            if error.code != NO_DISTRIBUTION:
                raise
            got = None
            session.run(its)  # so that its sequences are as long as the definition's
        judged.append(_judged(graph, session, "whether logits are refused", [got is None], [None in want], 0.0))
        if got is not None and None not in want:
            (tokens, logarithms), (wanted, exact) = zip(*got, strict=True), zip(*want, strict=True)
            judged.append(_judged(graph, session, "tokens", tokens, wanted, 0.0))
            judged.append(_judged(graph, session, "log-probabilities of tokens", logarithms, exact, LOG_PROBABILITY_ERROR))
    for _, sequence in sequences.values():
        session.drop_sequence(sequence)
    return judged


def _chosen(logits: np.ndarray, choice: Choice) -> tuple[int, float] | None:
    """A token with its log-probability; None if the logits are no distribution."""
    given: Any = SimpleNamespace(random=lambda: choice.draw)
    heat, wide = choice.rule.temperature, logits.astype(np.float64)
    with np.errstate(all="ignore"):
        drawn = np.exp((wide - wide.max()) / heat) >= LEAST_WEIGHT if heat else np.ones(len(wide), bool)
    try:
        check_logits(logits)
        token = choose(np.where(drawn, wide, -np.inf), choice.rule, given)
    except PoemError as error:
        if error.code != NO_DISTRIBUTION:
            raise
        return None
    return token, log_probability(logits, token)


def _judged(graph: Graph, session: "Session", what: str, got: Any, want: Any, error: float) -> Judged:
    found, wanted = np.array(got), np.array(want)
    bound = np.full(wanted.shape, error)
    distance, node = measure(found, wanted, bound), len(graph.nodes) - 1
    return Judged(len(session.plan.steps), node, (node,), ("sample",), what, distance, found, wanted, bound, "choosing tokens", "f32")
