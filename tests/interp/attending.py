"""One attention op as a traced graph, and the same op by its definition: a loop over rows, heads and cells in float64."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from interp import Session
from poem.batch import Chunk
from poem.dtypes.tensor import Tensor
from poem.graph import ValueType
from poem.ops.operands import Weight
from poem.tracer import Tracer


@dataclass
class Attention:
    """`kv_append` and `attend` over one cache row. Values come in as inputs q, k, v, and bias, selection, sink_rows if used."""

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    sm_scale: float
    dtype: str = "f32"
    kv: str = "f32"
    space_window: int | None = None
    sinks: Sequence[float] | None = None
    bias: int = 0  # extent
    selection: int = 0  # ids a row
    sink_rows: bool = False
    mask: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def session(self, **settings: Any) -> Session:
        trace = Tracer("p", "m", "d")
        cache = trace.add_kv(
            trace.add_space(self.kv, self.space_window), "kv",
            [self.kv_heads * self.head_dim, self.kv_heads * self.value_dim], self.head_dim,
        )  # fmt: skip
        weights = {}
        options = dict(self.options)
        if self.sinks is not None:
            weight = Weight((self.heads,), Tensor.of(np.zeros(0, np.float32)).dtype)
            trace.add_param(weight, "sinks")
            weights["sinks"] = Tensor.of(np.array(self.sinks, np.float32))
            options["sinks"] = weight
        if self.sink_rows:
            options["sinks"] = trace.input("sink_rows", ValueType("tokens", self.heads, "f32"))
        if self.bias:
            options["bias"] = trace.input("bias", ValueType("tokens", self.heads * self.bias, "f32"))
        if self.selection:
            options["selection"] = trace.input("selection", ValueType("tokens", self.selection, "i32"))
        if self.mask:
            options["mask"] = trace.input("mask", None, kind="mask")
        q = trace.input("q", ValueType("tokens", self.heads * self.head_dim, self.dtype))
        k = trace.input("k", ValueType("tokens", self.kv_heads * self.head_dim, self.dtype))
        v = trace.input("v", ValueType("tokens", self.kv_heads * self.value_dim, self.dtype))
        pages = trace.cache_handle(cache)
        trace.call("attn.kv_append", [k, v, pages], {}, ())
        found = trace.call("attn.attend", [q, pages, trace.handle, self.head_dim, self.kv_heads, self.sm_scale], options, ())
        for name, value in zip(("o", "lse"), found if isinstance(found, tuple) else (found,), strict=False):
            trace.output(name, value, ())
        return Session(trace.graph(), weights, **settings)


def by_definition(
    attention: Attention,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    rows: int,
    *,
    bias: np.ndarray | None = None,
    selection: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention of the last `rows` tokens of one sequence over all of it, from the formulas alone.

    q [rows, Hq*D]; k, v all cells so far; mask bool [rows, cells]. Returns o, lse, and the magnitude sum_j p_j |v_j| that error
    bounds scale with.
    """
    cells = len(k)
    heads, dim, value_dim = attention.heads, attention.head_dim, attention.value_dim
    options = attention.options
    window, causal, softcap = options.get("window"), options.get("causal", True), options.get("softcap")
    ratio, log_scaling = options.get("ratio", 1), options.get("log_scaling")
    o, lse = np.zeros((rows, heads * value_dim)), np.full((rows, heads), -np.inf)
    magnitude = np.zeros_like(o)
    for row in range(rows):
        p = cells - rows + row
        allowed = []
        for j in range(cells):
            fine = not (causal and j > p)
            fine = fine and (window is None or p - j < window)
            if mask is not None:
                fine = fine and bool(mask[row, j])
            if selection is not None:
                whole = (p + 1) // ratio
                listed = {int(c) for c in selection[row] if 0 <= c < whole}
                fine = fine and (j // ratio in listed or (ratio > 1 and whole * ratio <= j <= p))
            if fine:
                allowed.append(j)
        if not allowed:
            continue
        for h in range(heads):
            g = h // (heads // attention.kv_heads)
            scores = []
            for j in allowed:
                s = attention.sm_scale * float(q[row, h * dim : (h + 1) * dim] @ k[j, g * dim : (g + 1) * dim])
                if softcap is not None:
                    s = softcap * math.tanh(s / softcap)
                if bias is not None and 0 <= p - j < attention.bias:
                    s += float(bias[row, h * attention.bias + p - j])
                if log_scaling is not None and p + 1 > log_scaling[0]:
                    s *= 1 + log_scaling[1] * math.log((p + 1) / log_scaling[0])
                scores.append(s)
            z = -math.inf if sinks is None else float(sinks[row, h])
            largest = max([*scores, z])
            terms = [math.exp(s - largest) for s in scores]
            d = math.fsum(terms) + (math.exp(z - largest) if sinks is not None else 0.0)
            values = v[allowed, g * value_dim : (g + 1) * value_dim]
            weights = np.array(terms)[:, None] / d
            o[row, h * value_dim : (h + 1) * value_dim] = (weights * values).sum(axis=0)
            magnitude[row, h * value_dim : (h + 1) * value_dim] = (weights * np.abs(values)).sum(axis=0)
            lse[row, h] = (largest + math.log(d)) / math.log(2)
    return o, lse, magnitude


def chunk(sequence: int, rows: int, mask: np.ndarray | None = None) -> Chunk:
    return Chunk(sequence, [0] * rows, mask=mask)


@st.composite
def attentions(draw: st.DrawFn) -> Attention:
    """Shapes and options of one attention op."""
    kv_heads = draw(st.integers(1, 3))
    options: dict[str, Any] = {}
    selection = bias = 0
    causal = draw(st.sampled_from([True, True, True, False]))
    if not causal:
        options["causal"] = False
    if draw(st.booleans()):
        options["window"] = draw(st.integers(1, 12))
    if draw(st.booleans()):
        options["softcap"] = draw(st.sampled_from([0.5, 5.0]))
    if draw(st.booleans()):
        options["log_scaling"] = [draw(st.sampled_from([1.0, 4.0])), 0.25]
    if draw(st.booleans()):
        bias = draw(st.integers(1, 9))
    if causal and draw(st.booleans()):
        selection = draw(st.integers(1, 5))
        options["ratio"] = draw(st.integers(1, 4))
    sinks = draw(st.sampled_from(["none", "weight", "value"]))
    heads = kv_heads * draw(st.integers(1, 3))
    options["lse"] = sinks == "none"
    return Attention(
        heads, kv_heads, draw(st.sampled_from([2, 4, 6])), draw(st.sampled_from([1, 2, 5])), 0.5,
        sinks=[0.5 * h - 1 for h in range(heads)] if sinks == "weight" else None,
        sink_rows=sinks == "value", bias=bias, selection=selection, mask=draw(st.booleans()), options=options,
    )  # fmt: skip


def native_bound(attention: Attention, cells: int, magnitude: np.ndarray, size: float, softcap: float = 0.0) -> np.ndarray:
    """|o - exact| of f32 arithmetic: errors of a score, of e^s, of both sums and of the division.

    size: the largest product of a channel of q and one of k. magnitude: sum_j p_j |v_j|. A score is a dot product of D terms: its
    error is at most (D + 3) u * D size sm_scale, u = 2^-24; capping it adds 4 units of the cap, and e^s passes the error on. exp
    adds 4 units; sums of n terms add n u each, relative to the sum of magnitudes. First order, doubled for the rest.
    """
    dim = attention.head_dim
    score = (dim + 3) * dim * size * attention.sm_scale + 4 * softcap
    return 2 * (2 * (score + 4) + 2 * cells + 4) * 2.0**-24 * magnitude + 1e-37
