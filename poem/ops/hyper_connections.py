"""ops.elemwise: several residual streams: hyper-connections and the stream mixing of qwen_4.

M = stream_count streams of width H lie side by side, stream-major: `[N, M*H]`. Mixes, post and comb are f32.
"""

from poem.graph import ValueType
from poem.ops.checks import F32, has_shape, has_width, holds, like, of_dtype, on_axis, width_divides
from poem.ops.operands import Value
from poem.ops.record import Activation, Count, F32Value, FloatWeight, Number, op, result


@op("elemwise", extension=True)
def hc_expand(x: Activation, stream_count: Count) -> ValueType:
    """Start every stream as the same row.

    Shapes: x [N, H] on any axis, M = stream_count -> streams [N, M*H], x's dtype
    Formula: streams[n, s*H + c] = x[n, c]
    Rounding: none
    For: deepseek_v4, glm_5_next
    """
    return result(x, width=x.width * stream_count)


@op("elemwise", extension=True)
def hc_rmsnorm_f32(streams: Activation, eps: Number) -> ValueType:
    """RMS norm over all streams of a row, in f32 and without a gain.

    Shapes: streams [N, M*H] on any axis -> normed f32 [N, M*H]
    Formula: x / sqrt(mean(x^2) + eps), the mean over the whole row
    Rounding: none beyond f32
    Rules:
        1. eps >= 0.
    For: deepseek_v4, glm_5_next
    """
    holds(eps >= 0, 1, "eps", "at least 0", eps)
    return result(streams, dtype=F32)


@op("elemwise", extension=True)
def hc_project(normed: F32Value, dynamic: FloatWeight, stream_count: Count) -> ValueType:
    """The mixes of a row: a matrix product in f32.

    Shapes: normed f32 [N, M*H] on any axis, M = stream_count, dynamic [Q, M*H] with Q = 2M + M*M (for hc_gates) or M (for
        hc_collapse) -> mixes f32 [N, Q]
    Formula: mixes[n, q] = sum_c normed[n, c] * dynamic[q, c]
    Rounding: none beyond f32
    Rules:
        1. stream_count divides normed.width.
        2. dynamic is [2M + M*M, normed.width] or [M, normed.width].
    For: deepseek_v4, glm_5_next
    """
    m = stream_count
    width_divides(normed, m, 1, "normed")
    if dynamic.shape != (m, normed.width):
        has_shape(dynamic, (2 * m + m * m, normed.width), 2, "dynamic")
    return result(normed, width=dynamic.shape[0])


@op("elemwise", extension=True)
def hc_gates(
    mixes: F32Value,
    streams: Activation,
    scale: FloatWeight,
    base: FloatWeight,
    stream_count: Count,
    eps: Number,
    alpha: Number,
    sinkhorn: Count,
) -> list[ValueType]:
    """Read a block's input out of the streams, and the gates by which hc_fold writes its result back.

    Shapes: mixes f32 [N, 2M + M*M], M = stream_count, streams [N, M*H] on one axis, scale [3], base [2M + M*M]
        -> x [N, H], the streams' dtype; post f32 [N, M]; comb f32 [N, M*M]
    Formula: with sigma(z) = 1 / (1 + e^-z)
        pre_i = sigma(mix_i * scale_0 + base_i) + eps
        post_i = alpha * sigma(mix_{M+i} * scale_1 + base_{M+i})
        comb_ij starts as mix_{2M+iM+j} * scale_2 + base_{2M+iM+j} (row i the incoming stream, column j the outgoing):
        softmax over j, plus eps; each column divided by its sum + eps; then sinkhorn - 1 times: each row, then each column,
        divided by its sum + eps
        x = sum_i pre_i * stream_i
    Rounding: once, x; post and comb stay f32
    Rules:
        1. stream_count divides streams.width.
        2. mixes is on the streams' axis, 2M + M*M wide.
        3. scale is [3].
        4. base is [2M + M*M].
        5. eps >= 0.
    For: deepseek_v4, glm_5_next (alpha 2)
    Public: transformers' `DeepseekV4HyperConnection`, which rounds post and comb to the streams' dtype before mixing
    """
    m = stream_count
    width = width_divides(streams, m, 1, "streams")
    mixed = 2 * m + m * m
    on_axis(mixes, streams.rows, 2, "mixes")
    has_width(mixes, mixed, 2, "mixes")
    has_shape(scale, (3,), 3, "scale")
    has_shape(base, (mixed,), 4, "base")
    holds(eps >= 0, 5, "eps", "at least 0", eps)
    return [result(streams, width=width), result(streams, width=m, dtype=F32), result(streams, width=m * m, dtype=F32)]


