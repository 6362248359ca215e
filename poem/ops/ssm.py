"""ops.ssm: short convolutions, linear attention and state-space recurrences, each over a state slab per sequence.

An op with a state reads its lane's slab, runs over the lane's rows of this pass in order, in f32, and stores the slab after
the last of them (after the first commit_len rows, where a pass states that), rounded once to the slab's dtype. Lanes without
rows keep their slab; a fresh slab is zero. A chunked algorithm is an implementation's choice and agrees with the recurrence.
"""

from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import F32, has_shape, has_slab, has_width, holds, like, of_dtype, on_axis, refuse, width_divides
from poem.ops.operands import CacheHandle, Value, Weight
from poem.ops.record import (
    INT_LIMIT,
    Activation,
    Count,
    Counts,
    F32Value,
    FloatWeight,
    I32Weight,
    Ids,
    Index,
    Indices,
    Integers,
    Number,
    State,
    op,
    result,
)

INT64 = 2**63


@op("ssm")
def gdn_gates(ba: Activation, dt_bias: FloatWeight, a_log: FloatWeight) -> ValueType:
    """The gates of a gated delta net: log decay and write strength.

    Shapes: ba [N, 2*Hv] = [b | a] on any axis, dt_bias, a_log [Hv] -> gates f32 [N, 2*Hv] = [g | beta]
    Formula: g = -exp(a_log) * softplus(a + dt_bias), which is <= 0; beta = 1 / (1 + e^-b);
        softplus(z) = z if z > 20 else ln(1 + e^z)
    Rounding: none beyond f32
    Rules:
        1. ba has an even width.
        2. dt_bias and a_log are [ba.width / 2].
    For: qwen_3, qwen_4
    Public: transformers' `Qwen3NextGatedDeltaNet`, whose in_proj_ba is interleaved per key head (re-order at import)
    """
    heads = width_divides(ba, 2, 1, "ba")
    has_shape(dt_bias, (heads,), 2, "dt_bias")
    has_shape(a_log, (heads,), 2, "a_log")
    return result(ba, dtype=F32)


def _convolution(x: Value, weight: Weight, state: CacheHandle, conv_width: int, dilation: int) -> None:
    """Rules 1 to 3 of the convolutions."""
    on_axis(x, "tokens", 1, "x")
    has_shape(weight, (x.width, conv_width), 2, "weight")
    reach = (conv_width - 1) * dilation
    if state.cache.slab != (reach, x.width):
        has_slab(state, (reach + 1, x.width), 3, "state")
    has_slab(state, state.cache.slab, 3, "state")


@op("ssm", "state", also=("causal_conv1d_chunked",))
def causal_conv1d(
    x: Activation,
    weight: FloatWeight,
    state: State,
    conv_width: Count,
    bias: FloatWeight | None = None,
    act: Literal["silu", "none"] = "silu",
    dilation: Count = 1,
) -> ValueType:
    """Depthwise causal convolution over the rows of each lane, then an activation.

    Shapes: x [N, C] on tokens, weight [C, K], K = conv_width, bias [C]; state a slab [span, C], oldest row first,
        span = (K-1)*dilation + 1 (or one row less) -> y [N, C], x's dtype
    Formula: for row i of the lane a_i = bias + sum_k weight[c, k] * x_{i - (K-1-k)*dilation}; y_i = a_i / (1 + e^-a_i) (silu) or
        a_i (none). Tap K-1 meets the current row; row -m of the lane, m >= 1, is slab row span - m.
        State after n rows: slab row s is the lane's row n - span + s; older slab rows slide down when n < span. It holds raw
        inputs.
    Rounding: once, y; the slab once, when stored
    Rules:
        1. x is on tokens.
        2. weight is [x.width, conv_width].
        3. state has a float slab [span, x.width] or [span - 1, x.width].
        4. bias is [x.width].
    For: qwen_3, qwen_4, glm_5_next, kimi_k3 (silu, no bias); qwen_4's n-gram rows (dilation); mamba, mamba_2, bamba,
        nemotron_h (bias); lfm_2 (act none)
    Public: `causal_conv1d_fn` and `causal_conv1d_update`; transformers keeps the state as [C, K]
    """
    _convolution(x, weight, state, conv_width, dilation)
    if bias is not None:
        has_shape(bias, (x.width,), 4, "bias")
    return result(x)


