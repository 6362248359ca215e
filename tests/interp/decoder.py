"""A small dense decoder as a traced graph, with random weights: what the tests of the session run."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from poem.dtypes import Dtype
from poem.dtypes.tensor import STORAGE, Tensor
from poem.errors import Frame
from poem.graph import Graph, ValueType
from poem.ops.operands import Value, Weight
from poem.tracer import Tracer


@dataclass(frozen=True)
class Decoder:
    """Sizes. Layer 0 attends to everything; layer 1 has a window, sinks and a softcap."""

    hidden: int = 24
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 6
    inter: int = 40
    vocab: int = 37
    layers: int = 2
    dtype: str = "bf16"
    kv: str = "bf16"
    window: int = 5

    def trace(self, seed: int = 0) -> tuple[Graph, dict[str, Tensor]]:
        """The graph, with outputs `logits` on readouts and `hidden` on tokens, and its weights."""
        trace = Tracer("decoder", "decoder", "decoder")
        rng = np.random.default_rng(seed)
        weights: dict[str, Tensor] = {}
        line = 0

        def weight(name: str, *shape: int, dtype: str = self.dtype) -> Weight:
            made = Weight(shape, Dtype(dtype))
            trace.add_param(made, name)
            values = rng.standard_normal(shape) / (1 if len(shape) == 1 else np.sqrt(shape[1])) + (len(shape) == 1)
            weights[name] = Tensor.of(values.astype(np.float32).astype(STORAGE[dtype]))
            return made

        def call(op: str, *arguments: Any, **named: Any) -> Any:
            nonlocal line
            line += 1
            return trace.call(op, arguments, named, (Frame("decoder.poem", line, "forward"),))

        def norm(x: Value, name: str) -> Value:
            return call("elemwise.rmsnorm", x, weight(name, self.hidden), 1e-5)

        q_width, kv_width = self.heads * self.head_dim, self.kv_heads * self.head_dim
        positions = trace.input("positions", ValueType("tokens", 1, "i32"))
        space = trace.add_space(self.kv)
        y = call("gather.embed", trace.input("tokens", ValueType("tokens", 1, "i32")), weight("embed", self.vocab, self.hidden), self.vocab)
        for layer in range(self.layers):
            pages = trace.cache_handle(trace.add_kv(space, f"kv.{layer}", [kv_width, kv_width], self.head_dim, True))
            x = norm(y, f"{layer}.attn_norm")
            q, k, v = (
                call("linear.matmul", x, weight(f"{layer}.{name}", width, self.hidden))
                for name, width in (("q", q_width), ("k", kv_width), ("v", kv_width))
            )
            q, k = call("elemwise.rope", q, k, positions, self.head_dim, 10000.0)
            call("attn.kv_append", k, v, pages)
            special: dict[str, Any] = {}
            if layer == 1:
                special = {"window": self.window, "sinks": weight(f"{layer}.sinks", self.heads, dtype="f32"), "softcap": 20.0}
            o = call("attn.attend", q, pages, trace.handle, self.head_dim, self.kv_heads, self.head_dim**-0.5, **special)
            y = call("elemwise.residual_add", call("linear.matmul", o, weight(f"{layer}.o", self.hidden, q_width)), y)
            x = norm(y, f"{layer}.mlp_norm")
            h = call("linear.glu", call("linear.matmul", x, weight(f"{layer}.gate_up", 2 * self.inter, self.hidden)), self.inter)
            y = call("elemwise.residual_add", call("linear.matmul", h, weight(f"{layer}.down", self.hidden, self.inter)), y)
        x = norm(y, "norm")
        rows = trace.input("readout_rows", ValueType("readouts", 1, "i32"))
        trace.output("hidden", x, ())
        trace.output("logits", call("linear.lm_head", call("gather.gather_rows", x, rows), weight("head", self.vocab, self.hidden)), ())
        return trace.graph(), weights
