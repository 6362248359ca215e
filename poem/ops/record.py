"""One record per op, made from one annotated Python function: its type rule.

    @op("linear")
    def matmul(x: Activation, w: AnyWeight, out: DtypeWord | None = None) -> ValueType:
        '''What it computes, in a line.

        Shapes: ...
        Formula: ...
        Rounding: ...
        Rules:
            1. ...
        For: ...
        Public: ...
        '''
        has_shape(w, (None, x.width), 1, "w")
        return result(x, width=w.shape[0], dtype=out)

The signature gives parameters, defaults and kinds; the docstring gives the documentation; the body is the type rule, made
of the comparisons of checks.py, each with the number of the rule that it holds. Everything else (Starlark builtins, argument
errors, `poem ops`, docs pages, completeness tests) is derived from the record.
"""

import inspect
import re
import struct
import types
import typing
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Annotated, Any, Literal

from poem.dataclass import dataclass
from poem.dtypes import FLOATS, Dtype
from poem.graph import ValueType
from poem.ops.operands import CacheHandle, Convolution, GridRule, Inputs, Scaling, Segment, Value, Weight

INT_LIMIT = 2**31
_SINGLE = struct.Struct("<f")


def round_to_single(number: float) -> float:
    """The nearest IEEE binary32, as a Python float. OverflowError when it would be infinite."""
    return _SINGLE.unpack(_SINGLE.pack(number))[0]


@dataclass(frozen=True, slots=True)
class Kind:
    """What one parameter takes.

    word: the word of the language used in messages ("value", "weight", "count", ...).
    operand: True for things a node refers to, False for attributes.
    dtypes: allowed dtype words for values and weights; () allows any.
    quantised: quantised weights are allowed beside `dtypes`.
    many: a list of them. alone: one of them without a list is accepted too.
    choices: for words.
    least: for counts.
    """

    word: str
    operand: bool = False
    dtypes: tuple[str, ...] = ()
    quantised: bool = False
    many: bool = False
    alone: bool = False
    choices: tuple[str, ...] = ()
    least: int = 1

    def __str__(self) -> str:
        """What to pass, in words: `value of f32`, `list of counts`, `silu or gelu`."""
        if self.choices:
            return " or ".join([", ".join(self.choices[:-1]), self.choices[-1]] if len(self.choices) > 1 else self.choices)
        words = {"count": f"int >= {self.least}", "integer": "int", "flag": "True or False"}
        one = words.get(self.word, self.word)
        of = f" of {self.dtype_words()}" if self.dtypes else ""
        if not self.many:
            return one + of
        return f"{one}{of}, or a list of them" if self.alone else f"list of {one}{of}"

    def takes(self, dtype: Dtype) -> bool:
        """Whether a value or weight of that dtype is accepted."""
        return not self.dtypes or dtype.name in self.dtypes or (self.quantised and dtype.is_quantised)

    def dtype_words(self) -> str:
        """The accepted dtypes, for messages: `f32, f16 or bf16`."""
        words = [*self.dtypes, *(["a quantised dtype"] if self.quantised else [])]
        return " or ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words) or "any dtype"


# Values and handles. Ops receive `Value`, `Weight`, `CacheHandle` and `Inputs` objects.
AnyValue = Annotated[Value, Kind("value", True)]
Activation = Annotated[Value, Kind("value", True, FLOATS)]
F32Value = Annotated[Value, Kind("value", True, ("f32",))]
Ids = Annotated[Value, Kind("value", True, ("i32",))]
Bytes = Annotated[Value, Kind("value", True, ("u8",))]
Values = Annotated[Sequence[Value], Kind("value", True, many=True)]
Activations = Annotated[Sequence[Value], Kind("value", True, FLOATS, many=True)]
ActivationOrActivations = Annotated[Value | Sequence[Value], Kind("value", True, FLOATS, many=True, alone=True)]
IdLists = Annotated[Sequence[Value], Kind("value", True, ("i32",), many=True)]
Mask = Annotated[Value, Kind("mask", True)]
Plan = Annotated[Value, Kind("plan", True)]
FloatWeight = Annotated[Weight, Kind("weight", True, FLOATS)]
AnyWeight = Annotated[Weight, Kind("weight", True, FLOATS, quantised=True)]
IntWeight = Annotated[Weight, Kind("weight", True, ("i32", "i64"))]
I32Weight = Annotated[Weight, Kind("weight", True, ("i32",))]
ValueOrWeight = Annotated[Value | Weight, Kind("value or weight", True, FLOATS)]
KvCache = Annotated[CacheHandle, Kind("cache", True)]
State = Annotated[CacheHandle, Kind("state", True)]
InputsHandle = Annotated[Inputs, Kind("inputs", True)]

