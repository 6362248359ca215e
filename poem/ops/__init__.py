"""The op registry: every op is declared once, in the module of its namespace or of its idea."""

from poem.ops import attn, elemwise, gather, linear, norms, rotary, sampling  # noqa: F401  (importing registers)
from poem.ops.record import REGISTRY, Op, Parameter
from poem.ops.spellings import SPELLINGS

NAMESPACES = ("linear", "elemwise", "attn", "ssm", "gather", "conv", "sampling", "collective")

__all__ = ["NAMESPACES", "REGISTRY", "SPELLINGS", "Op", "Parameter"]
