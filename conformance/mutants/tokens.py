"""Tokens of a CUDA source as clang-format lays it out, and which bracket closes which.

The layout tells apart what C++ needs types for: a binary operator stands between spaces, a template's bracket or a pointer's star does not.
Comments, preprocessor lines and everything between `#if` and `#endif` (what only a device or only the emulator sees) are no tokens.
"""

import re
from typing import NamedTuple

TOKEN = re.compile(
    r"""(?P<skip>\s+|//[^\n]*|/\*.*?\*/)
      |(?P<directive>\#(?:[^\n\\]|\\.)*(?:\\\n(?:[^\n\\]|\\.)*)*)
      |(?P<string>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?)[uUlLfF]*)
      |(?P<name>[A-Za-z_]\w*)
      |(?P<op><<=|>>=|\.\.\.|->|::|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|[-+*/%&|^~!<>=?:;,.(){}\[\]])""",
    re.VERBOSE | re.DOTALL,
)
OPEN = {"(": ")", "[": "]", "{": "}", "<": ">"}


class Token(NamedTuple):
    """kind: name, number, string or op; `<` and `>` of a template's brackets are of kind bracket. start, end: in the text."""

    kind: str
    text: str
    start: int
    end: int


def tokenize(text: str) -> list[Token]:
    """The tokens of a source. ValueError where it is no C++."""
    tokens: list[Token] = []
    at = depth = 0
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"no token at offset {at}: {text[at : at + 20]!r}")
        kind, word = str(found.lastgroup), found[0]
        if kind == "directive":
            depth += word.startswith(("#if", "#ifdef", "#ifndef")) - word.startswith("#endif")
        elif kind != "skip" and depth == 0:
            if word[0] in "<>" and not (text[at - 1].isspace() and not (tokens and tokens[-1].text == "template")):
                kind, word = "bracket", word[0]
            tokens.append(Token(kind, word, at, at + len(word)))
        at += len(word)
    return tokens


def partners(tokens: list[Token]) -> dict[int, int]:
    """For every bracket, the index of its partner. ValueError where they do not match."""
    found: dict[int, int] = {}
    stack: list[int] = []
    for i, token in enumerate(tokens):
        if token.kind not in ("op", "bracket"):
            continue
        if token.text in "([{" or (token.kind == "bracket" and token.text == "<"):
            stack.append(i)
        elif token.text in ")]}" or (token.kind == "bracket" and token.text == ">"):
            if not stack or OPEN[tokens[stack[-1]].text] != token.text:
                raise ValueError(f"`{token.text}` at offset {token.start} closes nothing")
            found[i] = stack.pop()
            found[found[i]] = i
    if stack:
        raise ValueError(f"`{tokens[stack[-1]].text}` at offset {tokens[stack[-1]].start} is never closed")
    return found
