"""ops.gather: moving rows and columns."""
