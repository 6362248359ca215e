"""One rule for each op and each fusion pattern: which launches compute it, and what they cost. A module for each shelf of ops."""

from cupy_backend.plan.rules import attn, elemwise, gather, linear, sampling
from cupy_backend.plan.rules.registry import RULES

__all__ = ["RULES", "attn", "elemwise", "gather", "linear", "sampling"]
