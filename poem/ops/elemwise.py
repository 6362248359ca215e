"""ops.elemwise: row-local arithmetic, activations and gates.

Norms are in norms.py, rotary embeddings in rotary.py, hyper-connections in hyper_connections.py, mixing in mixing.py.
"""

from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import has_shape, has_width, holds, like, of_dtype, on_axis, width_divides
from poem.ops.operands import Value
from poem.ops.record import Activation, AnyValue, Count, DtypeWord, Flag, FloatWeight, Ids, Number, op, result


@op("elemwise")
def add(x: Activation, y: Activation) -> ValueType:
    """Add two values.

    Shapes: x, y [N, W] of one dtype on any axis -> [N, W], x's dtype
    Formula: x + y
    Rounding: once
    Rules:
        1. y has x's axis, width and dtype.
    For: diffusion families, hunyuan_image_3
    """
    like(y, x, 1, "y")
    return result(x)


@op("elemwise")
def mul(x: Activation, y: Activation) -> ValueType:
    """Multiply two values element by element.

    Shapes: x, y [N, W] of one dtype on any axis -> [N, W], x's dtype
    Formula: x * y
    Rounding: once
    Rules:
        1. y has x's axis, width and dtype.
    For: hunyuan_image_3, lfm_2
    """
    like(y, x, 1, "y")
    return result(x)


@op("elemwise")
def residual_add(x: Activation, y: Activation) -> ValueType:
    """Add a block's result to the residual stream. The stream comes second and gives the dtype.

    Shapes: x [N, W] of y's dtype or f32, y [N, W], the residual stream, on any axis -> [N, W], y's dtype
    Formula: y + x
    Rounding: once, to y's dtype
    Rules:
        1. x has y's axis and width, and its dtype or f32.
    For: every family
    """
    like(x, y, 1, "x", or_f32=True)
    return result(y)


@op("elemwise")
def gated_residual_add(r: Activation, g: Activation, y: Activation, lane_of_row: Ids | None = None) -> ValueType:
    """Add a gated block result to the residual stream, the gate per lane or per row.

    Shapes: r, y [N, W] of one dtype on any axis; g [L, W] on any axis (usually lanes) with lane_of_row i32 [N], or [N, W]
        without; g of r's dtype or f32 -> [N, W], r's dtype
    Formula: r[n] + g[lane_of_row[n]] * y[n], or r[n] + g[n] * y[n]
    Rounding: once
    Rules:
        1. y has r's axis, width and dtype.
        2. g is as wide as r, of r's dtype or f32.
        3. lane_of_row is one column on r's axis; without it g is on r's axis.
    Edge: an entry of lane_of_row outside g's rows is a run-time error
    For: adaptive norms of flux_2, wan_2, ltx_2, z_image, minimax_h3
    Public: `x + gate.unsqueeze(1) * attn` in diffusers
    """
    like(y, r, 1, "y")
    has_width(g, r.width, 2, "g")
    of_dtype(g, r.dtype, 2, "g", or_f32=True)
    _row_map(g, "g", lane_of_row, r, 3)
    return result(r)


@op("elemwise")
def modulate(
    x: Activation, m: Activation, lane_of_row: Ids | None = None, form: Literal["scale_shift", "scale", "tanh_gate"] = "scale_shift"
) -> ValueType:
    """Scale and shift rows by a modulation row, per lane or per row.

    Shapes: x [N, W] on any axis; m [L, *] on any axis (lanes, a table of timesteps) with lane_of_row i32 [N], or [N, *]
        without; m of x's dtype or f32 -> [N, W], x's dtype
    Formula: with the m row of each row of x, by form:
        scale_shift: m [*, 2W] = [s | b], the scale first: x * (1 + s) + b
        scale:       m [*, W]: x * (1 + m)
        tanh_gate:   m [*, W]: tanh(m) * x
    Rounding: once
    Rules:
        1. m is 2W wide with scale_shift, W otherwise.
        2. m is of x's dtype or f32.
        3. lane_of_row is one column on x's axis; without it m is on x's axis.
    Edge: an entry of lane_of_row outside m's rows is a run-time error
    For: scale_shift flux_2, wan_2, ltx_2, minimax_h3, hunyuan_image_3; scale and tanh_gate z_image
    Public: the adaptive layer norms of diffusers, whose chunks usually come as (shift, scale, gate): permute the modulation
        rows at import
    """
    has_width(m, 2 * x.width if form == "scale_shift" else x.width, 1, "m")
    of_dtype(m, x.dtype, 2, "m", or_f32=True)
    _row_map(m, "m", lane_of_row, x, 3)
    return result(x)


