"""Mutation operators: small mistakes that people make in kernels, found in a source by its tokens.

An operator is a function from a Source to the places where its mistake can be made, and what the text would be then.
"""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Literal, NamedTuple

from conformance.mutants.source import TERNARY, Source, Statement


class Edit(NamedTuple):
    """A mistake: tokens first .. last become `text`. An expression becomes another one, a condition too; a statement, with its `;`, another
    or nothing."""

    first: int
    last: int
    text: str
    form: Literal["expression", "condition", "statement"] = "expression"


Operator = Callable[[Source], Iterator[Edit]]

# What orders the accesses of threads and of the copy engine; each returns nothing.
ORDERING = frozenset((
    "__syncthreads", "__syncwarp", "__threadfence", "barrier_sync", "barrier_arrive", "cp_async_commit", "cp_async_wait",
    "cp_async_mbarrier_arrive", "mbarrier_init_fence", "mbarrier_arrive", "mbarrier_arrive_expect", "mbarrier_arrive_cluster",
    "mbarrier_wait", "fence_async_proxy", "wgmma_fence", "wgmma_commit", "wgmma_wait", "bulk_commit", "bulk_wait", "bulk_wait_read",
    "cluster_arrive", "cluster_wait", "cluster_sync", "grid_dependency_wait",
))  # fmt: skip
WEAKER = {"atomic_add_acq_rel": "atomicAdd", "load_acquire": "*", "store_release": "*"}  # the same without an order
OTHER_BOUND = {"min": "max", "max": "min", "fminf": "fmaxf", "fmaxf": "fminf"}
NEIGHBOUR = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPPOSITE = {"==": "!=", "!=": "=="}
SCALES = re.compile(r"scale|gain|factor|offset|bias|of_x|of_w", re.IGNORECASE)
PAGES = re.compile(r"page", re.IGNORECASE)
COMPOUND = ("+=", "-=", "*=", "|=", "&=", "^=")
# How many of a function's first arguments may be exchanged.
SYMMETRIC = {"fmaf": 2, "fma_pair": 2, "__fmaf_rn": 2} | dict.fromkeys(
    ("min", "max", "fminf", "fmaxf", "__umulhi", "larger", "multiply_pair", "add_pair", "__fmul_rn", "__fadd_rn"), 9
)  # fmt: skip
INTEGER = re.compile(r"(unsigned|int|u?int\d+_t|size_t|short|char)\b")


def _calls(source: Source) -> Iterator[tuple[int, str]]:
    """Every call that runs: the token of its `(`, and what is called."""
    for i, token in enumerate(source.tokens):
        if token.text == "(" and source.free[i] and (name := source.callee(i)):
            yield i, name


def _name_of(source: Source, opening: int) -> int:
    """The first token of what is called: `F::factor<T>`, `groups.of`."""
    at = opening - 1
    if source.tokens[at].kind == "bracket":
        at = source.partner[at] - 1
    while source.tokens[at - 1].text in ("::", ".", "->"):
        at -= 2
        while source.tokens[at].text in ("]", ")") or source.tokens[at].kind == "bracket":
            at = source.partner[at] - 1
    return at


def _operators(source: Source, *texts: str) -> Iterator[tuple[int, int, int]]:
    """Binary operators with these texts: first token of the left operand, the operator, last token of the right one."""
    for i in range(len(source.tokens)):
        if source.free[i] and source.is_operator(i, *texts) and (level := source.binary(i)) is not None:
            yield source.left_operand(i, level), i, source.right_operand(i, level)


def _expression_statements(source: Source) -> Iterator[Statement]:
    yield from (statement for statement in source.statements if statement.kind == "expression")


def _orders(source: Source, statement: Statement) -> bool:
    """Whether a statement is nothing but a barrier or the like."""
    opening = source.partner.get(statement.last - 1, -1)
    call = source.tokens[statement.last - 1].text == ")" and source.callee(opening) in ORDERING
    return call and _name_of(source, opening) == statement.first


def missing_barrier(source: Source) -> Iterator[Edit]:
    """A barrier, fence, commit, arrival or wait is left out."""
    for statement in _expression_statements(source):
        if _orders(source, statement):
            yield Edit(statement.first, statement.last, ";", "statement")
    for opening, name in _calls(source):
        if name.startswith("__syncthreads_"):
            yield Edit(_name_of(source, opening), source.partner[opening], f"({source.of(opening + 1, source.partner[opening] - 1)})")