# Attributes. Sizes, head counts and widths are `Count`: 0 is refused. `Index` counts from 0.
Count = Annotated[int, Kind("count")]
Index = Annotated[int, Kind("count", least=0)]
Number = Annotated[float, Kind("number")]
Flag = Annotated[bool, Kind("flag")]
Counts = Annotated[Sequence[int], Kind("count", many=True)]
Indices = Annotated[Sequence[int], Kind("count", many=True, least=0)]
Integers = Annotated[Sequence[int], Kind("integer", many=True)]
Numbers = Annotated[Sequence[float], Kind("number", many=True)]
DtypeWord = Annotated[Dtype, Kind("dtype")]
RopeScaling = Annotated[Scaling, Kind("scaling")]
ConvGeometry = Annotated[Convolution, Kind("conv")]
BoxRule = Annotated[Convolution | GridRule, Kind("conv or rule")]
SegmentRule = Annotated[Segment, Kind("segment")]
# A word with choices is annotated `Literal["silu", "gelu"]`; an attribute of a kind that one op alone knows may be
# `Annotated[T, Kind(...)]` in that op's module.

REQUIRED = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of an op. `optional`: None is accepted."""

    name: str
    kind: Kind
    default: Any
    optional: bool

    def __str__(self) -> str:
        if self.default is REQUIRED:
            return self.name
        return f"{self.name}={self.default!r}" if isinstance(self.default, str) else f"{self.name}={self.default}"


class OpRefusal(ValueError):
    """Raised by a type rule, or by a function that makes an attribute value; the caller adds op, place and phase."""

    def __init__(self, code: str, parameter: str, message: str, expected: str = "", found: str = "", hint: str = "", rule: int = 0):
        super().__init__(f"{parameter} {message}")
        self.code, self.parameter, self.message = code, parameter, message
        self.expected, self.found, self.hint, self.rule = expected, found, hint, rule


@dataclass(frozen=True)
class Op:
    """The record of one op.

    effect: "" for a pure function; "cache" if it writes a kv row; "state" if it reads and writes a slab.
        Calls that are handed what the op writes keep program order and are never dropped.
    extension: the op is not in the published list of Poem's ops; it is as binding as a listed one.
    same_as: the name of the op that this one is a second name of, or "".
    """

    namespace: str
    name: str
    rule: Callable[..., Any]
    effect: str = ""
    extension: bool = False
    same_as: str = ""

    @property
    def full_name(self) -> str:
        return f"{self.namespace}.{self.name}"

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        return tuple(_parameter(p) for p in inspect.signature(self.rule).parameters.values())

    def signature(self) -> str:
        """`ops.linear.matmul(x, w, out=None)`."""
        return f"ops.{self.full_name}({', '.join(map(str, self.parameters))})"

    @cached_property
    def documentation(self) -> dict[str, str]:
        """The docstring by section: "" is the summary; Shapes, Formula, Rounding, Rules, Edge, For, Public."""
        sections: dict[str, str] = {}
        current = ""
        lines: list[str] = []
        for line in inspect.getdoc(self.rule).splitlines():  # type: ignore[union-attr]
            match = re.match(r"(Shapes|Formula|Rounding|Rules|Edge|For|Public):(.*)", line)
            if match:
                sections[current] = inspect.cleandoc("\n".join(lines))
                current, lines = match[1], [match[2].strip()] if match[2].strip() else []
            else:
                lines.append(line)
        sections[current] = inspect.cleandoc("\n".join(lines))
        return sections

    @cached_property
    def rules(self) -> dict[int, str]:
        """The numbered rules, each in one line."""
        found: dict[int, str] = {}
        for line in self.documentation.get("Rules", "").splitlines():
            match = re.match(r"(\d+)\. (.*)", line)
            if match:
                found[int(match[1])] = match[2]
            else:
                found[max(found)] += f" {line.strip()}"
        return found


def _parameter(parameter: inspect.Parameter) -> Parameter:
    annotation, optional = parameter.annotation, False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [m for m in typing.get_args(annotation) if m is not type(None)]
        optional, annotation = True, members[0]
    of = typing.get_args(annotation)
    kind = Kind("word", choices=of) if typing.get_origin(annotation) is Literal else of[1]
    return Parameter(parameter.name, kind, parameter.default, optional)


REGISTRY: dict[str, Op] = {}


def op(
    namespace: str, effect: Literal["", "cache", "state"] = "", *, extension: bool = False, also: Sequence[str] = ()
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated type rule as `namespace.<its name>` (a trailing `_` is dropped), and under the names `also`."""

    def register(rule: Callable[..., Any]) -> Callable[..., Any]:
        name = rule.__name__.rstrip("_")
        REGISTRY[f"{namespace}.{name}"] = Op(namespace, name, rule, effect, extension)
        for second in also:
            REGISTRY[f"{namespace}.{second}"] = Op(namespace, second, rule, effect, extension, same_as=name)
        return rule

    return register


def result(like: Value, *, rows: str | int | None = None, width: int | None = None, dtype: Dtype | str | None = None) -> ValueType:
    """A result type: `like`'s, with the parts given replaced."""
    return ValueType(
        like.rows if rows is None else rows,
        like.width if width is None else width,
        str(like.dtype if dtype is None else dtype),
    )
