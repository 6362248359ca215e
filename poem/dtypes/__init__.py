"""Dtypes as terms: what a number format is called, how its bytes lie, how it encodes and decodes."""

from poem.dtypes.dtype import FLOATS, KV_DTYPES, NICKNAMES, RESERVED, WEIGHT_DTYPES, WORDS, Dtype
from poem.dtypes.term import LEAF_BITS, Plane

__all__ = ["FLOATS", "KV_DTYPES", "LEAF_BITS", "NICKNAMES", "RESERVED", "WEIGHT_DTYPES", "WORDS", "Dtype", "Plane"]
