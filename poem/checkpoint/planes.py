"""Selecting, joining and stacking weights plane by plane, so that codes and scales stay what they are.

A factor belongs to a run, a tile, a row or the whole of the weight, so an axis of the weight is an axis of the factor in
other steps, or none at all. A whole-tensor factor of joined rows keeps one number per segment: `[*lead, segments]`
with a plane `rows` that counts the rows of each.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from poem.dtypes import LEAF_BITS
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
    """Tensors of one dtype end to end on an axis. Raises GroupSplit or TileBoundary."""
    first = tensors[0]
    shape = list(first.shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    parts = [dict(tensor.planes) for tensor in tensors]
    return Tensor(first.dtype, tuple(shape), _join(first.dtype.term, [tensor.shape for tensor in tensors], axis, parts, ""))


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Tensors of one dtype and shape on a new axis 0."""
    first = tensors[0]
    shape = (len(tensors), *first.shape)
    return Tensor(first.dtype, shape, _stack(first.dtype.term, first.shape, [dict(tensor.planes) for tensor in tensors], ""))


def bad_scale(tensor: Tensor) -> tuple[str, tuple[int, ...]] | None:
    """The plane and index of the first gain or offset that is NaN or infinite, or None."""
    leaves = _factor_leaves(tensor.dtype.term, "")
    for path, leaf in leaves.items():
        plane = tensor.planes[path]
        if leaf == "e4m3":
            wrong = (plane & 0x7F) == 0x7F
        elif leaf == "e8m0":
            wrong = plane == 0xFF
        elif leaf in ("f16", "bf16", "f32", "f64"):
            wrong = ~np.isfinite(plane)
        else:
            continue
        if wrong.any():
            return path, tuple(int(index) for index in np.argwhere(wrong)[0])
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


def _code(prefix: str) -> str:
    return plane_path(prefix, "code")


def _segments(prefix: str) -> str:
    return plane_path(prefix, "rows")


# -- select --------------------------------------------------------------------------------------
def _select(term: Term, shape: tuple[int, ...], axis: int, chosen: Chosen, planes: Planes, prefix: str) -> Planes:
    if isinstance(term, Leaf):
        path = prefix or "data"
        return {path: _pick(planes[path], term.name, len(shape), axis, chosen)}
    found = {_code(prefix): _pick(planes[_code(prefix)], term.code, len(shape), axis, chosen)}
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
    rows = planes.get(_segments(prefix))
    for path, _ in _factors(term, prefix):
        kept = _under(planes, path)
        if rows is not None and axis < len(shape) - 2:
            kept = {path: _pick(planes[path], "f32", planes[path].ndim, axis, chosen)}
        found |= kept
    if rows is None:
        return found
    if axis != len(shape) - 2:
        return found | {_segments(prefix): rows}
    segment = np.repeat(np.arange(len(rows)), rows)[list(chosen)]
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    found = {path: plane[..., segment[starts]] for path, plane in found.items()}
    return found | {_segments(prefix): np.diff(starts, append=len(segment)).astype(np.int64)}


# -- join and stack ------------------------------------------------------------------------------
def _join(term: Term, shapes: list[tuple[int, ...]], axis: int, parts: list[Planes], prefix: str) -> Planes:
    if isinstance(term, Leaf):
        path = prefix or "data"
        return {path: np.concatenate([planes[path] for planes in parts], axis)}
    found = {_code(prefix): np.concatenate([planes[_code(prefix)] for planes in parts], axis)}
    group, rank = term.group, len(shapes[0])
    if group.kind == "tensor":
        return found | _join_whole(term, shapes, axis, parts, prefix)
    size = 1
    if axis == rank - 1 and group.kind in ("run", "tile"):
        size = group.size
    elif axis == rank - 2 and group.kind == "tile":
        size = group.rows
    for shape in shapes[:-1]:
        if shape[axis] % size:
            raise TileBoundary(f"{shape[axis]} is no multiple of {size}")
    factor_shapes = [group.factor_shape(shape) for shape in shapes]
    for path, part in _factors(term, prefix):
        if group.kind == "row" and axis == rank - 1:
            found |= _same([_under(planes, path) for planes in parts])
        else:
            found |= _join(part, factor_shapes, axis, parts, path)
    return found


def _join_whole(term: Grouped, shapes: list[tuple[int, ...]], axis: int, parts: list[Planes], prefix: str) -> Planes:
    factors = [{path: planes[path] for path, _ in _factors(term, prefix)} for planes in parts]
    segments = [planes.get(_segments(prefix)) for planes in parts]
    try:
        shared = _same(factors)
        if all(rows is None for rows in segments):
            return shared
    except GroupSplit:
        pass
    rank = len(shapes[0])
    if axis == rank - 1:
        raise GroupSplit("parts with different whole-tensor scales cannot be joined on the last axis")
    lead = shapes[0][:-2]
    spread: list[Planes] = []
    counts: list[np.ndarray] = []
    for shape, planes, rows in zip(shapes, factors, segments, strict=True):
        own_lead = shape[:-2]
        spread.append({path: np.broadcast_to(plane, (*own_lead, 1)) if rows is None else plane for path, plane in planes.items()})
        counts.append(np.array([shape[-2]], np.int64) if rows is None else rows)
    if axis < len(lead):
        if any(not np.array_equal(rows, counts[0]) for rows in counts):
            raise GroupSplit("banks with different segments cannot be joined")
        joined, rows = axis, counts[0]
    else:
        joined, rows = len(lead), np.concatenate(counts)
    return {path: np.concatenate([planes[path] for planes in spread], joined) for path in factors[0]} | {_segments(prefix): rows}


def _same(parts: list[Planes]) -> Planes:
    first = parts[0]
    if any(not np.array_equal(first[path], planes[path]) for planes in parts[1:] for path in first):
        raise GroupSplit("the parts have different scales")
    return first


def _stack(term: Term, shape: tuple[int, ...], parts: list[Planes], prefix: str) -> Planes:
    if isinstance(term, Leaf):
        path = prefix or "data"
        return {path: np.stack([planes[path] for planes in parts])}
    found = {_code(prefix): np.stack([planes[_code(prefix)] for planes in parts])}
    if term.group.kind != "tensor":
        for path, part in _factors(term, prefix):
            found |= _stack(part, term.group.factor_shape(shape), parts, path)
        return found
    rows = [planes.get(_segments(prefix), np.array([shape[-2]], np.int64)) for planes in parts]
    if any(not np.array_equal(own, rows[0]) for own in rows):
        raise GroupSplit("weights with different segments cannot be stacked")
    lead = (*shape[:-2], len(rows[0]))
    for path, _ in _factors(term, prefix):
        found[path] = np.stack([np.broadcast_to(planes[path], lead) for planes in parts])
    return found | {_segments(prefix): rows[0]}


