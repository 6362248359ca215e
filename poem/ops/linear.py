"""ops.linear: matrix products and gated units. Expert routing and products are in mixture.py."""

from typing import Literal

from poem.dtypes import Dtype
from poem.graph import ValueType
from poem.ops.checks import F32, has_shape, has_width, holds, like, of_dtype, on_axis, refuse, width_divides
from poem.ops.operands import Value, Weight
from poem.ops.record import Activation, AnyValue, AnyWeight, Count, DtypeWord, FloatWeight, Ids, Number, op, result


@op("linear")
def matmul(x: Activation, w: AnyWeight, out: DtypeWord | None = None) -> ValueType:
    """Matrix product with a weight, without bias.

    Shapes: x [N, K] on any axis, w [M, K] -> y [N, M], of x's dtype or f32
    Formula: y[n, m] = sum_k x[n, k] * w[m, k]
        With an a8 weight each row of x is first cut into runs of 128 columns (the last may be short) and replaced by
        q*s: s = max|x| / 448 over the run (1 if that is 0), q = e4m3(x/s), to nearest even, saturating at +-448.
    Rounding: once, when y is stored. With an a8 weight the exact products of codes are summed in f32 inside a run,
        multiplied by s_x * s_w, and the runs are summed in f32.
    Rules:
        1. w is a matrix.
        2. w.shape[1] == x.width.
        3. out is None or f32.
    For: every family; `out = dtype.f32` for router logits, which in bf16 tie where float32 models have no ties
    Public: `nn.Linear(bias=False)`. A Linear with a bias rounds once in torch, twice here (matmul, then add_bias).
    """
    return _product(x, w, out)


def _product(x: Value, w: Weight, out: Dtype | None) -> ValueType:
    has_shape(w, (None, None), 1, "w")
    if w.shape[1] != x.width:
        refuse(2, "w", f"is {list(w.shape)} but x is {x.width} wide", expected=f"[any, {x.width}]", found=w)
    holds(out is None or out is F32, 3, "out", "None or f32", out)
    return result(x, width=w.shape[0], dtype=out)


@op("linear")
def lm_head(x: Activation, w: AnyWeight, out: DtypeWord | None = None) -> ValueType:
    """The product with the vocabulary matrix: logits. An op of its own so that ranks may cut the vocabulary.

    Shapes: x [O, K] on any axis, w [V, K], often the embedding itself -> logits [O, V], of x's dtype or f32
    Formula: logits[o, v] = sum_k x[o, k] * w[v, k]
        An a8 weight replaces x by its activation codes as in matmul: runs of 128 columns, s = max|x| / 448 (1 if 0),
        q = e4m3(x/s), and q*s in place of x.
    Rounding: once, when the logits are stored
    Rules:
        1. w is a matrix.
        2. w.shape[1] == x.width.
        3. out is None or f32.
    Edge: no readouts, no rows
    For: every text family
    Public: `lm_head` of transformers' `*ForCausalLM`, many of which turn logits to float32 afterwards
    """
    return _product(x, w, out)


@op("linear")
def group_routes(x: AnyValue, groups: Count) -> ValueType:
    """The routes of a block-diagonal product: every row visits every group.

    Shapes: x [N, any], of which only the axis is used -> routes i32 [N, groups]
    Formula: routes[n, g] = g
    Rounding: none
    For: operand of matmul_grouped
    """
    return result(x, width=groups, dtype="i32")