def wait_off_by_one(source: Source) -> Iterator[Edit]:
    """A wait lets one group more go on; an mbarrier counts one arrival more; the parity of a phase is the other one."""
    for opening, name in _calls(source):
        first, last, arguments = _name_of(source, opening), source.partner[opening], source.arguments(opening)
        if source.tokens[opening - 1].kind == "bracket" and "_wait" in name:
            count = source.of(source.partner[opening - 1] + 1, opening - 2)
            yield Edit(first, last + 1, f"{name}<({count}) + 1>();", "statement")
        if name in ("mbarrier_wait", "mbarrier_init"):
            changed = source.of(*arguments[1]) + (" + 1" if name == "mbarrier_init" else ")")
            yield Edit(*arguments[1], changed if name == "mbarrier_init" else f"1 ^ ({changed}")


def weaker_order(source: Source) -> Iterator[Edit]:
    """An atomic that orders other accesses no longer does."""
    for opening, name in _calls(source):
        if name not in WEAKER:
            continue
        first, last, arguments = _name_of(source, opening), source.partner[opening], source.arguments(opening)
        pointer = source.of(*arguments[0])
        if name == "store_release":
            yield Edit(first, last + 1, f"*({pointer}) = {source.of(*arguments[1])};", "statement")
        elif name == "load_acquire":
            yield Edit(first, last, f"*({pointer})")
        else:
            yield Edit(first, last, f"{WEAKER[name]}{source.of(opening, last)}")


def wrong_comparison(source: Source) -> Iterator[Edit]:
    """`<` for `<=`, `==` for `!=`, and the reverse."""
    for first, i, last in _operators(source, *NEIGHBOUR, *OPPOSITE):
        other = (NEIGHBOUR | OPPOSITE)[source.tokens[i].text]
        yield Edit(first, last, f"{source.of(first, i - 1)} {other} {source.of(i + 1, last)}")


def missing_guard(source: Source) -> Iterator[Edit]:
    """A condition always holds, or never; a part of one is left out."""
    for statement in source.statements:
        if statement.kind == "if":
            yield Edit(*statement.header[0], "true", "condition")
            yield Edit(*statement.header[0], "false", "condition")
    for first, i, last in _operators(source, "&&", "||"):
        yield Edit(first, last, source.of(first, i - 1), "condition")
        yield Edit(first, last, source.of(i + 1, last), "condition")


def missing_mask(source: Source) -> Iterator[Edit]:
    """A choice always takes the same side."""
    for i, token in enumerate(source.tokens):
        if not source.free[i] or token.text != "?":
            continue
        first, last = source.left_operand(i, TERNARY + 1), source.right_operand(i, TERNARY)
        if source.is_constant(first, i - 1):
            continue
        colon, depth = i + 1, 0
        while depth or source.tokens[colon].text != ":":
            depth += (source.tokens[colon].text == "?") - (source.tokens[colon].text == ":")
            colon = source.partner[colon] + 1 if source.partner.get(colon, -1) > colon else colon + 1
        yield Edit(first, last, source.of(i + 1, colon - 1))
        yield Edit(first, last, source.of(colon + 1, last))


def missing_term(source: Source) -> Iterator[Edit]:
    """A summand, a factor, a divisor or a shift is left out: eps, a stride, a scale."""
    for first, i, last in _operators(source, "+", "*", "/", "<<", ">>", "^"):
        if source.tokens[i].text != "/" or not _is_integer(source, i + 1, last):
            yield Edit(first, last, source.of(first, i - 1))


def wrong_operator(source: Source) -> Iterator[Edit]:
    """`/` for `%` in the numbers of lanes and rows, `&` for `|`, and the reverse."""
    others = {"/": "%", "%": "/", "&": "|", "|": "&"}
    for first, i, last in _operators(source, *others):
        if source.tokens[i].text != "/" or _is_integer(source, i + 1, last):
            yield Edit(first, last, f"{source.of(first, i - 1)} {others[source.tokens[i].text]} {source.of(i + 1, last)}")


def _is_integer(source: Source, first: int, last: int) -> bool:
    """Whether an operand is a whole number, as far as one can see."""
    if first != last:
        return False
    token, variable = source.tokens[first], source.variable.get(first)
    return token.text.isdigit() or (variable is not None and INTEGER.search(variable.type) is not None)


