"""`dataclass` of the standard library, made in a fifth of its time: start-up is part of the product.

The library compiles up to six methods for each class, at about 0.1 ms each. Here `__init__` alone is compiled; comparing, hashing and
showing are the same few lines for every class. `frozen` is left to the type checker, and makes instances hashable.
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
        made = dataclasses.dataclass(cls, init="__init__" not in written, repr=False, eq=False, slots=slots)
        if eq and "__eq__" not in written:
            made.__eq__, made.__hash__ = _comparison(made)
            if not frozen:
                made.__hash__ = None
        if "__repr__" not in written:
            made.__repr__ = _shown
        return made


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
