"""Spellings that older packages use, and what to write instead. Names are without the `ops.` prefix."""

SPELLINGS = {
    "linear.mlp_swiglu": "ops.linear.glu(x, inter)",
    "elemwise.rope_full": "ops.elemwise.rope",
    "attn.decode": "ops.attn.attend",
}
