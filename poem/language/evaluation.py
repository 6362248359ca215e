"""One evaluation of package text: what the builtins need to know while Starlark runs.

The current `Evaluation` is kept in a context variable, so that frozen modules may serve several threads.
"""

import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal

from poem.errors import Frame, PackageError, PoemError
from poem.language.declarations import Deployment
from poem.language.frames import user_frames
from poem.tracer import Tracer

if TYPE_CHECKING:
    from poem.formats.declared import Source

Phase = Literal["load", "layout", "formats", "caches", "forward", "media"]
PHASES: tuple[Phase, ...] = ("load", "layout", "formats", "caches", "forward", "media")


class Evaluation:
    """What one call of a package's function, or its load, has to do with.

    files: the texts of the package, to find columns. fault: the refusal that stopped the evaluation, kept aside because
    the host passes on its text only. interruption: likewise for Ctrl-C.
    """

    def __init__(self, phase: Phase, files: Mapping[str, str], deployment: Deployment | None = None) -> None:
        self.phase = phase
        self.files = files
        self.deployment = deployment
        self.fault: PoemError | None = None
        self.interruption: BaseException | None = None
        self.tracer: Tracer | None = None
        self.source: Source | None = None
        self.delivered: dict[str, Any] = {}

    def error(self, code: str, message: str, where: tuple[Frame, ...] = (), column: int = 0, **details: str) -> PackageError:
        """A PackageError of this phase at the innermost of the user frames `where`."""
        where = where or self.function_place()
        file, line = (where[-1].file, where[-1].line) if where else ("", 0)
        return PackageError(code, message, phase=self.phase, file=file, line=line, column=column, stack=where, **details)

    def column_of(self, where: tuple[Frame, ...], name: str) -> int:
        """The column of the only call of `name` on the line of the innermost frame, or 0."""
        lines = self.files.get(where[-1].file, "").split("\n") if where else []
        line = lines[where[-1].line - 1] if where and where[-1].line <= len(lines) else ""
        calls = [found.start() for found in re.finditer(rf"(?<!\w){re.escape(name)}\(", line)]
        return calls[0] + 1 if len(calls) == 1 else 0

    def function_place(self) -> tuple[Frame, ...]:
        """Where the package defines the function of this phase, as far as its text shows it."""
        for file, text in self.files.items():
            found = re.search(rf"^(?:def[ \t]+{self.phase}\b|{self.phase}[ \t]*=)", text, re.MULTILINE)
            if found:
                return (Frame(file, text.count("\n", 0, found.start()) + 1, self.phase),)
        return tuple(Frame(file, 1, "<module>") for file in list(self.files)[:1])

    def place_of(self, literal: object) -> tuple[Frame, ...]:
        """The only line on which a text stands in quotes, or nothing."""
        if not isinstance(literal, str):
            return ()
        places = [
            Frame(file, text.count("\n", 0, at) + 1, "<pairs>")
            for file, text in self.files.items()
            for at in _occurrences(text, f'"{literal}"')
        ]
        return (places[0],) if len(places) == 1 else ()


def _occurrences(text: str, part: str) -> list[int]:
    first = text.find(part)
    if first < 0:
        return []
    return [first] if text.find(part, first + 1) < 0 else [first, first]


CURRENT: ContextVar[Evaluation] = ContextVar("poem_evaluation")


class Call:
    """One call of a builtin: its name as the user writes it, and where."""

    __slots__ = ("evaluation", "name", "stack")

    def __init__(self, evaluation: Evaluation, name: str, stack: str) -> None:
        self.evaluation, self.name, self.stack = evaluation, name, stack

    @property
    def where(self) -> tuple[Frame, ...]:
        """The user frames of the call, outermost first."""
        return user_frames(self.stack)

    def error(self, code: str, message: str, **details: str) -> PackageError:
        """A PackageError at the call."""
        where = self.where
        return self.evaluation.error(code, message, where, self.evaluation.column_of(where, self.name), **details)


class Foreign:
    """Stands for something that cannot cross to Python, or is not Poem's: a struct of the user's, a function."""

    __slots__ = ("word",)

    def __init__(self, word: str) -> None:
        self.word = word
