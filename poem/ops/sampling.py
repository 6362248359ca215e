"""ops.sampling: choosing tokens."""

from poem.graph import ValueType
from poem.ops.checks import on_axis, refuse
from poem.ops.operands import Value
from poem.ops.record import ActivationOrActivations, op, result


@op("sampling")
def argmax(x: ActivationOrActivations) -> ValueType:
    """The column of the largest entry of each row, of one value or of several.

    Shapes: x [N, V], or a list of values on one axis whose widths may differ -> ids i32 [N, number of values]
    Formula: ids[n, i] = the least v with x_i[n, v] = max over v of x_i[n, v]
    Rounding: none
    Rules:
        1. A list is not empty.
        2. All values are on one axis.
    Edge: ties go to the lower column; NaN counts as -inf: it never wins, and a row of nothing else gives 0
    For: draft chains and greedy outputs. bf16 logits tie often: this rule makes the result definite.
    Public: `torch.argmax`, which leaves ties open and lets NaN win
    """
    values = [x] if isinstance(x, Value) else x
    if not values:
        refuse(1, "x", "is an empty list", expected="at least one value", found="[]")
    for value in values:
        on_axis(value, values[0].rows, 2, "x")
    return result(values[0], width=len(values), dtype="i32")
