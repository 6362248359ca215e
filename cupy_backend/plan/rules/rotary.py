"""What the rules for rotary positions share: which pairs of channels turn, and by what."""

import numpy as np

from cupy_backend.kernels.arrays import unsupported
from cupy_backend.kernels.attn import Turn
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import Lowering
from cupy_backend.plan.tables import Pairs, rotary_pairs
from cupy_backend.sources import digest
from poem.graph import Node

WORDS = {np.int32: "i32", np.float32: "f32"}
_PAIRING = ("head_dim", "theta", "rotary_dim", "form", "part", "scaling", "sections")  # attributes that say what turns and how fast


def pairs_of(node: Node) -> Pairs:
    """The pairs of an `elemwise.rope`. KernelError (`kernel.unsupported`) where they depend on the length of a sequence."""
    if (node.attributes["scaling"] or {}).get("use") == "auto":
        raise unsupported("no kernel changes frequencies with the length of a sequence yet", expected="longrope with use short or long")
    return rotary_pairs(**{name: node.attributes[name] for name in _PAIRING})


def table_arrays(lowering: Lowering, pairs: Pairs) -> tuple[Array, Array | None]:
    """Frequencies f32 `[pairs]`, and the position column of each pair i32 `[pairs]`, or None where all turn by the first."""
    frequencies = table_of(lowering, "frequencies", pairs.frequencies)
    return frequencies, table_of(lowering, "columns", pairs.columns) if pairs.columns.any() else None


def table_of(lowering: Lowering, name: str, values: np.ndarray) -> Array:
    """Values i32 or f32 that are there at load, once for all rules that ask for the same."""
    return lowering.table(f"{name} {digest(values.tobytes())[:12]}", WORDS[values.dtype.type], lambda: values)


def factor_of(node: Node) -> float:
    """What a rope multiplies cosines and sines with."""
    return float((node.attributes["scaling"] or {}).get("attention_factor", 1.0))


def turn_of(lowering: Lowering, node: Node) -> Turn:
    """How a rope turns a head whose pairs lie one behind the other, which those of all forms but mrope_split do."""
    pairs = pairs_of(node)
    frequencies, columns = table_arrays(lowering, pairs)
    neighbours = node.attributes["form"] == "interleaved"
    return Turn(
        frequencies, origin=int(pairs.first[0]), distance=0 if neighbours else int(pairs.second[0] - pairs.first[0]), neighbours=neighbours,
        columns=columns, factor=factor_of(node), inverse=node.attributes["inverse"],
    )  # fmt: skip
