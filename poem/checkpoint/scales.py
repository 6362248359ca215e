"""Scales of stored weights that no checkpoint may hold."""

from collections.abc import Mapping

import numpy as np

from poem.dtypes.leaves import WHOLE_FLOATS
from poem.dtypes.term import Group, Grouped, Leaf, Term, plane_path


def bad_scale(term: Term, factors: Mapping[str, np.ndarray], *, zeros: bool = True) -> tuple[str, tuple[int, ...], str] | None:
    """The plane and index of the first gain or offset that is NaN or infinite, and which of these; or None.

    zeros: whether a gain may be zero. Where not, gains of whole tensors (or of their segments) may not be negative either.
    """
    for path, (leaf, group) in _factor_planes(term, "").items():
        gain = path == "gain" or path.rpartition(".")[0].rpartition(".")[2] == "gain"
        with np.errstate(invalid="ignore"):  # bf16 compares by way of float32, where some NaN are worth a warning
            wrong = _wrong(factors[path], leaf, positive=gain and not zeros, signed=group.kind != "tensor")
        for mask, reason in wrong:
            if mask.any():
                return path, tuple(int(index) for index in np.argwhere(mask)[0]), reason
    return None


def _wrong(plane: np.ndarray, leaf: str, *, positive: bool, signed: bool) -> list[tuple[np.ndarray, str]]:
    """Where a plane of factors holds what it may not, and what that is. positive: not zero, nor negative unless signed."""
    if leaf == "e8m0":  # has neither
        return [(plane == 0xFF, "NaN")]
    if leaf == "e4m3":
        return [((plane & 0x7F) == 0x7F, "NaN"), *([((plane & 0x7F) == 0, "zero")] if positive else [])]
    if leaf not in WHOLE_FLOATS:
        return []
    found = [(~np.isfinite(plane), "not finite"), *([(plane == 0, "zero")] if positive else [])]
    return found if signed or not positive else [*found, (plane < 0, "negative")]


def _factor_planes(term: Term, prefix: str) -> dict[str, tuple[str, Group]]:
    """Every plane that holds factors: its leaf, and whose factors they are."""
    if isinstance(term, Leaf):
        return {}
    found: dict[str, tuple[str, Group]] = {}
    for path, part in _factors(term, prefix):
        found |= {path: (part.name, term.group)} if isinstance(part, Leaf) else {f"{path}.code": (part.code, term.group)}
        found |= _factor_planes(part, path)
    return found


def _factors(term: Grouped, prefix: str) -> list[tuple[str, Term]]:
    found: list[tuple[str, Term]] = [(plane_path(prefix, "gain"), term.gain)]
    return found if term.offset is None else [*found, (plane_path(prefix, "offset"), term.offset)]
