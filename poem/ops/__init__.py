"""The op registry: every op is declared once, in the module of its namespace or of its idea."""

from poem.ops import (  # noqa: F401  (importing a module registers its ops)
    attn,
    collective,
    conv,
    drafting,
    elemwise,
    embeddings,
    gather,
    hyper_connections,
    indexed,
    latent,
    linear,
    mixing,
    mixture,
    norms,
    pooled,
    rotary,
    sampling,
    ssm,
)
from poem.ops.record import REGISTRY, Op, Parameter
from poem.ops.spellings import SPELLINGS

NAMESPACES = ("linear", "elemwise", "attn", "ssm", "gather", "conv", "sampling", "collective")

__all__ = ["NAMESPACES", "REGISTRY", "SPELLINGS", "Op", "Parameter"]
