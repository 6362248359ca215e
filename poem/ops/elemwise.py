"""ops.elemwise: row-local arithmetic, norms and rotary embeddings."""
