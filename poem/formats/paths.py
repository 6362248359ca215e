"""Names with placeholders: filling them, and finding the weights that a template matches.

A placeholder `{l}` on the right side of a pair is a whole segment of a path and matches a decimal integer. In a pair that
says "known and not read", a placeholder matches any run of characters.
"""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from poem.suggest import nearest

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
WORD = re.compile(r"[a-z][a-z0-9_]*")


def placeholders(template: str) -> list[str]:
    """The names of the placeholders, in order, repeated ones too."""
    return PLACEHOLDER.findall(template)


def fill(template: str, values: Mapping[str, int]) -> str:
    """The template with every placeholder replaced that has a value."""
    return PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), template) if "{" in template else template


def pattern(template: str, matching: str = ".*") -> re.Pattern[str]:
    """An expression that matches whole names; placeholders match `matching`."""
    pieces = PLACEHOLDER.split(template)
    return re.compile("".join(re.escape(piece) if index % 2 == 0 else matching for index, piece in enumerate(pieces)), re.DOTALL)


def fold(names: Iterable[str]) -> list[str]:
    """Names folded by pattern, integers as `*`: `model.layers.*.mlp.bias x32`; one alone stays as it is."""
    folded: dict[str, list[str]] = {}
    for name in names:
        folded.setdefault(re.sub(r"(?<![A-Za-z0-9_])\d+(?![A-Za-z0-9_])", "*", name), []).append(name)
    return [f"{key} x{len(members)}" if len(members) > 1 else members[0] for key, members in folded.items()]


class Match(NamedTuple):
    """A weight's name that a template matches, and the integers of the placeholders."""

    name: str
    values: dict[str, int]


class Paths:
    """The paths of a layout, found by template without trying each."""

    def __init__(self, names: Iterable[str]) -> None:
        self._by_form: dict[tuple[str, ...], list[tuple[str, list[str]]]] = {}
        for name in names:
            segments = name.split(".")
            self._by_form.setdefault(_form(segments), []).append((name, segments))

    def matches(self, template: str) -> list[Match]:
        """The names that a template matches, in layout order."""
        wanted = template.split(".")
        words = [PLACEHOLDER.fullmatch(segment) for segment in wanted]
        form = tuple("#" if word else part for word, part in zip(words, _form(wanted), strict=True))
        places = [(word[1], place) for place, word in enumerate(words) if word]
        literals = [(place, segment) for place, segment in enumerate(wanted) if form[place] == "#" and not words[place]]
        return [
            Match(name, {word: int(segments[place]) for word, place in places})
            for name, segments in self._by_form.get(form, ())
            if all(segments[place] == segment for place, segment in literals)
        ]

    def nearest(self, template: str) -> str | None:
        """The path nearest to a misspelt template, its integers written as the template's placeholders."""
        words = placeholders(template)
        forms = {".".join(form): form for form in self._by_form}
        best = nearest(PLACEHOLDER.sub("#", template), forms)
        if best is None:
            return None
        spare = iter(words)
        return ".".join(f"{{{next(spare, 'i')}}}" if segment == "#" else segment for segment in forms[best])


def _form(segments: list[str]) -> tuple[str, ...]:
    return tuple("#" if segment.isdecimal() and segment.isascii() else segment for segment in segments)
