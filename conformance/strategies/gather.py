"""Examples of ops.gather."""
