"""Faults found together: at most 20 of a kind, raised as one."""

from collections.abc import Sequence

from poem.errors import PoemError, PoemErrors

MAXIMUM_LISTED = 20


def collected(faults: Sequence[PoemError]) -> list[PoemError]:
    """At most 20 faults of each code, the last of them saying how many more there are."""
    by_code: dict[str, list[PoemError]] = {}
    for fault in faults:
        by_code.setdefault(fault.code, []).append(fault)
    kept: list[PoemError] = []
    for found in by_code.values():
        kept += found[:MAXIMUM_LISTED]
        if len(found) > MAXIMUM_LISTED:
            found[MAXIMUM_LISTED - 1].message += f" (and {len(found) - MAXIMUM_LISTED} more of this kind)"
    return kept


def raise_all(faults: Sequence[PoemError]) -> None:
    """Raise what was found: nothing for no faults, PoemErrors for several."""
    if faults:
        kept = collected(faults)
        raise kept[0] if len(kept) == 1 else PoemErrors(kept)


def one_line(fault: PoemError) -> str:
    """A fault in one line, for lists of misses."""
    said = fault.message + (f" (expected {fault.expected}, found {fault.found})" if fault.expected and fault.found else "")
    return f"{said} [{fault.code}]".replace("\n", " ")
