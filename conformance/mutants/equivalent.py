"""Mutants that are no mistake: what they change cannot be seen in any result. Each is listed with the reason, which is an argument and not
that it survived.

`equivalents/<source>.diff` is read as it is written: a paragraph of comment is the reason of what follows it, `@@` names a file and a
function, `-` is a line of it and each `+` behind that one what a mutant makes of it. Where a function has several lines alike,
`@@ file function 2` is the second of them. So an entry stays right while lines move, and is stale as soon as its line changes.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.mutants.generate import Mutant
from poem.dataclass import dataclass

LISTS = Path(__file__).with_name("equivalents")


@dataclass(frozen=True, slots=True)
class Equivalent:
    """An entry: what mutants have as their `key`, and why that is no mistake."""

    key: tuple[str, str, int, str, str]
    why: str

    def __str__(self) -> str:
        file, function, _, was, becomes = self.key
        return f"{file} {function}\n  - {was}\n  + {becomes}"


def read(text: str) -> Iterator[Equivalent]:
    """The entries of a list. ValueError for what is none."""
    why: list[str] = []
    place: tuple[str, str, int] | None = None
    was, reading = "", False
    for number, line in enumerate(text.splitlines(), 1):
        mark, rest = line[:1], line[1:].strip()
        if mark == "#":
            why = [*(why if reading else []), rest]
        elif mark == "@":
            file, function, *which = line.removeprefix("@@").split()
            place = file, function, int(which[0]) if which else 1
        elif mark == "-":
            was = rest
        elif mark == "+" and place is not None and why:
            yield Equivalent((*place, was, rest), " ".join(why))
        elif mark:
            raise ValueError(f"line {number}: neither a reason, `@@ file function`, `-` nor `+`: {line}")
        reading = mark == "#"


def entries(file: str) -> list[Equivalent]:
    """Those of a source. ValueError for a list that cannot be read."""
    path = LISTS / f"{Path(file).stem}.diff"
    try:
        return list(read(path.read_text())) if path.exists() else []
    except ValueError as error:
        raise ValueError(f"{path.name}, {error}") from None


def sorted_out(mutants: Sequence[Mutant], entries: Sequence[Equivalent]) -> tuple[dict[int, str], list[Equivalent]]:
    """Of the mutants, the reasons of those that are listed, by number; and the entries that no mutant is."""
    listed = {entry.key: entry for entry in entries}
    reasons = {mutant.number: listed[mutant.key].why for mutant in mutants if mutant.key in listed}
    found = {mutant.key for mutant in mutants}
    return reasons, [entry for entry in listed.values() if entry.key not in found]
