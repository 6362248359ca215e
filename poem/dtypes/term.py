"""The term algebra: a dtype is a leaf, or groups of codes with a gain and perhaps an offset.

    dtype := term [ "+a8" ]
    term  := leaf | group "_" code "_" term "_" tail
    tail  := "n" | "b_" term | "z_" term
    group := "gG" | "gRxC" | "gr" | "gt"

Sizes, plane shapes, packing and slicing all follow from the term; nothing here knows a nickname.
"""

import math
import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

LEAF_BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16,
    "e4m3": 8, "e5m2": 8, "e2m1": 4, "e8m0": 8,
    "i64": 64, "i32": 32, "i16": 16, "i8": 8,
    "u64": 64, "u32": 32, "u16": 16, "u8": 8, "u4": 4, "u2": 2,
    "bool": 8,
}  # fmt: skip
CODES = ("e4m3", "e5m2", "e2m1", "u8", "u4", "u2", "i8")
MAXIMUM_NESTING = 8


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


def planes(term: Term, shape: tuple[int, ...], prefix: str = "") -> list[Plane]:
    """The planes of a weight of `shape`, in file order: code, the gain's planes, the offset's planes.

    ValueError when a group does not divide the last axis or a packed row is no whole number of bytes.
    """
    if isinstance(term, Leaf):
        return [Plane(prefix or "data", term.name, shape)]
    dot = f"{prefix}." if prefix else ""
    code = Plane(f"{dot}code", term.code, shape)
    if shape and shape[-1] * LEAF_BITS[term.code] % 8:
        raise ValueError(f"a row of {shape[-1]} {term.code} codes is no whole number of bytes")
    factors = term.group.factor_shape(shape)
    found = [code, *planes(term.gain, factors, f"{dot}gain")]
    if term.offset is not None:
        found += planes(term.offset, factors, f"{dot}offset")
    return found
