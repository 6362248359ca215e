"""ops.elemwise: RMS and layer norms. Moments are f32; each norm rounds once, after the product with its gain."""

from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import has_shape, has_width, holds, of_dtype, on_axis, width_divides
from poem.ops.operands import Value, Weight
from poem.ops.record import Activation, Count, Flag, FloatWeight, Number, op, result


def _eps_of(eps: float, rule: int, name: str = "eps") -> None:
    holds(eps >= 0, rule, name, "at least 0", eps)


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
    _eps_of(eps, 2)
    return result(x)


@op("elemwise")
def rmsnorm_plus_one(x: Activation, w: FloatWeight, eps: Number) -> ValueType:
    """RMS norm whose stored gain is an offset from 1.

    Shapes: x [N, W] on any axis, w [W] -> [N, W], x's dtype
    Formula: x / sqrt(mean(x^2) + eps) * (1 + w), the mean over the row
    Rounding: once, after the product with 1 + w
    Rules:
        1. w is [x.width].
        2. eps >= 0.
    Edge: a row of zeros gives zeros; with eps = 0 it gives NaN
    For: qwen_3 (3.5 up), qwen_4, gemma_2, gemma_3, muse_glimmer
    Public: transformers' `GemmaRMSNorm`, `Qwen3_5RMSNorm`
    """
    has_shape(w, (x.width,), 1, "w")
    _eps_of(eps, 2)
    return result(x)


@op("elemwise")
def rmsnorm_per_head(x: Activation, w: FloatWeight, head_dim: Count, eps: Number) -> ValueType:
    """RMS norm of each head, with one gain shared by the heads.

    Shapes: x [N, H*D] on any axis, w [D], D = head_dim -> [N, H*D], x's dtype
    Formula: per head v: v / sqrt(mean(v^2) + eps) * w, the mean over the D channels
    Rounding: once, after the product with w
    Rules:
        1. x is whole heads of head_dim.
        2. w is [head_dim].
        3. eps >= 0.
    Edge: a head of zeros gives zeros; with eps = 0 it gives NaN
    For: query and key norms of qwen_3 dense, gemma_4, flux_2, hunyuan
    Public: `q_norm`, `k_norm` of transformers' `Qwen3Attention`
    """
    width_divides(x, head_dim, 1, "x")
    has_shape(w, (head_dim,), 2, "w")
    _eps_of(eps, 3)
    return result(x)


@op("elemwise")
def rmsnorm_per_head_plus_one(x: Activation, w: FloatWeight, head_dim: Count, eps: Number) -> ValueType:
    """RMS norm of each head, the stored gain being an offset from 1.

    Shapes: x [N, H*D] on any axis, w [D], D = head_dim -> [N, H*D], x's dtype
    Formula: per head v: v / sqrt(mean(v^2) + eps) * (1 + w), the mean over the D channels
    Rounding: once, after the product with 1 + w
    Rules:
        1. x is whole heads of head_dim.
        2. w is [head_dim].
        3. eps >= 0.
    Edge: a head of zeros gives zeros; with eps = 0 it gives NaN
    For: query and key norms of qwen_3.5 and qwen_4
    Public: transformers' `Qwen3_5RMSNorm` over heads
    """
    width_divides(x, head_dim, 1, "x")
    has_shape(w, (head_dim,), 2, "w")
    _eps_of(eps, 3)
    return result(x)


@op("elemwise")
def rmsnorm_no_scale(x: Activation, head_dim: Count, eps: Number) -> ValueType:
    """RMS norm of each run of head_dim channels, without a gain. Pass the width to norm the whole row.

    Shapes: x [N, H*D] on any axis, D = head_dim -> [N, H*D], x's dtype
    Formula: per run v: v / sqrt(mean(v^2) + eps)
    Rounding: once
    Rules:
        1. x is whole runs of head_dim.
        2. eps >= 0.
    Edge: a run of zeros gives zeros; with eps = 0 it gives NaN
    For: gemma_4's values, deepseek_v4's queries, ltx_2
    """
    width_divides(x, head_dim, 1, "x")
    _eps_of(eps, 2)
    return result(x)


@op("elemwise")
def rmsnorm_grouped_plus_one(x: Activation, w: FloatWeight, group: Count, eps: Number) -> ValueType:
    """RMS norm of each run of `group` channels, with a gain over the full width that is stored as an offset from 1.

    Shapes: x [N, W] on any axis, w [W] -> [N, W], x's dtype
    Formula: per run v of `group` columns: v / sqrt(mean(v^2) + eps) * (1 + w of these columns)
    Rounding: once, after the product with 1 + w
    Rules:
        1. group divides x.width.
        2. w is [x.width].
        3. eps >= 0.
    Edge: a run of zeros gives zeros; with eps = 0 it gives NaN
    For: the streams of qwen_4
    """
    width_divides(x, group, 1, "x")
    has_shape(w, (x.width,), 2, "w")
    _eps_of(eps, 3)
    return result(x)