def _row_map(mapped: Value, name: str, lane_of_row: Value | None, x: Value, rule: int) -> None:
    if lane_of_row is None:
        on_axis(mapped, x.rows, rule, name)
    else:
        on_axis(lane_of_row, x.rows, rule, "lane_of_row")
        has_width(lane_of_row, 1, rule, "lane_of_row")


@op("elemwise")
def mul_scalar(s: Number, x: Activation) -> ValueType:
    """Multiply by a number. The number comes first.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: x * s', s' = s rounded to x's dtype (exact mode: s as it is), as transformers does for Gemma's embeddings
    Rounding: once, besides that of s
    For: gemma_4, inkling, muse_glimmer, z_image, ltx_2
    """
    return result(x)


@op("elemwise")
def scale(s: FloatWeight, x: Activation) -> ValueType:
    """Multiply by a learned number. The weight comes first.

    Shapes: s [1], x [N, W] on any axis -> [N, W], x's dtype
    Formula: x * s[0]
    Rounding: once
    Rules:
        1. s is [1].
    For: gemma_4's layer scalar, inkling's dense output
    """
    has_shape(s, (1,), 1, "s")
    return result(x)


@op("elemwise", extension=True)
def silu_scaled(s: Number, x: Activation) -> ValueType:
    """SiLU of a multiple. The number comes first and is not rounded to x's dtype.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: silu(s * x) = s * x / (1 + e^(-s * x))
    Rounding: once
    For: qwen_4 (s = 1 / streams)
    """
    return result(x)


@op("elemwise")
def clamp(x: Activation, lo: Number, hi: Number) -> ValueType:
    """Limit to a range.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: fmin(fmax(x, lo'), hi'), the bounds rounded to x's dtype (exact mode: as they are)
    Rounding: none besides that of the bounds
    Rules:
        1. lo <= hi.
    Edge: NaN gives lo
    For: gemma_4, wan_2's VAE
    Public: torch.clamp, which lets NaN through
    """
    holds(lo <= hi, 1, "lo", f"at most hi, {hi}", lo)
    return result(x)


@op("elemwise", extension=True)
def clamp_learned(x: Activation, lo: FloatWeight, hi: FloatWeight) -> ValueType:
    """Limit to a learned range.

    Shapes: x [N, W] on any axis, lo, hi [1] -> [N, W], x's dtype
    Formula: fmin(fmax(x, lo[0]), hi[0])
    Rounding: once
    Rules:
        1. lo and hi are [1].
    Edge: NaN gives lo
    For: clipped linears of gemma_4's vision tower
    """
    has_shape(lo, (1,), 1, "lo")
    has_shape(hi, (1,), 1, "hi")
    return result(x)


@op("elemwise")
def copy(x: AnyValue) -> ValueType:
    """The same value again, bit for bit; any dtype.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: x
    Rounding: none
    For: any family
    """
    return result(x)


@op("elemwise", extension=True)
def cast(x: Activation, dtype: DtypeWord) -> ValueType:
    """Round to another activation dtype.

    Shapes: x [N, W] on any axis -> [N, W] of dtype
    Formula: x
    Rounding: once, to nearest even
    Rules:
        1. dtype is bf16, f16 or f32.
    For: f32 results that join a bf16 stream
    """
    holds(dtype.is_float, 1, "dtype", "bf16, f16 or f32", dtype)
    return result(x, dtype=dtype)


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


