"""Stated values: what a checkpoint says about itself against what a format wants."""

import math
from typing import Any

from poem.errors import CheckpointError
from poem.formats.declared import Source, State

RELATIVE = 1e-6


def disagreement(state: State, source: Source) -> CheckpointError | None:
    """An `import.states` when the checkpoint states another value of the same kind; None when it agrees or states none.

    Numbers agree within 1e-6 relative, and bools count as 0 and 1.
    """
    found = source.config_value(state.key) if state.kind == "config" else source.attribute_value(state.key)
    if agrees(found, state):
        return None
    where = state.where[-1] if state.where else None
    return CheckpointError(
        "import.states", f"the checkpoint states another {state.key}", phase="import", file=where.file if where else "",
        line=where.line if where else 0, expected=f"{state.want!r}{' or more' if state.or_deeper else ''}", found=repr(found),
    )  # fmt: skip


def agrees(found: Any, state: State) -> bool:
    """Whether a found value satisfies a state. Another kind than wanted is not held against the checkpoint."""
    if isinstance(state.want, str):
        return not isinstance(found, str) or found == state.want
    if not isinstance(found, (bool, int, float)):
        return True
    if state.or_deeper and found >= state.want:
        return True
    try:
        return math.isclose(found, state.want, rel_tol=RELATIVE)
    except OverflowError:  # an integer beyond every float is near none of those that packages state
        return found == state.want
