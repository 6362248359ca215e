"""Examples of ops.sampling."""