@op("linear")
def matmul_grouped(x: Activation, w: AnyWeight, routes: Ids, groups: Count) -> ValueType:
    """Block-diagonal matrix product: each group of columns has its own matrix.

    Shapes: x [N, G*K] on any axis, w [G*M, K], routes of group_routes, G = groups -> y [N, G*M], x's dtype
    Formula: y[n, g*M + j] = sum_k x[n, g*K + k] * w[g*M + j, k]
        An a8 weight replaces x by its activation codes as in matmul; runs of 128 columns start afresh at each group.
    Rounding: once, when y is stored
    Rules:
        1. routes come from group_routes with the same number of groups, on x's axis.
        2. groups divides x.width and w.shape[0].
        3. w is a matrix with w.shape[1] == x.width / groups.
    For: deepseek_v4 (first output projection), draft heads of qwen_4 and deepseek_v4
    Public: transformers' `DeepseekV4GroupedLinear`
    """
    made = routes.made_by
    if made is None or made.op != "linear.group_routes" or made.attributes["groups"] != groups:
        wanted = f"group_routes(x, {groups})"
        refuse(1, "routes", f"were not made by {wanted}", code="forward.bad-attribute", expected=wanted, found=routes)
    on_axis(routes, x.rows, 1, "routes")
    width_divides(x, groups, 2, "x")
    has_shape(w, (None, x.width // groups), 3, "w")
    if w.shape[0] % groups:
        refuse(2, "w", f"has {w.shape[0]} rows, no multiple of {groups}", expected=f"a multiple of {groups}", found=w)
    return result(x, width=w.shape[0])


@op("linear")
def glu(
    x: Activation,
    inter: Count,
    act: Literal["silu", "gelu_tanh", "gelu", "situ"] = "silu",
    up: Activation | None = None,
    limit: Number | None = None,
    alpha: Number | None = None,
    beta: Number | None = None,
    up_cap: Number | None = None,
) -> ValueType:
    """Gated unit: an activated gate times the up projection.

    Shapes: without up: x [N, 2*inter], the gate g in columns 0 .. inter-1, the up projection u in the rest (halves,
        never interleaved). With up: x is the gate [N, inter] and up is [N, inter], of x's dtype or f32.
        Any axis -> y [N, inter], x's dtype
    Formula: limit L first: g = fmin(g, L), u = fmin(fmax(u, -L), L). Then
        alpha given:  y = (u + 1) * g * sigma(alpha * g)
        silu:         y = g * sigma(g) * u
        gelu_tanh:    y = 0.5 g (1 + tanh(0.7978845608028654 (g + 0.044715 g^3))) * u
        gelu:         y = 0.5 g (1 + erf(g / sqrt 2)) * u
        situ:         y = beta * tanh(g / beta) * sigma(g) * u', u' = up_cap * tanh(u / up_cap), or u without up_cap
        where sigma(z) = 1 / (1 + e^-z)
    Rounding: once, when y is stored
    Rules:
        1. x is 2*inter wide, or inter with up.
        2. up is [N, inter] on x's axis, of x's dtype or f32.
        3. alpha goes with act silu.
        4. beta is given exactly with act situ, and is not 0.
        5. up_cap goes with act situ, and is > 0.
        6. limit > 0.
    Edge: with a limit a NaN gate becomes L and a NaN up becomes -L; without one NaN propagates
    For: silu llama_3, qwen_*, muse_glimmer, minimax_h3, flux_2, z_image, hunyuan; gelu_tanh gemma_4 and umT5 in wan_2; limit
        deepseek_v4, glm_5_next; limit and alpha gpt_oss (7, 1.702), minimax_m3; situ kimi_k3
    Public: transformers' `LlamaMLP`, `GemmaMLP`, `T5DenseGatedActDense`, `DeepseekV4MLP`; `GptOssExperts`, whose checkpoint
        interleaves gate and up (de-interleave at import); situ is `Inkling2SoftcappedSwiGLU`. torch.clamp lets NaN through.
    """
    has_width(x, inter if up else 2 * inter, 1, "x")
    if up is not None:
        like(up, x, 2, "up", or_f32=True)
    holds(alpha is None or act == "silu", 3, "alpha", "None unless act is silu", alpha)
    if act == "situ":
        holds(beta is not None and beta != 0, 4, "beta", "a number other than 0 with act situ", beta)
    else:
        holds(beta is None, 4, "beta", "None unless act is situ", beta)
    holds(up_cap is None or (act == "situ" and up_cap > 0), 5, "up_cap", "None, or > 0 with act situ", up_cap)
    holds(limit is None or limit > 0, 6, "limit", "greater than 0", limit)
    return result(x, width=inter)


@op("linear")
def gelu_tanh(x: Activation) -> ValueType:
    """The tanh form of GELU.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: 0.5 x (1 + tanh(0.7978845608028654 (x + 0.044715 x^3)))
    Rounding: once
    For: vision towers of qwen_3, qwen_4, glm_5_next
    Public: activation `gelu_pytorch_tanh` of transformers
    """
    return result(x)


@op("linear", extension=True)
def rel_bias(x: Activation, w: FloatWeight, heads: Count, d_rel: Count, extent: Count) -> ValueType:
    """Learned biases by distance, one per head and distance, from each row.

    Shapes: x [N, H*d_rel] on any axis, H = heads, w [d_rel, extent] -> bias f32 [N, H*extent]
    Formula: bias[n, h*extent + e] = sum_j x[n, h*d_rel + j] * w[j, e]
    Rounding: none beyond f32
    Rules:
        1. x is heads * d_rel wide.
        2. w is [d_rel, extent].
    For: inkling, as attend(bias=)
    Public: transformers' `InklingRelativeLogits` before its gather by distance
    """
    has_width(x, heads * d_rel, 1, "x")
    has_shape(w, (d_rel, extent), 2, "w")
    return result(x, width=heads * extent, dtype=F32)


@op("linear", extension=True)
def lora_correct(x: Activation, bank_a: FloatWeight, bank_b: FloatWeight, routes: Ids, y: Activation) -> ValueType:
    """Add each row's low-rank adapter to a product already made. alpha / rank is folded into bank_b.

    Shapes: x [N, K] and y [N, M] on any one axis and of one dtype, bank_a [A, rank, K], bank_b [A, M, rank], routes i32 [N]
        (inputs.adapter_routes()) -> [N, M], x's dtype
    Formula: a = routes[n]: t = bank_a[a] @ x[n], y'[n] = y[n] + bank_b[a] @ t; routes[n] < 0: y[n] unchanged
    Rounding: twice: t to x's dtype, then y'
    Rules:
        1. y has x's axis and dtype.
        2. routes is one column on x's axis.
        3. bank_a is [A, rank, x.width].
        4. bank_b is [A, y.width, rank].
    Edge: a route from A on is a run-time error
    For: every text family that serves adapters
    """
    on_axis(y, x.rows, 1, "y")
    of_dtype(y, x.dtype, 1, "y")
    on_axis(routes, x.rows, 2, "routes")
    has_width(routes, 1, 2, "routes")
    has_shape(bank_a, (None, None, x.width), 3, "bank_a")
    adapters, rank, _ = bank_a.shape
    has_shape(bank_b, (adapters, y.width, rank), 4, "bank_b")
    return result(y)
