"""Faults to plant in the shipped packages: each must be found, and named at the right line.

The checker is checked by these. A fault replaces `old` by `new` in one file, once; the golden of `model` is then compared.
In exact mode each of them shows; in native mode bf16 hides the smallest (an eps of 1e-6 in the place of 1e-5).
The line to report is the first one, in the order of execution, whose result is not the original's although its operands
are, or that is handed a right value in the place of another (a residual left out shows at the norm that reads it).
Where the original keeps no tensor that a value could be compared with, the next line that has one is reported.
"""

from typing import NamedTuple


class Fault(NamedTuple):
    """One wrong line.

    name: what is wrong, in words.
    model: the id of the mini whose golden must show it.
    file: the text it is in, below models/.
    old, new: the text replaced, which is there exactly once, and its replacement.
    layer: the layer of the first divergence; None outside the layers.
    line_text: the line that must be reported, as the faulty file has it, without indentation.
    """

    name: str
    model: str
    file: str
    old: str
    new: str
    layer: int | None
    line_text: str


BLOCKS, LLAMA, MISTRAL, QWEN = "lib/blocks.poem", "llama_3.poem", "mistral.poem", "qwen_2.poem"

# Lines of the packages, as they are.
EMBED = "y = ops.gather.embed(inputs.tokens(), m.embed, m.vocab)"
ATTN_NORM = "x = ops.elemwise.rmsnorm(y, w.attn_norm, m.eps)"
Q, K, V = "q = ops.linear.matmul(x, w.q)", "k = ops.linear.matmul(x, w.k)", "v = ops.linear.matmul(x, w.v)"
Q_BIAS = "q = ops.elemwise.add_bias(w.q_bias, ops.linear.matmul(x, w.q))"
K_BIAS = "k = ops.elemwise.add_bias(w.k_bias, ops.linear.matmul(x, w.k))"
V_BIAS = "v = ops.elemwise.add_bias(w.v_bias, ops.linear.matmul(x, w.v))"
ROPE = "q, k = ops.elemwise.rope(q, k, positions, m.head_dim, m.theta, scaling = m.rope_scaling)"
APPEND = "ops.attn.kv_append(k, v, pages)"
ATTEND = "return ops.attn.attend(q, pages, inputs, m.head_dim, m.kv_heads, m.sm_scale, window = window)"
ATTENTION_RESIDUAL = "y = ops.elemwise.residual_add(attention(x, inputs, m, w, inputs.positions()), y)"
MLP_NORM = "x = ops.elemwise.rmsnorm(y, w.mlp_norm, m.eps)"
GATE_UP = "h = ops.linear.glu(ops.linear.matmul(x, w.gate_up), w.down.shape[1])"
DOWN = "return ops.linear.matmul(h, w.down)"
MLP_RESIDUAL = "return ops.elemwise.residual_add(swiglu(x, w), y)"
FINAL_NORM = "x = ops.elemwise.rmsnorm(y, m.final_norm, m.eps)"
READOUTS = "x = ops.gather.gather_rows(x, inputs.readout_rows())"
HEAD = 'output("logits", ops.linear.lm_head(x, m.head))'
WINDOWED = """kv = c.kv_space(m.kv, window = m.window)
    for w in m.layers:
        c.kv(kv, w.kv, [m.kv_width, m.kv_width], m.head_dim, heads = True)

def forward(m, inputs):
    y = ops.gather.embed(inputs.tokens(), m.embed, m.vocab)

    def block(l, w, y):
        x = ops.elemwise.rmsnorm(y, w.attn_norm, m.eps)
        y = ops.elemwise.residual_add(attention(x, inputs, m, w, inputs.positions(), window = m.window), y)"""


def line(name: str, model: str, file: str, text: str, part: str, instead: str, *, layer: int | None = 0, reported: str = "") -> Fault:
    """`part` of one line written differently; that line is to be reported, unless `reported` is another one."""
    wrong = text.replace(part, instead)
    return Fault(name, model, file, text, wrong, layer, reported or wrong)


def pair(name: str, model: str, file: str, left: str, right: str, instead: str, reported: str) -> Fault:
    """The pair that lands on `right` reads something else than `left`; the line that first uses the weight is to be reported."""
    return Fault(name, model, file, f'({left}, "layers.{{l}}.{right}")', f'({instead}, "layers.{{l}}.{right}")', 0, reported)


def reordered(name: str, model: str, file: str, right: str, expression: str, reported: str, *, layer: int | None = 0) -> Fault:
    """The weight `right` is read by an expression that orders its rows wrongly."""
    wrong = f'read = [pair for pair in HUB if pair[1] != "{right}"] + [({expression}, "{right}")],'
    return Fault(name, model, file, "read = HUB,", wrong, layer, reported)


