"""What the rules for rotary positions share: the frequencies of a node, and its factor."""

from cupy_backend.kernels.arrays import unsupported
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import Lowering
from cupy_backend.plan.patterns import is_plain_rope
from cupy_backend.plan.tables import rotary_frequencies
from poem.graph import Node


def frequencies(lowering: Lowering, node: Node) -> Array:
    """The table of frequencies of a rope, one for each pair of channels: f32."""
    if not is_plain_rope(node):
        raise unsupported(
            "no kernel turns channels in this way yet", expected="form half, part first, no longrope with use auto",
            found=f"form {node.attributes['form']}, part {node.attributes['part']}",
        )  # fmt: skip
    scaling, theta = node.attributes["scaling"], node.attributes["theta"]
    rotary = node.attributes["rotary_dim"] or node.attributes["head_dim"]
    settings = "" if scaling is None else " " + " ".join(f"{name}={value}" for name, value in sorted(scaling.items()))
    return lowering.table(f"rotary {theta} {rotary}{settings}", "f32", lambda: rotary_frequencies(theta, rotary, scaling))


def rope_factor(node: Node) -> float:
    """What a rope multiplies cosines and sines with."""
    return float((node.attributes["scaling"] or {}).get("attention_factor", 1.0))
