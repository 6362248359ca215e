"""ops.linear: mixture of experts: routing, the experts' products, and their weighted sum."""

from typing import Annotated, Literal

from poem.graph import ValueType
from poem.ops.checks import has_shape, has_width, holds, like, multiplied, of_dtype, on_axis, refuse
from poem.ops.operands import Value
from poem.ops.record import Activation, AnyWeight, Count, F32Value, Flag, FloatWeight, Ids, Index, IntWeight, Kind, Number, op, result

RouterLogits = Annotated[Value, Kind("value", True, ("bf16", "f32"))]


@op("linear")
def moe_route(
    logits: RouterLogits,
    experts: Count,
    top_k: Count,
    score: Literal["softmax", "sigmoid", "sqrt_softplus"] = "softmax",
    bias: FloatWeight | None = None,
    expert_scale: FloatWeight | None = None,
    renormalize: Flag = True,
    scaling: Number = 1.0,
    groups: Count | None = None,
    group_top_k: Count | None = None,
    sinks: Index = 0,
    ids: Ids | None = None,
    table: IntWeight | None = None,
    group_score: Literal["max", "top2"] | None = None,
) -> list[ValueType]:
    """Choose each row's experts and their mixture weights.

    Shapes: logits [N, E+sinks] bf16 or f32 on any axis, E = experts; bias [E]; expert_scale [E+sinks] or [1]; ids i32 [N];
        table i32 or i64 [V, top_k] -> routes i32 [N, k'], weights f32 [N, k'], k' = top_k + sinks
    Formula: per row, z = logits in f32, a NaN logit counts as -inf:
        1. Scores f_e: softmax: over the first E columns; sigmoid: 1 / (1 + e^-z_e); sqrt_softplus: sqrt(softplus(z_e)) with
           softplus(z) = z if z > 20 else ln(1 + e^z). f_e = 0 where z_e = -inf.
        2. Choice value c_e = f_e + bias_e (0 without bias). With softmax and neither bias nor groups c_e = z_e: the same
           order, without ties made by rounding. Experts with z_e = -inf have c_e = -inf.
        3. Groups: E is cut into `groups` runs of consecutive experts. A group's value is its largest c ("max", the default
           with softmax) or the sum of its two largest ("top2", the default otherwise). The best group_top_k groups stay
           (ties: the lower group); the others get c = -inf.
        4. The top_k largest c in descending order, ties to the lower id. A slot left without a candidate (c = -inf) gets
           id -1.
        5. Hash form (ids and table) replaces 2 to 4: routes[n] = table[ids[n]]; an id outside 0 .. V-1 reads row 0; an
           expert outside 0 .. E-1 has score 0.
        6. Sinks: ids E .. E+sinks-1 are appended to every row in order, with their own f (no bias).
        7. Weights: w_s = f[route_s], never the biased value; 0 for id -1. With renormalize, and if their sum over all k'
           slots is > 0: divided by it. Then times scaling, then times expert_scale[route_s] ([1]: one factor for all).
    Rounding: none beyond f32
    Rules:
        1. logits is experts + sinks wide.
        2. top_k <= experts.
        3. groups divides experts.
        4. group_top_k goes with groups, is at most groups, and group_top_k * experts / groups >= top_k.
        5. group_score goes with groups; top2 needs groups of at least two experts.
        6. sinks go with sigmoid and sqrt_softplus.
        7. ids and table go together, without bias, groups and sinks.
        8. bias is [experts].
        9. expert_scale is [experts + sinks] or [1].
        10. ids is one column on the axis of logits; table is [V, top_k].
    Edge: a row of NaN gives ids -1 and weights 0; top_k = experts is fine
    For: softmax qwen_3, qwen_4, gpt_oss (bias added to the logits before), hunyuan_image_3, gemma_4 (expert_scale),
        deepseek_v2; sigmoid glm_5, glm_5_next, kimi_k3, deepseek_v3 (groups), inkling (sinks, expert_scale [1]);
        sqrt_softplus deepseek_v4 (also the hash form)
    Public: transformers' `DeepseekV2TopkRouter` (renormalize = False, groups by max), `DeepseekV3TopkRouter` (groups by top2),
        `Mistral4TopkRouter` (group_score top2), `DeepseekV4TopKRouter`, `DeepseekV4HashRouter`, `InklingTopkRouter`,
        `Gemma4TextRouter`, `GptOssTopKRouter`. Some add 1e-20 to the denominator or round the weights to bf16. Qwen MoE with
        `norm_topk_prob=False` is renormalize = False. torch.topk leaves ties open.
    """
    has_width(logits, experts + sinks, 1, "logits")
    holds(top_k <= experts, 2, "top_k", f"at most {experts} experts", top_k)
    if groups is None:
        holds(group_top_k is None, 4, "group_top_k", "None without groups", group_top_k)
        holds(group_score is None, 5, "group_score", "None without groups", group_score)
    else:
        holds(experts % groups == 0, 3, "groups", f"a divisor of {experts} experts", groups)
        size = experts // groups
        fewest = -(-top_k // size)
        wanted = f"{fewest} .. {groups}, so that {top_k} experts are left"
        holds(group_top_k is not None and fewest <= group_top_k <= groups, 4, "group_top_k", wanted, group_top_k)
        by_two = group_score == "top2" or (group_score is None and score != "softmax")
        holds(not by_two or size > 1, 5, "group_score", "max with groups of one expert", group_score)
    holds(sinks == 0 or score != "softmax", 6, "sinks", "0 with softmax", sinks)
    if (ids is None) != (table is None):
        missing = "ids" if ids is None else "table"
        message = "is missing: ids and table go together"
        refuse(7, missing, message, code="forward.bad-attribute", expected="both or none", found="one of them")
    if ids is not None and table is not None:
        holds(bias is None, 7, "bias", "None in the hash form", bias)
        holds(groups is None, 7, "groups", "None in the hash form", groups)
        holds(sinks == 0, 7, "sinks", "0 in the hash form", sinks)
        on_axis(ids, logits.rows, 10, "ids")
        has_width(ids, 1, 10, "ids")
        has_shape(table, (None, top_k), 10, "table")
    if bias is not None:
        has_shape(bias, (experts,), 8, "bias")
    if expert_scale is not None and expert_scale.shape != (1,):
        has_shape(expert_scale, (experts + sinks,), 9, "expert_scale")
    slots = top_k + sinks
    return [result(logits, width=slots, dtype="i32"), result(logits, width=slots, dtype="f32")]


@op("linear")
def moe_matmul_select(x: Activation, bank: AnyWeight, routes: Ids, top_k: Count, bias: FloatWeight | None = None) -> ValueType:
    """The product of each row with the matrix of each of its experts.

    Shapes: routes i32 [A, top_k] on any axis A; x [A, K] (row a serves all its slots) or [A*top_k, K], told apart by the
        axis; bank [E, M, K]; bias [E, M] -> y [A*top_k, M], x's dtype; row a*top_k + s is slot s of row a
    Formula: y[a*top_k + s] = bank[e] @ x_row + bias[e], e = routes[a, s]; e < 0 gives a zero row, without bias
        An a8 bank replaces x by its activation codes: runs of 128 columns, s = max|x| / 448 (1 if 0), q = e4m3(x/s), and
        q*s in place of x.
    Rounding: once, after the bias
    Rules:
        1. routes is top_k wide.
        2. x is on the axis of routes, or on that axis times top_k.
        3. bank is [E, M, x.width].
        4. bias is [E, M].
    Edge: a route from E on is a run-time error; a route may repeat. With sinks the bank holds E + sinks experts.
    For: all mixture families; bias gpt_oss
    Public: the per-expert products of transformers' `*Experts` classes
    """
    has_width(routes, top_k, 1, "routes")
    rows = multiplied(routes, top_k, 2, "routes")
    if x.rows not in (routes.rows, rows):
        refuse(2, "x", f"is on the axis {x.rows}", code="forward.axis", expected=f"{routes.rows} or {rows}", found=x)
    has_shape(bank, (None, None, x.width), 3, "bank")
    experts, m, _ = bank.shape
    if bias is not None:
        has_shape(bias, (experts, m), 4, "bias")
    return result(x, rows=rows, width=m)


@op("linear")
def moe_weighted_sum(routed: Activation, weights: F32Value, routes: Ids | None = None, bias: FloatWeight | None = None) -> ValueType:
    """Sum each row's expert results by their mixture weights.

    Shapes: weights f32 [A, k] on any axis A, routed [A*k, D], routes i32 [A, k], bias [E, D] -> y [A, D], routed's dtype
    Formula: y[a] = sum_s weights[a, s] * (routed[a*k + s] + bias[routes[a, s]]), summed in slot order, bias 0 if absent.
        With routes, slots with a route < 0 are skipped; without, nothing is skipped (0 times NaN is NaN).
    Rounding: once, after the sum
    Rules:
        1. routed is on the axis of weights times k.
        2. routes has the axis and width of weights.
        3. bias goes with routes and is [E, routed.width].
    Edge: a route outside 0 .. E-1 that is not negative is a run-time error
    For: all mixture families; bias gpt_oss (its down bias)
    Public: the index_add of transformers' `*Experts`; gpt-oss adds the bias before weighting, the same sum
    """
    on_axis(routed, multiplied(weights, weights.width, 1, "weights"), 1, "routed")
    if routes is not None:
        on_axis(routes, weights.rows, 2, "routes")
        has_width(routes, weights.width, 2, "routes")
    if bias is not None:
        holds(routes is not None, 3, "routes", "given with bias", routes)
        has_shape(bias, (None, routed.width), 3, "bias")
    return result(routed, rows=weights.rows)


@op("linear", extension=True)
def moe_bias_sum(x: Activation, bias: FloatWeight, routes: Ids, weights: F32Value) -> ValueType:
    """Add the experts' biases by their mixture weights to a sum already made.

    Shapes: x [A, D] on any axis, bias [E, D], routes i32 and weights f32 [A, k] -> [A, D], x's dtype
    Formula: y[a] = x[a] + sum_s weights[a, s] * bias[routes[a, s]]; slots with a route < 0 are skipped
    Rounding: once
    Rules:
        1. routes and weights are on x's axis and of one width.
        2. bias is [E, x.width].
    Edge: a route from E on is a run-time error
    For: gpt_oss spelled in two ops. Exact mode equals moe_weighted_sum with bias; native mode rounds once more.
    """
    on_axis(routes, x.rows, 1, "routes")
    on_axis(weights, x.rows, 1, "weights")
    has_width(weights, routes.width, 1, "weights")
    has_shape(bias, (None, x.width), 2, "bias")
    return result(x)


@op("linear", extension=True)
def moe_sigmoid_gate_add(routed: Activation, shared: Activation, gate: Activation) -> ValueType:
    """Add the shared expert, gated by one number a row, to the routed experts' sum.

    Shapes: routed, shared [N, D] of one dtype on any axis, gate [N, 1] of that dtype or f32 -> [N, D], routed's dtype
    Formula: y[n] = routed[n] + shared[n] * sigma(gate[n, 0]), sigma(z) = 1 / (1 + e^-z)
    Rounding: once
    Rules:
        1. shared has routed's axis, width and dtype.
        2. gate is one column on routed's axis, of routed's dtype or f32.
    For: qwen_3 and qwen_4 mixtures
    Public: the gated shared expert of transformers' `Qwen3NextSparseMoeBlock`
    """
    like(shared, routed, 1, "shared")
    on_axis(gate, routed.rows, 2, "gate")
    has_width(gate, 1, 2, "gate")
    of_dtype(gate, routed.dtype, 2, "gate", or_f32=True)
    return result(routed)
