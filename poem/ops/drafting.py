"""ops.attn: what block drafters use beside attention."""

from poem.graph import ValueType
from poem.ops.checks import has_shape, has_width, holds, of_dtype, on_axis, width_divides
from poem.ops.record import Activation, Count, F32Value, FloatWeight, Ids, Index, op, result


@op("attn", extension=True)
def block_dyn_conv(x: Activation, coeff: Activation, base: FloatWeight, side: Index, taps: Count, group: Count) -> ValueType:
    """A causal convolution inside each lane's rows of this pass, whose taps each row adjusts.

    Shapes: x [N, C] on tokens, G = C / group, coeff [N, 2*taps*G] of x's dtype, base [2*taps, C], side 0 or 1
        -> y [N, C], x's dtype
    Formula: for row i of a lane's rows of this pass
        y_i[c] = sum over t = 0 .. min(i, taps - 1) of
                 (base[side*taps + t, c] + coeff[i, (side*taps + t)*G + c//group]) * x_{i-t}[c]
    Rounding: once; no state is kept
    Rules:
        1. x is on tokens.
        2. group divides x.width.
        3. coeff is on tokens, of x's dtype, 2 * taps * G wide.
        4. base is [2 * taps, x.width].
        5. side is 0 or 1.
    For: block drafters
    """
    on_axis(x, "tokens", 1, "x")
    groups = width_divides(x, group, 2, "x")
    on_axis(coeff, "tokens", 3, "coeff")
    of_dtype(coeff, x.dtype, 3, "coeff")
    has_width(coeff, 2 * taps * groups, 3, "coeff")
    has_shape(base, (2 * taps, x.width), 4, "base")
    holds(side in (0, 1), 5, "side", "0 or 1", side)
    return result(x)


@op("attn", extension=True)
def selector_walk(
    cand: Ids, unary: F32Value, hp: Activation | None, tokens: Ids, pred: FloatWeight, succ: FloatWeight, first: Index
) -> ValueType:
    """Walk along a drafted block and pick one candidate a row, each by its own score and by the pick before it.

    Shapes: cand i32 [N, k], unary f32 [N, k], hp [N, r] of any activation dtype or None (ones), tokens i32 [N] on tokens;
        pred, succ [V, r]; first 0 or 1 -> picks i32 [N, 1]
    Formula: per lane, rows in order from `first`: score_c = unary_c + sum_d pred[prev, d] * hp_d * succ[cand_c, d]; the pick is
        cand of the best score. prev starts as the lane's first token, then is the previous pick. With first = 1 row 0 picks
        its slot 0.
    Rounding: none beyond f32
    Rules:
        1. cand is on tokens.
        2. unary is on tokens, as wide as cand.
        3. tokens is one column on tokens.
        4. pred is [V, r] and succ has its shape.
        5. hp is on tokens, r wide.
        6. first is 0 or 1.
    Edge: ties go to the lower slot
    For: block drafters
    """
    on_axis(cand, "tokens", 1, "cand")
    on_axis(unary, "tokens", 2, "unary")
    has_width(unary, cand.width, 2, "unary")
    on_axis(tokens, "tokens", 3, "tokens")
    has_width(tokens, 1, 3, "tokens")
    has_shape(pred, (None, None), 4, "pred")
    has_shape(succ, pred.shape, 4, "succ")
    if hp is not None:
        on_axis(hp, "tokens", 5, "hp")
        has_width(hp, pred.shape[1], 5, "hp")
    holds(first in (0, 1), 6, "first", "0 or 1", first)
    return result(cand, width=1)
