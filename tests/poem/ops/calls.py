"""Operands in a few letters, a trace to call an op in, and the table of calls that the tests of type rules read."""

from dataclasses import dataclass
from typing import Any

from poem.dtypes import Dtype
from poem.errors import Frame
from poem.graph import ValueType
from poem.ops.operands import Weight
from poem.tracer import Tracer

WHERE = (Frame("example.poem", 7, "forward"),)


@dataclass(frozen=True)
class Given:
    """An operand to be made in a trace: `kind` says how, from `parts`."""

    kind: str
    parts: tuple[Any, ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}({', '.join(map(str, self.parts))})"


def v(width: int, dtype: str = "bf16", rows: str | int = "tokens") -> Given:
    """A value."""
    return Given("value", (rows, width, dtype))


def ids(width: int = 1, rows: str | int = "tokens") -> Given:
    """An i32 value."""
    return v(width, "i32", rows)


def w(*shape: int, dtype: str = "bf16") -> Given:
    """A weight."""
    return Given("weight", (shape, dtype))


def kv(*planes: int, window: int | None = None) -> Given:
    """A cache row."""
    return Given("cache", (planes, window))


def slab(*shape: int, dtype: str = "f32") -> Given:
    """A state."""
    return Given("state", (shape, dtype))


def made_by(op: str, **arguments: Any) -> Given:
    """What a call of another op gives."""
    return Given("call", (op, arguments))


INPUTS = Given("inputs")
MASK = Given("mask")


class Trace:
    """One trace, and what was made in it."""

    def __init__(self) -> None:
        self.tracer = Tracer("example", "example", "example-bf16-kv-bf16")
        self.made: dict[int, Any] = {}
        self.count = 0

    def call(self, op: str, arguments: dict[str, Any]) -> Any:
        """The results of an op on described operands."""
        return self.tracer.call(op, (), {name: self.make(given) for name, given in arguments.items()}, WHERE)

    def make(self, given: Any) -> Any:
        if isinstance(given, (list, tuple)):
            return [self.make(item) for item in given]
        if not isinstance(given, Given):
            return given
        self.count += 1
        name = f"operand{self.count}"
        tracer = self.tracer
        if given.kind == "value":
            return tracer.input(name, ValueType(*given.parts))
        if given.kind == "mask":
            return tracer.input("mask", None, kind="mask")
        if given.kind == "inputs":
            return tracer.handle
        if given.kind == "call":
            return self.call(*given.parts)
        if given.kind == "weight":
            weight = Weight(given.parts[0], Dtype(given.parts[1]))
            tracer.add_param(weight, name)
            return weight
        if given.kind == "cache":
            planes, window = given.parts
            return tracer.cache_handle(tracer.add_kv(tracer.add_space("bf16", window), name, planes, planes[0]))
        shape, dtype = given.parts
        return tracer.cache_handle(tracer.add_state(name, shape, dtype))


def types_of(results: Any) -> str:
    """`[tokens, 4] bf16; [tokens, 2] f32`, `a plan`, or `` for an append."""
    listed = () if results is None else results if isinstance(results, tuple) else (results,)
    return "; ".join(str(result) for result in listed)


@dataclass(frozen=True)
class Refused:
    """A change of arguments that makes an accepted call break a rule."""

    op: str
    arguments: dict[str, Any]
    rule: int
    code: str
    changed: dict[str, Any]


@dataclass(frozen=True)
class Accepted:
    """A call and the types that it gives."""

    op: str
    arguments: dict[str, Any]
    gives: str


ACCEPTED: list[Accepted] = []
REFUSED: list[Refused] = []


def calls(op: str, arguments: dict[str, Any], gives: str, *refused: tuple[int, str, dict[str, Any]]) -> None:
    """Enter a call of `op` that is accepted, and changes to it that are refused: (rule, code without its area, changes)."""
    ACCEPTED.append(Accepted(op, arguments, gives))
    for rule, code, changed in refused:
        REFUSED.append(Refused(op, arguments, rule, f"forward.{code}", changed))
