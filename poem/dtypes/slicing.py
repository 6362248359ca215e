"""Selecting entries of stored weights, joining and stacking them, without decoding: codes and factors stay what they are.

Everything follows the term. A factor belongs to a run, a tile, a row or the whole of the weight, so an axis of the weight is an axis of
the factor in other steps, or none at all. What would need other codes or other groups is refused.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from poem.dtypes.groups import Planes
from poem.dtypes.tensor import Tensor
from poem.dtypes.term import LEAF_BITS, Grouped, Leaf, Term, plane_path

Chosen = range | tuple[int, ...]
Shape = tuple[int, ...]
Part = tuple[Planes, Shape]  # the planes of a weight that is joined, and its shape
Made = dict[str, np.ndarray]


class GroupSplit(ValueError):
    """The selection or join would need part of a group, or one factor where there are two."""


class TileBoundary(ValueError):
    """A join would leave a partial tile in the middle."""


def select(tensor: Tensor, axis: int, chosen: Chosen) -> Tensor:
    """The chosen entries of one axis, counted from 0, in that order. Views for a range.

    GroupSplit where a range does not cover whole groups, or where entries other than a range of neighbours lie in one.
    """
    shape = list(tensor.shape)
    shape[axis] = len(chosen)
    return Tensor(tensor.dtype, tuple(shape), _select(tensor.dtype.term, tensor.shape, axis, chosen, tensor.planes, ""))


def join(axis: int, tensors: Sequence[Tensor]) -> Tensor:
    """Weights of one dtype end to end on an axis, counted from 0; their other extents are equal.

    Along rows, a whole-tensor factor becomes one of segments, which keep the value of their part; equal neighbours are merged. ValueError
    for different dtypes or other extents; GroupSplit for factors that the parts would have to share and that differ; TileBoundary for a
    part, other than the last, that ends inside a tile or run.
    """
    first = _alike(tensors)
    for tensor in tensors[1:]:
        if (*tensor.shape[:axis], *tensor.shape[axis + 1 :]) != (*first.shape[:axis], *first.shape[axis + 1 :]):
            raise ValueError(f"parts to join differ in axis {axis} only, found {list(first.shape)} and {list(tensor.shape)}")
    shape = list(first.shape)
    shape[axis] = sum(tensor.shape[axis] for tensor in tensors)
    return Tensor(first.dtype, tuple(shape), _join(first.dtype.term, [(tensor.planes, tensor.shape) for tensor in tensors], axis, ""))


def stack(tensors: Sequence[Tensor]) -> Tensor:
    """Weights of one dtype and shape as a bank, on a new first axis.

    A whole-tensor factor becomes one value for every entry. ValueError for different dtypes or shapes.
    """
    first = _alike(tensors)
    for tensor in tensors[1:]:
        if tensor.shape != first.shape:
            raise ValueError(f"a bank holds weights of one shape, found {list(first.shape)} and {list(tensor.shape)}")
    planes = _stack(first.dtype.term, [tensor.planes for tensor in tensors], first.shape, "")
    return Tensor(first.dtype, (len(tensors), *first.shape), planes)


def _alike(tensors: Sequence[Tensor]) -> Tensor:
    if not tensors:
        raise ValueError("nothing to put together")
    for tensor in tensors[1:]:
        if tensor.dtype is not tensors[0].dtype:
            raise ValueError(f"weights put together have one dtype, found {tensors[0].dtype} and {tensor.dtype}")
    return tensors[0]


def _factors(term: Grouped, path: str) -> list[tuple[str, Term]]:
    found: list[tuple[str, Term]] = [(plane_path(path, "gain"), term.gain)]
    return found if term.offset is None else [*found, (plane_path(path, "offset"), term.offset)]


def _under(planes: Planes, path: str) -> Made:
    return {name: plane for name, plane in planes.items() if name == path or name.startswith(f"{path}.")}


# -- select --------------------------------------------------------------------------------------
def _select(term: Term, shape: Shape, axis: int, chosen: Chosen, planes: Planes, path: str) -> Made:
    if isinstance(term, Leaf):
        return {path or "data": _pick(planes[path or "data"], term.name, shape, axis, chosen)}
    group, last, extent = term.group, axis == len(shape) - 1, shape[axis]
    factor: Chosen | None = chosen
    if group.kind == "row" and last:
        factor = None
    elif group.kind in ("run", "tile") and last:
        factor = _groups(chosen, group.size, extent)
    elif group.kind == "tile" and axis == len(shape) - 2:
        factor = _groups(chosen, group.rows, extent)
    code = plane_path(path, "code")
    found = {code: _pick(planes[code], term.code, shape, axis, chosen)}
    if group.kind == "tensor":
        return found | _select_whole(term, shape, axis, chosen, planes, path)
    for below, part in _factors(term, path):
        if factor is None:
            found |= _under(planes, below)
        else:
            found |= _select(part, group.factor_shape(shape), axis, factor, planes, below)
    return found


def _pick(plane: np.ndarray, leaf: str, shape: Shape, axis: int, chosen: Chosen) -> np.ndarray:
    per_byte = max(1, 8 // LEAF_BITS[leaf])
    if per_byte > 1 and axis == len(shape) - 1:
        chosen = _groups(chosen, per_byte, shape[axis])
    index: Any = slice(chosen.start, chosen.stop, chosen.step) if isinstance(chosen, range) else list(chosen)
    return plane[(slice(None),) * axis + (index,)]


def _groups(chosen: Chosen, size: int, extent: int) -> range:
    """The groups of `size` entries that a run of entries covers exactly; the last group of the axis may be partial."""
    if size == 1 and isinstance(chosen, range):
        return chosen
    if not isinstance(chosen, range) or chosen.step != 1:
        raise GroupSplit(f"only a run of whole groups of {size} can be taken")
    if chosen.start % size or (chosen.stop % size and chosen.stop != extent):
        raise GroupSplit(f"entries {chosen.start} to {chosen.stop} are no whole groups of {size}")
    return range(chosen.start // size, -(-chosen.stop // size))


def _select_whole(term: Grouped, shape: Shape, axis: int, chosen: Chosen, planes: Planes, path: str) -> Made:
    rows_path = plane_path(path, "rows")
    rows = planes.get(rows_path)
    found: Made = {}
    for below, _ in _factors(term, path):
        found |= _under(planes, below)
        if rows is not None and axis < len(shape) - 2:
            found[below] = _pick(planes[below], "f32", planes[below].shape, axis, chosen)
    if rows is None:
        return found
    if axis != len(shape) - 2:
        return found | {rows_path: rows}
    segment = np.repeat(np.arange(len(rows)), rows)[list(chosen)]
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    found = {below: plane[..., segment[starts]] for below, plane in found.items()}
    return found | {rows_path: np.diff(starts, append=len(segment)).astype(np.int64)}


# -- join ----------------------------------------------------------------------------------------
def _join(term: Term, parts: list[Part], axis: int, path: str) -> Made:
    if isinstance(term, Leaf):
        return {path or "data": np.concatenate([planes[path or "data"] for planes, _ in parts], axis)}
    group, rank = term.group, len(parts[0][1])
    last = axis == rank - 1
    step = {"run": group.size if last else 1, "tile": group.size if last else group.rows if axis == rank - 2 else 1}.get(group.kind, 1)
    extents = [shape[axis] for _, shape in parts]
    if any(extent % step for extent in extents[:-1]):
        raise TileBoundary(f"parts of {group} groups are joined at multiples of {step}, found the extents {extents}")
    code = plane_path(path, "code")
    joined = {code: np.concatenate([planes[code] for planes, _ in parts], axis)}
    if group.kind == "tensor":
        return joined | _join_whole(term, parts, axis, path)
    inner = [(planes, group.factor_shape(shape)) for planes, shape in parts]
    for below, part in _factors(term, path):
        joined |= _the_same(parts, below) if group.kind == "row" and last else _join(part, inner, axis, below)
    return joined


def _join_whole(term: Grouped, parts: list[Part], axis: int, path: str) -> Made:
    """The factors of a whole-tensor group: along rows and leading axes every part keeps its own."""
    names, rank = [below for below, _ in _factors(term, path)], len(parts[0][1])
    if axis == rank - 1 or not _has_leaf_factors(term):
        return {key: plane for name in names for key, plane in _the_same(parts, name).items()}
    segments = [_segments_of(planes, shape, path) for planes, shape in parts]
    factors = [[_by_segment(planes, shape, path, name) for planes, shape in parts] for name in names]
    if axis < rank - 2:
        if any(not np.array_equal(own, segments[0]) for own in segments):
            raise GroupSplit("banks whose rows are in different segments cannot be joined")
        return {
            **{name: np.concatenate(own, axis) for name, own in zip(names, factors, strict=True)},
            plane_path(path, "rows"): segments[0],
        }
    return _merged(np.concatenate(segments), {name: np.concatenate(own, -1) for name, own in zip(names, factors, strict=True)}, path)


def _merged(rows: np.ndarray, factors: Made, path: str) -> Made:
    """Segments along rows, neighbours of equal factors as one; a matrix with one segment has none."""
    changes = np.zeros(len(rows), bool)
    changes[0] = True
    for factor in factors.values():
        flat = factor.reshape(-1, len(rows))
        changes[1:] |= (flat[:, 1:] != flat[:, :-1]).any(axis=0)
    rows = np.add.reduceat(rows, np.flatnonzero(changes))
    factors = {name: factor[..., changes] for name, factor in factors.items()}
    if len(rows) == 1 and all(factor.ndim == 1 for factor in factors.values()):
        return {name: factor.reshape(()) for name, factor in factors.items()}
    return {**factors, plane_path(path, "rows"): rows}


def _has_leaf_factors(term: Grouped) -> bool:
    return isinstance(term.gain, Leaf) and (term.offset is None or isinstance(term.offset, Leaf))


def _the_same(parts: list[Part], path: str) -> Made:
    """The planes at `path`, which serve the joined whole and so must be equal in all parts."""
    first, *others = (_under(planes, path) for planes, _ in parts)
    for other in others:
        if first.keys() != other.keys() or any(first[name].tobytes() != other[name].tobytes() for name in first):
            raise GroupSplit(f"parts that share `{path}` hold different values there")
    return first


def _segments_of(planes: Planes, shape: Shape, path: str) -> np.ndarray:
    """The row counts of a part's segments: those it has, or all its rows as one."""
    found = planes.get(plane_path(path, "rows"))
    return np.array([shape[-2]], np.int64) if found is None else found


