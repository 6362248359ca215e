"""ops.elemwise: rotations and blends of whole rows, and bias tables by distance."""

from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import has_shape, holds, like, width_divides
from poem.ops.record import Activation, Activations, Count, Flag, FloatWeight, InputsHandle, Number, op, result


@op("elemwise", extension=True)
def hadamard(x: Activation, block: Count, signs: FloatWeight | None = None) -> ValueType:
    """Rotate each run of columns by a Hadamard matrix, with signs where given.

    Shapes: x [N, W] on any axis, signs of +-1 [n] -> [N, W], x's dtype
    Formula: per run of B = block columns: y = H_B (signs * x) / sqrt(B); H_1 = [1], H_2n = [[H_n, H_n], [H_n, -H_n]]; the sign
        of column c is signs[c % n]
    Rounding: once
    Rules:
        1. block is a power of two.
        2. block divides x.width.
        3. signs has one axis.
    Edge: without signs the op is its own inverse
    For: qwen_3 with rotated keys and values (q, k, v before the append, o after)
    """
    holds(block & (block - 1) == 0, 1, "block", "a power of two", block)
    width_divides(x, block, 2, "x")
    if signs is not None:
        has_shape(signs, (None,), 3, "signs")
    return result(x)


@op("elemwise", extension=True)
def relative_bucket_bias(
    inputs: InputsHandle, embedding: FloatWeight, max_len: Count, buckets: Count, max_distance: Count, bidirectional: Flag
) -> ValueType:
    """T5's table of biases by head and signed distance, for dense(bias=).

    Shapes: embedding [buckets, H] -> table f32 [H, 2*max_len - 1] on the constant axis H; inputs is not read
    Formula: column d + max_len - 1 holds embedding[bucket(d), h], d = key index - query index. B = buckets:
        bidirectional: B is halved, base = B if d > 0 else 0, m = |d|; otherwise base = 0, m = max(-d, 0). e = B // 2
        bucket = base + m if m < e, else base + min(B - 1, e + floor(ln(m / e) / ln(max_distance / e) * (B - e)))
    Rounding: none
    Rules:
        1. embedding is [buckets, H].
        2. buckets is even and at least 4 with bidirectional, at least 2 without.
        3. max_distance > e.
    For: umT5 in wan_2, with sm_scale 1
    Public: `_relative_position_bucket` of transformers' T5
    """
    has_shape(embedding, (buckets, None), 1, "embedding")
    if bidirectional:
        holds(buckets >= 4 and buckets % 2 == 0, 2, "buckets", "even and at least 4", buckets)
    else:
        holds(buckets >= 2, 2, "buckets", "at least 2", buckets)
    exact = (buckets // 2 if bidirectional else buckets) // 2
    holds(max_distance > exact, 3, "max_distance", f"more than {exact}", max_distance)
    return ValueType(embedding.shape[1], 2 * max_len - 1, "f32")


@op("elemwise", extension=True)
def res_blend(
    prefix: Activation,
    blocks: Activations,
    norm: FloatWeight,
    eps: Number,
    proj: FloatWeight,
    scale: Number = 1.0,
    values: Literal["raw", "normed"] = "raw",
) -> ValueType:
    """Attention over the residual history: a softmax blend of earlier rows and the running one.

    Shapes: prefix [N, W] on any axis, blocks a list (may be empty) of values of prefix' type, norm, proj [W]
        -> y [N, W], prefix' dtype
    Formula: for every v of blocks, then prefix: l_v = scale * <v / sqrt(mean(v^2) + eps) * norm, proj>, in f32;
        y = sum_v softmax(l)_v * v (raw), or * v / sqrt(mean(v^2) + eps) * norm (normed)
    Rounding: once
    Rules:
        1. Every block has prefix' axis, width and dtype.
        2. norm and proj are [prefix.width].
        3. eps >= 0.
    For: kimi_k3
    Public: transformers' `Inkling2BlockAttentionResidual` is values normed, scale = W^-0.5, norm of ones
    """
    for block in blocks:
        like(block, prefix, 1, "blocks")
    has_shape(norm, (prefix.width,), 2, "norm")
    has_shape(proj, (prefix.width,), 2, "proj")
    holds(eps >= 0, 3, "eps", "at least 0", eps)
    return result(prefix)
