"""Builtins of the formats phase: formats, queries of an open checkpoint, stated values, `reads`. Expressions are in `expressions`."""

import json
import math
from dataclasses import replace
from typing import Annotated, Any

from poem.dataclass import dataclass
from poem.errors import PackageError
from poem.formats.declared import (
    Expression,
    Left,
    Pair,
    ReadStatement,
    Rows,
    Source,
    Src,
    State,
    is_expression,
)
from poem.language.binding import Unfit
from poem.language.builtins.expressions import Made, OfExpression, made
from poem.language.builtins.record import asked, builtin
from poem.language.evaluation import Call, Evaluation, Foreign
from poem.language.frames import user_frames
from poem.language.values import (
    Anything,
    Flag,
    Function,
    Names,
    Stated,
    Text,
    kind_of,
    listed,
)
from poem.language.values import Rows as RowsOfNames
from poem.ops.operands import Weight


def _state(given: Any) -> State:
    if not isinstance(given, State):
        raise Unfit
    return given


States = Annotated[tuple[State, ...], listed("a list of stated values", _state)]


# -- formats -----------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Declared:
    """A format as `format(...)` was told; its functions stay on the Starlark side."""

    name: str
    states: tuple[State, ...]
    recognizes: bool
    reads: bool
    where: tuple[Any, ...]


@builtin("formats")
def format(call: Call, name: Text, /, *, read: Anything, recognizes: Function | None = None, states: States = ()) -> Made:
    """One way a checkpoint may name and store the model."""
    reads = isinstance(read, Foreign) and read.word == "function"
    if not reads and not isinstance(read, list):
        message = f"format(): read wants a list of pairs or a function, found {kind_of(read)}"
        raise call.error("call.wrong-kind", message, expected="a list of pairs or a function", found=kind_of(read))
    return Made(Declared(name, states, recognizes is not None, reads, call.where))


@asked
def formats(evaluation: Evaluation, given: Any) -> None:
    """Check what `formats(m)` returned."""
    expected = "a list of at least one format(...)"
    if not isinstance(given, list) or not given:
        found = "an empty list" if isinstance(given, list) else kind_of(given)
        message = f"formats must return a list of at least one format, found {found}"
        hint = "wrap it in [ ]" if isinstance(given, Declared) else ""
        raise evaluation.error("formats.not-a-list", message, expected=expected, found=found, hint=hint)
    names: dict[str, Declared] = {}
    for index, item in enumerate(given):
        if not isinstance(item, Declared):
            message = f"element {index} of what formats returned is no format"
            found = f"{kind_of(item)} at index {index}"
            raise evaluation.error("formats.wrong-element", message, expected="format(...)", found=found)
        first = names.setdefault(item.name, item)
        if first is not item:
            places = [f"{one.where[-1].file}:{one.where[-1].line}" for one in (first, item) if one.where]
            raise evaluation.error(
                "formats.duplicate",
                f"two formats are named `{item.name}`",
                item.where,
                expected="distinct names",
                found=" and ".join(places),
            )
    evaluation.delivered["formats"] = given


@asked
def recognized(evaluation: Evaluation, answer: Any) -> None:
    evaluation.delivered["answer"] = answer


# -- queries -----------------------------------------------------------------------------------------------------------
def _source(call: Call) -> Source:
    source = call.evaluation.source
    if source is None:
        raise call.error(
            "formats.no-checkpoint", f"{call.name}() needs an open checkpoint",
            hint="this package's formats can only be judged during an import",
        )  # fmt: skip
    return source


def _known(call: Call, name: str) -> Source:
    source = _source(call)
    if not source.has(name):
        raise call.error("formats.no-tensor", f"{call.name}(): the checkpoint holds no `{name}`", found=name, hint="ask has() first")
    return source


@builtin("formats")
def has(call: Call, name: Text) -> bool:
    """Whether the checkpoint holds a stored weight of that name."""
    return bool(_source(call).has(name))


@builtin("formats")
def has_prefix(call: Call, prefix: Text) -> bool:
    """Whether some name starts so."""
    return bool(_source(call).has_prefix(prefix))


@builtin("formats")
def shape(call: Call, name: Text) -> list[int]:
    """Extents as stored."""
    return [int(extent) for extent in _known(call, name).shape(name)]


@builtin("formats")
def stored(call: Call, name: Text) -> str:
    """The storage word."""
    return str(_known(call, name).stored(name))


@builtin("formats")
def text_attribute(call: Call, key: Text) -> str | None:
    """A text of the container's metadata."""
    found = _source(call).text_attribute(key)
    return found if isinstance(found, str) else None


@builtin("formats")
def attribute_value(call: Call, key: Text) -> Any:
    """A value of the container's metadata."""
    return _plain_value(call, key, _source(call).attribute_value(key))


@builtin("formats")
def config_value(call: Call, path: Text) -> Any:
    """The value at a dotted path of config.json."""
    return _plain_value(call, path, _source(call).config_value(path))


def _plain_value(call: Call, key: str, found: Any) -> Any:
    if found is None or isinstance(found, (bool, int, str)):
        return found
    if isinstance(found, float):
        return found if math.isfinite(found) else None
    if isinstance(found, (list, tuple)):
        return [_plain_value(call, key, item) for item in found]
    raise call.error(
        "call.bad-value", f"{call.name}(): `{key}` is a map", expected="a number, a bool, a text or a list", hint="ask for a key of it"
    )


@builtin("formats")
def config(call: Call, path: Text, want: Stated, or_deeper: Flag = False) -> str:
    """What config.json must say where it says something, as JSON: the prelude makes a stated value of it."""
    return json.dumps([path, want, or_deeper])