def swapped_operands(source: Source) -> Iterator[Edit]:
    """The operands of a difference, or two neighbouring arguments of a call, change places."""
    for first, i, last in _operators(source, "-"):
        if source.kind_of(first, i - 1).startswith("pointer"):
            continue
        yield Edit(first, last, f"({source.of(i + 1, last)}) - ({source.of(first, i - 1)})")
    for opening, name in _calls(source):
        arguments = source.arguments(opening)
        for place, ((a, b), (c, d)) in enumerate(pairwise(arguments)):
            if place + 1 < SYMMETRIC.get(name, 0):
                continue
            if source.of(a, b) != source.of(c, d) and (kind := source.kind_of(a, b)) and kind == source.kind_of(c, d):
                first, last = _name_of(source, opening), source.partner[opening]
                before, behind = source.text[source.tokens[first].start : source.tokens[a].start], source.of(d + 1, last)
                yield Edit(first, last, f"{before}{source.of(c, d)}, {source.of(a, b)}{behind}")


def wrong_index(source: Source) -> Iterator[Edit]:
    """The first element is taken instead of the right one, or the second instead of the first."""
    for opening, base in _subscripts(source):
        if not (SCALES.search(base) or PAGES.search(base)):
            yield _first_element(source, opening)


def wrong_scale_index(source: Source) -> Iterator[Edit]:
    """The same for scales, gains, offsets, biases."""
    for opening, base in _subscripts(source):
        if SCALES.search(base) and not PAGES.search(base):
            yield _first_element(source, opening)


def wrong_page(source: Source) -> Iterator[Edit]:
    """The same for tables of pages."""
    for opening, base in _subscripts(source):
        if PAGES.search(base):
            yield _first_element(source, opening)


def _subscripts(source: Source) -> Iterator[tuple[int, str]]:
    for i, token in enumerate(source.tokens):
        if token.text == "[" and source.free[i] and source.ends_operand(i - 1):
            at = i - 1
            while source.tokens[at].text in ("]", ")"):
                at = source.partner[at] - 1
            yield i, source.tokens[at].text


def _first_element(source: Source, opening: int) -> Edit:
    first, last = opening + 1, source.partner[opening] - 1
    return Edit(first, last, "1" if source.of(first, last) == "0" else "0")


def wrong_variable(source: Source) -> Iterator[Edit]:
    """A row for a column, a stride or pointer for another: a name for the next one declared with it."""
    for i, variable in source.variable.items():
        if not source.free[i] or len(variable.siblings) < 2 or source.tokens[i + 1].text in ("=", "++", "--") or _is_target(source, i):
            continue
        at = variable.siblings.index(variable.name)
        others = [*variable.siblings[at + 1 :], *variable.siblings[:at]]
        other = next((name for name in others if name in source.visible[i]), None)
        if other is not None:
            yield Edit(i, i, other)


def _is_target(source: Source, i: int) -> bool:
    """Whether a name is what an assignment or an increment changes."""
    at = i + 1
    while source.tokens[at].text in ("[", "."):
        at = source.partner[at] + 1 if source.tokens[at].text == "[" else at + 2
    return source.tokens[at].text in ("+=", "-=", "*=", "/=", "|=", "^=", "=") or source.tokens[i - 1].text in ("++", "--")


def wrong_constant(source: Source) -> Iterator[Edit]:
    """A whole number is one more than it should be, a mask of bits is shifted; another number is 3% larger, or 1 in the place of 0."""
    for i, token in enumerate(source.tokens):
        negative = source.is_operator(i - 1, "-") and source.binary(i - 1) is None  # stands for `none`
        if not source.free[i] or token.kind != "number" or source.tokens[i - 1].text == "[" or negative:
            continue
        if token.text.startswith("0x"):
            if token.text.lower().strip("0xful"):
                yield Edit(i, i, f"({token.text} >> 1)")
        elif "." in token.text:
            yield Edit(i, i, "1.0f" if float(token.text.rstrip("fF")) == 0 else f"({token.text} * 1.03125f)")
        else:
            yield Edit(i, i, f"({token.text} + 1)")


