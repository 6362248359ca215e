"""What an op may be called with, as its type rule sees it."""

from dataclasses import dataclass, field
from typing import Any

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
class Scaling:
    """A rope scaling value: `kind` is linear, llama3, yarn or longrope."""

    kind: str
    settings: dict[str, Any] = field(default_factory=dict)

    def as_attribute(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.settings}
