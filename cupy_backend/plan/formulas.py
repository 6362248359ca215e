"""Ops that compute an element of their result from one element of each operand, as data.

By op: the function of elemwise.cu and its operands by parameter name. A number with ' behind is rounded to the result's dtype first.
"""

FORMULAS = {
    "elemwise.add": "Add x y",
    "elemwise.residual_add": "Add y x",
    "elemwise.add_bias": "Add x bias",
    "elemwise.mul": "Multiply x y",
    "elemwise.mul_scalar": "Multiply x s'",
    "elemwise.scale": "Multiply x s",
    "elemwise.cast": "Same x",
    "elemwise.clamp": "Clamp x lo' hi'",
    "elemwise.clamp_learned": "Clamp x lo hi",
    "elemwise.standardize": "Standardize x bias scale",
    "elemwise.silu": "Activated<SILU> x",
    "elemwise.silu_scaled": "ScaledSilu x s",
    "linear.gelu_tanh": "Activated<GELU_TANH> x",
    "elemwise.tanh": "Tanh x",
    "elemwise.relu": "Relu x",
    "elemwise.relu2": "ReluSquared x",
    "elemwise.gate_sigmoid_mul": "Gate x gate",
    "attn.logit_softcap": "Softcap x cap",
}