def _gated(x: Value, gate: Value, w: Weight, head_dim: int, eps: float) -> None:
    """Rules 1 to 4 of the gated norms."""
    on_axis(x, gate.rows, 1, "x")
    has_width(x, gate.width, 1, "x")
    of_dtype(x, gate.dtype, 1, "x", or_f32=True)
    width_divides(gate, head_dim, 2, "gate")
    if w.shape != (gate.width,):
        has_shape(w, (head_dim,), 3, "w")
    _eps_of(eps, 4)


@op("elemwise")
def rmsnorm_gated(
    x: Activation,
    gate: Activation,
    w: FloatWeight,
    head_dim: Count,
    eps: Number,
    act: Literal["silu", "sigmoid"] = "silu",
    gate_first: Flag = False,
) -> ValueType:
    """RMS norm of each run of head_dim channels times an activated gate; the result has the gate's dtype.

    Shapes: x [N, W] of gate's dtype or f32, gate [N, W] on any axis, w [head_dim], shared by the runs, or [W]
        -> [N, W], gate's dtype
    Formula: a = gate * sigma(gate) (silu) or sigma(gate) (sigmoid), by act, sigma(z) = 1 / (1 + e^-z); per run of head_dim columns
        norm first:  x / sqrt(mean(x^2) + eps) * w * a
        gate_first:  v / sqrt(mean(v^2) + eps) * w, v = x * a
    Rounding: once
    Rules:
        1. x has gate's axis and width, and its dtype or f32.
        2. head_dim divides the width.
        3. w is [head_dim] or [gate.width].
        4. eps >= 0.
    Edge: a run of zeros gives zeros; with eps = 0 it gives NaN
    For: qwen_3, qwen_4 (norm first), mamba_2 (gate_first, head_dim = W / groups)
    Public: transformers' `Qwen3NextRMSNormGated` (norm first); `MambaRMSNormGated` of Mamba-2, Bamba, Nemotron-H (gate first)
    """
    _gated(x, gate, w, head_dim, eps)
    return result(gate)


@op("elemwise", extension=True)
def rmsnorm_gated_by(x: Activation, gate: Activation, w: FloatWeight, heads: Count, eps: Number) -> ValueType:
    """RMS norm of each head times the sigmoid of a gate: rmsnorm_gated by head count.

    Shapes: x [N, W] of gate's dtype or f32, gate [N, W] on any axis, w [W/heads], shared by the heads, or [W]
        -> [N, W], gate's dtype
    Formula: per run of W/heads columns: x / sqrt(mean(x^2) + eps) * w * sigma(gate), sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. x has gate's axis and width, and its dtype or f32.
        2. heads divides the width.
        3. w is [gate.width / heads] or [gate.width].
        4. eps >= 0.
    Edge: a head of zeros gives zeros; with eps = 0 it gives NaN
    For: kimi_k3, glm_5_next (after kda)
    """
    width_divides(gate, heads, 2, "gate")
    _gated(x, gate, w, gate.width // heads, eps)
    return result(gate)


@op("elemwise")
def layernorm(x: Activation, w: FloatWeight | None = None, b: FloatWeight | None = None, eps: Number = 1e-5) -> ValueType:
    """Layer norm: subtract the mean, divide by the standard deviation, gain and bias where given.

    Shapes: x [N, W] on any axis, w, b [W] -> [N, W], x's dtype
    Formula: m = mean(x), v = mean((x - m)^2) (biased, two passes), (x - m) / sqrt(v + eps) * w + b; w is 1 and b is 0 if absent
    Rounding: once
    Rules:
        1. w and b are [x.width].
        2. eps >= 0.
    For: vision towers, norms before modulation in diffusion transformers (no w, b), index keys
    Public: `nn.LayerNorm`
    """
    for name, given in (("w", w), ("b", b)):
        if given is not None:
            has_shape(given, (x.width,), 1, name)
    _eps_of(eps, 2)
    return result(x)


@op("elemwise", extension=True)
def layernorm_no_scale(x: Activation, eps: Number) -> ValueType:
    """Layer norm without gain and bias.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: m = mean(x), v = mean((x - m)^2) (biased, two passes), (x - m) / sqrt(v + eps)
    Rounding: once
    Rules:
        1. eps >= 0.
    For: diffusion transformers
    Public: `nn.LayerNorm(elementwise_affine=False)`
    """
    _eps_of(eps, 1)
    return result(x)
