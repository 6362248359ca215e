"""The table of storage schemes: how a name in a format finds its tensors.

A format names a *stored weight*, normally `<module>.weight`, whatever the file stores. Each scheme looks for its own
tensors under that name; the first that finds them reads them. The tensors decide the scheme of each weight; what
`config.json` says about quantisation is checked once for the whole checkpoint (`config.py`).

A new family is a module with `find(table, name, settings) -> Stored | None` and a line in `SCHEMES`.
"""

from collections.abc import Callable
from typing import NamedTuple

from poem.checkpoint.families import fp8, ggml, mlx, mxfp4, nvfp4, packed, plain, words
from poem.checkpoint.stored import Settings, Stored, Table


class Scheme(NamedTuple):
    """One way to store a weight: the family's name in messages, and how its tensors are found."""

    family: str
    find: Callable[[Table, str, Settings], Stored | None]


SCHEMES = (
    Scheme("MLX", mlx.find),
    Scheme("FP8", fp8.find),
    Scheme("NVFP4", nvfp4.find),
    Scheme("compressed-tensors", packed.find),
    Scheme("AWQ or GPTQ", words.find),
    Scheme("MXFP4", mxfp4.find),
    Scheme("GGUF", ggml.find),
    Scheme("plain", plain.find),
)


def find_stored(table: Table, name: str, settings: Settings) -> Stored | None:
    """The stored weight of that name, or None when the checkpoint has none."""
    return next((found for scheme in SCHEMES if (found := scheme.find(table, name, settings)) is not None), None)
