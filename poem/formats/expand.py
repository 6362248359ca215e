"""From statements to landings: for each weight of a layout, what it is read from.

Expansion runs from the layout. For each weight whose name matches the right side of a pair, the integers are put into the
left side, so a model of two layers reads only layers 0 and 1 of a whole checkpoint.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field

from poem.dataclass import dataclass
from poem.errors import PackageError, PoemError
from poem.formats.declared import Left, Pair, ReadStatement, Rows, Src, Stack, Where, parts_of
from poem.formats.paths import Match, Paths, pattern, placeholders
from poem.graph import Param


@dataclass(frozen=True, slots=True)
class Landing:
    """One weight and what it is read from. values: the integers for the placeholders of `left`. origin: for messages."""

    param: Param
    left: Left | Rows
    values: Mapping[str, int]
    where: Where
    origin: str


@dataclass(slots=True)
class Expansion:
    """What a format says about one layout.

    landings: by weight name. copies: what the pair of an alias would read, which has to equal what the weight reads.
    not_read: patterns of names that are known and left out, with the reason. faults: everything wrong with the statements.
    """

    landings: dict[str, Landing] = field(default_factory=dict)
    copies: list[Landing] = field(default_factory=list)
    not_read: list[tuple[re.Pattern[str], str]] = field(default_factory=list)
    faults: list[PoemError] = field(default_factory=list)


def expand(statements: Sequence[Pair | ReadStatement], params: Sequence[Param], elsewhere: Callable[[], Paths]) -> Expansion:
    """The landings of one layout. params: its weights. elsewhere: the paths of all deployments of the package, asked
    only when a right side matches nothing here; one that matches there is skipped, and what it would read counts as known."""
    own = {param.name: param for param in params}
    aliases = {alias: param for param in params for alias in param.aliases}
    paths = Paths([*own, *aliases])
    expansion = Expansion()
    for statement in statements:
        if isinstance(statement, Pair) and statement.right is None:
            expansion.not_read += [(pattern(name), "the format names it as not read") for name in names_in(statement.left)]
            continue
        target, origin = _target(statement)
        matches = paths.matches(target)
        if not matches:
            _unmatched(statement, target, paths, elsewhere, expansion)
            continue
        fault = _placeholder_fault(statement, target, origin, matches)
        if fault is not None:
            expansion.faults.append(fault)
            continue
        for match in matches:
            landing = Landing(own.get(match.name) or aliases[match.name], statement.left, match.values, statement.where, origin)
            if match.name in aliases:
                expansion.copies.append(landing)
                continue
            before = expansion.landings.get(match.name)
            if before is not None:
                expansion.faults.append(_landed_twice(landing, before))
            expansion.landings[match.name] = landing
    return expansion


def names_in(left: Left | Rows) -> Iterator[str]:
    """Every name or name template of a left side."""
    if isinstance(left, str):
        yield left
    elif isinstance(left, tuple):
        yield from left
    elif isinstance(left, Rows):
        for row in left.rows:
            yield from row
    elif isinstance(left, Src):
        yield left.name
    else:
        if isinstance(left, Stack) and isinstance(left.part, (str, tuple)):
            yield from names_in(left.part)
        for part in parts_of(left):
            yield from names_in(part)


def _target(statement: Pair | ReadStatement) -> tuple[str, str]:
    if isinstance(statement, Pair):
        return str(statement.right), f"pair {statement.index}"
    return statement.target, f"reads.{statement.method}"


def _free(left: Left | Rows) -> set[str]:
    """The placeholders of a left side that no `stack` in it counts over."""
    if isinstance(left, Stack):
        return _free(left.part) - {left.over}
    if isinstance(left, (str, tuple, Rows, Src)):
        return {word for name in names_in(left) for word in placeholders(name)}
    return {word for part in parts_of(left) for word in _free(part)}


def _placeholder_fault(statement: Pair | ReadStatement, target: str, origin: str, matched: list[Match]) -> PackageError | None:
    right = placeholders(target)
    names = list(names_in(statement.left))
    loose = sorted(_free(statement.left) - set(right))
    if loose:
        return _fault(
            "formats.bad-placeholder", statement.where, f"{origin}: {{{loose[0]}}} on the left has no counterpart on the right",
            expected=", ".join(f"{{{word}}}" for word in right) or "no placeholder", found=f"{names[0]} for {target}",
        )  # fmt: skip
    used = {word for name in names for word in placeholders(name)}
    unused = [word for word in right if word not in used]
    if unused and names and len(matched) > 1:
        return _fault(
            "formats.bad-placeholder", statement.where,
            f"{origin}: the left does not use {{{unused[0]}}}, so {len(matched)} weights would read one tensor",
            expected=f"{{{unused[0]}}} in {names[0]}", found=target,
        )  # fmt: skip
    return None


def _unmatched(statement: Pair | ReadStatement, target: str, paths: Paths, elsewhere: Callable[[], Paths], expansion: Expansion) -> None:
    every = elsewhere()
    if every.matches(target):
        reason = f"belongs to {target}, which other deployments have"
        expansion.not_read += [(pattern(name, r"\d+"), reason) for name in names_in(statement.left)]
        return
    nearest = paths.nearest(target) or every.nearest(target)
    expansion.faults.append(
        _fault(
            "formats.misspelt-path",
            statement.where,
            f"no deployment of this package has a weight `{target}`",
            expected="a path of the layout",
            found=target,
            hint=f"did you mean `{nearest}`?" if nearest else "",
        )
    )


def _landed_twice(landing: Landing, before: Landing) -> PackageError:
    return _fault(
        "formats.landed-twice", landing.where, f"the weight `{landing.param.name}` is read twice",
        expected="one pair for each weight", found=f"{_said(before)} and {_said(landing)}",
    )  # fmt: skip


def _said(landing: Landing) -> str:
    where = landing.where[-1] if landing.where else None
    return f"{landing.origin}{f' ({where.file}:{where.line})' if where else ''}"


def _fault(code: str, where: Where, message: str, *, expected: str = "", found: str = "", hint: str = "") -> PackageError:
    file, line = (where[-1].file, where[-1].line) if where else ("", 0)
    return PackageError(code, message, phase="formats", file=file, line=line, expected=expected, found=found, hint=hint, stack=where)
