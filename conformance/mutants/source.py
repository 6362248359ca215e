"""A CUDA source as far as mutation needs it: function bodies, their statements, and what every name in them stands for.

A token is `free` if it is evaluated when the kernel runs. What the compiler evaluates (template arguments, constexpr, types, declarations
of shared memory, sizes of arrays) is not: it cannot depend on a switch.
"""

import re
from dataclasses import field
from typing import Literal, NamedTuple

from conformance.mutants.tokens import Token, partners, tokenize
from poem.dataclass import dataclass

Kind = Literal["expression", "declaration", "return", "jump", "if", "for", "while"]
TYPES = frozenset(("void", "bool", "char", "short", "int", "long", "unsigned", "float", "double", "size_t", "auto"))
NOT_TYPES = frozenset(("return", "else", "if", "for", "while", "break", "continue", "case", "sizeof", "decltype"))
EVALUATED_BY_THE_COMPILER = frozenset(("sizeof", "decltype", "alignas"))  # with what is in parentheses behind them
WITHOUT_EXPRESSIONS = frozenset((
    "using", "static_assert", "constexpr", "static", "struct", "enum", "template", "typedef", "POEM_SHARED", "POEM_DYNAMIC_SHARED",
    "POEM_TWIN",
))  # fmt: skip
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
                number = _NUMBER.search(variable.type)
                if levels or number is None:
                    pointer = first == last and number is not None and variable.type.count("[]") == 0
                    return f"pointer {_plain(variable.type)}" if pointer else ""
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


def parse(text: str) -> Source:
    """Reads a source. ValueError where it cannot be read."""
    tokens = tokenize(text)
    source = Source(text, tokens, partners(tokens), [False] * len(tokens))
    _Parser(source).outside(0, len(tokens))
    return source