@op("ssm", "state", extension=True, also=("short_conv_chunked",))
def short_conv(x: Activation, weight: FloatWeight, state: State, conv_width: Count) -> ValueType:
    """A depthwise causal convolution added to its input, without bias and activation.

    Shapes: x [N, C] on tokens, weight [C, K], K = conv_width; state a slab [K, C], oldest row first (or [K-1, C])
        -> y [N, C], x's dtype
    Formula: y_i = x_i + sum_k weight[c, k] * x_{i - (K-1-k)}; rows before the lane's first come from the slab, which then holds
        the lane's last raw inputs
    Rounding: once, after the sum in f32; the slab once, when stored
    Rules:
        1. x is on tokens.
        2. weight is [x.width, conv_width].
        3. state has a float slab [conv_width, x.width] or [conv_width - 1, x.width].
    For: inkling
    Public: transformers' `InklingShortConvolution`; Inkling-2 also divides by sqrt(K+1) (mul_scalar)
    """
    _convolution(x, weight, state, conv_width, 1)
    return result(x)


@op("ssm", "state", extension=True)
def gated_delta(qkv: Activation, gates: F32Value, state: State, k_heads: Count, v_heads: Count, k_dim: Count, v_dim: Count) -> ValueType:
    """The gated delta rule: a decaying key-value memory that corrects what it holds under each key.

    Shapes: qkv [N, 2*Hk*Dk + Hv*Dv] = [q | k | v] on tokens, after the convolution; gates f32 [N, 2*Hv] = [g | beta] of
        gdn_gates; state a slab [Hv, Dk, Dv]; Hk = k_heads, Hv = v_heads, Dk = k_dim, Dv = v_dim -> y f32 [N, Hv*Dv]
    Formula: q = q / sqrt(sum q^2 + 1e-6) * Dk^-0.5 and k = k / sqrt(sum k^2 + 1e-6) per key head; value head h uses key head
        h // (Hv/Hk). Per row and value head:
        S <- e^g S;  d = beta * (v - S^T k);  S <- S + k d^T;  y = S^T q
    Rounding: none beyond f32; the slab once, when stored
    Rules:
        1. qkv is on tokens, 2*Hk*Dk + Hv*Dv wide.
        2. gates is on tokens, 2*Hv wide.
        3. state has a float slab [Hv, Dk, Dv].
        4. k_heads divides v_heads.
    For: qwen_3, qwen_4
    Public: transformers' `torch_recurrent_gated_delta_rule` and `torch_chunk_gated_delta_rule` with
        `use_qk_l2norm_in_kernel=True`; FLA `chunk_gated_delta_rule`
    """
    on_axis(qkv, "tokens", 1, "qkv")
    has_width(qkv, 2 * k_heads * k_dim + v_heads * v_dim, 1, "qkv")
    on_axis(gates, "tokens", 2, "gates")
    has_width(gates, 2 * v_heads, 2, "gates")
    has_slab(state, (v_heads, k_dim, v_dim), 3, "state")
    holds(v_heads % k_heads == 0, 4, "k_heads", f"a divisor of {v_heads} value heads", k_heads)
    return result(qkv, width=v_heads * v_dim, dtype=F32)


@op("ssm", "state", extension=True)
def kda(
    mixed: Activation,
    f: Activation,
    b: Activation,
    dt_bias: FloatWeight,
    a_log: FloatWeight,
    state: State,
    heads: Count,
    head_dim: Count,
    norm_eps: Number,
    gate_floor: Number,
) -> ValueType:
    """Kimi delta attention: the delta rule with a decay for every key channel.

    Shapes: mixed [N, 3*H*D] = [q | k | v] on tokens, after the convolution; f [N, H*D], b [N, H] of mixed's dtype; dt_bias
        [H*D], a_log [H]; state a slab [H, Dv, Dk], key index fastest, Dv = Dk = D; H = heads, D = head_dim -> y f32 [N, H*D]
    Formula: q = q / sqrt(sum q^2 + norm_eps) * D^-0.5, k = k / sqrt(sum k^2 + norm_eps) per head; z = f + dt_bias,
        A = e^(a_log[h]), sigma(z) = 1 / (1 + e^-z), softplus(z) = z if z > 20 else ln(1 + e^z); per key channel
        g = -A * softplus(z) if gate_floor = 0, else g = gate_floor * sigma(A * z). Per row and head:
        S[:, j] <- e^(g_j) S[:, j];  d = sigma(b) * (v - S k);  S <- S + d k^T;  y = S q
    Rounding: none beyond f32; the slab once, when stored
    Rules:
        1. mixed is on tokens, 3 * heads * head_dim wide.
        2. f is on tokens, of mixed's dtype, heads * head_dim wide.
        3. b is on tokens, of mixed's dtype, heads wide.
        4. dt_bias is [heads * head_dim], a_log [heads].
        5. state has a float slab [heads, head_dim, head_dim].
        6. norm_eps >= 0.
        7. gate_floor <= 0.
    For: kimi_k3, kimi_linear (gate_floor 0), glm_5_next (-5)
    Public: transformers' `recurrent_kimi_delta_attention`, `chunk_kimi_delta_attention`; FLA `chunk_kda`, whose state is the
        transpose [H, Dk, Dv]
    """
    on_axis(mixed, "tokens", 1, "mixed")
    has_width(mixed, 3 * heads * head_dim, 1, "mixed")
    for name, given, width, rule in (("f", f, heads * head_dim, 2), ("b", b, heads, 3)):
        on_axis(given, "tokens", rule, name)
        of_dtype(given, mixed.dtype, rule, name)
        has_width(given, width, rule, name)
    has_shape(dt_bias, (heads * head_dim,), 4, "dt_bias")
    has_shape(a_log, (heads,), 4, "a_log")
    has_slab(state, (heads, head_dim, head_dim), 5, "state")
    holds(norm_eps >= 0, 6, "norm_eps", "at least 0", norm_eps)
    holds(gate_floor <= 0, 7, "gate_floor", "at most 0", gate_floor)
    return result(mixed, width=heads * head_dim, dtype=F32)


