"""Examples of ops.attn."""
