"""The term algebra: a dtype is a leaf, or groups of codes with a gain and perhaps an offset.

    dtype := term [ "+a8" ]
    term  := leaf | group "_" code "_" term "_" tail
    tail  := "n" | "b_" term | "z_" term
    group := "gG" | "gRxC" | "gr" | "gt"

Sizes, plane shapes, packing and slicing all follow from the term; nothing here knows a nickname.
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from poem.dataclass import dataclass

LEAF_BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16,
    "e4m3": 8, "e5m2": 8, "e2m1": 4, "e8m0": 8,
    "i64": 64, "i32": 32, "i16": 16, "i8": 8,
    "u64": 64, "u32": 32, "u16": 16, "u8": 8, "u4": 4, "u2": 2,
    "bool": 8,
}  # fmt: skip
CODES = ("e4m3", "e5m2", "e2m1", "u8", "u4", "u2", "i8")
MAXIMUM_NESTING = 8
NO_SEGMENTS: Mapping[str, int] = MappingProxyType({})


class Plane(NamedTuple):
    """One array of a stored weight. `shape` counts elements of `leaf`; sub-byte leaves are packed along
    the last axis, low bits first, so the array on disk is `packed_shape` of u8."""

    path: str
    leaf: str
    shape: tuple[int, ...]

    @property
    def packed_shape(self) -> tuple[int, ...]:
        bits = LEAF_BITS[self.leaf]
        if bits >= 8:
            return self.shape
        return (*self.shape[:-1], self.shape[-1] * bits // 8)

    @property
    def nbytes(self) -> int:
        return math.prod(self.packed_shape) * max(1, LEAF_BITS[self.leaf] // 8)


@dataclass(frozen=True, slots=True)
class Leaf:
    """A number stored as it is."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Group:
    """Which elements share one gain: `size` along the last axis, a tile, a whole row, the whole tensor."""

    kind: Literal["run", "tile", "row", "tensor"]
    rows: int = 1
    size: int = 0

    def __str__(self) -> str:
        return {"run": f"g{self.size}", "tile": f"g{self.rows}x{self.size}", "row": "gr", "tensor": "gt"}[self.kind]

    def factor_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of a gain or offset of a weight of `shape` `[..., N, K]`. ValueError if K does not fit."""
        if self.kind == "tensor":
            return ()
        if self.kind == "row":
            return shape[:-1]
        if len(shape) < (1 if self.kind == "run" else 2):
            raise ValueError(f"{self} groups need {'an axis' if self.kind == 'run' else 'two axes'}, found the shape {list(shape)}")
        *lead, k = shape
        if self.kind == "run":
            if k % self.size:
                raise ValueError(f"{k} is no multiple of {self.size}")
            return (*lead, k // self.size)
        *lead, n = lead
        return (*lead, -(-n // self.rows), -(-k // self.size))


@dataclass(frozen=True, slots=True)
class Grouped:
    """Groups of codes: `code * gain`, plus `offset` (tail "b"), or `(code - offset) * gain` (tail "z")."""

    group: Group
    code: str
    gain: "Term"
    tail: Literal["n", "b", "z"] = "n"
    offset: "Term | None" = None

    def __str__(self) -> str:
        tail = self.tail if self.offset is None else f"{self.tail}_{self.offset}"
        return f"{self.group}_{self.code}_{self.gain}_{tail}"


Term = Leaf | Grouped

_GROUP = re.compile(r"g(?:(?P<row>r)|(?P<tensor>t)|(?:(?P<rows>[1-9]\d*)x)?(?P<size>[1-9]\d*))")


def parse_term(text: str) -> Term:
    """The term that `text` spells. ValueError says which word is wrong."""
    words = text.split("_")
    term, rest = _parse(words, text, 1)
    if rest:
        raise ValueError(f"`{text}`: nothing may follow the term, found `{'_'.join(rest)}`")
    return term


def _parse(words: list[str], text: str, depth: int) -> tuple[Term, list[str]]:
    if depth > MAXIMUM_NESTING:
        raise ValueError(f"`{text}`: terms nest at most {MAXIMUM_NESTING} deep")
    if not words:
        raise ValueError(f"`{text}`: a term is missing at the end")
    head, *rest = words
    if head in LEAF_BITS:
        return Leaf(head), rest
    match = _GROUP.fullmatch(head)
    if match is None:
        raise ValueError(f"`{text}`: `{head}` is neither a leaf nor a group")
    if match["row"]:
        group = Group("row")
    elif match["tensor"]:
        group = Group("tensor")
    elif match["rows"]:
        if int(match["rows"]) < 2:
            raise ValueError(f"`{text}`: a tile has at least 2 rows, found `{head}`")
        group = Group("tile", int(match["rows"]), int(match["size"]))
    else:
        group = Group("run", 1, int(match["size"]))
    if not rest or rest[0] not in CODES:
        raise ValueError(f"`{text}`: after `{head}` a code is expected ({', '.join(CODES)}), found `{''.join(rest[:1])}`")
    code, *rest = rest
    gain, rest = _parse(rest, text, depth + 1)
    tail = rest[0] if rest else ""
    if tail == "n":
        return Grouped(group, code, gain), rest[1:]
    if tail not in ("b", "z"):
        raise ValueError(f"`{text}`: a tail is expected (n, b or z), found `{tail}`")
    offset, rest = _parse(rest[1:], text, depth + 1)
    return Grouped(group, code, gain, "b" if tail == "b" else "z", offset), rest


def planes(term: Term, shape: tuple[int, ...], prefix: str = "", segments: Mapping[str, int] = NO_SEGMENTS) -> list[Plane]:
    """The planes of a weight of `shape`, in file order: code, the gain's planes, the offset's planes.

    segments: for whole-tensor factors that differ between row segments, the path of the plane of row counts (`gain.rows` for
    nvfp4) and how many segments there are: the factor then has the shape `[*lead, P]`, and that plane is listed last of its term.
    ValueError when a group does not divide the last axis or a packed row is no whole number of bytes.
    """
    leaf = term.name if isinstance(term, Leaf) else term.code
    columns = shape[-1] if shape else 1
    if columns * LEAF_BITS[leaf] % 8:
        raise ValueError(f"a row of {columns} {leaf} codes is no whole number of bytes")
    if isinstance(term, Leaf):
        return [Plane(prefix or "data", leaf, shape)]
    rows_path = plane_path(prefix, "rows")
    count = segments.get(rows_path) if term.group.kind == "tensor" else None
    factors = term.group.factor_shape(shape) if count is None else (*shape[:-2], count)
    if count is not None and len(shape) < 2:
        raise ValueError(f"`{rows_path}`: segments of rows need two axes, found the shape {list(shape)}")
    found = [Plane(plane_path(prefix, "code"), leaf, shape), *planes(term.gain, factors, plane_path(prefix, "gain"), segments)]
    if term.offset is not None:
        found += planes(term.offset, factors, plane_path(prefix, "offset"), segments)
    if count is not None:
        found.append(Plane(rows_path, "i64", (count,)))
    return found


def plane_path(prefix: str, name: str) -> str:
    """The path of the plane `name` of a term whose own path is `prefix` ("" for the whole weight)."""
    return f"{prefix}.{name}" if prefix else name


def quantum(term: Term) -> tuple[int, int]:
    """The steps (rows, columns) at which a weight of `term` may be cut: whole bytes and whole groups, nested ones included."""
    bits = LEAF_BITS[term.name if isinstance(term, Leaf) else term.code]
    rows, columns = 1, max(1, 8 // bits)
    if isinstance(term, Leaf):
        return rows, columns
    group = term.group
    for factor in (term.gain, term.offset):
        if factor is None or group.kind == "tensor":
            continue
        below_rows, below_columns = quantum(factor)
        if group.kind == "row":  # a row of the weight is a column of its factor
            rows = math.lcm(rows, below_columns)
        else:
            rows = math.lcm(rows, group.rows * below_rows)
            columns = math.lcm(columns, group.size * below_columns)
    return rows, columns
