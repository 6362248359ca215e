"""`dataclass` of the standard library, made in a fifth of its time: start-up is part of the product.

The library compiles up to six methods for each class, at about 0.1 ms each. Here `__init__` alone is compiled, from as little text as
there can be; comparing, hashing and showing are the same few lines for every class. `frozen` is left to the type checker, and makes
instances hashable.
"""

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True) -> Any:
        """As `dataclasses.dataclass`; other settings than these are not taken."""
        if cls is None:
            return lambda cls: dataclass(cls, frozen=frozen, slots=slots, eq=eq)
        written = cls.__dict__
        made = dataclasses.dataclass(cls, init=False, repr=False, eq=False, slots=slots)
        if "__init__" not in written:
            made.__init__ = _initialiser(made)
        if eq and "__eq__" not in written:
            made.__eq__, made.__hash__ = _comparison(made)
            if not frozen:
                made.__hash__ = None
        if "__repr__" not in written:
            made.__repr__ = _shown
        return made


def _initialiser(cls: type) -> Callable[..., None]:
    """`__init__` by the fields, in order."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    given, steps = ["self"], []
    names: dict[str, Any] = {"_missing": dataclasses.MISSING}
    for field in fields:
        default, value = "", field.name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{field.name}"] = field.default_factory
            default, value = "=_missing", f"_make_{field.name}() if {field.name} is _missing else {field.name}"
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{field.name}"] = field.default
            default = f"=_default_{field.name}"
        given.append(field.name + default)
        steps.append(f" self.{field.name} = {value}")
    if hasattr(cls, "__post_init__"):
        steps.append(" self.__post_init__()")
    made: dict[str, Any] = {}
    exec("\n".join([f"def __init__({', '.join(given)}):", *steps, " return"]), names, made)
    made["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return made["__init__"]


def _comparison(cls: type) -> tuple[Callable[[Any, Any], Any], Callable[[Any], int]]:
    """`__eq__` and `__hash__` by the fields that are compared."""
    names = [field.name for field in dataclasses.fields(cls) if field.compare]
    parts = attrgetter(*names) if names else lambda item: ()

    def equal(one: Any, other: Any) -> Any:
        return parts(one) == parts(other) if one.__class__ is other.__class__ else NotImplemented

    def hashed(one: Any) -> int:
        return hash(parts(one))

    return equal, hashed


def _shown(item: Any) -> str:
    parts = ", ".join(f"{field.name}={getattr(item, field.name)!r}" for field in dataclasses.fields(item) if field.repr)
    return f"{type(item).__qualname__}({parts})"
