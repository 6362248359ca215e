"""The table of storage schemes: how a name in a format finds its tensors.

A format names a *stored weight*, normally `<module>.weight`, whatever the file stores. Each scheme looks for its own
tensors under that name; the first that finds them reads them. The tensors decide the scheme of each weight; what the
configuration says of its module (`config.py`) confirms it, or is why it is refused.

A new family is a module with `find(table, name, stated) -> Stored | None` and a line in `SCHEMES`.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from poem.checkpoint.families import config, fp8, ggml, mlx, mxfp4, nvfp4, packed, plain, words
from poem.checkpoint.families.common import module_of, unexplained
from poem.checkpoint.families.config import Quantisation, Stated
from poem.checkpoint.stored import Stored, Table


class Scheme(NamedTuple):
    """One way to store a weight: the family's name, and how its tensors are found."""

    family: str
    find: Callable[[Table, str, Stated], Stored | None]


SCHEMES = (
    Scheme(config.MLX, mlx.find),
    Scheme(config.FP8, fp8.find),
    Scheme(config.NVFP4, nvfp4.find),
    Scheme(config.PACKED, packed.find),
    Scheme(config.WORDS, words.find),
    Scheme(config.MXFP4, mxfp4.find),
    Scheme("GGUF", ggml.find),
    Scheme("plain", plain.find),
)


def find_stored(table: Table, name: str, quantisation: Quantisation) -> Stored | None:
    """The stored weight of that name, or None when the checkpoint has none."""
    stated = quantisation.module(module_of(name))
    for scheme in SCHEMES:
        found = scheme.find(table, name, stated)
        if found is not None:
            return _confirmed(table, scheme.family, found, stated)
    return None


def _confirmed(table: Table, family: str, stored: Stored, stated: Stated) -> Stored:
    """The stored weight, refused where other tensors or the configuration contradict what its own tensors say."""
    if stored.problem:
        return stored
    others = unexplained(table, stored)
    if others:
        kept = "codes and scales" if stored.quantised else "plain numbers"
        return replace(stored, problem=f"`{others[0]}` beside it belongs to another way to store a weight than its {kept}")
    if not stored.quantised or family == "GGUF":
        return stored
    if stated.ignored:
        return replace(stored, note=f"`{stored.name}` is stored as {stored.word}, although the configuration leaves it unquantised")
    if stated.problem:
        return replace(stored, problem=stated.problem)
    contradicts = (stated.families and family not in stated.families) or (stated.words and stored.word not in stated.words)
    if contradicts:
        return replace(stored, problem=f"its tensors are {family} ({stored.word}), where the configuration says {stated.said}")
    return stored
