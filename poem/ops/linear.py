"""ops.linear: matrix products, gated units and expert routing."""

from poem.graph import ValueType
from poem.ops.record import Activation, AnyWeight, Count, DtypeWord, check, op, result


@op("linear")
def matmul(x: Activation, w: AnyWeight, out: DtypeWord | None = None) -> ValueType:
    """Matrix product with a weight, without bias.

    Shapes: x [N, K], w [M, K] -> y [N, M], of x's dtype or f32
    Formula: y[n, m] = sum_k x[n, k] * w[m, k]
    Rounding: once, when y is stored
    Rules:
        1. w is a matrix.
        2. w.shape[1] == x.width.
        3. out is None or f32.
    For: every family
    Public: `nn.Linear(bias=False)`
    """
    check(len(w.shape) == 2, 1, "w", f"is {w}, not a matrix")
    check(w.shape[1] == x.width, 2, "w", f"is {list(w.shape)} but x is {x.width} wide")
    check(out is None or out.name == "f32", 3, "out", f"is {out}", code="forward.bad-attribute", expected="None or f32")
    return result(x, width=w.shape[0], dtype=out)


@op("linear")
def glu(x: Activation, inter: Count) -> ValueType:
    """(to be completed)"""
    return result(x, width=inter)
