"""Selecting and joining stored weights on any axis, plane by plane, so that codes and scales stay what they are.

A factor belongs to a run, a tile, a row or the whole of the weight, so an axis of the weight is an axis of the factor in
other steps, or none at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from poem.dtypes import LEAF_BITS, slicing
from poem.dtypes.tensor import Tensor
from poem.dtypes.term import Grouped, Leaf, Term, plane_path

Chosen = range | tuple[int, ...]
Planes = dict[str, np.ndarray]


class GroupSplit(ValueError):
    """The selection or join would need part of a group."""


class TileBoundary(ValueError):
    """A join would leave a partial tile in the middle."""


def select(tensor: Tensor, axis: int, chosen: Chosen) -> Tensor:
    """The chosen entries of one axis, in that order. Views for a range. Raises GroupSplit."""
    shape = list(tensor.shape)
    shape[axis] = len(chosen)
    return Tensor(tensor.dtype, tuple(shape), _select(tensor.dtype.term, tensor.shape, axis, chosen, dict(tensor.planes), ""))


def join(axis: int, tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one dtype end to end on an axis. Raises GroupSplit, or TileBoundary for a partial tile in the middle."""
    first = tensors[0]
    rank = len(first.shape)
    step = first.dtype.quantum[axis - rank] if axis >= rank - 2 and rank >= 2 else 1
    for tensor in tensors[:-1]:
        if tensor.shape[axis] % step:
            raise TileBoundary(f"{tensor.shape[axis]} is no multiple of {step}")
    if axis == rank - 2:
        return slicing.join(tensors)
    shape = list(first.shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    parts = [dict(tensor.planes) for tensor in tensors]
    return Tensor(first.dtype, tuple(shape), _join(first.dtype.term, [tensor.shape for tensor in tensors], axis, parts, ""))


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


# -- select --------------------------------------------------------------------------------------
def _select(term: Term, shape: tuple[int, ...], axis: int, chosen: Chosen, planes: Planes, prefix: str) -> Planes:
    if isinstance(term, Leaf):
        path = prefix or "data"
        return {path: _pick(planes[path], term.name, len(shape), axis, chosen)}
    found = {plane_path(prefix, "code"): _pick(planes[plane_path(prefix, "code")], term.code, len(shape), axis, chosen)}
    group = term.group
    if group.kind == "tensor":
        return found | _select_whole(term, shape, axis, chosen, planes, prefix)
    last, extent = axis == len(shape) - 1, shape[axis]
    factor: Chosen | None = chosen
    if group.kind == "row" and last:
        factor = None
    elif group.kind in ("run", "tile") and last:
        factor = _groups(chosen, group.size, extent)
    elif group.kind == "tile" and axis == len(shape) - 2:
        factor = _groups(chosen, group.rows, extent)
    for path, part in _factors(term, prefix):
        if factor is None:
            found |= _under(planes, path)
        else:
            found |= _select(part, group.factor_shape(shape), axis, factor, planes, path)
    return found


def _pick(plane: np.ndarray, leaf: str, rank: int, axis: int, chosen: Chosen) -> np.ndarray:
    per_byte = max(1, 8 // LEAF_BITS[leaf])
    if per_byte > 1 and axis == rank - 1:
        chosen = _groups(chosen, per_byte, None)
    index: Any = slice(chosen.start, chosen.stop, chosen.step) if isinstance(chosen, range) else list(chosen)
    return plane[(slice(None),) * axis + (index,)]


def _groups(chosen: Chosen, size: int, extent: int | None) -> range:
    """The groups of `size` entries that a run of entries covers exactly; the last group of the axis may be partial."""
    if size == 1 and isinstance(chosen, range):
        return chosen
    if not isinstance(chosen, range) or chosen.step != 1:
        raise GroupSplit(f"only a run of whole groups of {size} can be taken")
    if chosen.start % size or (chosen.stop % size and chosen.stop != extent):
        raise GroupSplit(f"entries {chosen.start} to {chosen.stop} are no whole groups of {size}")
    return range(chosen.start // size, -(-chosen.stop // size))


def _under(planes: Planes, path: str) -> Planes:
    return {name: plane for name, plane in planes.items() if name == path or name.startswith(f"{path}.")}


def _select_whole(term: Grouped, shape: tuple[int, ...], axis: int, chosen: Chosen, planes: Planes, prefix: str) -> Planes:
    found: Planes = {}
    rows = planes.get(plane_path(prefix, "rows"))
    for path, _ in _factors(term, prefix):
        kept = _under(planes, path)
        if rows is not None and axis < len(shape) - 2:
            kept = {path: _pick(planes[path], "f32", planes[path].ndim, axis, chosen)}
        found |= kept
    if rows is None:
        return found
    if axis != len(shape) - 2:
        return found | {plane_path(prefix, "rows"): rows}
    segment = np.repeat(np.arange(len(rows)), rows)[list(chosen)]
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    found = {path: plane[..., segment[starts]] for path, plane in found.items()}
    return found | {plane_path(prefix, "rows"): np.diff(starts, append=len(segment)).astype(np.int64)}


# -- join ----------------------------------------------------------------------------------------
def _join(term: Term, shapes: list[tuple[int, ...]], axis: int, parts: list[Planes], prefix: str) -> Planes:
    """On the last axis or a leading one; rows are `slicing.join`'s."""
    if isinstance(term, Leaf):
        path = prefix or "data"
        return {path: np.concatenate([planes[path] for planes in parts], axis)}
    code = plane_path(prefix, "code")
    found = {code: np.concatenate([planes[code] for planes in parts], axis)}
    group, last = term.group, axis == len(shapes[0]) - 1
    if group.kind == "tensor" and not last:
        return found | _join_banks(term, shapes, axis, parts, prefix)
    if group.kind == "tensor" or (group.kind == "row" and last):
        shared = [{path: plane for path, plane in planes.items() if path != code and path.startswith(prefix)} for planes in parts]
        if not all(_equal(planes, shared[0]) for planes in shared):
            raise GroupSplit("parts with different scales of whole rows or tensors cannot be joined on this axis")
        return found | shared[0]
    factor_shapes = [group.factor_shape(shape) for shape in shapes]
    for path, part in _factors(term, prefix):
        found |= _join(part, factor_shapes, axis, parts, path)
    return found


def _join_banks(term: Grouped, shapes: list[tuple[int, ...]], axis: int, parts: list[Planes], prefix: str) -> Planes:
    """The whole-tensor factors of banks joined on a leading axis: every entry keeps its own."""
    rows_path = plane_path(prefix, "rows")
    rows = [planes.get(rows_path, np.array([shape[-2]], np.int64)) for planes, shape in zip(parts, shapes, strict=True)]
    if any(not np.array_equal(own, rows[0]) for own in rows):
        raise GroupSplit("banks whose rows are in different segments cannot be joined")
    found = {rows_path: rows[0]}
    for path, _ in _factors(term, prefix):
        spread = [np.broadcast_to(planes[path], (*shape[:-2], len(rows[0]))) for planes, shape in zip(parts, shapes, strict=True)]
        found[path] = np.concatenate(spread, axis)
    return found


def _equal(planes: Planes, others: Planes) -> bool:
    return planes.keys() == others.keys() and all(np.array_equal(plane, others[path]) for path, plane in planes.items())
