"""A CUDA source as far as mutation needs it: function bodies, their statements, and what every name in them stands for.

A token is `free` if it is evaluated when the kernel runs. What the compiler evaluates (template arguments, constexpr, types, declarations
of shared memory, sizes of arrays) is not: it cannot depend on a switch.
"""

import re
from dataclasses import field
from typing import Literal, NamedTuple

from conformance.mutants.tokens import Token
from poem.dataclass import dataclass

Kind = Literal["expression", "declaration", "return", "jump", "if", "for", "while"]
NOT_TYPES = frozenset(("return", "else", "if", "for", "while", "break", "continue", "case", "sizeof", "decltype"))
ASSIGNMENTS = frozenset(("=", "+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", ">>="))
PRECEDENCE = {
    operator: level
    for level, operators in enumerate(("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %"), 1)
    for operator in operators.split()
}
_CONDITIONS = {PRECEDENCE[operator] for operator in ("||", "&&", "==", "<")}
_NUMBER = re.compile(r"\b(int|unsigned|float|double|size_t|u?int\d+_t)\b")
TERNARY = 0  # binds less than any operator above, more than an assignment


class Variable(NamedTuple):
    """A variable. type: its words. siblings: the names declared with it, in order, of the same type."""

    name: str
    type: str
    siblings: tuple[str, ...]


class Statement(NamedTuple):
    """A statement of tokens first .. last. header: of an `if` or `while` its condition, of a `for` its three parts, as (first, last)."""

    kind: Kind
    first: int
    last: int
    header: tuple[tuple[int, int], ...] = ()


