"""Small graphs with random weights: what the tests of the planner and of sessions run."""

from typing import Any

import numpy as np

from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import Frame
from poem.graph import Graph, ValueType
from poem.ops.operands import Value, Weight
from poem.tracer import Tracer


class Made:
    """A graph under construction; each op is at a line of its own of `small.poem`."""

    def __init__(self, seed: int = 0) -> None:
        self.trace = Tracer("small", "small", "small")
        self.weights: dict[str, Tensor] = {}
        self._random = np.random.default_rng(seed)
        self._line = 0

    def weight(self, name: str, *shape: int, dtype: str = "bf16") -> Weight:
        made = Weight(shape, Dtype(dtype))
        self.trace.add_param(made, name)
        values = self._random.standard_normal(shape) / (1 if len(shape) == 1 else np.sqrt(shape[1])) + (len(shape) == 1)
        self.weights[name] = Tensor.encode(values.astype(np.float32), Dtype(dtype))
        return made

    def call(self, op: str, *arguments: Any, **named: Any) -> Any:
        self._line += 1
        return self.trace.call(op, arguments, named, (Frame("small.poem", self._line, "forward"),))

    def tokens(self) -> Value:
        return self.trace.input("tokens", ValueType("tokens", 1, "i32"))

    def graph(self, name: str, value: Value) -> tuple[Graph, dict[str, Tensor]]:
        """The graph with one output."""
        self.trace.output(name, value, ())
        return self.trace.graph(), self.weights


def gated_network(
    *, hidden: int = 64, inter: int = 128, vocab: int = 48, dtype: str = "bf16", seed: int = 0
) -> tuple[Graph, dict[str, Tensor]]:
    """Embedding, a gated network with a residual, norm and head: everything of a layer but attention."""
    made = Made(seed)
    y = made.call("gather.embed", made.tokens(), made.weight("embed", vocab, hidden), vocab)
    x = made.call("elemwise.rmsnorm", y, made.weight("norm", hidden), 1e-5)
    h = made.call("linear.glu", made.call("linear.matmul", x, made.weight("gate_up", 2 * inter, hidden, dtype=dtype)), inter)
    y = made.call("elemwise.residual_add", made.call("linear.matmul", h, made.weight("down", hidden, inter, dtype=dtype)), y)
    x = made.call("elemwise.rmsnorm", y, made.weight("last_norm", hidden), 1e-5)
    rows = made.trace.input("readout_rows", ValueType("readouts", 1, "i32"))
    return made.graph("logits", made.call("linear.lm_head", made.call("gather.gather_rows", x, rows), made.weight("head", vocab, hidden)))
