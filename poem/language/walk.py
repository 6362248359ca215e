"""The walk that names weights: every place of a struct where a weight sits, in declaration order.

Starlark's `dir()` sorts field names; only `repr()` keeps the order they were written in. So the walk reads the text of the
whole layout. A weight appears in it as `struct(_h=[NUMBER], ...)` and is stepped over.
"""

import re
from typing import NamedTuple

# How the text of a weight begins and ends: the prelude makes them, and no string comes between.
_WEIGHT = re.compile(r"struct\(_h=\[(\d+)\], shape=")
WEIGHT_END = ", _facts=@poem.lambda)"
# A field of a struct with what it holds where that is a weight or plain: the name, the number of the weight, the plain text.
_FIELD = re.compile(rf"""(?:, )?(\w+)=(?:{_WEIGHT.pattern}|("[^"\\]*"|[^\s,()\[\]{{}}"=:<]+)(?=[,)]))?""")
_KEY = re.compile(r'"(\w+)"', re.ASCII)
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
# A string, `<opaque python object>`, a number or dotted name, the bar of `int | str`.
_LEAF = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|<[^>]*>|[^\s,()\[\]{}"=:<]+| \| ')


class Place(NamedTuple):
    """One place of a weight. `bad_key` is the text of a dict key on the way that cannot be part of a name."""

    number: int
    path: str
    bad_key: str = ""


class Unreadable(Exception):
    """The text is not what the host prints for a struct."""


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.path: list[str] = []
        self.bad_keys: list[str] = []
        self.found: list[Place] = []

    def value(self) -> None:
        """Collect the places inside the value that starts here, and step behind it."""
        text, at = self.text, self.at
        weight = _WEIGHT.match(text, at)
        if weight:
            self.weight(int(weight[1]))
        elif text.startswith("struct(", at):
            self.at = at + 7
            self.fields()
        elif text.startswith(("[", "("), at):
            self.at = at + 1
            self.items("]" if text[at] == "[" else ")")
        elif text.startswith("{", at):
            self.at = at + 1
            self.entries()
        else:
            self.skip()

    def weight(self, number: int) -> None:
        end = self.text.find(WEIGHT_END, self.at)
        if end < 0:
            raise Unreadable
        self.at = end + len(WEIGHT_END)
        self.found.append(Place(number, ".".join(self.path), self.bad_keys[0] if self.bad_keys else ""))

    def fields(self) -> None:
        while field := _FIELD.match(self.text, self.at):
            name, number, plain = field.groups()
            self.at = field.end()
            if plain is None:
                self.path.append(name)
                if number is None:
                    self.value()
                else:
                    self.weight(int(number))
                self.path.pop()
        if not self.ends(")"):
            raise Unreadable

    def items(self, end: str) -> None:
        index = 0
        while not self.ends(end):
            self.path.append(str(index))
            self.value()
            self.path.pop()
            index += 1

    def entries(self) -> None:
        while not self.ends("}"):
            start, count = self.at, len(self.found)
            self.value()
            del self.found[count:]  # a key may hold weights; they have no name there
            key = self.text[start : self.at]
            plain = _KEY.fullmatch(key)
            if not self.text.startswith(": ", self.at):
                raise Unreadable
            self.at += 2
            self.path.append(plain[1] if plain else key)
            if not plain:
                self.bad_keys.append(key)
            self.value()
            if not plain:
                self.bad_keys.pop()
            self.path.pop()

    def ends(self, end: str) -> bool:
        """Step over a comma; whether the group ends here, stepping over its end."""
        text = self.text
        if text.startswith(",", self.at):
            self.at += 2 if text.startswith(" ", self.at + 1) else 1  # a tuple of one has no space
        if not text.startswith(end, self.at):
            return False
        self.at += 1
        return True

    def skip(self) -> None:
        """Step over something that holds no weight that counts: a string, a number, a function, a type."""
        text, start = self.text, self.at
        while True:
            match = _LEAF.match(text, self.at)
            if match:
                self.at = match.end()
            elif self.at > start and text.startswith(("(", "["), self.at):
                self.skip_group()
            else:
                break
        if self.at == start:
            raise Unreadable

    def skip_group(self) -> None:
        text, depth = self.text, 0
        while self.at < len(text):
            string = _STRING.match(text, self.at)
            if string:
                self.at = string.end()
                continue
            if text[self.at] in "([{":
                depth += 1
            elif text[self.at] in ")]}":
                depth -= 1
            self.at += 1
            if depth == 0:
                return
        raise Unreadable


def places(text: str) -> list[Place]:
    """Every place of a weight in the text of a layout, in walk order. Raises Unreadable."""
    reader = _Reader(text)
    reader.value()
    if reader.at != len(text):
        raise Unreadable
    return reader.found
