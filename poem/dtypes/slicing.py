"""Cutting stored weights, joining them along N and stacking them into banks, without decoding.

Everything follows the term: a plane of codes is cut where the weight is, a factor where its groups are. What would need other
codes or other groups is refused.
"""

from collections.abc import Sequence

import numpy as np

from poem.dtypes.groups import Planes, factor_shape
from poem.dtypes.tensor import Tensor
from poem.dtypes.term import LEAF_BITS, Grouped, Leaf, Term, plane_path

ROWS, COLUMNS = -2, -1


def cut_rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Rows `start:stop` along N of a weight `[..., N, K]`; planes are views.

    ValueError outside the weight, and where a cut falls inside a tile.
    """
    return _cut(tensor, ROWS, start, stop)


def cut_columns(tensor: Tensor, start: int, stop: int) -> Tensor:
    """Columns `start:stop` along K of a weight `[..., N, K]`; planes are views.

    ValueError outside the weight, and where a cut falls inside a group or a byte.
    """
    return _cut(tensor, COLUMNS, start, stop)


def join(tensors: Sequence[Tensor]) -> Tensor:
    """Weights `[..., N_i, K]` of one dtype, joined along N.

    A whole-tensor factor becomes one of segments, which keep the value of their part; equal neighbours are merged. ValueError for
    different dtypes or other extents, and for tiles if a part other than the last ends inside one.
    """
    first = _alike(tensors)
    if len(first.shape) < 2:
        raise ValueError(f"joining along N needs two axes, found the shape {list(first.shape)}")
    for tensor in tensors[1:]:
        if (*tensor.shape[:-2], tensor.shape[-1]) != (*first.shape[:-2], first.shape[-1]):
            raise ValueError(f"parts to join differ in N only, found {list(first.shape)} and {list(tensor.shape)}")
    planes = _join(first.dtype.term, [(tensor.planes, tensor.shape) for tensor in tensors], ROWS, "")
    rows = sum(tensor.shape[-2] for tensor in tensors)
    return Tensor(first.dtype, (*first.shape[:-2], rows, first.shape[-1]), planes)


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


def _cut(tensor: Tensor, axis: int, start: int, stop: int) -> Tensor:
    shape = tensor.shape
    if len(shape) < -axis:
        raise ValueError(f"a cut along {'N' if axis == ROWS else 'K'} needs more axes than {list(shape)} has")
    if not 0 <= start < stop <= shape[axis]:
        raise ValueError(f"a cut {start}:{stop} does not lie in the extent {shape[axis]}")
    step = tensor.dtype.quantum[axis]
    for edge in (start, stop):
        if edge % step and edge != shape[axis]:
            unit = "rows" if axis == ROWS else "columns"
            raise ValueError(f"{tensor.dtype} {list(shape)} is cut at multiples of {step} {unit}, found {edge}")
    planes = _cut_term(tensor.dtype.term, tensor.planes, shape, axis, start, stop, "")
    return Tensor(tensor.dtype, _with_extent(shape, axis, stop - start), planes)


def _with_extent(shape: tuple[int, ...], axis: int, extent: int) -> tuple[int, ...]:
    changed = list(shape)
    changed[axis] = extent
    return tuple(changed)


def _along(plane: np.ndarray, axis: int, start: int, stop: int) -> np.ndarray:
    return plane[..., start:stop, :] if axis == ROWS else plane[..., start:stop]


def _cut_leaf(plane: np.ndarray, leaf: str, axis: int, start: int, stop: int) -> np.ndarray:
    if axis == COLUMNS:
        per_byte = max(1, 8 // LEAF_BITS[leaf])
        start, stop = start // per_byte, stop // per_byte
    return _along(plane, axis, start, stop)


def _factor_terms(term: Grouped, path: str) -> list[tuple[Term, str]]:
    found: list[tuple[Term, str]] = [(term.gain, plane_path(path, "gain"))]
    return found if term.offset is None else [*found, (term.offset, plane_path(path, "offset"))]


def _cut_term(term: Term, stored: Planes, shape: tuple[int, ...], axis: int, start: int, stop: int, path: str) -> dict[str, np.ndarray]:
    if isinstance(term, Leaf):
        return {path or "data": _cut_leaf(stored[path or "data"], term.name, axis, start, stop)}
    code_path, rows_path = plane_path(path, "code"), plane_path(path, "rows")
    cut = {code_path: _cut_leaf(stored[code_path], term.code, axis, start, stop)}
    group, segments = term.group, stored.get(rows_path) if term.group.kind == "tensor" else None
    below = factor_shape(group, shape, segments)
    if group.kind == "tensor" and segments is not None and axis == ROWS:
        edges = np.concatenate([[0], np.cumsum(segments)])
        kept = np.clip(edges, start, stop)
        first, last = int(np.searchsorted(edges, start, "right")) - 1, int(np.searchsorted(edges, stop, "left"))
        cut[rows_path] = np.diff(kept)[first:last].astype(np.int64)
        moved, start, stop = COLUMNS, first, last
    elif group.kind == "tensor" or (group.kind == "row" and axis == COLUMNS):
        return cut | {name: plane for name, plane in stored.items() if _belongs(name, path) and name != code_path}
    elif group.kind == "row":
        moved = COLUMNS  # a row of the weight is an element of its factor
    else:
        step = group.rows if axis == ROWS else group.size
        moved, start, stop = axis, start // step, -(-stop // step)
    for inner, inner_path in _factor_terms(term, path):
        cut |= _cut_term(inner, stored, below, moved, start, stop, inner_path)
    return cut


def _belongs(name: str, path: str) -> bool:
    return not path or name.startswith(f"{path}.")


Part = tuple[Planes, tuple[int, ...]]


def _join(term: Term, parts: list[Part], axis: int, path: str) -> dict[str, np.ndarray]:
    """Planes of parts (planes and shape of each) joined along rows; or along columns, where they are factors of rows."""
    if isinstance(term, Leaf):
        return {path or "data": np.concatenate([stored[path or "data"] for stored, _ in parts], axis)}
    group = term.group
    extents = [shape[axis] for _, shape in parts]
    step = {"run": group.size if axis == COLUMNS else 1, "tile": group.rows if axis == ROWS else group.size}.get(group.kind, 1)
    if any(extent % step for extent in extents[:-1]):
        raise ValueError(f"parts of {group} groups are joined at multiples of {step}, found the extents {extents}")
    code_path = plane_path(path, "code")
    joined = {code_path: np.concatenate([stored[code_path] for stored, _ in parts], axis)}
    if group.kind == "tensor":
        return joined | _join_whole(term, parts, axis, path)
    below = [(stored, group.factor_shape(shape)) for stored, shape in parts]
    for inner, inner_path in _factor_terms(term, path):
        if group.kind == "row" and axis == COLUMNS:
            joined |= _the_same(parts, inner_path)
        else:
            joined |= _join(inner, below, COLUMNS if group.kind == "row" else axis, inner_path)
    return joined


def _join_whole(term: Grouped, parts: list[Part], axis: int, path: str) -> dict[str, np.ndarray]:
    """The factors of a whole-tensor group: every part keeps its own, as segments."""
    names = [inner_path for _, inner_path in _factor_terms(term, path)]
    if axis == COLUMNS or len(parts[0][1]) < 2 or not _has_leaf_factors(term):
        return {key: plane for name in names for key, plane in _the_same(parts, name).items()}
    rows = np.concatenate([_segments_of(stored, shape, path) for stored, shape in parts])
    factors = [np.concatenate([_by_segment(stored, shape, path, name) for stored, shape in parts], axis=-1) for name in names]
    changes = np.zeros(len(rows), bool)
    changes[0] = True
    for factor in factors:
        flat = factor.reshape(-1, len(rows))
        changes[1:] |= (flat[:, 1:] != flat[:, :-1]).any(axis=0)
    rows = np.add.reduceat(rows, np.flatnonzero(changes))
    factors = [factor[..., changes] for factor in factors]
    if len(rows) == 1 and factors[0].ndim == 1:
        return {name: factor.reshape(()) for name, factor in zip(names, factors, strict=True)}
    return {**dict(zip(names, factors, strict=True)), plane_path(path, "rows"): rows}


def _has_leaf_factors(term: Grouped) -> bool:
    return isinstance(term.gain, Leaf) and (term.offset is None or isinstance(term.offset, Leaf))


def _the_same(parts: list[Part], path: str) -> dict[str, np.ndarray]:
    """The planes at `path`, which serve the joined whole and so must be equal in all parts."""
    first, *others = ({name: plane for name, plane in stored.items() if name == path or _belongs(name, path)} for stored, _ in parts)
    for other in others:
        if first.keys() != other.keys() or any(first[name].tobytes() != other[name].tobytes() for name in first):
            raise ValueError(f"parts that share `{path}` hold different values there")
    return first


def _segments_of(stored: Planes, shape: tuple[int, ...], path: str) -> np.ndarray:
    """The row counts of a part's segments: those it has, or all its rows as one."""
    found = stored.get(plane_path(path, "rows"))
    return np.array([shape[-2]], np.int64) if found is None else found


