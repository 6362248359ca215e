"""The quickly made `dataclass` against that of the standard library."""

import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any

import pytest

from poem.dataclass import dataclass

SETTINGS: list[dict[str, bool]] = [{}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}, {"eq": False, "slots": True}]


def made(by: Callable[..., Any], settings: dict[str, bool]) -> Any:
    class Point:
        """A point."""

        x: int
        y: list[int] = field(default_factory=list)
        place: str = field(default="", compare=False)

        @property
        def twice(self) -> int:
            return 2 * self.x

    return by(**settings)(Point)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_it_makes_what_the_library_makes(settings: dict[str, bool]) -> None:
    ours, theirs = made(dataclass, settings), made(dataclasses.dataclass, settings)

    def seen(cls: Any) -> list[object]:
        one, other = cls(1, [2], "here"), cls(1, [2], place="there")
        return [
            repr(one), one.twice, one == other, one != other, one == cls(2), one == (1, [2], "here"), cls(1).y is cls(1).y, cls.__doc__,
            cls.__match_args__, hasattr(one, "__dict__"), dataclasses.asdict(one), dataclasses.replace(one, x=5).x,
            [part.name for part in dataclasses.fields(cls)], cls.__hash__ is None, cls.__hash__ is object.__hash__,
        ]  # fmt: skip

    assert seen(ours) == seen(theirs)


@dataclass(frozen=True, slots=True)
class Sign:
    """A class with methods of its own where a dataclass would have some."""

    word: str
    where: tuple[int, ...] = field(default=(), compare=False)

    def __repr__(self) -> str:
        return f"<{self.word}>"


@dataclass(slots=True)
class Other:
    """Another one."""

    word: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Other)


def test_frozen_ones_are_hashed_by_what_is_compared() -> None:
    assert {Sign("a", (1,)), Sign("a", (2,)), Sign("b")} == {Sign("a"), Sign("b")}
    assert hash(Sign("a")) == hash(Sign("a", (3,)))


def test_methods_that_a_class_has_are_kept() -> None:
    assert repr(Sign("a")) == "<a>"
    assert Other("a") == Other("b")


def test_instances_may_be_pickled() -> None:
    assert pickle.loads(pickle.dumps(Sign("a", (1,)))).where == (1,)


def test_arguments_are_checked_as_ever() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'word'"):
        Sign()  # type: ignore[call-arg]
