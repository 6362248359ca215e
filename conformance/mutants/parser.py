"""Reads a CUDA source: which tokens are function bodies, statements and variables, and what is evaluated when a kernel runs."""

from conformance.mutants.source import NOT_TYPES, Source, Statement, Variable, plain
from conformance.mutants.tokens import partners, tokenize

TYPES = frozenset(("void", "bool", "char", "short", "int", "long", "unsigned", "float", "double", "size_t", "auto"))
EVALUATED_BY_THE_COMPILER = frozenset(("sizeof", "decltype", "alignas"))  # with what is in parentheses behind them
WITHOUT_EXPRESSIONS = frozenset((
    "using", "static_assert", "constexpr", "static", "struct", "enum", "template", "typedef", "POEM_SHARED", "POEM_DYNAMIC_SHARED",
    "POEM_TWIN",
))  # fmt: skip


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
            siblings = tuple(other for other, its in found if plain(its) == plain(type))
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
