"""Scales of stored weights that no checkpoint may hold."""

from collections.abc import Mapping

import numpy as np

from poem.dtypes.term import Grouped, Leaf, Term, plane_path


def bad_scale(term: Term, factors: Mapping[str, np.ndarray], *, zeros: bool = True) -> tuple[str, tuple[int, ...], str] | None:
    """The plane and index of the first gain or offset that is NaN or infinite, and which of these; or None.

    zeros: whether a gain may be zero. Where not, a gain of the whole tensor may not be negative either.
    """
    for path, leaf in _factor_leaves(term, "").items():
        plane = factors[path]
        if leaf in ("e4m3", "e8m0"):
            wrong = [((plane & 0x7F) == 0x7F if leaf == "e4m3" else plane == 0xFF, "NaN")]
        elif leaf in ("f16", "bf16", "f32", "f64"):
            wrong = [(~np.isfinite(plane), "not finite")]
        else:
            continue
        gain = path.rpartition(".")[0].rpartition(".")[2] == "gain" or path == "gain"
        if gain and not zeros and leaf != "e8m0":
            wrong.append(((plane & 0x7F) == 0 if leaf == "e4m3" else plane == 0, "zero"))
            if plane.ndim == 0 and leaf == "f32":
                wrong.append((plane < 0, "negative"))
        for mask, reason in wrong:
            if mask.any():
                return path, tuple(int(index) for index in np.argwhere(mask)[0]), reason
    return None


def _factor_leaves(term: Term, prefix: str) -> dict[str, str]:
    """The leaf of every plane that holds factors."""
    if isinstance(term, Leaf):
        return {}
    found: dict[str, str] = {}
    for path, part in _factors(term, prefix):
        found |= {path: part.name} if isinstance(part, Leaf) else {f"{path}.code": part.code, **_factor_leaves(part, path)}
    return found


def _factors(term: Grouped, prefix: str) -> list[tuple[str, Term]]:
    found: list[tuple[str, Term]] = [(plane_path(prefix, "gain"), term.gain)]
    return found if term.offset is None else [*found, (plane_path(prefix, "offset"), term.offset)]