def wrong_sign(source: Source) -> Iterator[Edit]:
    """A `-`, `!` or `~` is left out."""
    for i in range(len(source.tokens)):
        if source.free[i] and source.is_operator(i, "-", "!", "~") and source.binary(i) is None:
            last = i + 1
            while source.tokens[last].text in ("(", "-", "~", "!"):  # a cast, or the whole operand
                last = source.partner[last] if source.tokens[last].text == "(" else last + 1
                if source.tokens[last].text == ")" and not source.is_cast(source.partner[last], last):
                    break
                last += source.tokens[last].text == ")"
            while source.tokens[last + 1].text in ("(", "[", ".", "::", "->") or source.tokens[last + 1].kind == "bracket":
                last = source.partner.get(last + 1, last + 2)
            yield Edit(i, last, source.of(i + 1, last), "condition" if source.tokens[i].text == "!" else "expression")


def wrong_bound(source: Source) -> Iterator[Edit]:
    """The larger of two numbers for the smaller one, or the reverse."""
    for opening, name in _calls(source):
        if name in OTHER_BOUND:
            yield Edit(_name_of(source, opening), source.partner[opening], OTHER_BOUND[name] + source.of(opening, source.partner[opening]))


def wrong_rounding(source: Source) -> Iterator[Edit]:
    """Rounded towards zero, or not at all where a value is rounded in between."""
    for opening, name in _calls(source):
        first, last = _name_of(source, opening), source.partner[opening]
        if name in ("from_float", "pack") and source.tokens[opening - 1].kind == "bracket":
            type = source.of(source.partner[opening - 1], opening - 1)
            arguments = ", ".join(f"towards_zero{type}({source.of(*argument)})" for argument in source.arguments(opening))
            yield Edit(first, last, f"{name}{type}({arguments})")
        if name == "to_float" and source.callee(last - 1 if last - 1 not in source.partner else source.partner[last - 1]) == "from_float":
            inner = source.partner[last - 1]
            if _name_of(source, inner) == opening + 1:
                yield Edit(first, last, f"({source.of(inner + 1, last - 2)})")
        if name in ("rintf", "rint"):
            yield Edit(first, last, f"trunc{name[4:]}{source.of(opening, last)}")


def missing_statement(source: Source) -> Iterator[Edit]:
    """A result is not stored, or a step is left out."""
    for statement in _expression_statements(source):
        compound = any(source.is_operator(i, *COMPOUND) for i in range(statement.first, statement.last))
        if not compound and not _orders(source, statement):
            yield Edit(statement.first, statement.last, ";", "statement")


def missing_accumulation(source: Source) -> Iterator[Edit]:
    """A sum is overwritten instead of added to, and the like."""
    steps = {i for statement in source.statements if statement.kind == "for" for i in range(statement.header[2][0], statement.last)}
    for i in range(len(source.tokens)):
        if source.free[i] and i not in steps and source.is_operator(i, *COMPOUND):
            first, last = source.left_operand(i, TERNARY), source.right_operand(i, -1)
            yield Edit(first, last, f"{source.of(first, i - 1)} = {source.of(i + 1, last)}")


def wrong_stride(source: Source) -> Iterator[Edit]:
    """A loop takes steps of twice the size."""
    for statement in source.statements:
        if statement.kind != "for" or statement.header[2][0] > statement.header[2][1]:
            continue
        first, last = statement.header[2]
        text = source.of(first, last)
        if source.tokens[first].text == "++" and not any(source.is_operator(i, ",") for i in range(first, last)):
            yield Edit(first, last, f"{source.of(first + 1, last)} += 2")
        elif match := re.fullmatch(r"(\w+) (\+=|-=|\*=|/=) (.*)", text, re.DOTALL):
            yield Edit(first, last, f"{match[1]} {match[2]} 2 * ({match[3]})")


OPERATORS: dict[str, Operator] = {
    operator.__name__.replace("_", " "): operator
    for operator in (
        missing_barrier, wait_off_by_one, weaker_order, wrong_comparison, missing_guard, missing_mask, missing_term, wrong_operator,
        swapped_operands, wrong_index, wrong_scale_index, wrong_page, wrong_variable, wrong_constant, wrong_sign, wrong_bound,
        wrong_rounding, missing_statement, missing_accumulation, wrong_stride,
    )
}  # fmt: skip


def meaning(name: str) -> str:
    """What an operator does, in a sentence."""
    return (OPERATORS[name].__doc__ or "").strip()
