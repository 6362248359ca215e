"""`evaluate`: one op on given operands, through the same tracer, graph and session as a whole model."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from interp.numeric import Mode, Setting
from interp.session import Session
from poem.batch import Chunk
from poem.dtypes.tensor import Tensor
from poem.graph import ValueType


class Given(NamedTuple):
    """An operand value: rows as nested lists or an array, its dtype word, and its row axis."""

    rows: Any
    dtype: str = "f32"
    axis: str | int = "tokens"


def evaluate(
    op: str,
    *arguments: Any,
    mode: Mode = "native",
    setting: Setting = "reference",
    casts: bool = False,
    lanes: Sequence[int] | None = None,
    **named: Any,
) -> Any:
    """The result of `ops.<op>(*arguments, **named)`: an array, or a tuple of them.

    Values are `Given`s, weights are `Tensor`s, lists of either are lists; everything else is an attribute. lanes: how the rows
    of the tokens axis fall to sequences that start here; None is one sequence. Ops with caches, states or masks need a
    traced graph and a Session.
    Raises what tracing and running raise.
    """
    from poem.ops.operands import Value, Weight  # a session needs neither tracer nor registry: they would slow its start
    from poem.tracer import Tracer

    trace = Tracer("evaluate", "evaluate", "evaluate")
    given: dict[str, np.ndarray] = {}
    weights: dict[str, Tensor] = {}
    tokens = sum(lanes or ())

    def operand(item: Any) -> Any:
        nonlocal tokens
        if isinstance(item, list):
            return [operand(part) for part in item]
        if isinstance(item, Tensor):
            weight = Weight(item.shape, item.dtype)
            weights[trace.add_param(weight, f"w{len(weights)}").name] = item
            return weight
        if not isinstance(item, Given):
            return item
        array = np.asarray(item.rows)
        array = array[:, None] if array.ndim == 1 else array
        name = f"x{len(given)}"
        given[name] = array
        if item.axis == "tokens":
            tokens = max(tokens, len(array))
        return trace.input(name, ValueType(item.axis, array.shape[1], item.dtype))

    results = trace.call(op, [operand(item) for item in arguments], {name: operand(item) for name, item in named.items()}, ())
    several = isinstance(results, tuple)
    for index, value in enumerate(results if several else (results,)):
        assert isinstance(value, Value)
        trace.output(f"y{index}", value, ())
    session = Session(trace.graph(), weights, mode=mode, setting=setting, casts=casts)
    batch = [Chunk(session.add_sequence(), [0] * count) for count in (lanes or [tokens])]
    outputs = tuple(session.run(batch, inputs=given).values())
    return outputs if several else outputs[0]