FAULTS = [
    # Norms.
    line("eps is 1e-6, not 1e-5", "llama31-mini", LLAMA, ATTN_NORM, "m.eps", "1e-6"),
    line("eps is 1e-5, not 1e-6", "llama-tied-mini", LLAMA, ATTN_NORM, "m.eps", "1e-5"),
    line("the gain counts from one", "llama31-mini", LLAMA, ATTN_NORM, "rmsnorm", "rmsnorm_plus_one"),
    line("the MLP's norm has the attention's gain", "llama31-mini", LLAMA, MLP_NORM, "w.mlp_norm", "w.attn_norm"),
    line("the MLP's norm reads the attention's", "qwen2-mini", QWEN, MLP_NORM, "(y,", "(x,"),
    line("the final norm is left out", "llama31-mini", LLAMA, FINAL_NORM, FINAL_NORM, "x = y", layer=None, reported=READOUTS),
    pair(
        "the attention's norm reads the MLP's gain",
        "llama31-mini",
        LLAMA,
        'L + "input_layernorm.weight"',
        "attn_norm",
        'L + "post_attention_layernorm.weight"',
        ATTN_NORM,
    ),
    # Projections.
    line("values come from the key projection", "llama31-mini", BLOCKS, V, "w.v", "w.k"),
    line("the query bias is left out", "qwen2-mini", BLOCKS, Q_BIAS, Q_BIAS, Q),
    line("the key bias is left out", "qwen2-mini", BLOCKS, K_BIAS, K_BIAS, K),
    line("the value bias is left out", "qwen2-mini", BLOCKS, V_BIAS, V_BIAS, V),
    line("keys take the value bias", "qwen2-mini", BLOCKS, K_BIAS, "w.k_bias", "w.v_bias"),
    line("the value bias is added twice", "qwen2-mini", BLOCKS, V_BIAS, V_BIAS, f"v = ops.elemwise.add_bias(w.v_bias, {V_BIAS[4:]})"),
    pair("keys are read as values", "llama31-mini", LLAMA, 'L + "self_attn.v_proj.weight"', "v", 'L + "self_attn.k_proj.weight"', V),
    reordered(
        "keys are the first query heads",
        "llama31-mini",
        LLAMA,
        "layers.{l}.k",
        'src(L + "self_attn.q_proj.weight").slice(0, 0, 64)',
        K,
    ),
    reordered(
        "values are read transposed",
        "mistral-mini",
        MISTRAL,
        "layers.{l}.v",
        'src(L + "self_attn.v_proj.weight").transpose([1, 0])',
        V,
    ),
    reordered(
        "query rows are paired as in GGUF",
        "llama31-mini",
        LLAMA,
        "layers.{l}.q",
        'src(L + "self_attn.q_proj.weight").reshape([4, 16, 2, 64]).transpose([0, 2, 1, 3]).reshape([128, 64])',
        Q,
    ),
    reordered(
        "key rows keep the pairing of GGUF",
        "mistral-mini",
        MISTRAL,
        "layers.{l}.k",
        'src(L + "self_attn.k_proj.weight").reshape([2, 2, 16, 64]).transpose([0, 2, 1, 3]).reshape([64, 64])',
        K,
    ),
    reordered(
        "query heads share key heads in turn",
        "llama-tied-mini",
        LLAMA,
        "layers.{l}.q",
        'src(L + "self_attn.q_proj.weight").reshape([2, 2, 32, 64]).transpose([1, 0, 2, 3]).reshape([128, 64])',
        Q,
    ),
    reordered(
        "biases of queries are negated",
        "qwen2-mini",
        QWEN,
        "layers.{l}.q_bias",
        'src(L + "self_attn.q_proj.bias").scale(-1.0)',
        Q_BIAS,
    ),
    # Rope.
    line("rope pairs neighbouring channels", "llama31-mini", BLOCKS, ROPE, "m.theta", 'm.theta, form = "interleaved"'),
    line("rope has another base", "llama31-mini", BLOCKS, ROPE, "m.theta", "10000.0"),
    line("rope is not scaled", "llama31-mini", BLOCKS, ROPE, ", scaling = m.rope_scaling", ""),
    line("rope turns half of each head", "llama-tied-mini", BLOCKS, ROPE, "m.theta", "m.theta, rotary_dim = m.head_dim // 2"),
    line("rope turns backwards", "mistral-mini", BLOCKS, ROPE, "m.theta", "m.theta, inverse = True"),
    line(
        "rope leaves the keys alone",
        "qwen2-mini",
        BLOCKS,
        ROPE,
        "q, k = ops.elemwise.rope(q, k",
        "q = ops.elemwise.rope(q, None",
        reported=APPEND,
    ),
    line(
        "rope turns values, not keys",
        "mistral-mini",
        BLOCKS,
        ROPE,
        "q, k = ops.elemwise.rope(q, k",
        "q, v = ops.elemwise.rope(q, v",
    ),
    # Attention.
    line("scores are not scaled", "llama31-mini", BLOCKS, ATTEND, "m.sm_scale", "1.0"),
    line("scores are divided by the width, not its root", "qwen2-mini", BLOCKS, ATTEND, "m.sm_scale", "1.0 / m.head_dim"),
    line("rows see later rows", "llama31-mini", BLOCKS, ATTEND, "m.sm_scale", "m.sm_scale, causal = False"),
    line("scores are capped", "llama31-mini", BLOCKS, ATTEND, "m.sm_scale", "m.sm_scale, softcap = 5.0"),
    line("heads have sinks", "llama31-mini", BLOCKS, ATTEND, "m.sm_scale", "m.sm_scale, sinks = ops.gather.split_rows(q, m.heads)[0]"),
    line("rows see a window", "llama31-mini", BLOCKS, ATTEND, "window = window", "window = 16"),
    line("the window is one narrower", "mistral-mini", BLOCKS, ATTEND, "window = window", "window = window - 1"),
    Fault("the window is one wider", "mistral-mini", MISTRAL, WINDOWED, WINDOWED.replace("m.window", "m.window + 1"), 0, ATTEND),
    Fault("there is no window", "mistral-mini", MISTRAL, WINDOWED, WINDOWED.replace("m.window", "None"), 0, ATTEND),
    line("keys and values change places in the cache", "llama31-mini", BLOCKS, APPEND, "k, v", "v, k"),
    # Residuals.
    line(
        "the attention's residual is left out",
        "llama31-mini",
        LLAMA,
        ATTENTION_RESIDUAL,
        ATTENTION_RESIDUAL,
        "y = attention(x, inputs, m, w, inputs.positions())",
        reported=MLP_NORM,
    ),
    line("the attention's residual is the normed value", "llama31-mini", LLAMA, ATTENTION_RESIDUAL, "), y)", "), x)"),
    line(
        "the MLP's residual is left out", "qwen2-mini", QWEN, MLP_RESIDUAL, MLP_RESIDUAL, "return swiglu(x, w)", layer=1, reported=ATTN_NORM
    ),
    line("the MLP's residual is the normed value", "llama31-mini", LLAMA, MLP_RESIDUAL, ", y)", ", x)"),
    # MLP.
    line("the MLP gates with GELU", "llama31-mini", BLOCKS, GATE_UP, "shape[1]", 'shape[1], act = "gelu"'),
    line(
        "every layer has the first one's MLP", "llama31-mini", LLAMA, MLP_RESIDUAL, "(x, w)", "(x, m.layers[0])", layer=1, reported=GATE_UP
    ),
    pair(
        "gate and up are exchanged",
        "llama31-mini",
        LLAMA,
        '[L + "mlp.gate_proj.weight", L + "mlp.up_proj.weight"]',
        "gate_up",
        '[L + "mlp.up_proj.weight", L + "mlp.gate_proj.weight"]',
        GATE_UP,
    ),
    reordered(
        "the MLP's way down is doubled",
        "llama31-mini",
        LLAMA,
        "layers.{l}.down",
        'src(L + "mlp.down_proj.weight").scale(2.0)',
        DOWN,
    ),
    # Embedding and head.
    line("the embedding is scaled", "llama-tied-mini", LLAMA, EMBED, EMBED, f"y = ops.elemwise.mul_scalar(8.0, {EMBED[4:]})", layer=None),
    line("the head is the embedding", "llama31-mini", LLAMA, HEAD, "m.head", "m.embed", layer=None),
    line(
        "logits are capped",
        "llama31-mini",
        LLAMA,
        HEAD,
        "ops.linear.lm_head(x, m.head)",
        "ops.attn.logit_softcap(ops.linear.lm_head(x, m.head), 30.0)",
        layer=None,
    ),
    reordered(
        "head rows are one off",
        "llama31-mini",
        LLAMA,
        "head",
        'concat(0, [src("lm_head.weight").slice(0, 1, 255), src("lm_head.weight").slice(0, 0, 1)])',
        HEAD,
        layer=None,
    ),
]
