"""Refuses texts that nest so deep that the host's parser would overflow its stack."""

import re

from poem.errors import PackageError
from poem.language.limits import LIMITS

# Every alternative starts with a known character, which makes the scan fast; strings need no end, which keeps it linear.
_TOKEN = re.compile(
    r"""
    (?P<open>[\[({])|(?P<close>[\])}])|(?P<part>[,;])
    |(?P<operator>[-+~*/%|&^<>=.]|(?:if|else|not|and|or|lambda|for|in)(?!\w))
    |(?P<line>\n[ \t]*(?=[^\s\#]))
    |\#[^\n]*
    |\"\"\"[^"\\]*(?:(?:\\.|"(?!\"\"))[^"\\]*)*(?:\"\"\")?
    |\'\'\'[^'\\]*(?:(?:\\.|'(?!\'\'))[^'\\]*)*(?:\'\'\')?
    |"[^"\\\n]*(?:\\.[^"\\\n]*)*"?
    |'[^'\\\n]*(?:\\.[^'\\\n]*)*'?
    """,
    re.VERBOSE | re.DOTALL,
)


def check_nesting(file: str, text: str) -> None:
    """Refuse brackets, blocks and chains of operators beyond the limits (`load.too-deep`)."""
    deepest = LIMITS.expression_depth
    opened: list[int] = []  # depth outside each open bracket
    depth = 0  # operators and brackets that may enclose the next token
    blocks = [[0, 0]]  # indentation of each open block, and how many `elif`s its last statement has
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind is None:  # a comment or a string
            continue
        if kind == "operator" or kind == "open":
            depth += 1
            if depth > deepest:
                raise _refusal(file, text, token.start(), f"an expression nests or chains more than {deepest} operators and brackets")
            if kind == "open":
                opened.append(depth)
        elif kind == "close":
            depth = opened.pop() if opened else 0
        elif kind == "part":
            depth = opened[-1] if opened else 0
        elif kind == "line" and not opened:
            depth = 0
            width = token.end() - token.start() - 1
            while blocks[-1][0] > width:
                blocks.pop()
            if width > blocks[-1][0]:
                blocks.append([width, 0])
            if text.startswith("elif", token.end()):  # nests in the one before
                blocks[-1][1] += 1
            elif not text.startswith("else", token.end()):
                blocks[-1][1] = 0
            if len(blocks) > LIMITS.block_depth or blocks[-1][1] > deepest // 2:
                raise _refusal(file, text, token.start() + 1, f"blocks nest more than {LIMITS.block_depth} deep")


def _refusal(file: str, text: str, position: int, message: str) -> PackageError:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    return PackageError("load.too-deep", message, phase="load", file=file, line=line, column=column, hint="split it into named parts")