@dataclass
class Source:
    """Everything mutation operators look at."""

    text: str
    tokens: list[Token]
    partner: dict[int, int]
    free: list[bool]
    statements: list[Statement] = field(default_factory=list)
    functions: list[tuple[int, int, str]] = field(default_factory=list)  # first and last token of the body, name
    expression: dict[int, tuple[int, int]] = field(default_factory=dict)  # of a free token: the innermost whole expression
    variable: dict[int, Variable] = field(default_factory=dict)  # what a use of a name stands for
    visible: dict[int, frozenset[str]] = field(default_factory=dict)  # of its siblings, those it could have stood for

    def of(self, first: int, last: int) -> str:
        """The text of tokens first .. last."""
        return self.text[self.tokens[first].start : self.tokens[last].end]

    def function_at(self, i: int) -> str:
        """The innermost function around a token."""
        return min(((last - first, name) for first, last, name in self.functions if first <= i <= last), default=(0, ""))[1]

    def is_operator(self, i: int, *texts: str) -> bool:
        """Whether a token is one of these operators."""
        return self.tokens[i].kind == "op" and self.tokens[i].text in texts

    def ends_operand(self, i: int) -> bool:
        """Whether an operand may end with this token, so that an operator behind it is binary."""
        token = self.tokens[i]
        if token.text == ")":
            return not self.is_cast(self.partner[i], i)
        return token.kind in ("number", "string") or token.text in ("]", "}") or (token.kind == "name" and token.text not in NOT_TYPES)

    def is_cast(self, first: int, last: int) -> bool:
        """Whether these parentheses are a cast: only words, and an operand stands right behind them."""
        if last + 1 >= len(self.tokens) or last == first + 1:
            return False
        inside, behind = self.tokens[first + 1 : last], self.tokens[last + 1]
        before = self.tokens[first - 1] if first else None
        if before is not None and ((before.kind == "name" and before.text not in NOT_TYPES) or before.text in (")", "]", ">")):
            return False
        words = all(token.kind == "name" or token.text in ("*", "::") for token in inside)
        return (
            words
            and behind.start == self.tokens[last].end
            and (behind.kind in ("name", "number") or behind.text in ("(", "~", "-", "!", "*"))
        )

    def binary(self, i: int) -> int | None:
        """The precedence of a token as a binary operator; None if it is none."""
        token = self.tokens[i]
        begins = i == self.expression.get(i, (0, 0))[0]
        if token.kind != "op" or token.text not in PRECEDENCE or begins or not self.ends_operand(i - 1):
            return None
        return PRECEDENCE[token.text]

    def left_operand(self, i: int, level: int) -> int:
        """The first token of what stands left of an operator at `i` that binds as strongly as `level`."""
        first, at = self.expression[i][0], i - 1
        while at >= first:
            token = self.tokens[at]
            if token.text in (")", "]", "}") or (token.kind == "bracket" and token.text == ">"):
                if self.partner[at] < first:
                    break
                at = self.partner[at] - 1
                continue
            if self._ends_left(at, level):
                break
            at -= 1
        return at + 1

    def _ends_left(self, at: int, level: int) -> bool:
        token = self.tokens[at]
        if token.kind != "op":
            return False
        if token.text in ("(", "[", "{", ",", ";", "?", ":") or token.text in ASSIGNMENTS:
            return True
        own = self.binary(at)
        return own is not None and own < level

    def right_operand(self, i: int, level: int) -> int:
        """The last token of what stands right of an operator at `i` that binds as strongly as `level`."""
        last, at, questions = self.expression[i][1], i + 1, int(self.tokens[i].text == "?")
        while at <= last:
            token = self.tokens[at]
            if token.text in ("(", "[", "{") or (token.kind == "bracket" and token.text == "<"):
                at = self.partner[at] + 1
                continue
            if token.kind == "op":
                if token.text in (")", "]", "}", ",", ";") or token.text in ASSIGNMENTS:
                    break
                if token.text == "?" and level <= TERNARY:
                    questions += 1
                elif token.text == "?" or (token.text == ":" and questions == 0):
                    break
                elif token.text == ":":
                    questions -= 1
                own = self.binary(at)
                if own is not None and own <= level:
                    break
            at += 1
        return at - 1

    def arguments(self, opening: int) -> list[tuple[int, int]]:
        """The (first, last) tokens of what is between brackets, separated by commas."""
        closing, found, first, at = self.partner[opening], [], opening + 1, opening + 1
        while at < closing:
            if at in self.partner and self.partner[at] > at:
                at = self.partner[at]
            elif self.is_operator(at, ","):
                found.append((first, at - 1))
                first = at + 1
            at += 1
        return [*found, (first, closing - 1)] if first < closing else found

    def kind_of(self, first: int, last: int) -> str:
        """What an expression is, as far as one can see: pointer, number (int, float), condition, or empty where one cannot."""
        found = "int"
        at = first
        while at <= last:
            token = self.tokens[at]
            if token.kind == "op" and self.binary(at) in _CONDITIONS:
                return "condition"
            closure = token.text == "[" and not self.ends_operand(at - 1)
            address = token.text == "&" and self.binary(at) is None
            if closure or address or token.text in ("{", "?") or (token.text == "(" and self.callee(at)):
                return ""
            if token.kind == "string" or token.text in ("true", "false", "this", "nullptr") or not self.free[at]:
                return ""
            if token.kind == "name":
                end = at + 1
                while self.text_at(end) == "[":
                    end = self.partner[end] + 1
                variable = self.variable.get(at)
                if variable is None or self.text_at(end) in (".", "->", "::", "(") or self.tokens[end].kind == "bracket":
                    return ""
                subscripts = sum(self.tokens[i].text == "[" and self.partner[i] < end for i in range(at + 1, end))
                followed = subscripts + (self.text_at(at - 1) == "*" and self.binary(at - 1) is None)
                levels = variable.type.count("*") + variable.type.count("[]") - followed
                number = _NUMBER.search(variable.type.partition("<")[0])  # a Pack<float, 4> is none
                if levels or number is None:
                    pointer = first == last and number is not None and variable.type.count("[]") == 0
                    return f"pointer {plain(variable.type)}" if pointer else ""
                found = "float" if number[0] in ("float", "double") else found
                at = end - 1
            elif token.kind == "number" and "." in token.text:
                found = "float"
            at += 1
        return found

    def is_constant(self, first: int, last: int) -> bool:
        """Whether the compiler knows a value: only numbers, and names of constants, which have no small letters but those of their type."""
        for i in range(first, last + 1):
            token = self.tokens[i]
            if token.kind == "name" and self.text_at(i + 1) != "::" and token.text.upper() != token.text:
                return False
        return True

    def text_at(self, i: int) -> str:
        """The text of a token, empty behind the last one."""
        return self.tokens[i].text if i < len(self.tokens) else ""

    def callee(self, opening: int) -> str:
        """The name in front of the parenthesis of a call, without template arguments; empty if it is no call."""
        at = opening - 1
        if at >= 0 and self.tokens[at].kind == "bracket" and self.tokens[at].text == ">":
            at = self.partner[at] - 1
        if at < 0 or self.tokens[at].kind != "name" or self.tokens[at].text in NOT_TYPES:
            return ""
        return self.tokens[at].text


def plain(type: str) -> str:
    """A type without what makes no difference to a value of it: a `const` of its own, not one of what it points to."""
    held, *pointers = type.replace("__restrict__", "").split("*")
    words = [word for word in held.split() if pointers or word != "const"]
    return " ".join(words) + "*" * len(pointers)