@op("ssm", "state", extension=True)
def ssd_scan(
    x: Activation,
    dt: Activation,
    a_log: FloatWeight,
    d: FloatWeight,
    dt_bias: FloatWeight,
    state: State,
    heads: Count,
    head_dim: Count,
    groups: Count,
    state_dim: Count,
    dt_min: Number = 0.0,
    dt_max: Number | None = None,
) -> ValueType:
    """Mamba-2's state-space recurrence: one decay a head.

    Shapes: x [N, H*P + 2*G*S] = [x | B | C] on tokens, after the convolution; dt [N, H], raw, of x's dtype or f32; a_log, d,
        dt_bias [H]; state a slab [H, P, S]; H = heads, P = head_dim, G = groups, S = state_dim -> y f32 [N, H*P]
    Formula: D_t = clip(softplus(dt + dt_bias), dt_min, dt_max), without an upper bound if dt_max is None;
        softplus(z) = z if z > 20 else ln(1 + e^z); head h uses group g = h // (H/G)
        S_h[p, s] <- e^(-e^(a_log[h]) * D_t) * S_h[p, s] + D_t * x[h, p] * B[g, s]
        y[h, p] = sum_s S_h[p, s] * C[g, s] + d[h] * x[h, p]
    Rounding: none beyond f32; the slab once, when stored
    Rules:
        1. x is on tokens, H*P + 2*G*S wide.
        2. dt is on tokens, heads wide, of x's dtype or f32.
        3. a_log, d and dt_bias are [heads].
        4. state has a float slab [heads, head_dim, state_dim].
        5. groups divides heads.
        6. dt_min >= 0 and dt_max > dt_min.
    For: mamba_2, nemotron_h, falcon_h1, bamba, granite_hybrid. The gate comes after: rmsnorm_gated(y, z, norm, H*P/G, eps,
        "silu", gate_first = True), or glu(z, H*P, up = y) in a model without that norm.
    Public: transformers' `Mamba2Mixer`, mamba_ssm's `mamba_chunk_scan_combined`. transformers clips dt only in the chunk scan,
        not in the step of one token; here always.
    """
    on_axis(x, "tokens", 1, "x")
    has_width(x, heads * head_dim + 2 * groups * state_dim, 1, "x")
    on_axis(dt, "tokens", 2, "dt")
    has_width(dt, heads, 2, "dt")
    of_dtype(dt, x.dtype, 2, "dt", or_f32=True)
    for name, given in (("a_log", a_log), ("d", d), ("dt_bias", dt_bias)):
        has_shape(given, (heads,), 3, name)
    has_slab(state, (heads, head_dim, state_dim), 4, "state")
    holds(heads % groups == 0, 5, "groups", f"a divisor of {heads} heads", groups)
    holds(dt_min >= 0, 6, "dt_min", "at least 0", dt_min)
    holds(dt_max is None or dt_max > dt_min, 6, "dt_max", f"greater than dt_min, {dt_min}", dt_max)
    return result(x, width=heads * head_dim, dtype=F32)


