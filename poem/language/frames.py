"""The host's call stacks as user frames."""

import re
from functools import lru_cache

from poem.errors import Frame

# Source lines under a frame are indented by six, so no user text can look like a frame.
_FRAME = re.compile(r"^  \* (.*):(\d+), in (.*)$", re.MULTILINE)


def is_user_file(file: str) -> bool:
    """Whether `file` is a package's own text: the prelude and the drivers are named `@...`, the host's frames `....rs`."""
    return file.endswith(".poem") and not file.startswith(("@", "/"))


@lru_cache(maxsize=4096)
def user_frames(stack: str) -> tuple[Frame, ...]:
    """The user frames of a call stack as the host prints it, outermost first."""
    return tuple(Frame(file, int(line), function) for file, line, function in _FRAME.findall(stack) if is_user_file(file))
