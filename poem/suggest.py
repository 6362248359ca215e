"""Did-you-mean."""

from collections.abc import Iterable


def edit_distance(a: str, b: str) -> int:
    """Damerau-Levenshtein distance (adjacent swaps count one)."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        previous, before, row = before, row, [i]
        for j, y in enumerate(b, 1):
            cost = min(row[j - 1] + 1, before[j] + 1, before[j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                cost = min(cost, previous[j - 2] + 1)
            row.append(cost)
    return row[-1]


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The closest candidate within two edits or a third of the name's length, or that the name begins; else None."""
    limit = max(2, len(name) // 3)
    best: tuple[int, str] | None = None
    for candidate in candidates:
        begun = len(name) >= 3 and candidate.startswith(name)
        if abs(len(candidate) - len(name)) > limit and not begun:
            continue
        distance = edit_distance(name, candidate)
        if (distance <= limit or begun) and distance < max(len(name), len(candidate)) and (best is None or distance < best[0]):
            best = (distance, candidate)
    return best[1] if best else None


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``did you mean `x`?`` or "", for the hint of an error."""
    found = nearest(name, candidates)
    return f"did you mean `{found}`?" if found else ""