def _by_segment(planes: Planes, shape: Shape, path: str, name: str) -> np.ndarray:
    """A part's whole-tensor factor as `[*lead, P]`."""
    factor = planes[name]
    if plane_path(path, "rows") in planes:
        return factor
    return np.broadcast_to(factor, (*shape[:-2], 1))


# -- stack ---------------------------------------------------------------------------------------
def _stack(term: Term, parts: list[Planes], shape: Shape, path: str) -> Made:
    if isinstance(term, Leaf):
        return {path or "data": np.stack([stored[path or "data"] for stored in parts])}
    code_path = plane_path(path, "code")
    stacked = {code_path: np.stack([stored[code_path] for stored in parts])}
    group = term.group
    if group.kind == "tensor":
        return stacked | _stack_whole(term, parts, shape, path)
    for below, inner in _factors(term, path):
        stacked |= _stack(inner, parts, group.factor_shape(shape), below)
    return stacked


def _stack_whole(term: Grouped, parts: list[Planes], shape: Shape, path: str) -> Made:
    """Whole-tensor factors of a bank: `[E, *lead, P]` over the borders that any of the parts has."""
    if not _has_leaf_factors(term):
        raise ValueError(f"{term}: whole-tensor factors that are groups themselves cannot be stacked")
    names = [below for below, _ in _factors(term, path)]
    if len(shape) < 2:  # vectors become the rows of a matrix, each with its own factor
        ones = np.ones(len(parts), np.int64)
        return {**{name: np.stack([stored[name] for stored in parts]) for name in names}, plane_path(path, "rows"): ones}
    borders = [np.cumsum(_segments_of(stored, shape, path)) for stored in parts]
    ends = np.unique(np.concatenate(borders))
    refined = {
        name: np.stack(
            [_by_segment(stored, shape, path, name)[..., np.searchsorted(own, ends)] for stored, own in zip(parts, borders, strict=True)]
        )
        for name in names
    }
    return {**refined, plane_path(path, "rows"): np.diff(ends, prepend=0)}
