"""All mutants of the sources, and sources that hold all of them: each is switched on when a kernel runs, so one build serves all.

    a < b               becomes   (MUTANT(17) ? (a <= b) : (a < b))
    __syncthreads();    becomes   { if (!MUTANT(18)) __syncthreads(); }

Mutants nest as expressions do, and lines keep their numbers.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

from conformance.mutants.operators import OPERATORS, Edit
from conformance.mutants.parser import parse
from conformance.mutants.source import TERNARY, Source
from poem.dataclass import dataclass

HERE = Path(__file__).parent
PRELUDE = ("packed.cuh", "activations.cuh")  # what of the prelude is arithmetic of kernels
COMPARISONS = frozenset(("<", "<=", ">", ">=", "==", "!=", "&&", "||"))
NOT_MUTATED = ("selftest.cu",)  # tests themselves


@dataclass(frozen=True)
class Mutant:
    """One mistake.

    number: its switch. start, end: in the text of `file`, which becomes `replacement` there. was, becomes: the lines around. which: of the
    mutants of the function that read alike, counted from 1.
    """

    number: int
    file: str
    operator: str
    function: str
    line: int
    column: int
    start: int
    end: int
    replacement: str
    form: Literal["expression", "condition", "statement"]
    was: str
    becomes: str
    which: int

    @property
    def name(self) -> str:
        """`linear.cu:30:9 wrong comparison`."""
        return f"{self.file}:{self.line}:{self.column} {self.operator}"

    @property
    def key(self) -> tuple[str, str, int, str, str]:
        """What the mutant is, wherever its lines stand."""
        return self.file, self.function, self.which, self.was, self.becomes


def files_of(folder: Path) -> list[Path]:
    """The sources that are mutated: kernels, and the arithmetic of the prelude."""
    return [path for path in sorted(folder.glob("*.cu")) if path.name not in NOT_MUTATED] + [folder / "prelude" / name for name in PRELUDE]


def mutants_of(path: Path, folder: Path, *, first: int = 1) -> list[Mutant]:
    """All mutants of one file, numbered from `first`."""
    text = path.read_text()
    source = parse(text)
    found: dict[tuple[int, int, str], tuple[str, Edit]] = {}
    known = _known_conditions(source)
    for operator, edits in OPERATORS.items():
        for edit in edits(source):
            if _can_be_switched(source, edit) and not any(first <= edit.first and edit.last <= last for first, last in known):
                place = source.tokens[edit.first].start, source.tokens[edit.last].end, _one_line(edit.text)
                found.setdefault(place, (operator, edit))
    made: list[Mutant] = []
    alike: Counter[tuple[str, str, str]] = Counter()
    for (start, end, replacement), (operator, edit) in sorted(found.items(), key=lambda item: (item[0][0], -item[0][1], item[0][2])):
        before, after = text.rfind("\n", 0, start) + 1, text.index("\n", end)
        function = source.function_at(edit.first)
        was, becomes = _one_line(text[before:after]), _one_line(text[before:start] + replacement + text[end:after])
        alike[function, was, becomes] += 1
        made.append(
            Mutant(
                first + len(made), str(path.relative_to(folder)), operator, function, text.count("\n", 0, start) + 1, start - before + 1,
                start, end, replacement, edit.form, was, becomes, alike[function, was, becomes],
            )
        )  # fmt: skip
    return made


def _can_be_switched(source: Source, edit: Edit) -> bool:
    """Not across a lambda, whose text would be there twice."""
    return not any(edit.first <= first and last <= edit.last for first, last, _ in source.functions)


def _known_conditions(source: Source) -> list[tuple[int, int]]:
    """Comparisons of constants, and choices by them: they choose a variant of the kernel as `if constexpr` does."""
    found = []
    for i, token in enumerate(source.tokens):
        if not source.free[i] or token.kind != "op":
            continue
        level = source.binary(i)
        if level is not None and token.text in COMPARISONS:
            span = source.left_operand(i, level), source.right_operand(i, level)
        elif token.text == "?":
            span = source.left_operand(i, TERNARY + 1), i - 1
        else:
            continue
        if source.is_constant(*span):
            found.append(span)
    return found


def _one_line(text: str) -> str:
    return " ".join(re.sub(r"//[^\n]*|^ *#[^\n]*", " ", text, flags=re.MULTILINE).split())


class Schemata:
    """A file with all its mutants, and where in it each one stands."""

    def __init__(self, text: str, mutants: Sequence[Mutant]) -> None:
        self.original = text
        self.mutants = sorted(mutants, key=lambda mutant: (mutant.start, -mutant.end, mutant.form != "statement"))
        self.places: list[tuple[int, int, Mutant]] = []  # where replacements stand
        self._guards: list[tuple[int, int, Mutant]] = []  # where each stands together with what it replaces
        self._parts: list[str] = []
        self._length = 0
        self._weave(0, len(text), 0, len(self.mutants))
        self.text = "".join(self._parts)

    def _put(self, text: str) -> None:
        self._parts.append(text)
        self._length += len(text)

    def _weave(self, start: int, end: int, first: int, last: int) -> None:
        """The text start .. end with mutants first .. last - 1, which lie inside."""
        at = start
        while first < last:
            outer = self.mutants[first]
            stop = first
            while stop < last and self.mutants[stop].start < outer.end:
                stop += 1
            alike = first
            while alike < stop and (self.mutants[alike].start, self.mutants[alike].end, self.mutants[alike].form == "statement") == (
                outer.start, outer.end, outer.form == "statement",
            ):  # fmt: skip
                alike += 1
            if any(mutant.end > outer.end for mutant in self.mutants[first:stop]):
                raise ValueError(f"mutants of {outer.file} overlap at line {outer.line}")
            self._put(self.original[at : outer.start])
            self._guard(self.mutants[first:alike], alike, stop)
            at, first = outer.end, stop
        self._put(self.original[at:end])

    def _guard(self, alike: list[Mutant], first: int, last: int) -> None:
        outer = alike[0]
        if outer.form == "statement":
            before, switch, behind, rest, after = "{ ", "if (MUTANT(%d)) { ", " } else ", "", " }"
        else:  # both sides of a condition may be of any type that is one
            bool_ = "!!(" if any(mutant.form == "condition" for mutant in alike) else "("
            before, switch, behind, rest, after = "(", f"MUTANT(%d) ? {bool_}", ") : ", bool_, "))"
        start = self._length
        self._put(before)
        for mutant in alike:
            self._put(switch % mutant.number)
            self.places.append((self._length, self._length + len(mutant.replacement), mutant))
            self._put(mutant.replacement + behind)
        self._put(rest)
        self._weave(outer.start, outer.end, first, last)
        self._put(after)
        self._guards += [(start, self._length, mutant) for mutant in alike]

    @cached_property
    def _lines(self) -> list[int]:
        return [0, *(match.end() for match in re.finditer("\n", self.text))]

    def at(self, line: int, column: int) -> Mutant | None:
        """The mutant that a compiler means by a place of the text: whose replacement stands there, or that does so itself."""
        offset = self._lines[line - 1] + column - 1
        for places in (self.places, self._guards):
            inside = [(end - start, mutant) for start, end, mutant in places if start <= offset <= end]
            if inside:
                return min(inside, key=lambda item: item[0])[1]
        return None


def write(folder: Path, target: Path, mutants: Sequence[Mutant]) -> dict[str, Schemata]:
    """A copy of the CUDA sources in which these mutants can be switched on. Returns the mutated files by name."""
    (target / "prelude").mkdir(parents=True, exist_ok=True)
    woven: dict[str, Schemata] = {}
    for path in [*folder.glob("*.cu*"), *(folder / "prelude").glob("*.cuh")]:
        name = str(path.relative_to(folder))
        own = [mutant for mutant in mutants if mutant.file == name]
        text = path.read_text()
        if own:
            woven[name] = Schemata(text, own)
            text = woven[name].text
        if name == "prelude.cuh":
            text = f'#include "{HERE / "switch.h"}" {text}\n#include "{HERE / "rounding.h"}"\n'
        (target / name).write_text(text)
    return woven


def all_mutants(folder: Path, names: Sequence[str] = ()) -> list[Mutant]:
    """The mutants of all files, or of those with these names, numbered through."""
    made: list[Mutant] = []
    for path in files_of(folder):
        if not names or path.name in names:
            made += mutants_of(path, folder, first=len(made) + 1)
    return made


def by_file(mutants: Sequence[Mutant]) -> Iterator[tuple[str, list[Mutant]]]:
    """The mutants of each file."""
    for name in dict.fromkeys(mutant.file for mutant in mutants):
        yield name, [mutant for mutant in mutants if mutant.file == name]