@op("ssm", "state", extension=True)
def selective_scan(
    x: Activation,
    dt: Activation,
    b: Activation,
    c: Activation,
    a_log: FloatWeight,
    d: FloatWeight,
    dt_bias: FloatWeight,
    state: State,
    gate: Activation | None = None,
) -> ValueType:
    """Mamba-1's state-space recurrence: a decay for every channel and state.

    Shapes: x [N, I] on tokens, after the convolution; dt [N, I], its projection without the bias; b, c [N, S]; dt, b, c of x's
        dtype or f32; gate [N, I] of x's dtype; a_log [I, S], d, dt_bias [I]; state a slab [I, S] -> y [N, I], x's dtype
    Formula: D_t = softplus(dt + dt_bias), softplus(z) = z if z > 20 else ln(1 + e^z)
        S[i, s] <- e^(-e^(a_log[i, s]) * D_t[i]) * S[i, s] + D_t[i] * x[i] * b[s]
        y[i] = (sum_s S[i, s] * c[s] + d[i] * x[i]) * gate[i] / (1 + e^-gate[i]); without gate that factor is 1
    Rounding: once, y; the slab once, when stored
    Rules:
        1. x is on tokens.
        2. dt has x's axis and width, and its dtype or f32.
        3. b is on tokens, of x's dtype or f32; c has b's width, and is likewise.
        4. a_log is [x.width, b.width].
        5. d and dt_bias are [x.width].
        6. state has a float slab [x.width, b.width].
        7. gate has x's axis, width and dtype.
    For: mamba
    Public: transformers' `MambaMixer`, mamba_ssm's `selective_scan_fn`
    """
    on_axis(x, "tokens", 1, "x")
    like(dt, x, 2, "dt", or_f32=True)
    for name, given in (("b", b), ("c", c)):
        on_axis(given, "tokens", 3, name)
        of_dtype(given, x.dtype, 3, name, or_f32=True)
    has_width(c, b.width, 3, "c")
    has_shape(a_log, (x.width, b.width), 4, "a_log")
    has_shape(d, (x.width,), 5, "d")
    has_shape(dt_bias, (x.width,), 5, "dt_bias")
    has_slab(state, (x.width, b.width), 6, "state")
    if gate is not None:
        like(gate, x, 7, "gate")
    return result(x)


@op("ssm", "state", extension=True)
def ngram_ids(
    ids: Ids,
    state: State,
    eos: Index,
    mults: Integers,
    primes: Counts,
    offsets: Indices,
    heads_per_ngram: Count,
    map: I32Weight | None = None,
) -> ValueType:
    """Hash the last tokens into ids of n-gram tables.

    Shapes: ids i32 [N] on tokens; G = len(mults), the largest n-gram; primes and offsets of J = (G-1)*heads_per_ngram numbers;
        map i32 [V]; state an i32 slab [G-1], newest last, which holds id + 1 (0: nothing yet, read as eos) -> out i32 [N, J]
    Formula: w_0 = id_t, w_p = id_{t-p} through the slab; once some w_p with p >= 1 is eos, all older ones count as eos. map, if
        given, is applied to every w afterwards. For the orders o = 2 .. G:
        mix = XOR over p < o of w_p * mults[p], in wrapping signed 64-bit integers; for k = 0 .. heads_per_ngram - 1, with
        j = (o-2)*heads_per_ngram + k: out[j] = (mix mod primes[j]) + offsets[j], mod giving 0 .. primes[j]-1
    Rounding: none
    Rules:
        1. ids is one column on tokens.
        2. mults are at least two 64-bit integers.
        3. primes and offsets are (G-1) * heads_per_ngram numbers each.
        4. Every primes[j] + offsets[j] is at most 2**31.
        5. state has an i32 slab [G-1].
        6. map has one axis.
    Edge: an id outside map reads entry 0
    For: n-gram memories of qwen_4 and deepseek_v4, read by embed_concat
    Public: transformers' `Qwen4ExpTextNGramEmbedding`
    """
    on_axis(ids, "tokens", 1, "ids")
    has_width(ids, 1, 1, "ids")
    fits = len(mults) >= 2 and all(-INT64 <= mult < INT64 for mult in mults)
    holds(fits, 2, "mults", "at least two integers of 64 bits", list(mults))
    columns = (len(mults) - 1) * heads_per_ngram
    for name, listed in (("primes", primes), ("offsets", offsets)):
        holds(len(listed) == columns, 3, name, f"{columns} numbers", f"{len(listed)} numbers")
    small = all(prime + offset <= INT_LIMIT for prime, offset in zip(primes, offsets, strict=True))
    holds(small, 4, "offsets", "such that every primes[j] + offsets[j] is at most 2**31", list(offsets))
    if state.cache.slab != (len(mults) - 1,) or state.cache.dtype != "i32":
        found = f"{list(state.cache.slab)} {state.cache.dtype}"
        refuse(5, "state", f"has a slab {found}", expected=f"[{len(mults) - 1}] i32", found=found)
    if map is not None:
        has_shape(map, (None,), 6, "map")
    return result(ids, width=columns)
