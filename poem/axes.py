"""Row axes: which rows a value has. An axis is a word with at most one factor, or an int for a constant."""

AXES = ("tokens", "readouts", "lanes", "patches", "images", "voxels", "clips")


def times(axis: str | int, factor: int) -> str | int:
    """`factor` rows for each row of `axis`: `tokens` -> `tokens*2`."""
    if isinstance(axis, int):
        return axis * factor
    base, mark, count = _split(axis)
    if mark == "/" and count % factor == 0:
        return over_text(base, count // factor)
    if mark == "/" and factor % count == 0:
        return times(base, factor // count)
    if mark in ("/", "+"):
        raise ValueError(f"`{axis}` cannot be multiplied by {factor}")
    total = count * factor
    return base if total == 1 else f"{base}*{total}"


def over(axis: str | int, factor: int) -> str | int:
    """One row for each `factor` rows of `axis`: `patches` -> `patches/4`, `tokens*4` -> `tokens`."""
    if isinstance(axis, int):
        if axis % factor:
            raise ValueError(f"{axis} rows are no multiple of {factor}")
        return axis // factor
    base, mark, count = _split(axis)
    if mark == "*" and count % factor == 0:
        return times(base, count // factor)
    if mark == "/" or count == 1 and mark == "*":
        return over_text(base, factor * (count if mark == "/" else 1))
    raise ValueError(f"`{axis}` cannot be divided by {factor}")


def over_text(base: str, count: int) -> str:
    return base if count == 1 else f"{base}/{count}"


def bounds(axis: str) -> str:
    """The axis of an indptr over `axis`: `lanes` -> `lanes+1`."""
    return f"{axis}+1"


def _split(axis: str) -> tuple[str, str, int]:
    for mark in "*/+":
        base, found, count = axis.partition(mark)
        if found:
            return base, mark, int(count)
    return axis, "*", 1
