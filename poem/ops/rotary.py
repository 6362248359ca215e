"""ops.elemwise: rotary and sinusoidal position embeddings."""

from collections.abc import Sequence
from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import has_width, holds, of_dtype, on_axis, refuse, width_divides
from poem.ops.operands import Scaling
from poem.ops.record import Activation, Count, F32Value, Flag, Ids, Indices, Number, Numbers, RopeScaling, op, result

RopeForm = Literal["half", "interleaved", "proportional", "mrope_interleaved", "mrope_chunked", "mrope_blocked", "mrope_split"]


@op("elemwise")
def rope(
    q: Activation,
    k: Activation | None,
    positions: Ids,
    head_dim: Count,
    theta: Number,
    rotary_dim: Count | None = None,
    form: RopeForm = "half",
    part: Literal["first", "last"] = "first",
    scaling: RopeScaling | None = None,
    sections: Indices | None = None,
    inverse: Flag = False,
) -> ValueType | list[ValueType]:
    """Rotary position embedding of queries and keys: pairs of channels of each head turn by an angle that grows with position.

    Shapes: q [N, Hq*D], k [N, Hk*D] of q's dtype or None, D = head_dim, positions i32 [N], or [N, 3] for the mrope forms,
        on any one axis -> (q', k'), or q' alone when k is None
    Formula: R = rotary_dim or D; o = 0 (part first) or D - R (part last); f_i = theta^(-2i/R), changed by scaling.
        Every head is treated alike. A pair (a, b) at angle t becomes
            a' = m * (a cos t - b sin t),  b' = m * (b cos t + a sin t)
        with m the scaling's attention factor, else 1; inverse negates t. Channels in no pair are copied. By form:
        half:               pairs (o+i, o+i+R/2), i < R/2; angle pos * f_i
        interleaved:        pairs (o+2i, o+2i+1), i < R/2; angle pos * f_i
        proportional:       pairs (i, i+D/2), i < R/2; angle pos * theta^(-2i/D)
        mrope_interleaved:  pairs of half; angle pos[ax(i)] * f_i; ax = 1 if i%3 == 1 and i < 3*s1; 2 if i%3 == 2 and
                            i < 3*s2; else 0
        mrope_chunked:      pairs of half; angle pos[ax(i)] * f_i; ax = 0 for i < s0, 1 for i < s0+s1, else 2
        mrope_blocked:      pairs (i, i+D/2), i < S = s0+s1+s2; section a holds s_a consecutive pairs; angle
                            pos[a] * theta^(-2j/S), j the index inside the section
        mrope_split:        section a owns the 2*s_a channels from b = 2*(the earlier sections); pairs (b+j, b+s_a+j),
                            j < s_a; angle pos[a] * theta^(-j/s_a)
        sections = [s0, s1, s2] are pair counts for the position columns 0, 1, 2.
        scaling is linear, llama3, yarn or longrope; their formulas are with those functions.
    Rounding: once. Native frequencies are computed in float64 and rounded to f32, the angle is the f32 product of f32(pos)
        and f, cos and sin are f32. Exact mode is float64 throughout, so the two differ by about 6e-8 * angle: compare long
        positions in one mode.
    Rules:
        1. q and k are whole heads of head_dim channels.
        2. k has q's axis and dtype.
        3. positions is on q's axis, 3 wide for the mrope forms and 1 wide otherwise.
        4. theta > 0, and > 1 with yarn.
        5. rotary_dim is even and at most head_dim; without it head_dim is even. mrope_blocked and mrope_split take none.
        6. part last goes with half and interleaved.
        7. sections, three pair counts, go with the mrope forms and only with them.
        8. mrope_interleaved and mrope_chunked: the sections sum to R/2.
        9. mrope_blocked and mrope_split: the sections sum to at least 1 and at most head_dim/2.
        10. mrope_blocked and mrope_split take no scaling; proportional takes only linear.
        11. longrope has R/2 divisors; with use auto q is on tokens.
    For: half llama_3, qwen_3, gpt_oss (yarn without truncate), gemma_4's sliding layers, muse_glimmer; half with rotary_dim
        qwen_3.5, qwen_4, phi_3, glm_4_moe; interleaved glm_4, glm_5 (q_pe, k_pe); last interleaved deepseek_v4 (inverse on
        the attention output); proportional gemma_4's global layers; mrope_interleaved Qwen3-VL text; mrope_chunked Qwen2.5-VL;
        mrope_blocked Qwen and GLM towers (sections [0, D/4, D/4]); mrope_split gemma_4's tower ([0, D/4, D/4]; its first half
        turns with x, so column 1 holds the column position)
    Public: `apply_rotary_pos_emb` of transformers' Llama, Glm4, Qwen3_5, Qwen3VL, Qwen2_5_VL, DeepseekV4, Gemma4, and
        `ROPE_INIT_FUNCTIONS`. Most of those round cos and sin to bf16 in a bf16 run; here they stay f32. DeepSeek-V3's
        helper also re-orders channels, the same for q and k, so scores agree.
    """
    width_divides(q, head_dim, 1, "q")
    if k is not None:
        width_divides(k, head_dim, 1, "k")
        on_axis(k, q.rows, 2, "k")
        of_dtype(k, q.dtype, 2, "k")
    mrope = form.startswith("mrope_")
    on_axis(positions, q.rows, 3, "positions")
    has_width(positions, 3 if mrope else 1, 3, "positions")
    holds(theta > (1 if scaling is not None and scaling.kind == "yarn" else 0), 4, "theta", "> 0, and > 1 with yarn", theta)
    if rotary_dim is None:
        holds(head_dim % 2 == 0, 5, "head_dim", "even", head_dim)
        r = head_dim
    else:
        holds(rotary_dim % 2 == 0 and rotary_dim <= head_dim, 5, "rotary_dim", f"even and at most head_dim, {head_dim}", rotary_dim)
        holds(form not in ("mrope_blocked", "mrope_split"), 5, "rotary_dim", f"None with {form}: sections say what turns", rotary_dim)
        r = rotary_dim
    holds(part == "first" or form in ("half", "interleaved"), 6, "part", f"first with {form}", part)
    if mrope:
        _sections(form, sections, r, head_dim)
    else:
        holds(sections is None, 7, "sections", f"None with {form}", sections)
    if scaling is not None:
        _scaling(form, scaling, r, q.rows)
    return result(q) if k is None else [result(q), result(k)]


