"""Launch functions: one module for each file of cuda_src, from arrays to launches."""