class _Parser:
    """One pass over the tokens. `scopes`: the variables known here, innermost last. `captures`: by depth, the names that a lambda takes in,
    where it lists them."""

    def __init__(self, source: Source) -> None:
        self.source, self.tokens, self.partner = source, source.tokens, source.partner
        self.scopes: list[dict[str, Variable]] = []
        self.captures: dict[int, set[str]] = {}

    def text(self, i: int) -> str:
        return self.tokens[i].text if i < len(self.tokens) else ""

    # -- outside of functions ------------------------------------------------------------------
    def outside(self, at: int, stop: int) -> None:
        while at < stop:
            if self.text(at) == "{":
                before = at - 1
                while self.text(before) in ("const", "noexcept"):
                    before -= 1
                if self.text(before) == ")" and not self._says(before, "constexpr"):
                    self.function(self.partner[before], before, at)
                    at = self.partner[at] + 1
                    continue
                if self._says(at - 1, "namespace", "struct", "union"):
                    self.outside(at + 1, self.partner[at])
                at = self.partner[at] + 1
            elif self.text(at) in ("(", "[", "<") and at in self.partner:
                at = self.partner[at] + 1
            else:
                at += 1

    def _says(self, at: int, *words: str) -> bool:
        """Whether the declaration that a token ends has one of these words."""
        while at >= 0 and self.text(at) not in (";", "{", "}"):
            if self.text(at) in words:
                return True
            at -= 1
        return False

    def function(self, opening: int, closing: int, brace: int) -> None:
        name = opening - 1
        if self.text(name) == ">":
            name = self.partner[name] - 1
        self.source.functions.append((brace, self.partner[brace], self.text(name)))
        self.scopes.append({})
        self.parameters(opening)
        self.block(brace)
        self.scopes.pop()

    def parameters(self, opening: int) -> None:
        found: list[tuple[str, str]] = []
        for first, last in self.source.arguments(opening):
            end = next((i for i in range(first, last + 1) if self.text(i) in ("=", "[")), last + 1) - 1
            if end > first and self.tokens[end].kind == "name":
                found.append((self.text(end), self.source.of(first, end - 1)))
        self.declare(found)

    def declare(self, found: list[tuple[str, str]]) -> None:
        for name, type in found:
            siblings = tuple(other for other, its in found if _plain(its) == _plain(type))
            self.scopes[-1][name] = Variable(name, type, siblings)

    # -- statements ----------------------------------------------------------------------------
    def block(self, brace: int) -> None:
        self.scopes.append({})
        at = brace + 1
        while at < self.partner[brace]:
            at = self.statement(at)
        self.scopes.pop()

    def statement(self, at: int) -> int:
        """Reads the statement that begins at a token. Returns the token behind it."""
        word = self.text(at)
        if word == "{":
            self.block(at)
            return self.partner[at] + 1
        if word in ("if", "while"):
            return self.conditional(at)
        if word == "for":
            return self.loop(at)
        end = self.end_of(at)
        if word in ("break", "continue") or (word == "return" and end == at + 1):
            self.source.statements.append(Statement("jump", at, end))
        elif word == "return":
            self.source.statements.append(Statement("return", at, end))
            self.expression(at + 1, end - 1)
        elif word in WITHOUT_EXPRESSIONS or word == ";":
            self.constants(at, end)
        elif (name := self.declared_name(at)) is not None:
            self.source.statements.append(Statement("declaration", at, end))
            self.declaration(at, name, end)
        else:
            self.source.statements.append(Statement("expression", at, end))
            self.expression(at, end - 1)
        return end + 1

    def end_of(self, at: int) -> int:
        """The `;` that ends the statement at a token."""
        while self.text(at) != ";":
            at = self.partner[at] + 1 if self.partner.get(at, -1) > at else at + 1
        return at

    def constants(self, first: int, last: int) -> None:
        """What such a declaration declares is known from here on."""
        if self.text(first) in ("constexpr", "static"):
            names = [
                i
                for i in range(first, last)
                if self.tokens[i].kind == "name" and self.text(i + 1) in ("=", "[") and i in range(first, last)
            ]
            self.declare([(self.text(i), "constexpr") for i in names])
        elif self.text(first) in ("POEM_SHARED", "POEM_DYNAMIC_SHARED"):
            arguments = self.source.arguments(first + 1)
            name = arguments[1] if len(arguments) > 1 else arguments[0]
            self.declare([(self.source.of(*name), "shared " + self.source.of(*arguments[0]) + "[]")])

    def conditional(self, at: int) -> int:
        opening = at + 1
        constant = self.text(opening) == "constexpr"
        opening += constant
        closing = self.partner[opening]
        if not constant:
            self.source.statements.append(Statement("if" if self.text(at) == "if" else "while", at, closing, ((opening + 1, closing - 1),)))
            self.expression(opening + 1, closing - 1)
        end = self.inner(closing + 1)
        return self.inner(end + 1) if self.text(end) == "else" else end

    def loop(self, at: int) -> int:
        opening, closing = at + 1, self.partner[at + 1]
        self.scopes.append({})
        first = self.end_of(opening + 1)
        second = self.end_of(first + 1)
        parts = ((opening + 1, first - 1), (first + 1, second - 1), (second + 1, closing - 1))
        self.source.statements.append(Statement("for", at, closing, parts))
        name = self.declared_name(opening + 1)
        if name is not None:
            self.declaration(opening + 1, name, first)
        else:
            self.expression(*parts[0])
        for part in parts[1:]:
            self.expression(*part)
        end = self.inner(closing + 1)
        self.scopes.pop()
        return end

    def inner(self, at: int) -> int:
        self.scopes.append({})
        end = self.statement(at)
        self.scopes.pop()
        return end

    # -- declarations --------------------------------------------------------------------------
    def declared_name(self, at: int) -> int | None:
        """The first declared name if a declaration begins here: a type, then a name, then what may follow one."""
        first = at
        while self.text(at) in ("const", "typename", "unsigned", "volatile"):
            at += 1
        if self.tokens[at].kind != "name" or self.text(at) in NOT_TYPES:
            return None
        if at == first or self.text(at - 1) != "unsigned" or self.text(at) in TYPES:
            at += 1
        while self.text(at) in ("::", "<", "*", "&", "const", "__restrict__", ">"):
            if self.text(at) == "::":
                at += 2
            elif self.tokens[at].kind == "bracket":
                at = self.partner[at] + 1
            elif self.tokens[at].kind == "op" and self.tokens[at].start != self.tokens[at - 1].end:
                return None  # a binary operator
            else:
                at += 1
        if self.tokens[at].kind != "name" or self.text(at + 1) not in ("=", ";", ",", "[", "{", "("):
            return None
        return at

    def declaration(self, first: int, name: int, end: int) -> None:
        type = self.source.of(first, name - 1)
        found: list[tuple[str, str]] = []
        at = name
        while at < end:
            while self.text(at) in ("*", "&", "const"):
                at += 1
            own, dimensions = self.text(at), ""
            at += 1
            while self.text(at) == "[":
                dimensions, at = dimensions + "[]", self.partner[at] + 1
            if self.text(at) in ("=", "{", "("):
                start = at + 1 if self.text(at) == "=" else at
                stop = start
                while stop < end and self.text(stop) != ",":
                    stop = self.partner[stop] + 1 if self.partner.get(stop, -1) > stop else stop + 1
                self.declare(found)
                self.expression(start, stop - 1)
                at = stop
            found.append((own, type + dimensions))
            at += 1
        self.declare(found)

    # -- expressions ---------------------------------------------------------------------------
    def expression(self, first: int, last: int) -> None:
        at = first
        while at <= last:
            token = self.tokens[at]
            if token.kind == "bracket" and token.text == "<":
                at = self.partner[at] + 1
            elif token.text in EVALUATED_BY_THE_COMPILER:
                at = self.partner[at + 1] + 1
            elif token.text == "[" and (at == first or not self.source.ends_operand(at - 1)):
                at = self.closure(at)
            elif token.text == "(" and (self.source.is_cast(at, self.partner[at]) or self._folded_constants(at)):
                at = self.partner[at] + 1
            else:
                self.source.free[at] = True
                self.source.expression[at] = (first, last)
                if token.kind == "name" and self.text(at - 1) not in (".", "->", "::"):
                    self.use(at)
                at += 1

    def _folded_constants(self, opening: int) -> bool:
        """Whether parentheses hold a constant of each argument of a pack: `(UNITS + ...)`."""
        closing = self.partner[opening]
        return self.text(closing - 1) == "..." and closing == opening + 4 and self.source.is_constant(opening + 1, opening + 1)

    def use(self, at: int) -> None:
        name = self.text(at)
        for depth in range(len(self.scopes) - 1, -1, -1):
            found = self.scopes[depth].get(name)
            if found is None:
                continue
            visible = {other for other in found.siblings if other in self.scopes[depth]}
            visible -= {other for scope in self.scopes[depth + 1 :] for other in scope}
            for outside, names in self.captures.items():
                if depth < outside:
                    visible &= names
            self.source.variable[at], self.source.visible[at] = found, frozenset(visible)
            return

    def closure(self, at: int) -> int:
        """A lambda, from its `[` on. Returns the token behind its body."""
        depth = len(self.scopes)
        self.scopes.append({})
        if not {self.text(at + 1), self.text(at + 2)} & {"&", "="}:
            self.captures[depth] = {self.text(i) for i in range(at + 1, self.partner[at])}
        at = self.partner[at] + 1
        if self.text(at) == "(":
            self.parameters(at)
            at = self.partner[at] + 1
        while self.text(at) != "{":
            at += 1
        self.source.functions.append((at, self.partner[at], self.source.function_at(at)))
        self.block(at)
        self.scopes.pop()
        self.captures.pop(depth, None)
        return self.partner[at] + 1


def _plain(type: str) -> str:
    """A type without what makes no difference to a value of it: a `const` of its own, not one of what it points to."""
    held, *pointers = type.replace("__restrict__", "").split("*")
    words = [word for word in held.split() if pointers or word != "const"]
    return " ".join(words) + "*" * len(pointers)
