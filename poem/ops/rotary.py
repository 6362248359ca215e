"""ops.elemwise: rotary and sinusoidal position embeddings."""

from collections.abc import Sequence
from typing import Literal

from poem.graph import ValueType
from poem.ops.checks import has_width, holds, of_dtype, on_axis, refuse, width_divides
from poem.ops.operands import Scaling
from poem.ops.record import Activation, Count, Flag, Ids, Indices, Number, RopeScaling, op, result

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
        with m the scaling's attention factor, else 1; inverse negates t. Channels in no pair are copied.
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
