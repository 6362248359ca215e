"""What the rules for rotary positions share: which pairs of channels turn, and by what."""

from typing import Any

import numpy as np

from cupy_backend.kernels.rope import Turn, packs
from cupy_backend.launch import Array
from cupy_backend.plan.lowering import Lowering
from cupy_backend.plan.tables import Pairs, rotary_pairs
from cupy_backend.sources import digest
from poem.graph import Node

WORDS = {np.int32: "i32", np.float32: "f32"}
_PAIRING = ("head_dim", "theta", "rotary_dim", "form", "part", "sections")  # attributes that say what turns and how fast


def turn_of(lowering: Lowering, node: Node, dtype: str, widest: int | None = None) -> Turn:
    """How the heads of an `elemwise.rope` turn. widest: channels that a thread may move at once."""
    scaling = node.attributes["scaling"] or {}
    auto = scaling.get("use") == "auto"
    scalings = [{**scaling, "use": use} for use in ("short", "long")] if auto else [node.attributes["scaling"]]
    listed = [rotary_pairs(**{name: node.attributes[name] for name in _PAIRING}, scaling=each) for each in scalings]
    switch = (lowering.inputs["lane_of_row"], lowering.inputs["kv_len"], int(scaling["original_max_position"])) if auto else None
    frequencies = np.stack([each.frequencies for each in listed]) if auto else listed[0].frequencies
    return turn_by(
        lowering, listed[0]._replace(frequencies=frequencies), node.attributes["head_dim"], dtype, widest,
        factor=float(scaling.get("attention_factor", 1.0)), inverse=node.attributes["inverse"], switch=switch,
    )  # fmt: skip


def turn_by(lowering: Lowering, pairs: Pairs, head_dim: int, dtype: str, widest: int | None = None, **how: Any) -> Turn:
    """How heads turn by pairs, from tables that are there at load: once for all rules that ask for the same."""

    def table(name: str, values: np.ndarray) -> Array:
        return lowering.table(f"{name} {digest(values.tobytes())[:12]}", WORDS[values.dtype.type], lambda: values)

    found = packs(pairs.first, pairs.second, head_dim, dtype, widest)
    columns = table("columns", pairs.columns) if pairs.columns.any() else None
    return Turn(table("packs", found.table), found.vector, found.neighbours, table("frequencies", pairs.frequencies), columns, **how)
