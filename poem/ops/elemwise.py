"""ops.elemwise: row-local arithmetic and activations.

Norms are in norms.py, rotary embeddings in rotary.py, hyper-connections in hyper_connections.py.
"""

from poem.graph import ValueType
from poem.ops.checks import has_shape, like
from poem.ops.record import Activation, FloatWeight, op, result


@op("elemwise")
def residual_add(x: Activation, y: Activation) -> ValueType:
    """Add a block's result to the residual stream. The stream comes second and gives the dtype.

    Shapes: x [N, W] of y's dtype or f32, y [N, W], the residual stream, on any axis -> [N, W], y's dtype
    Formula: y + x
    Rounding: once, to y's dtype
    Rules:
        1. x has y's axis, width, and dtype or f32.
    For: every family
    """
    like(x, y, 1, "x", or_f32=True)
    return result(y)


@op("elemwise")
def add_bias(bias: FloatWeight, x: Activation) -> ValueType:
    """Add a bias to every row. The bias comes first; its dtype may differ from x's.

    Shapes: bias [W], x [N, W] on any axis -> [N, W], x's dtype
    Formula: x[n, c] + bias[c]
    Rounding: once
    Rules:
        1. bias is [x.width].
    For: qwen_2, gpt_oss, vision towers, diffusion families
    """
    has_shape(bias, (x.width,), 1, "bias")
    return result(x)
