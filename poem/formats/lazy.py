"""Arrays that a plan can reason about before any tensor data is read: shape, dtype and source, and rows on demand.

Every function here checks its arguments against shapes alone and returns a new array; `read(start, stop)` then gives rows of
its first axis, reading no more of the checkpoint than they need. Floats and integers are read in strips of rows.
Quantised weights keep their codes and scales through selections and joins, as views of the file until they are joined.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from poem.checkpoint.stored import Factors, Stored
from poem.dataclass import dataclass
from poem.dtypes import Dtype, leaves, slicing
from poem.dtypes.slicing import Chosen
from poem.dtypes.tensor import STORAGE, Tensor

FLOAT_LEAVES = ("f64", "f32", "f16", "bf16")
F32 = Dtype("f32")


class Refusal(Exception):
    """Why an expression cannot be what it asks for; whoever evaluates it adds the place."""

    def __init__(self, code: str, message: str, *, expected: str = "", found: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.code, self.message, self.expected, self.found, self.hint = code, message, expected, found, hint


class Use(NamedTuple):
    """Which entries of one axis of a stored weight are read; `axis` None: all of it."""

    name: str
    axis: int | None = None
    entries: Chosen = ()


@dataclass(frozen=True, slots=True)
class Lazy:
    """shape and dtype of what `read(start, stop)` gives; word: how the checkpoint stores it, for messages.

    quantised: some of it is stored as codes and scales, even if it is decoded by now. uses: what it reads of the
    checkpoint. direct: it is one stored weight, or a selection from one. factors: the planes of one stored weight without
    its codes.
    """

    shape: tuple[int, ...]
    dtype: Dtype
    read: Callable[[int, int], Tensor]
    word: str
    quantised: bool = False
    uses: tuple[Use, ...] = ()
    direct: bool = False
    factors: Factors = dict

    def whole(self) -> Tensor:
        """All rows."""
        return self.read(0, self.shape[0])

    def array(self, start: int, stop: int) -> np.ndarray:
        """Rows of a leaf as a NumPy array."""
        return self.read(start, stop).planes["data"]


def _leaf(shape: tuple[int, ...], dtype: Dtype, rows: Callable[[int, int], np.ndarray], *of: Lazy) -> Lazy:
    """An array of leaves computed from others."""

    def read(start: int, stop: int) -> Tensor:
        return Tensor(dtype, (stop - start, *shape[1:]), {"data": rows(start, stop)})

    return Lazy(
        shape, dtype, read, of[0].word if of else dtype.name, any(lazy.quantised for lazy in of),
        tuple(use for lazy in of for use in lazy.uses),
    )  # fmt: skip


# -- leaves --------------------------------------------------------------------------------------
def source(stored: Stored) -> Lazy:
    """A stored weight as the checkpoint keeps it."""
    if stored.problem:
        raise Refusal(
            "import.illegible", f"cannot read `{stored.name}`, stored as {stored.word}: {stored.problem}",
            hint="look for the same model in safetensors with bf16, f16 or f32 weights",
        )  # fmt: skip
    if not all(stored.shape):
        raise Refusal("import.shape", f"`{stored.name}` is empty", found=str(list(stored.shape)))
    uses = (Use(stored.name),)
    return Lazy(stored.shape, stored.dtype, stored.read, stored.word, stored.quantised, uses, direct=True, factors=stored.factors)


def decoded(lazy: Lazy) -> Lazy:
    """The values of a quantised array in f32; a leaf stays what it is."""
    if lazy.dtype.is_leaf:
        return lazy

    step, extent = lazy.dtype.quantum[0] if len(lazy.shape) == 2 else 1, lazy.shape[0]

    def rows(start: int, stop: int) -> np.ndarray:
        first = start // step * step  # rows are cut at whole groups
        last = min(-(-stop // step) * step, extent)
        return lazy.read(first, last).decode(slice(start - first, stop - first))

    return replace(_leaf(lazy.shape, F32, rows, lazy), direct=lazy.direct)


def constant(values: Sequence[int | float], shape: tuple[int, ...], dtype: Dtype) -> Lazy:
    """Numbers written in a package, row-major."""
    size = math.prod(shape)
    if len(values) != size:
        raise Refusal("import.shape", "the constant does not fill its shape", expected=f"{size} values", found=str(len(values)))
    array = _numbers(values, dtype).reshape(shape)
    return _leaf(shape, dtype, lambda start, stop: array[start:stop])


def fill(value: float, shape: tuple[int, ...], dtype: Dtype) -> Lazy:
    """One value everywhere."""
    one = _numbers([value], dtype)
    return _leaf(shape, dtype, lambda start, stop: np.broadcast_to(one[0], (stop - start, *shape[1:])))


def _numbers(values: Sequence[int | float], dtype: Dtype) -> np.ndarray:
    _check_leaf(dtype)
    if dtype.name not in FLOAT_LEAVES:
        low, high = (0, 1) if dtype.name == "bool" else (np.iinfo(STORAGE[dtype.name]).min, np.iinfo(STORAGE[dtype.name]).max)
        wrong = [value for value in values if value != int(value) or not low <= value <= high]
        if wrong:
            expected = f"integers from {low} to {high}"
            raise Refusal("import.overflow", f"a number does not fit into {dtype}", expected=expected, found=str(wrong[0]))
        return np.array([int(value) for value in values], STORAGE[dtype.name])
    exact = np.array(values, np.float64)
    array = leaves.encode(exact, dtype.name)
    _check_range(exact, array, True, 0, dtype)
    return array


def _check_leaf(dtype: Dtype) -> None:
    if not dtype.is_leaf or dtype.name in ("e8m0", "e2m1", "u4", "u2"):
        raise Refusal("import.illegible", f"numbers cannot be written as {dtype}", hint="use a float or an integer dtype")


# -- selections and joins, which keep codes and scales --------------------------------------------
def select(lazy: Lazy, axis: int, chosen: Chosen) -> Lazy:
    """The chosen entries of an axis, in that order."""
    axis = _axis(lazy, axis)
    extent = lazy.shape[axis]
    if not chosen or min(chosen) < 0 or max(chosen) >= extent:
        found = f"{min(chosen, default=0)} to {max(chosen, default=-1)}"
        raise Refusal("import.shape", f"entries outside axis {axis}, or none", expected=f"0 to {extent - 1}", found=found)
    shape = (*lazy.shape[:axis], len(chosen), *lazy.shape[axis + 1 :])
    uses = (Use(lazy.uses[0].name, axis, _compose(lazy.uses[0], chosen)),) if _refines(lazy, axis) else lazy.uses
    if not lazy.dtype.is_leaf:
        _check_whole_groups(lazy, axis, chosen)

        def read(start: int, stop: int) -> Tensor:
            every = slicing.select(lazy.whole(), axis, chosen)
            return every if stop - start == shape[0] else slicing.select(every, 0, range(start, stop))

        return replace(lazy, shape=shape, read=read, uses=uses)
    index = slice(chosen.start, chosen.stop, chosen.step) if isinstance(chosen, range) else np.array(chosen)

    def rows(start: int, stop: int) -> np.ndarray:
        if axis:
            return lazy.array(start, stop)[(slice(None),) * axis + (index,)]
        wanted = chosen[start:stop]
        if not wanted:
            return lazy.array(0, 0)
        first = min(wanted)
        span = lazy.array(first, max(wanted) + 1)
        return span[:: wanted.step] if isinstance(wanted, range) else span[np.array(wanted) - first]

    return replace(_leaf(shape, lazy.dtype, rows, lazy), uses=uses, direct=lazy.direct)


def _refines(lazy: Lazy, axis: int) -> bool:
    return lazy.direct and lazy.uses[0].axis in (None, axis)


def _compose(use: Use, chosen: Chosen) -> Chosen:
    if use.axis is None:
        return chosen
    return tuple(use.entries[entry] for entry in chosen)


def _check_whole_groups(lazy: Lazy, axis: int, chosen: Chosen) -> None:
    rank = len(lazy.shape)
    step = lazy.dtype.quantum[axis - rank] if axis >= rank - 2 else 1
    if step == 1:
        return
    run = isinstance(chosen, range) and chosen.step == 1
    if not run or chosen[0] % step or ((chosen[-1] + 1) % step and chosen[-1] + 1 != lazy.shape[axis]):
        found = f"{chosen[0]} to {chosen[-1]}" if run else "single entries"
        raise Refusal(
            "import.group-split", f"this would split groups of {lazy.word} on axis {axis}",
            expected=f"a run of whole groups of {step}", found=found,
        )  # fmt: skip


def concat(axis: int, parts: Sequence[Lazy]) -> Lazy:
    """Parts end to end. Quantised parts must be stored alike; floats and integers take the wider type."""
    if not parts:
        raise Refusal("import.shape", "nothing to join")
    axis = _axis(parts[0], axis)
    for part in parts[1:]:
        if (part.shape[:axis], part.shape[axis + 1 :]) != (parts[0].shape[:axis], parts[0].shape[axis + 1 :]):
            raise Refusal(
                "import.shape", f"parts joined on axis {axis} differ in another extent",
                expected=str(list(parts[0].shape)), found=str(list(part.shape)),
            )  # fmt: skip
    parts = _alike(parts)
    shape = (*parts[0].shape[:axis], sum(part.shape[axis] for part in parts), *parts[0].shape[axis + 1 :])
    if not parts[0].dtype.is_leaf:
        return _concat_codes(axis, parts, shape)

    def rows(start: int, stop: int) -> np.ndarray:
        if axis:
            return np.concatenate([part.array(start, stop) for part in parts], axis)
        pieces, begin = [], 0
        for part in parts:
            low, high = max(start, begin), min(stop, begin + part.shape[0])
            if low < high:
                pieces.append(part.array(low - begin, high - begin))
            begin += part.shape[0]
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else parts[0].array(0, 0)

    return _leaf(shape, parts[0].dtype, rows, *parts)


def _concat_codes(axis: int, parts: Sequence[Lazy], shape: tuple[int, ...]) -> Lazy:
    rank, dtype = len(shape), parts[0].dtype
    step = dtype.quantum[axis - rank] if axis >= rank - 2 else 1
    for part in parts[:-1]:
        if part.shape[axis] % step:
            raise Refusal(
                "import.tile-boundary", f"a part stored as {part.word} ends inside a group on the joined axis",
                expected=f"a multiple of {step} on axis {axis}", found=str(part.shape[axis]),
            )  # fmt: skip

    def read(start: int, stop: int) -> Tensor:
        if axis:
            return slicing.join(axis, [part.read(start, stop) for part in parts])
        pieces, begin = [], 0
        for part in parts:
            first, last = max(start - begin, 0), min(stop - begin, part.shape[0])
            if first < last:
                pieces.append(part.read(first, last))
            begin += part.shape[0]
        return pieces[0] if len(pieces) == 1 else slicing.join(0, pieces)

    return Lazy(shape, dtype, read, parts[0].word, True, tuple(use for part in parts for use in part.uses))


def stack(parts: Sequence[Lazy]) -> Lazy:
    """Parts of one shape on a new axis 0."""
    if not parts:
        raise Refusal("import.shape", "nothing to stack")
    for part in parts[1:]:
        if part.shape != parts[0].shape:
            raise Refusal("import.shape", "stacked parts differ in shape", expected=str(list(parts[0].shape)), found=str(list(part.shape)))
    parts = _alike(parts)
    shape = (len(parts), *parts[0].shape)
    if not parts[0].dtype.is_leaf:
        return Lazy(
            shape, parts[0].dtype, lambda start, stop: slicing.stack([part.whole() for part in parts[start:stop]]), parts[0].word, True,
            tuple(use for part in parts for use in part.uses),
        )  # fmt: skip
    return _leaf(shape, parts[0].dtype, lambda start, stop: np.stack([part.whole().planes["data"] for part in parts[start:stop]]), *parts)


def _alike(parts: Sequence[Lazy]) -> Sequence[Lazy]:
    """Parts of one dtype: quantised ones must be so already, others take the widest type that holds all."""
    dtypes = {part.dtype for part in parts}
    if len(dtypes) == 1:
        return parts
    if any(not dtype.is_leaf for dtype in dtypes):
        raise Refusal(
            "import.mixed-storage", "parts of one quantised weight are stored differently",
            expected=f"all {parts[0].word}", found=" and ".join(dict.fromkeys(part.word for part in parts)),
            hint="choose a deployment with float weights: its parts are decoded one by one",
        )  # fmt: skip
    floats = {dtype.name in FLOAT_LEAVES for dtype in dtypes}
    if len(floats) > 1:
        raise Refusal("import.illegible", "floats and integers cannot be parts of one weight", found=", ".join(sorted(map(str, dtypes))))
    if True in floats:
        common = Dtype("f64" if Dtype("f64") in dtypes else "f32")
    else:
        kind = np.result_type(*(STORAGE[dtype.name] for dtype in dtypes))
        common = Tensor.of(np.empty(0, kind)).dtype if kind in STORAGE.values() else Dtype("i64")
    return [converted(part, common) for part in parts]


# -- everything else works on floats and integers --------------------------------------------------
def converted(lazy: Lazy, dtype: Dtype) -> Lazy:
    """A leaf as another leaf of the same kind. Floats round to nearest, ties to even.

    Reading refuses what the new dtype cannot hold: a finite float that would become infinite, an integer out of range
    (`import.overflow`).
    """
    if lazy.dtype is dtype:
        return lazy
    both = [name in FLOAT_LEAVES for name in (lazy.dtype.name, dtype.name)]
    if both[0] != both[1] or not (lazy.dtype.is_leaf and dtype.is_leaf):
        raise Refusal("import.illegible", "floats and integers are not turned into each other", expected=dtype.name, found=lazy.word)
    checked = not _holds_all(lazy.dtype.name, dtype.name)

    def rows(start: int, stop: int) -> np.ndarray:
        values = lazy.array(start, stop)
        out = leaves.encode(values, dtype.name)
        if checked:
            _check_range(values, out, both[0], start, dtype)
        return out

    return replace(_leaf(lazy.shape, dtype, rows, lazy), direct=lazy.direct)


def _holds_all(narrow: str, wide: str) -> bool:
    if narrow in FLOAT_LEAVES:
        return leaves.largest(narrow) <= leaves.largest(wide)
    return np.can_cast(STORAGE[narrow], STORAGE[wide])


def _has_infinite(values: np.ndarray) -> bool:
    if values.dtype == STORAGE["bf16"]:  # by bits: several times as fast as isinf of this type
        return bool(((values.view(np.uint16) & np.uint16(0x7FFF)) == 0x7F80).any())
    return bool(np.isinf(values).any())


def _check_range(values: np.ndarray, out: np.ndarray, floats: bool, start: int, dtype: Dtype) -> None:
    if floats and not _has_infinite(out):
        return
    wrong = np.isinf(out) & ~np.isinf(values) if floats else out != values
    if wrong.any():
        index = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise Refusal(
            "import.overflow", f"a value does not fit into {dtype}", expected=f"at most {leaves.largest(dtype.name):g} in magnitude",
            found=f"{values[index]} at {[index[0] + start, *index[1:]]}",
        )  # fmt: skip


def reshape(lazy: Lazy, shape: tuple[int, ...]) -> Lazy:
    """The same elements, row-major; at most one extent is -1."""
    lazy, size = decoded(lazy), math.prod(lazy.shape)
    known = math.prod(extent for extent in shape if extent != -1)
    if shape.count(-1) == 1 and known and size % known == 0:
        shape = tuple(size // known if extent == -1 else extent for extent in shape)
    if not shape or any(extent < 1 for extent in shape) or math.prod(shape) != size:
        raise Refusal("import.shape", f"cannot reshape {list(lazy.shape)}", expected=f"{size} elements", found=str(list(shape)))
    return _regrouped(lazy, shape, lazy.dtype, 1, 1)


def transmute(lazy: Lazy, shape: tuple[int, ...], dtype: Dtype) -> Lazy:
    """The same bytes, read as another leaf of another shape."""
    _check_leaf(dtype)
    if lazy.quantised:
        raise Refusal("import.illegible", f"the bytes of a weight stored as {lazy.word} are no plain numbers")
    old, new = STORAGE[lazy.dtype.name].itemsize, STORAGE[dtype.name].itemsize
    if any(extent < 1 for extent in shape) or math.prod(lazy.shape) * old != math.prod(shape) * new:
        raise Refusal(
            "import.shape", f"cannot read {list(lazy.shape)} {lazy.dtype} as {list(shape)} {dtype}",
            expected=f"{math.prod(lazy.shape) * old} bytes", found=f"{math.prod(shape) * new} bytes",
        )  # fmt: skip
    return _regrouped(lazy, shape, dtype, old, new)


def _regrouped(lazy: Lazy, shape: tuple[int, ...], dtype: Dtype, old: int, new: int) -> Lazy:
    """The bytes of an array in rows of another length. old, new: bytes of an element, or 1 and 1 to count in elements."""
    below, above = math.prod(lazy.shape[1:]) * old, math.prod(shape[1:]) * new

    def rows(start: int, stop: int) -> np.ndarray:
        begin, end = start * above, stop * above
        first = begin // below
        data = np.ascontiguousarray(lazy.array(first, -(-end // below))).reshape(-1)
        if dtype is not lazy.dtype:
            data = data.view(np.uint8)
        return data[begin - first * below : end - first * below].view(STORAGE[dtype.name]).reshape(stop - start, *shape[1:])

    return _leaf(shape, dtype, rows, lazy)


def transpose(lazy: Lazy, axes: tuple[int, ...]) -> Lazy:
    """Axes reordered."""
    lazy, rank = decoded(lazy), len(lazy.shape)
    order = tuple(axis + rank if axis < 0 else axis for axis in axes)
    if sorted(order) != list(range(rank)):
        raise Refusal("import.shape", f"the axes are no order of the {rank} axes of {list(lazy.shape)}", found=str(list(axes)))
    shape = tuple(lazy.shape[axis] for axis in order)
    if order[:1] == (0,):
        return _leaf(shape, lazy.dtype, lambda start, stop: lazy.array(start, stop).transpose(order), lazy)
    return _leaf(shape, lazy.dtype, lambda start, stop: lazy.array(0, lazy.shape[0]).transpose(order)[start:stop], lazy)


def in_f32(lazy: Lazy, compute: Callable[[np.ndarray], np.ndarray], what: str) -> Lazy:
    """A function of each element, in f32. Reading refuses a finite element whose result is not finite (`import.bad-value`)."""
    lazy = decoded(lazy)
    if lazy.dtype.name not in FLOAT_LEAVES:
        raise Refusal("import.illegible", f"{what} works on floats", found=lazy.word)

    def rows(start: int, stop: int) -> np.ndarray:
        with np.errstate(all="ignore"):
            values = lazy.array(start, stop).astype(np.float32)
            out = compute(values)
        wrong = ~np.isfinite(out) & np.isfinite(values)
        if wrong.any():
            index = tuple(int(i) for i in np.argwhere(wrong)[0])
            raise Refusal("import.bad-value", f"{what} has no finite result", found=f"{values[index]} at {[index[0] + start, *index[1:]]}")
        return out

    return _leaf(lazy.shape, F32, rows, lazy)


UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "neg_ln": lambda x: np.log(-x),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: np.float32(1) / np.sqrt(x),
    "neg": np.negative,
    "exp": np.exp,
}


def _axis(lazy: Lazy, axis: int) -> int:
    rank = len(lazy.shape)
    if not -rank <= axis < rank:
        raise Refusal("import.shape", f"there is no axis {axis} in {list(lazy.shape)}")
    return axis % rank
