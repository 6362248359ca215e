"""Error bounds of ops, shelved like the ops."""

from conformance.bounds import attn, elemwise, gather, linear, norms, rotary, sampling
from conformance.bounds.record import BOUNDS, Bound, Cells, local_bound

__all__ = ["BOUNDS", "Bound", "Cells", "attn", "elemwise", "gather", "linear", "local_bound", "norms", "rotary", "sampling"]
