"""What the Starlark of `formats(m)` says, as plain data.

`Package.read_formats(deployment, source)` returns `Format`s. Their `recognizes()` and `read()` run the
package's own functions against `source`; everything they return is defined here. Names of tensors are kept
as written: `{l}` is a placeholder in pairs, and whoever expands the pairs against a layout fills it.
Every object carries `where`, the user frames that made it, outermost first.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any, Literal, Protocol, TypeGuard

from poem.dataclass import dataclass
from poem.errors import Frame

Where = tuple[Frame, ...]
Number = int | float


class Source(Protocol):
    """What the query functions of a package ask: an open checkpoint."""

    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a stored weight of that name."""

    def has_prefix(self, prefix: str) -> bool:
        """Whether some name starts with `prefix`."""

    def shape(self, name: str) -> list[int]:
        """Its extents as stored. KeyError for a name that is not there."""

    def stored(self, name: str) -> str:
        """Its storage word (`bf16`, `e4m3tile128`, `q4_1`, ...). KeyError for a name that is not there."""

    def text_attribute(self, key: str) -> str | None:
        """A text of the container's metadata, or None."""

    def attribute_value(self, key: str) -> Any:
        """A value of the container's metadata (number, bool, text or list of those), or None."""

    def config_value(self, path: str) -> Any:
        """The value at a dotted path of `config.json`, or None. Lists are legal, maps come back as a dict."""


# -- expressions ---------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Src:
    """A stored weight, by name."""

    name: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Constant:
    """Numbers written in the package, row-major."""

    values: tuple[Number, ...]
    shape: tuple[int, ...]
    dtype: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Fill:
    """One value everywhere."""

    value: Number
    shape: tuple[int, ...]
    dtype: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Concat:
    """Parts end to end on `axis`."""

    axis: int
    parts: "tuple[Expression, ...]"
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Stack:
    """One slice for each integer of the placeholder `over`, on a new axis 0.

    part: a name template, several of them (joined on the weight's cut axis) or an expression.
    count: how many slices, or None for the weight's axis-0 extent.
    """

    part: "str | tuple[str, ...] | Expression"
    over: str
    count: int | None = None
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Slice:
    """`length` entries of `axis` from `start`."""

    of: "Expression"
    axis: int
    start: int
    length: int
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Stride:
    """`length` entries of `axis` from `start`, every `step`."""

    of: "Expression"
    axis: int
    start: int
    length: int
    step: int
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Gather:
    """The chosen entries of `axis`, in that order."""

    of: "Expression"
    axis: int
    indices: tuple[int, ...]
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Reshape:
    """The same elements, row-major; at most one extent is -1."""

    of: "Expression"
    shape: tuple[int, ...]
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Transpose:
    """Axes reordered."""

    of: "Expression"
    axes: tuple[int, ...]
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Transmute:
    """The same bytes, read as another dtype of another shape."""

    of: "Expression"
    shape: tuple[int, ...]
    dtype: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Cast:
    """Converted to the float `dtype`."""

    of: "Expression"
    dtype: str
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Scale:
    """Times `factor`, in f32."""

    of: "Expression"
    factor: float
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Bias:
    """Plus `term`, in f32."""

    of: "Expression"
    term: float
    where: Where = ()


UNARY = ("neg_ln", "sqrt", "rsqrt", "neg", "exp")


@dataclass(frozen=True, slots=True)
class Unary:
    """One of `UNARY`, elementwise; `neg_ln` is ln of the negated value."""

    of: "Expression"
    name: str
    where: Where = ()


Expression = (
    Src | Constant | Fill | Concat | Stack | Slice | Stride | Gather | Reshape | Transpose | Transmute | Cast | Scale | Bias | Unary
)
_EXPRESSIONS = (Src, Constant, Fill, Concat, Stack, Slice, Stride, Gather, Reshape, Transpose, Transmute, Cast, Scale, Bias, Unary)


def is_expression(item: object) -> TypeGuard[Expression]:
    """Whether `item` is one of the expressions above."""
    return isinstance(item, _EXPRESSIONS)


def parts_of(expression: Expression) -> Iterator[Expression]:
    """The expressions directly inside one, in order."""
    for field in fields(expression):
        item = getattr(expression, field.name)
        for part in item if isinstance(item, tuple) else (item,):
            if is_expression(part):
                yield part


# -- statements ----------------------------------------------------------------------------------
# Where a weight comes from: one stored weight, several joined on the weight's cut axis (axis 0 without one), or an expression.
Left = str | tuple[str, ...] | Expression


@dataclass(frozen=True, slots=True)
class Pair:
    """One `(left, right)` of a list of pairs; names on both sides may hold placeholders.

    right: a template over weight names, or None for tensors that are known and deliberately not read; then `left`
        is one template or several, and a placeholder matches any run of characters.
    index: position in the list it was written in, for messages.
    """

    left: Left
    right: str | None
    where: Where = ()
    index: int = 0


@dataclass(frozen=True, slots=True)
class Rows:
    """Names by row: the names of a row are joined on the weight's cut axis (counted without the new axis), the rows are then
    stacked on a new axis 0."""

    rows: tuple[tuple[str, ...], ...]
    where: Where = ()


@dataclass(frozen=True, slots=True)
class ReadStatement:
    """One call on `reads` other than `pairs` and `ignore`; names are literal.

    target: the name of a weight (a weight object was given) or a path as the package wrote it, which may be an alias or misspelt.
    method: `read`, `read_concat`, `read_expr`, `read_over` or `read_stack`, for messages.
    """

    target: str
    left: Left | Rows
    where: Where = ()
    method: str = "read"


@dataclass(frozen=True, slots=True)
class State:
    """A stated value: `config` or `attribute` `key` has to agree with `want`; `or_deeper` accepts found >= want."""

    kind: Literal["config", "attribute"]
    key: str
    want: bool | int | float | str
    or_deeper: bool = False
    where: Where = ()


@dataclass(frozen=True, slots=True)
class Recognition:
    """What a format's `recognizes` said. `reason` tells why an error or another result than True or False counts as False."""

    answer: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Format:
    """One way a checkpoint may name and store a model.

    recognizes: asks the package; None where the format states no `recognizes`.
    read: runs a `read` function, or gives the pairs of a list. Raises PackageError (`formats.bad-pair`, ...).
    """

    name: str
    where: Where
    states: tuple[State, ...]
    recognizes: Callable[[], Recognition] | None
    read: Callable[[], tuple[Pair | ReadStatement, ...]]
