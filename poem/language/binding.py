"""Binds the arguments of a builtin by the signature of the Python function behind it.

    def tokenizer(call: Call, *, markers: Groups = (), pinned: Ids | None = None) -> ...

The annotation of a parameter says what it takes: `Annotated[T, Wants(word, convert)]`. `T | None` accepts None.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from poem.errors import PackageError
from poem.suggest import did_you_mean

REQUIRED = inspect.Parameter.empty


class Unfit(Exception):
    """Raised by a `convert` that was given something else. `expected` overrides the word of the parameter."""

    def __init__(self, code: str = "call.wrong-kind", expected: str = "", found: str = "") -> None:
        super().__init__(code)
        self.code, self.expected, self.found = code, expected, found


class Wants(NamedTuple):
    """What a parameter takes. `word` names it with its article; `convert` checks and converts, raising `Unfit`."""

    word: str
    convert: Callable[[Any], Any]


class Parameter(NamedTuple):
    """One parameter of a builtin. `by` is "position", "either" or "name"."""

    name: str
    wants: Wants
    default: Any
    optional: bool
    by: str

    def __str__(self) -> str:
        if self.default is REQUIRED:
            return self.name
        default = list(self.default) if isinstance(self.default, tuple) else self.default
        return f"{self.name}={default!r}".replace("'", '"')


def parameters_of(function: Callable[..., Any]) -> tuple[Parameter, ...]:
    """The parameters of a builtin, without the first, which is the call itself."""
    return tuple(_parameter(p) for p in list(inspect.signature(function).parameters.values())[1:])


def _parameter(parameter: inspect.Parameter) -> Parameter:
    annotation, optional = parameter.annotation, False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        optional, annotation = True, members[0]
    wants = next(part for part in typing.get_args(annotation) if isinstance(part, Wants))
    by = "position" if parameter.kind is parameter.POSITIONAL_ONLY else "name" if parameter.kind is parameter.KEYWORD_ONLY else "either"
    return Parameter(parameter.name, wants, parameter.default, optional, by)


def signature(name: str, parameters: Sequence[Parameter]) -> str:
    """The signature as the language writes it: `model(id, /, *, template, tokenizer, mini=False)`."""
    words: list[str] = []
    before = "position"
    for parameter in parameters:
        if before == "position" and parameter.by != "position" and words:
            words.append("/")
        if before != "name" and parameter.by == "name":
            words.append("*")
        before = parameter.by
        words.append(str(parameter))
    if words and before == "position":
        words.append("/")
    return f"{name}({', '.join(words)})"


Refuse = Callable[..., PackageError]


def bind(
    name: str,
    parameters: Sequence[Parameter],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    refuse: Refuse,
    kind_of: Callable[[Any], str],
) -> dict[str, Any]:
    """The converted arguments by name. Raises what `refuse(code, message, expected=, found=, hint=)` makes (`call.*`)."""
    positional = [parameter for parameter in parameters if parameter.by != "name"]
    if len(args) > len(positional):
        raise refuse(
            "call.too-many", f"{name}() takes at most {len(positional)} arguments by position",
            expected=signature(name, parameters), found=f"{len(args)} by position",
        )  # fmt: skip
    given: dict[str, Any] = {parameter.name: value for parameter, value in zip(positional, args, strict=False)}
    by_name = {parameter.name for parameter in parameters if parameter.by != "position"}
    for key, value in kwargs.items():
        if key not in by_name:
            hint = did_you_mean(key, by_name)
            if any(parameter.name == key for parameter in parameters):
                hint = f"{key} is given by position"
            raise refuse("call.unknown-argument", f"{name}() has no argument `{key}`", expected=signature(name, parameters), hint=hint)
        if key in given:
            raise refuse("call.repeated-argument", f"{name}(): {key} is given twice", expected=signature(name, parameters))
        given[key] = value
    bound: dict[str, Any] = {}
    for parameter in parameters:
        value = given.get(parameter.name)
        if value is None:
            if parameter.optional and parameter.name in given:
                bound[parameter.name] = None
            elif parameter.default is not REQUIRED:
                bound[parameter.name] = parameter.default
            else:
                raise refuse("call.missing-argument", f"{name}(): {parameter.name} is missing", expected=signature(name, parameters))
            continue
        try:
            bound[parameter.name] = parameter.wants.convert(value)
        except Unfit as unfit:
            wanted = unfit.expected or parameter.wants.word
            found = unfit.found or kind_of(value)
            message = f"{name}(): {parameter.name} wants {wanted}, found {found}"
            hint = f"the signature is {signature(name, parameters)}"
            raise refuse(unfit.code, message, expected=wanted, found=found, hint=hint) from None
    return bound