def _sections(form: str, sections: Sequence[int] | None, r: int, head_dim: int) -> None:
    if sections is None or len(sections) != 3:
        wanted = f"three pair counts with {form}"
        refuse(7, "sections", f"must be {wanted}", code="forward.bad-attribute", expected=wanted, found=sections)
    total, half = sum(sections), head_dim // 2
    if form in ("mrope_interleaved", "mrope_chunked"):
        holds(total == r // 2, 8, "sections", f"pair counts that sum to {r // 2}", f"{list(sections)}, sum {total}")
    else:
        holds(1 <= total <= half, 9, "sections", f"pair counts that sum to 1 .. {half}", f"{list(sections)}, sum {total}")


def _scaling(form: str, scaling: Scaling, r: int, rows: str | int) -> None:
    holds(form not in ("mrope_blocked", "mrope_split"), 10, "scaling", f"None with {form}", scaling.kind)
    holds(form != "proportional" or scaling.kind == "linear", 10, "scaling", "None or linear with proportional", scaling.kind)
    if scaling.kind == "longrope":
        found = len(scaling.settings["short"])
        holds(found == r // 2, 11, "scaling", f"longrope with {r // 2} divisors", f"{found} divisors")
        if scaling.settings["use"] == "auto" and rows != "tokens":
            refuse(11, "q", f"is on the axis {rows}; longrope in auto needs lanes", code="forward.axis", expected="tokens", found=rows)


@op("elemwise")
def rope_axes(
    x: Activation,
    positions: F32Value,
    dims: Indices,
    thetas: Numbers,
    form: Literal["interleaved", "split", "neox", "split_ladder"],
    rotary_dim: Count,
    head_dim: Count,
) -> ValueType:
    """Rotary embedding over several position axes, each with its own channels and base. One call per operand.

    Shapes: x [N, H*D] on any axis, D = head_dim, positions f32 [N, A], A = 1 .. 4, which may be fractional or negative; dims
        and thetas lists of A numbers, or of 4 padded with 0 -> [N, H*D], x's dtype
    Formula: axis a owns the channels of each head from b_a = dims[0] + .. + dims[a-1]; its pair i < dims[a]/2 turns by
        positions[n, a] * thetas[a]^(-2i/dims[a]); a pair (p, q) at angle t becomes (p cos t - q sin t, q cos t + p sin t).
        By form:
        interleaved:   pairs (b_a + 2i, b_a + 2i + 1)
        split:         pairs (b_a + i, b_a + dims[a]/2 + i)
        neox:          pair number c = b_a/2 + i is (c, c + rotary_dim/2)
        Channels from rotary_dim on are copied.
        split_ladder:  dims count channels of the whole row. Slot g = h*(D/2) + i of head h is the pair (i, i + D/2);
                       pad = (H*D - sum dims) / 2; g < pad: copied; else a = (g - pad) % A, f = (g - pad) // A, F = dims[0]/2,
                       angle positions[n, a] * thetas[a]^(f / (F - 1)), exponent 0 if F = 1
    Rounding: once. Native frequencies are computed in float64 and rounded to f32; angle, cos and sin are f32.
    Rules:
        1. x is whole heads of head_dim.
        2. positions is on x's axis, 1 to 4 wide.
        3. dims and thetas have one number per position column, or 4 padded with 0; dims are even; thetas are > 0.
        4. Except with split_ladder: dims sum to rotary_dim, and rotary_dim <= head_dim.
        5. With split_ladder: rotary_dim equals head_dim and is even, dims are equal and sum to at most x.width.
    For: interleaved flux_2 (dims 32 x 4, theta 2000), wan_2, z_image (theta 256); neox minimax_h3 (96 of 128); split
        hunyuan_image_3; split_ladder ltx_2 (positions scaled to (2u - 1) pi/2)
    Public: diffusers' `Flux2PosEmbed`, `WanRotaryPosEmbed`, `MiniMaxH3RotaryPosEmbed`,
        `LTX2AudioVideoRotaryPosEmbed(rope_type="split")`
    """
    width_divides(x, head_dim, 1, "x")
    on_axis(positions, x.rows, 2, "positions")
    axes = positions.width
    if axes > 4:
        refuse(2, "positions", f"is {axes} wide", expected="1 to 4 columns", found=positions)
    for name, listed in (("dims", dims), ("thetas", thetas)):
        padded = len(listed) == 4 and not any(listed[axes:])
        holds(len(listed) == axes or padded, 3, name, f"{axes} numbers, or 4 padded with 0", list(listed))
    holds(all(dim % 2 == 0 for dim in dims), 3, "dims", "even", list(dims))
    holds(all(theta > 0 for theta in thetas[:axes]), 3, "thetas", "greater than 0", list(thetas))
    total = sum(dims)
    if form == "split_ladder":
        holds(rotary_dim == head_dim and head_dim % 2 == 0, 5, "rotary_dim", f"head_dim, {head_dim}, and even", rotary_dim)
        holds(min(dims[:axes]) == max(dims[:axes]) > 0, 5, "dims", "equal and greater than 0", list(dims))
        holds(total <= x.width, 5, "dims", f"sizes that sum to at most {x.width}", f"{list(dims)}, sum {total}")
    else:
        holds(total == rotary_dim, 4, "dims", f"sizes that sum to rotary_dim, {rotary_dim}", f"{list(dims)}, sum {total}")
        holds(rotary_dim <= head_dim, 4, "rotary_dim", f"at most head_dim, {head_dim}", rotary_dim)
    return result(x)


@op("elemwise")
def sinusoid(t: F32Value, dim: Count, max_period: Number = 10000.0, flip_sin_cos: Flag = True, scale: Number = 1.0) -> ValueType:
    """Sinusoidal embedding of a number a row, such as a timestep.

    Shapes: t f32 [R, 1] on any axis -> e f32 [R, dim]
    Formula: h = dim/2, f_i = exp(-ln(max_period) * i / h), a_i = scale * (t * f_i); [cos a | sin a] with flip_sin_cos,
        [sin a | cos a] without
    Rounding: none beyond f32. f32 and float64 differ by about 6e-8 of the argument: compare large ones in one mode.
    Rules:
        1. t is one column.
        2. dim is even.
        3. max_period > 0.
    For: all diffusion families
    Public: diffusers' `get_timestep_embedding(downscale_freq_shift=0, flip_sin_to_cos=flip_sin_cos, scale=scale)`
    """
    has_width(t, 1, 1, "t")
    holds(dim % 2 == 0, 2, "dim", "even", dim)
    holds(max_period > 0, 3, "max_period", "greater than 0", max_period)
    return result(t, width=dim)
