"""What an op may be called with, as its type rule sees it."""

from dataclasses import field
from typing import Any, ClassVar

from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.errors import Frame
from poem.graph import Cache, Cut, Node, Space


@dataclass(eq=False, slots=True)
class Value:
    """A traced matrix `[rows, width]` of `dtype`, on the axis `rows`.

    `kind` is "tensor", "plan" or "mask"; only tensors have rows, width and dtype.
    """

    trace: Any
    id: int
    kind: str
    rows: str | int
    width: int
    dtype: Dtype
    made_by: Node | None = None

    @property
    def shape(self) -> list[str | int]:
        return [self.rows, self.width]

    def __str__(self) -> str:
        return f"[{self.rows}, {self.width}] {self.dtype}" if self.kind == "tensor" else f"a {self.kind}"


@dataclass(eq=False, slots=True)
class Weight:
    """A weight as `layout` made it. Identity is the object: two equal weights are two tensors."""

    shape: tuple[int, ...]
    dtype: Dtype
    name: str = ""
    cut: Cut | None = None
    registered: bool = False
    where: tuple[Frame, ...] = ()

    def __str__(self) -> str:
        return f"{list(self.shape)} {self.dtype}"


@dataclass(eq=False, slots=True)
class CacheHandle:
    """What `inputs.kv(name)` and `inputs.state(name)` return. `space` is None for a state."""

    trace: Any
    cache: Cache
    space: Space | None

    def __str__(self) -> str:
        what = f"planes {list(self.cache.planes)}" if self.cache.kind == "kv" else f"slab {list(self.cache.slab)}"
        return f"`{self.cache.name}` ({what})"


@dataclass(eq=False, slots=True)
class Inputs:
    """The `inputs` handle of one trace."""

    trace: Any


@dataclass(frozen=True, slots=True)
class Setting:
    """An attribute of several parts. `word` is the language's word for its class, `kind` says which of the class."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)
    word: ClassVar[str] = "setting"

    def as_attribute(self) -> dict[str, Any]:
        """The setting as plain data, as a node holds it."""
        return {"kind": self.kind, **self.settings}


class Scaling(Setting):
    """A rope scaling value: `kind` is linear, llama3, yarn or longrope."""

    __slots__ = ()
    word = "scaling"


class Convolution(Setting):
    """The geometry of a convolution; `kind` is conv."""

    __slots__ = ()
    word = "conv"


class GridRule(Setting):
    """How an op changes the box of a clip: `kind` is upsample, shuffle, unshuffle or avg."""

    __slots__ = ()
    word = "rule"


class Segment(Setting):
    """Which voxels attend each other; `kind` is segment."""

    __slots__ = ()
    word = "segment"
