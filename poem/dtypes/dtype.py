"""`Dtype`: a term with an activation rule, and the table of nicknames."""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import ClassVar

from poem.dtypes.term import LEAF_BITS, NO_SEGMENTS, Grouped, Leaf, Plane, Term, parse_term, planes, quantum
from poem.suggest import did_you_mean

NICKNAMES = {
    "e4m3row": "gr_e4m3_f32_n",
    "e4m3tile128": "g128x128_e4m3_f32_n",
    "e4m3tile128a8": "g128x128_e4m3_f32_n+a8",
    "nvfp4": "g16_e2m1_gt_e4m3_f32_n_n",
    "mxfp4": "g32_e2m1_e8m0_n",
    "u8g64": "g64_u8_bf16_b_bf16",
    "u4g64": "g64_u4_bf16_b_bf16",
    "u4g32": "g32_u4_bf16_b_bf16",
    "u2g32": "g32_u2_bf16_b_bf16",
    "u2g64": "g64_u2_bf16_b_bf16",
    "u2g128": "g128_u2_bf16_b_bf16",
}
RESERVED = {"u2g16k": "Q2_K", "i3g16k": "Q3_K", "u4g32k": "Q4_K", "u5g32k": "Q5_K", "i6g16k": "Q6_K"}  # GGUF's: not implemented
FLOATS = ("f32", "f16", "bf16")
KV_DTYPES = ("bf16", "f16", "f32", "e4m3", "e5m2")
WEIGHT_DTYPES = (*FLOATS, *NICKNAMES)
_NICKNAME_OF = {term: name for name, term in NICKNAMES.items()}


class Dtype:
    """A dtype. Interned: equal dtypes are one object, so compare with `is` or `==` alike."""

    _known: ClassVar[dict[str, "Dtype"]] = {}
    name: str
    term: Term
    act: str | None

    def __new__(cls, text: str) -> "Dtype":
        found = cls._known.get(text)
        if found is not None:
            return found
        spelled, plus, act = NICKNAMES.get(text, text).partition("+")
        if plus and act != "a8":
            raise ValueError(f"`{text}`: the only activation rule is a8, found `{act}`")
        try:
            term = parse_term(spelled)
        except ValueError as fault:
            hint = did_you_mean(text, WORDS)
            raise ValueError(f"{fault}{'; ' + hint if hint else ''}") from None
        canonical = f"{term}{plus}{act}"
        name = _NICKNAME_OF.get(canonical, canonical)
        self = cls._known.get(name)
        if self is None:
            self = super().__new__(cls)
            self.name, self.term, self.act = name, term, act or None
            cls._known[name] = self
        cls._known[text] = self
        return self

    def __getnewargs__(self) -> tuple[str]:
        return (self.name,)

    def __repr__(self) -> str:
        return f"Dtype({self.name!r})"

    def __str__(self) -> str:
        return self.name

    @property
    def is_leaf(self) -> bool:
        return isinstance(self.term, Leaf)

    @property
    def is_float(self) -> bool:
        """A plain float that ops compute on: f32, f16 or bf16."""
        return self.name in FLOATS

    @property
    def is_quantised(self) -> bool:
        """Groups of codes with gains."""
        return isinstance(self.term, Grouped)

    @cached_property
    def compute(self) -> "Dtype":
        """The dtype of values made from such a weight: itself for floats and i32, i64; bf16 if quantised.

        ValueError for a word that no op computes in (`e8m0`, `u4`, ...).
        """
        if self.is_quantised:
            return Dtype("bf16")
        if self.is_float or self.name in ("i32", "i64"):
            return self
        raise ValueError(f"nothing computes in {self.name}")

    def planes(self, shape: tuple[int, ...], segments: Mapping[str, int] = NO_SEGMENTS) -> list[Plane]:
        """The planes of a weight of `shape`, in file order (see `term.planes`).

        ValueError for a quantised dtype on fewer than two axes, and where groups or packed rows do not fit the last axis.
        """
        if self.is_quantised and len(shape) < 2:
            raise ValueError(f"{self} needs two axes or more, found the shape {list(shape)}")
        return planes(self.term, shape, segments=segments)

    @cached_property
    def group_size(self) -> int:
        """The last extent must be a multiple of this (1 when any extent fits)."""
        group = self.term.group if isinstance(self.term, Grouped) else None
        return group.size if group is not None and group.kind == "run" else 1

    @cached_property
    def quantum(self) -> tuple[int, int]:
        """A weight may be cut at multiples of these: rows (along N) and columns (along K)."""
        return quantum(self.term)

    def bits_per_weight(self, shape: tuple[int, ...]) -> float:
        """Bits of all planes of a weight of `shape`, divided by its elements."""
        return 8 * sum(plane.nbytes for plane in self.planes(shape)) / math.prod(shape)


WORDS = (*LEAF_BITS, *NICKNAMES, *RESERVED)