def _by_segment(stored: Planes, shape: tuple[int, ...], path: str, name: str) -> np.ndarray:
    """A part's whole-tensor factor as `[*lead, P]`."""
    factor = stored[name]
    if plane_path(path, "rows") in stored:
        return factor
    return np.broadcast_to(factor, (*shape[:-2], 1))


def _stack(term: Term, parts: list[Planes], shape: tuple[int, ...], path: str) -> dict[str, np.ndarray]:
    if isinstance(term, Leaf):
        return {path or "data": np.stack([stored[path or "data"] for stored in parts])}
    code_path = plane_path(path, "code")
    stacked = {code_path: np.stack([stored[code_path] for stored in parts])}
    group = term.group
    if group.kind == "tensor":
        return stacked | _stack_whole(term, parts, shape, path)
    for inner, inner_path in _factor_terms(term, path):
        stacked |= _stack(inner, parts, group.factor_shape(shape), inner_path)
    return stacked


def _stack_whole(term: Grouped, parts: list[Planes], shape: tuple[int, ...], path: str) -> dict[str, np.ndarray]:
    """Whole-tensor factors of a bank: `[E, *lead, P]` over the borders that any of the parts has."""
    if not _has_leaf_factors(term):
        raise ValueError(f"{term}: whole-tensor factors that are groups themselves cannot be stacked")
    names = [inner_path for _, inner_path in _factor_terms(term, path)]
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