@op("elemwise", extension=True)
def hc_fold(x: Activation, streams: Activation, post: F32Value, comb: F32Value) -> ValueType:
    """Mix the streams and write a block's result into them.

    Shapes: x [N, H], streams [N, M*H] of x's dtype, post f32 [N, M], comb f32 [N, M*M] on one axis -> streams' [N, M*H]
    Formula: out_j = post_j * x + sum_i comb[i, j] * stream_i, comb[i, j] in column i*M + j
    Rounding: once
    Rules:
        1. streams is on x's axis, of its dtype, and M whole rows of x.
        2. post is on x's axis, M wide.
        3. comb is on x's axis, M*M wide.
    For: deepseek_v4, glm_5_next
    Public: transformers' `DeepseekV4HyperConnection`
    """
    on_axis(streams, x.rows, 1, "streams")
    of_dtype(streams, x.dtype, 1, "streams")
    m = width_divides(streams, x.width, 1, "streams")
    on_axis(post, x.rows, 2, "post")
    has_width(post, m, 2, "post")
    on_axis(comb, x.rows, 3, "comb")
    has_width(comb, m * m, 3, "comb")
    return result(streams)


@op("elemwise", extension=True)
def hc_collapse(mixes: F32Value, streams: Activation, scale: FloatWeight, base: FloatWeight, stream_count: Count, eps: Number) -> ValueType:
    """Read one row out of the streams at the end of the trunk.

    Shapes: mixes f32 [N, M], M = stream_count, streams [N, M*H] on one axis, scale [1], base [M] -> x [N, H], streams' dtype
    Formula: x = sum_s (sigma(mix_s * scale_0 + base_s) + eps) * stream_s, sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. stream_count divides streams.width.
        2. mixes is on the streams' axis, M wide.
        3. scale is [1].
        4. base is [M].
        5. eps >= 0.
    For: deepseek_v4
    Public: transformers' `DeepseekV4HyperHead`
    """
    width = width_divides(streams, stream_count, 1, "streams")
    on_axis(mixes, streams.rows, 2, "mixes")
    has_width(mixes, stream_count, 2, "mixes")
    has_shape(scale, (1,), 3, "scale")
    has_shape(base, (stream_count,), 4, "base")
    holds(eps >= 0, 5, "eps", "at least 0", eps)
    return result(streams, width=width)


@op("elemwise", extension=True)
def hc_mean(streams: Activation, stream_count: Count) -> ValueType:
    """The mean of the streams.

    Shapes: streams [N, M*H] on any axis, M = stream_count -> x [N, H], the streams' dtype
    Formula: x = (sum_s stream_s) / M
    Rounding: once
    Rules:
        1. stream_count divides streams.width.
    For: glm_5_next, at the end
    Public: transformers' `Glm5NextTextHyperHead`
    """
    return result(streams, width=width_divides(streams, stream_count, 1, "streams"))


@op("elemwise", extension=True)
def hc_mix(gates: Activation, normed: Activation, stream_count: Count) -> ValueType:
    """The gated mean of the streams, element by element.

    Shapes: gates, normed [N, M*H] of one dtype on any axis, M = stream_count -> x [N, H], that dtype
    Formula: x = (sum_s sigma(gates_s) * normed_s) / M, sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. normed has the axis, width and dtype of gates.
        2. stream_count divides the width.
    For: qwen_4
    Public: transformers' `Qwen4ExpTextGatedResidual`
    """
    like(normed, gates, 1, "normed")
    return result(normed, width=width_divides(normed, stream_count, 2, "normed"))


@op("elemwise", extension=True)
def hc_inject(o: Activation, gates: Activation, stream_count: Count, hyper: Activation) -> ValueType:
    """Write a block's result into every stream, gated per stream.

    Shapes: o [N, H], gates [N, M], hyper [N, M*H] of one dtype on any one axis, M = stream_count -> hyper' [N, M*H]
    Formula: hyper'_s = hyper_s + 2 * sigma(gates_s / M) * o, sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. gates is on o's axis, of its dtype, M wide.
        2. hyper is on o's axis, of its dtype, M * o.width wide.
    For: qwen_4
    Public: transformers' `Qwen4ExpTextGatedResidual`
    """
    _beside(gates, o, stream_count, 1, "gates")
    _beside(hyper, o, stream_count * o.width, 2, "hyper")
    return result(hyper)


@op("elemwise", extension=True)
def ple_gate(key: Activation, query: Activation, value: Activation, stream_count: Count) -> ValueType:
    """Gate one value row into every stream by the agreement of the stream's key and query.

    Shapes: key, query [N, M*H], value [N, H] of one dtype on any one axis, M = stream_count -> y [N, M*H], key's dtype
    Formula: d_s = <key_s, query_s> / sqrt(H); y_s = sigma(sign(d_s) * sqrt(max(|d_s|, 1e-6))) * value,
        sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. stream_count divides key.width.
        2. query has key's axis, width and dtype.
        3. value is on key's axis, of its dtype, key.width / M wide.
    For: qwen_4
    Public: transformers' `Qwen4ExpTextPLELayer`
    """
    width = width_divides(key, stream_count, 1, "key")
    like(query, key, 2, "query")
    _beside(value, key, width, 3, "value")
    return result(key)


def _beside(value: Value, other: Value, width: int, rule: int, parameter: str) -> None:
    """The value has the axis and dtype of `other`, and this width."""
    on_axis(value, other.rows, rule, parameter)
    of_dtype(value, other.dtype, rule, parameter)
    has_width(value, width, rule, parameter)
