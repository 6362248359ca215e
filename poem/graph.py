"""The Graph: what one trace of `forward` yields, and all that a backend sees.

Pure data: ordered, comparable, serialisable. Ids are positions in their lists. Operands refer to
values, params, caches or the `inputs` handle through `Ref`; attributes are plain JSON values.
`where` never takes part in equality: a comment or a moved line changes no graph.
"""

import json
from dataclasses import field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from poem.dataclass import dataclass
from poem.errors import Frame

API_VERSION = 1


class ValueType(NamedTuple):
    """The type of a value: `[rows, width]` of a dtype word.

    `rows` is an axis: `"tokens"`, `"tokens*2"`, `"patches/4"`, `"lanes+1"`, or an int for a constant.
    """

    rows: str | int
    width: int
    dtype: str

    def __str__(self) -> str:
        return f"[{self.rows}, {self.width}] {self.dtype}"


class Ref(NamedTuple):
    """What an operand points at: `kind` and the id there (0 for `inputs`)."""

    kind: Literal["value", "param", "cache", "inputs"]
    id: int


Operand = Ref | list[Ref] | None
Attribute = Any  # None, bool, int, float, str, a scaling as a dict, or lists of those


@dataclass(frozen=True, slots=True)
class Cut:
    """How tensor-parallel ranks cut a weight, and on which axis a format joins its parts."""

    axis: int
    segments: tuple[int, ...] = ()
    heads: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Param:
    """A laid-out weight: its name is its field path."""

    id: int
    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    cut: Cut | None = None
    source: Literal["checkpoint", "registered"] = "checkpoint"


@dataclass(frozen=True, slots=True)
class Space:
    """Paged per-token memory of one dtype."""

    id: int
    dtype: str
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Cache:
    """A row of a kv space (`kind` "kv") or a per-sequence slab (`kind` "state")."""

    id: int
    name: str
    kind: Literal["kv", "state"]
    space: int = 0
    planes: tuple[int, ...] = ()
    head_dim: int = 0
    heads: bool = False
    scales: tuple[int, ...] | None = None
    slab: tuple[int, ...] = ()
    dtype: str = ""
    split: int | None = None


@dataclass(frozen=True, slots=True)
class Input:
    """A run-time operand that forward asked for, e.g. `tokens()`."""

    id: int
    method: str
    arguments: dict[str, Attribute]
    value: int

    @property
    def key(self) -> str:
        """The method, with its arguments where it has some: `port(name)`. Under it a run is given values that no batch holds."""
        return f"{self.method}({', '.join(map(str, self.arguments.values()))})" if self.arguments else self.method


@dataclass(frozen=True, slots=True)
class Value:
    """A matrix, a plan or a mask. `producer` is ("input", input id) or ("node", node id, result index)."""

    id: int
    kind: Literal["tensor", "plan", "mask"]
    type: ValueType | None
    producer: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One op call. Recording order is a valid execution order."""

    id: int
    op: str
    operands: dict[str, Operand]
    attributes: dict[str, Attribute]
    results: tuple[int, ...]
    layer: tuple[int, int] | None = None
    guard: None = None
    where: tuple[Frame, ...] = field(default=(), compare=False)

    @property
    def references(self) -> list[Ref]:
        """What all operands point at, those in lists included."""
        found: list[Ref] = []
        for operand in self.operands.values():
            if type(operand) is list:
                found += operand
            elif operand is not None:
                found.append(operand)  # type: ignore[arg-type]
        return found


@dataclass(frozen=True, slots=True)
class Output:
    """A result that forward registered."""

    name: str
    value: int


@dataclass(frozen=True, slots=True)
class Fold:
    """One `fold_layers`: the ids of the values carried before each layer, and after the last."""

    id: int
    carried: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Graph:
    """One trace of one deployment."""

    package: str
    model: str
    deployment: str
    params: tuple[Param, ...]
    spaces: tuple[Space, ...]
    caches: tuple[Cache, ...]
    inputs: tuple[Input, ...]
    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[Output, ...]
    folds: tuple[Fold, ...] = ()
    api: int = API_VERSION

    def canonical(self) -> str:
        """Sorted JSON of everything but `where`."""
        return json.dumps(_plain(self), sort_keys=True, separators=(",", ":"))

    @cached_property
    def _digest(self) -> str:
        import hashlib  # loads OpenSSL, which most uses of a graph do without

        return hashlib.sha256(self.canonical().encode()).hexdigest()

    def digest(self) -> str:
        """sha256 of `canonical()`, in hex."""
        return self._digest

    def param(self, name: str) -> Param:
        """The param of that name or alias. Raises KeyError."""
        return self._params_by_name[name]

    @cached_property
    def _params_by_name(self) -> dict[str, Param]:
        return {name: param for param in self.params for name in (param.name, *param.aliases)}

    def output(self, name: str) -> Value:
        """The value registered under `name`. Raises KeyError."""
        for output in self.outputs:
            if output.name == name:
                return self.values[output.value]
        raise KeyError(name)

    def producer_of(self, value: int) -> Node | None:
        """The node that makes a value, or None for an input."""
        producer = self.values[value].producer
        return self.nodes[producer[1]] if producer[0] == "node" else None


def _plain(item: Any) -> Any:
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return [_plain(part) for part in item]
    if isinstance(item, (list, tuple)):
        return [_plain(part) for part in item]
    if isinstance(item, dict):
        return {key: _plain(part) for key, part in item.items()}
    fields = getattr(item, "__dataclass_fields__", None)
    if fields is None:
        return item
    return {name: _plain(getattr(item, name)) for name in fields if name != "where"}
