"""What a user sees when something is refused.

Every refusal is a `PoemError`: a stable code (`area.kebab-word`), the place in the user's own
text, what was expected, what was found and what to try. Nothing else may reach a user.
"""

from collections.abc import Sequence
from typing import NamedTuple

MAXIMUM_FRAMES_SHOWN = 8


class Frame(NamedTuple):
    """One user frame: a line of a `.poem` file and the function it is in."""

    file: str
    line: int
    function: str


def printable(line: str) -> str:
    """`line` with control characters as escapes: what comes from a hostile file must not drive a terminal."""
    return "".join(char if char.isprintable() or char in "\t\n" else repr(char)[1:-1] for char in line)


class PoemError(Exception):
    """A refusal.

    Args:
        code: `area.kebab-word`, stable across releases.
        message: one sentence, without place and code.
        phase: which phase of the package ran (`load`, `layout`, ...), or a command's name.
        file, line, column: the user's place, as far as known.
        expected, found, hint: one line each, or "".
        stack: user frames, outermost first.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        phase: str = "",
        file: str = "",
        line: int = 0,
        column: int = 0,
        expected: str = "",
        found: str = "",
        hint: str = "",
        stack: Sequence[Frame] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.phase = phase
        self.file = file
        self.line = line
        self.column = column
        self.expected = expected
        self.found = found
        self.hint = hint
        self.stack = tuple(stack)

    def __reduce__(self) -> tuple[object, ...]:
        """So that a process can hand an error to another: exceptions are otherwise made anew from positional arguments."""
        return _made_again, (type(self), self.__dict__)

    def __str__(self) -> str:
        return self.render()

    def place(self) -> str:
        """`file:line:column`, as far as known."""
        parts = [self.file]
        if self.line:
            parts.append(str(self.line))
            if self.column:
                parts.append(str(self.column))
        return ":".join(parts)

    def render(self) -> str:
        """The error as a user reads it, several lines. Control characters of names from files are shown as escapes."""
        head = ": ".join(part for part in (self.place(), self.phase, self.message) if part)
        lines = [f"{head} [{self.code}]"]
        for label, text in (("expected", self.expected), ("found", self.found), ("hint", self.hint)):
            if text:
                lines.append(f"  {label + ':':<10}{text}")
        frames = self.stack[-MAXIMUM_FRAMES_SHOWN:]
        if len(frames) > 1:
            chain = [f"{frame.function} ({frame.file}:{frame.line})" for frame in reversed(frames)]
            lines.append("  in " + ", called from ".join(chain))
        return "\n".join(map(printable, lines))

    def as_json(self) -> dict[str, object]:
        """The error as plain data, for `--json`."""
        return {
            "code": self.code,
            "phase": self.phase,
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "message": self.message,
            "expected": self.expected,
            "found": self.found,
            "hint": self.hint,
            "stack": [list(frame) for frame in self.stack],
        }


class PackageError(PoemError):
    """Everything a package text causes."""


class CheckpointError(PoemError):
    """Everything a checkpoint, an import or an artifact causes."""


class DeploymentNameError(PoemError):
    """A deployment name that does not parse."""


class UsageError(PoemError):
    """A command line or a call that cannot be carried out as asked."""


class PoemErrors(PoemError):
    """Several faults found together; rendered one after another, the first gives code and place."""

    def __init__(self, errors: Sequence[PoemError]) -> None:
        first = errors[0]
        super().__init__(
            first.code,
            first.message,
            phase=first.phase,
            file=first.file,
            line=first.line,
            column=first.column,
            expected=first.expected,
            found=first.found,
            hint=first.hint,
            stack=first.stack,
        )
        self.errors = tuple(errors)

    def render(self) -> str:
        return "\n".join(error.render() for error in self.errors)

    def as_json(self) -> dict[str, object]:
        return {**super().as_json(), "errors": [error.as_json() for error in self.errors]}


def _made_again(kind: type[PoemError], state: dict[str, object]) -> PoemError:
    error = kind.__new__(kind)
    error.__dict__.update(state)
    return error
