"""What builtins take: the kinds of arguments, with the words of the language for them."""

import math
from typing import Annotated, Any

from poem.dtypes import Dtype
from poem.language.binding import Unfit, Wants
from poem.language.declarations import Model, Template, TokenizerContract
from poem.language.evaluation import Foreign
from poem.ops.operands import Value, Weight
from poem.tracer import kind_word, with_article

INT_LIMIT = 2**31


class ReservedDtype:
    """A dtype word that is kept for later."""

    __slots__ = ("name",)
    word = "dtype"

    def __init__(self, name: str) -> None:
        self.name = name


def kind_of(given: Any) -> str:
    """The language's words for what was given, with an article: `a weight`, `None`."""
    if given is None:
        return "None"
    if isinstance(given, Foreign):
        word = given.word
    elif isinstance(given, ReservedDtype):
        word = "dtype"
    else:
        word = {
            "Model": "model", "Template": "template", "TokenizerContract": "tokenizer", "Deployment": "deployment",
            "Published": "published", "DeclaredDeployment": "deployment", "Declared": "format", "State": "stated value",
        }.get(type(given).__name__) or kind_word(given)  # fmt: skip
        if type(given).__module__ == "poem.formats.declared" and word != "stated value":
            word = "expression"
    return with_article(word)


def _instance(cls: Any) -> Any:
    def convert(given: Any) -> Any:
        if not isinstance(given, cls):
            raise Unfit
        return given

    return convert


def text(given: Any) -> str:
    """A string."""
    if not isinstance(given, str):
        raise Unfit
    return given


def _flag(given: Any) -> bool:
    if not isinstance(given, bool):
        raise Unfit
    return given


def _integer(given: Any) -> int:
    if isinstance(given, bool) or not isinstance(given, int):
        raise Unfit
    return given


def _count(given: Any) -> int:
    if not 0 <= _integer(given) < INT_LIMIT:
        raise Unfit("call.bad-value", "an int >= 0 below 2**31", str(given))
    return given


def _size(given: Any) -> int:
    if not 1 <= _integer(given) < INT_LIMIT:
        raise Unfit("call.bad-value", "an int >= 1 below 2**31", str(given))
    return given


def number(given: Any) -> float:
    """A finite int or float, as a float."""
    if isinstance(given, bool) or not isinstance(given, (int, float)):
        raise Unfit
    try:
        converted = float(given)
    except OverflowError:
        converted = math.inf
    if not math.isfinite(converted):
        raise Unfit("call.bad-value", "a finite number", str(given)[:40])
    return converted


def _plain_number(given: Any) -> int | float:
    converted = number(given)
    return given if isinstance(given, int) else converted


def dtype(given: Any) -> Dtype:
    """A dtype that exists."""
    if isinstance(given, ReservedDtype):
        raise Unfit("call.bad-value", "a dtype of this version", f"{given.name}, which is kept for GGUF blocks")
    if not isinstance(given, Dtype):
        raise Unfit
    return given


def listed(word: str, convert: Any, least: int = 0) -> Wants:
    """A list of something; `word` names the list with its article."""

    def convert_all(given: Any) -> tuple[Any, ...]:
        if not isinstance(given, (list, tuple)):
            raise Unfit
        if len(given) < least:
            raise Unfit("call.bad-value", f"{word}, at least {least}", f"{len(given)} of them")
        converted = []
        for index, item in enumerate(given):
            try:
                converted.append(convert(item))
            except Unfit as unfit:
                raise Unfit(unfit.code, word, f"{unfit.found or kind_of(item)} at index {index}") from None
        return tuple(converted)

    return Wants(word, convert_all)


_groups = listed("a list of lists of strings", listed("a list of strings", text).convert)


def _ids(given: Any) -> dict[str, int]:
    if not isinstance(given, dict):
        raise Unfit
    for key, value in given.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < INT_LIMIT:
            raise Unfit("call.bad-value", "a dict of token ids >= 0 by token", f"{value!r} for {key!r}")
    return given


def _groups_by_part(given: Any) -> dict[str, tuple[tuple[str, ...], ...]]:
    if not isinstance(given, dict):
        raise Unfit
    return {key: _groups.convert(value) for key, value in given.items()}


def _dtypes(given: Any) -> tuple[Any, ...]:
    listed_dtypes = given if isinstance(given, (list, tuple)) else [given]
    for item in listed_dtypes:
        if not isinstance(item, (Dtype, ReservedDtype)):
            raise Unfit(found=kind_of(item))
    return tuple(listed_dtypes)


def _stated(given: Any) -> Any:
    if isinstance(given, float):
        return number(given)
    if not isinstance(given, (bool, int, str)):
        raise Unfit
    return given


def _anything(given: Any) -> Any:
    return given


def _function(given: Any) -> Any:
    if not isinstance(given, Foreign) or given.word != "function":
        raise Unfit
    return given


Text = Annotated[str, Wants("a string", text)]
Texts = Annotated[tuple[str, ...], listed("a list of strings", text)]
Names = Annotated[tuple[str, ...], listed("a list of names", text, 1)]
Groups = Annotated[tuple[tuple[str, ...], ...], _groups]
Rows = Annotated[tuple[tuple[str, ...], ...], listed("a list of lists of names", listed("a list of names", text, 1).convert, 1)]
Ids = Annotated[dict[str, int], Wants("a dict of token ids by token", _ids)]
GroupsByPart = Annotated[dict[str, tuple[tuple[str, ...], ...]], Wants("a dict of groups by part", _groups_by_part)]
Flag = Annotated[bool, Wants("True or False", _flag)]
Integer = Annotated[int, Wants("an int", _integer)]
Integers = Annotated[tuple[int, ...], listed("a list of ints", _integer)]
Count = Annotated[int, Wants("an int", _count)]
Counts = Annotated[tuple[int, ...], listed("a list of ints >= 0", _count)]
Size = Annotated[int, Wants("an int", _size)]
Sizes = Annotated[tuple[int, ...], listed("a list of ints >= 1", _size, 1)]
Number = Annotated[float, Wants("a number", number)]
Numbers = Annotated[tuple[float, ...], listed("a list of numbers", number)]
PlainNumber = Annotated[int | float, Wants("a number", _plain_number)]
PlainNumbers = Annotated[tuple[int | float, ...], listed("a list of numbers", _plain_number)]
OfDtype = Annotated[Dtype, Wants("a dtype", dtype)]
AnyDtype = Annotated[Any, Wants("a dtype", lambda given: _dtypes([given])[0])]
OfDtypes = Annotated[tuple[Any, ...], Wants("a dtype or a list of dtypes", _dtypes)]
OfTemplate = Annotated[Template, Wants("a template", _instance(Template))]
OfTokenizer = Annotated[TokenizerContract, Wants("a tokenizer", _instance(TokenizerContract))]
OfModel = Annotated[Model, Wants("a model", _instance(Model))]
Stated = Annotated[Any, Wants("a number, a bool or a string", _stated)]
Function = Annotated[Any, Wants("a function", _function)]
Anything = Annotated[Any, Wants("a value", _anything)]
OfWeight = Annotated[Weight, Wants("a weight", _instance(Weight))]
OfValue = Annotated[Value, Wants("a value", _instance(Value))]
