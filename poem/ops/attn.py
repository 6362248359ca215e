"""ops.attn: attention over paged caches."""
