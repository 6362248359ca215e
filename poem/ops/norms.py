"""ops.elemwise: RMS and layer norms. Moments are f32; each norm rounds once, after the product with its gain."""

from poem.graph import ValueType
from poem.ops.checks import has_shape, holds
from poem.ops.record import Activation, FloatWeight, Number, op, result


def _eps(eps: float, rule: int) -> None:
    holds(eps >= 0, rule, "eps", "at least 0", eps)


@op("elemwise")
def rmsnorm(x: Activation, w: FloatWeight, eps: Number) -> ValueType:
    """Divide each row by its root mean square, times a gain.

    Shapes: x [N, W] on any axis, w [W] -> [N, W], x's dtype
    Formula: x / sqrt(mean(x^2) + eps) * w, the mean over the row
    Rounding: once, after the product with w
    Rules:
        1. w is [x.width].
        2. eps >= 0.
    Edge: a row of zeros gives zeros; with eps = 0 it gives NaN
    For: all language models; wan_2's VAE (eps 1e-12)
    Public: transformers' `LlamaRMSNorm`, which rounds to bf16 before the product with w (native results may differ by one
        unit in the last place). `WanRMS_norm` divides by max(norm, 1e-12): equal except for rows near zero.
    """
    has_shape(w, (x.width,), 1, "w")
    _eps(eps, 2)
    return result(x)
