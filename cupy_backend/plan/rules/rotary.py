"""What the rules for rotary positions share: which pairs of channels turn, and by what."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from cupy_backend.kernels.arrays import unsupported
from cupy_backend.kernels.attn_append import Turn
from cupy_backend.kernels.rope import packs
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import Lowering
from cupy_backend.plan.tables import Pairs, rotary_pairs
from cupy_backend.sources import digest
from poem.graph import Node

WORDS = {np.int32: "i32", np.float32: "f32"}
_PAIRING = ("head_dim", "theta", "rotary_dim", "form", "part", "sections")  # attributes that say what turns and how fast


def pairs_of(node: Node) -> Pairs:
    """The pairs of an `elemwise.rope`. KernelError (`kernel.unsupported`) where they depend on the length of a sequence."""
    if (node.attributes["scaling"] or {}).get("use") == "auto":
        raise unsupported("no kernel changes frequencies with the length of a sequence yet", expected="longrope with use short or long")
    return _pairs(node, node.attributes["scaling"])


def _pairs(node: Node, scaling: Mapping[str, Any] | None) -> Pairs:
    return rotary_pairs(**{name: node.attributes[name] for name in _PAIRING}, scaling=scaling)


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


def turn_of(lowering: Lowering, node: Node, dtype: str, widest: int) -> Turn:
    """How the heads of a rope are turned in one launch with others. widest: channels that a thread may move at once."""
    scaling = node.attributes["scaling"] or {}
    uses = ("short", "long") if scaling.get("use") == "auto" else (None,)
    listed = [_pairs(node, scaling | {"use": use} if use else node.attributes["scaling"]) for use in uses]
    pairs, switch = listed[0], None
    frequencies, columns = table_arrays(lowering, pairs)
    if len(listed) > 1:
        frequencies = table_of(lowering, "frequencies", np.stack([each.frequencies for each in listed]))
        switch = lowering.inputs["lane_of_row"], lowering.inputs["kv_len"], int(scaling["original_max_position"])
    found = packs(pairs.first, pairs.second, node.attributes["head_dim"], dtype, widest)
    return Turn(
        table_of(lowering, "packs", found.table), found.vector, found.neighbours, frequencies, columns, factor_of(node),
        node.attributes["inverse"], switch,
    )  # fmt: skip
