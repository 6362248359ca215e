"""Examples of ops.elemwise."""