@op("elemwise")
def standardize(x: Activation, bias: FloatWeight, scale: FloatWeight) -> ValueType:
    """Shift and scale each column by stored numbers; no statistic is taken.

    Shapes: x [N, W] on any axis, bias, scale [W] -> [N, W], x's dtype
    Formula: (x[n, c] - bias[c]) * scale[c]
    Rounding: once
    Rules:
        1. bias and scale are [x.width].
    For: gemma_4's vision tower; latents of flux_2, wan_2, ltx_2
    """
    has_shape(bias, (x.width,), 1, "bias")
    has_shape(scale, (x.width,), 1, "scale")
    return result(x)


@op("elemwise")
def gate_sigmoid_mul(x: Activation, gate: Activation) -> ValueType:
    """Multiply by the sigmoid of a gate.

    Shapes: x, gate [N, W] on any axis, gate of x's dtype or f32 -> [N, W], x's dtype
    Formula: x * sigma(gate), sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. gate has x's axis and width, and its dtype or f32.
    For: output gates of qwen_3, qwen_4, glm_5_next, kimi_k3, muse_glimmer, ltx_2
    """
    like(gate, x, 1, "gate", or_f32=True)
    return result(x)


@op("elemwise", extension=True)
def gate_sigmoid_mul_heads(x: Activation, gate: Activation, head_dim: Count, scale: Number) -> ValueType:
    """Multiply each head by the scaled sigmoid of its own gate.

    Shapes: x [N, H*D] on any axis, D = head_dim, gate [N, H] of x's dtype or f32 -> [N, H*D], x's dtype
    Formula: y[n, h, :] = x[n, h, :] * scale * sigma(gate[n, h]), sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. x is whole heads of head_dim.
        2. gate is on x's axis, one column a head, of x's dtype or f32.
    For: ltx_2 (scale 2)
    """
    heads = width_divides(x, head_dim, 1, "x")
    on_axis(gate, x.rows, 2, "gate")
    has_width(gate, heads, 2, "gate")
    of_dtype(gate, x.dtype, 2, "gate", or_f32=True)
    return result(x)


@op("elemwise")
def silu(x: Activation) -> ValueType:
    """SiLU.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: x / (1 + e^-x)
    Rounding: once
    For: diffusion families (timestep networks, residual blocks)
    Public: `nn.SiLU`
    """
    return result(x)


@op("elemwise")
def gelu(x: Activation, tanh: Flag = False) -> ValueType:
    """GELU, by the error function unless tanh is asked for.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: 0.5 x (1 + erf(x / sqrt 2)); with tanh 0.5 x (1 + tanh(0.7978845608028654 (x + 0.044715 x^3)))
    Rounding: once
    For: wan_2, ltx_2, hunyuan (tanh = True); BERT encoders
    Public: `nn.GELU()` and `nn.GELU(approximate="tanh")`
    """
    return result(x)


@op("elemwise", extension=True)
def tanh(x: Activation) -> ValueType:
    """Hyperbolic tangent.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: tanh(x)
    Rounding: once
    For: gates outside modulate
    """
    return result(x)


@op("elemwise", extension=True)
def relu(x: Activation) -> ValueType:
    """Rectifier.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: max(x, 0)
    Rounding: none
    Edge: NaN stays NaN
    For: encoders with a plain rectifier
    Public: `nn.ReLU`
    """
    return result(x)


@op("elemwise", extension=True)
def relu2(x: Activation) -> ValueType:
    """Squared rectifier.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: max(x, 0)^2
    Rounding: once
    Edge: NaN stays NaN
    For: nemotron_h
    Public: activation `relu2` of transformers
    """
    return result(x)
