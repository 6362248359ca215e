"""Error bounds of ops, shelved like the ops."""

from conformance.bounds import attn, elemwise, gather, hyper_connections, latent, linear, mixing, mixture, norms, rotary, sampling
from conformance.bounds.record import BOUNDS, Bound, Cells, local_bound

__all__ = [
    "BOUNDS",
    "Bound",
    "Cells",
    "attn",
    "elemwise",
    "gather",
    "hyper_connections",
    "latent",
    "linear",
    "local_bound",
    "mixing",
    "mixture",
    "norms",
    "rotary",
    "sampling",
]