@builtin("formats")
def attribute(call: Call, key: Text, want: Stated, or_deeper: Flag = False) -> str:
    """What the container's metadata must say where it says something, likewise."""
    return json.dumps([key, want, or_deeper])


# -- pairs and reads ---------------------------------------------------------------------------------------------------
def _bad_pair(evaluation: Evaluation, where: tuple[Any, ...], index: int, message: str, found: str) -> PackageError:
    return evaluation.error(
        "formats.bad-pair", f"pair {index}: {message}", where,
        expected="(name, list of names or expression; path of a weight or None)", found=found,
    )  # fmt: skip


def check_pairs(evaluation: Evaluation, given: Any, where: tuple[Any, ...]) -> list[Pair]:
    """The pairs of a list, each a tuple or list of two (`formats.bad-pair`)."""
    if not isinstance(given, list):
        raise evaluation.error("formats.bad-pair", f"a list of pairs is wanted, found {kind_of(given)}", where, expected="a list of pairs")
    pairs = []
    for index, item in enumerate(given):
        if not isinstance(item, list) or len(item) != 2:
            found = f"{len(item)} element{'' if len(item) == 1 else 's'}" if isinstance(item, list) else kind_of(item)
            raise _bad_pair(evaluation, where, index, f"a pair has a left and a right side, found {found}", found)
        left, right = item
        if right is not None and not isinstance(right, str):
            raise _bad_pair(
                evaluation, where, index, f"the right side is the path of a weight or None, found {kind_of(right)}", kind_of(right)
            )
        if isinstance(left, list):
            if not left or not all(isinstance(name, str) for name in left):
                found = "an empty list" if not left else "a list of " + ", ".join(sorted({kind_of(name) for name in left}))
                raise _bad_pair(evaluation, where, index, f"a list on the left holds names, found {found}", found)
            left = tuple(left)
        elif not isinstance(left, str) and not is_expression(left):
            raise _bad_pair(
                evaluation, where, index, f"the left side is a name, a list of names or an expression, found {kind_of(left)}", kind_of(left)
            )
        elif right is None and is_expression(left):
            raise _bad_pair(evaluation, where, index, "with None on the right, the left side is a name or a list of names", kind_of(left))
        pairs.append(Pair(left, right, where + evaluation.place_of(right if right is not None else left), index))
    return pairs


def _record(evaluation: Evaluation, statements: list[Any]) -> None:
    evaluation.delivered.setdefault("statements", []).extend(statements)


@asked
def pairs(evaluation: Evaluation, given: Any) -> None:
    """A format whose read is a list of pairs."""
    declared = evaluation.delivered["reading"]
    _record(evaluation, check_pairs(evaluation, given, declared.where))


@builtin("formats", name="reads.pairs", shown="reads.pairs")
def reads_pairs(call: Call, list: Anything) -> None:
    """A list of pairs."""
    _record(call.evaluation, check_pairs(call.evaluation, list, call.where))


@builtin("formats", name="reads.ignore", shown="reads.ignore")
def reads_ignore(call: Call, template: Text) -> None:
    """Tensors that are known and deliberately not read."""
    _record(call.evaluation, [Pair(template, None, call.where)])


def _target(call: Call, w: Any) -> str:
    if isinstance(w, str):
        return w
    if not isinstance(w, Weight):
        raise call.error("call.wrong-kind", f"{call.name}(): w wants a weight or a path, found {kind_of(w)}", expected="a weight or a path")
    if not w.name:
        made = f"made at {w.where[-1].file}:{w.where[-1].line}" if w.where else ""
        raise call.error(
            "formats.unreachable-weight", f"{call.name}(): w is a weight that layout did not return",
            found=made, hint="put it in the struct that layout returns",
        )  # fmt: skip
    return w.name


def _statement(call: Call, w: Any, left: Left | Rows) -> None:
    method = call.name.partition(".")[2]
    _record(call.evaluation, [ReadStatement(_target(call, w), left, call.where, method)])


@builtin("formats", name="reads.read", shown="reads.read")
def reads_read(call: Call, w: Anything, name: Text) -> None:
    """One stored weight."""
    _statement(call, w, name)


@builtin("formats", name="reads.read_concat", shown="reads.read_concat")
def reads_read_concat(call: Call, w: Anything, names: Names) -> None:
    """Several stored weights, joined on the cut axis."""
    _statement(call, w, names)


@builtin("formats", name="reads.read_expr", shown="reads.read_expr")
def reads_read_expr(call: Call, w: Anything, expr: OfExpression) -> None:
    """An expression."""
    _statement(call, w, expr)


@builtin("formats", name="reads.read_stack", shown="reads.read_stack")
def reads_read_stack(call: Call, w: Anything, rows: RowsOfNames) -> None:
    """Names by row: joined, then stacked."""
    _statement(call, w, Rows(rows, call.where))


@builtin("formats", name="reads.read_over", shown="reads.read_over")
def reads_read_over(call: Call, w: Anything, name: Text, fn: Function) -> Made:
    """Checks the call, and gives `src(name)` for `fn`."""
    _target(call, w)
    return made(call, Src(name, call.where))


@asked
def read_over(evaluation: Evaluation, stack: str, w: Any, result: Any) -> None:
    """What `fn(src(name))` gave."""
    call = Call(evaluation, "reads.read_over", stack)
    if not is_expression(result):
        message = f"reads.read_over(): fn must return an expression, found {kind_of(result)}"
        raise call.error("call.wrong-kind", message, expected="an expression", found=kind_of(result))
    placed: Expression = replace(result, where=result.where or user_frames(stack))
    _statement(call, w, placed)
