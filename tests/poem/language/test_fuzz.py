"""Mutated packages: whatever a text says, the answer is a package or a PoemError, and never a fault of our own."""

import re

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from poem.errors import PoemError
from poem.package import load_package_from_texts
from tests.poem.language.package_texts import BLOCKS, LLAMA, TOY

# The small model only: a mutation of it runs in milliseconds.
SMALL_LLAMA = re.sub(r'    "llama3[^\n]*\n', "", LLAMA)
TEXTS = {"toy": TOY, "llama_3": SMALL_LLAMA, "blocks": BLOCKS}
TOKEN = re.compile(r'"""[^"]*"""|"[^"\n]*"|#[^\n]*|\d+\.\d+|\d+e-?\d+|\w+|\n[ ]*|\*\*|[=!<>]=|//|[^\w\s]')
VALUES = [
    "0",
    "1",
    "-1",
    "2147483647",
    "2147483648",
    "1 << 100",
    "0.5",
    "-0.0",
    "1e300",
    'float("inf")',
    'float("nan")',
    "True",
    "None",
    '""',
    '"x"',
    '"kv"',
    '"layers.{l}.q"',
    "[]",
    "[1]",
    "()",
    "{}",
    '{"a": 1}',
    "{1: 2}",
    "struct()",
    "struct(a = 1, _h = 3, _key = [])",
    "struct(_h = [], _key = (), _facts = 1)",
    "lambda: 1",
    "lambda *a, **k: None",
    "len",
    "dtype",
    "dtype.bf16",
    "dtype.u4g64",
    "dtype.u4g32k",
    "ops",
    "ops.linear",
    "ops.linear.matmul",
    "weight",
    "model",
    "template",
    "output",
    "range(3)",
    "m",
    "m.embed",
    "m.q",
    "w",
    "x",
    "y",
    "inputs",
    "inputs.tokens()",
    "inputs.mask()",
    "c",
    "deploy",
    "id",
    "src('a')",
    "fact.Mask",
    "merge",
    "[[[]]]",
    "'a'.elems()",
    "partial(len, [])",
    "struct(shape = 1, dtype = 2, _h = [0])",
    "m.embed.columns",
    "x.width",
    "struct(_h = m, _key = 'inputs', _trace = 3)",
    "struct(_trace = lambda: 1, _h = 2, _key = 'k')",
    "fail",
    "print",
    "call_stack()",
    "_h",
    "dir(m)",
    "repr(m)",
]
KEYWORDS = {"def", "return", "for", "in", "if", "else", "lambda", "load", "and", "or", "not"}
NAMES = sorted(
    {name for text in TEXTS.values() for name in re.findall(r"[A-Za-z_]\w*", text)}
    | {"sqrt", "struct", "hasattr", "getattr", "lambda", "for", "if"}
)


@st.composite
def mutated(draw: st.DrawFn, name: str) -> str:
    """A text in which a few tokens are dropped, doubled, swapped, renamed or replaced by values."""
    tokens = TOKEN.findall(TEXTS[name])
    for _ in range(draw(st.integers(1, 3))):
        way = draw(st.sampled_from(["value"] * 6 + ["name"] * 4 + ["method", "drop", "double", "swap", "line"]))
        values = [at for at, token in enumerate(tokens) if re.match(r'[\w"]', token) and token not in KEYWORDS]
        at = draw(st.sampled_from(values) if values and way in ("value", "name", "method") else st.integers(0, len(tokens) - 1))
        match way:
            case "drop":
                del tokens[at : at + draw(st.integers(1, 3))]
            case "double":
                tokens.insert(at, tokens[at])
            case "swap":
                other = draw(st.integers(0, len(tokens) - 1))
                tokens[at], tokens[other] = tokens[other], tokens[at]
            case "name":
                tokens[at] = draw(st.sampled_from(NAMES))
            case "value":
                tokens[at] = draw(st.sampled_from(VALUES))
            case "method":
                tokens.insert(at + 1, f".{draw(st.sampled_from(NAMES))}")
            case "line":
                tokens.insert(at, draw(st.sampled_from(["\n", "\n    ", ";", "#", "\x00", "\u2603", "'''", "\\"])))
        if not tokens:
            break
    return joined(tokens)


def joined(tokens: list[str]) -> str:
    """The text of tokens."""
    return "".join(token if token.startswith("\n") else f"{token} " for token in tokens)


def judge(name: str, files: dict[str, str]) -> None:
    """Everything that a check does; a refusal is fine when it is one of the language."""
    refusal: PoemError | None = None
    try:
        package = load_package_from_texts(name, files)
        for deployment in list(package.deployments)[:2]:
            package.trace(deployment).digest()
            for form in package.read_formats(deployment, None):
                form.read()
                if form.recognizes is not None:
                    form.recognizes()
    except PoemError as error:
        refusal = error
    if refusal is None:
        return
    assert refusal.code != "internal.error", f"{refusal.render()}\n{refusal.__cause__!r}"
    assert refusal.message
    assert refusal.file in files, refusal.render()
    assert 1 <= refusal.line <= files[refusal.file].count("\n") + 1, refusal.render()


fuzzing = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


@fuzzing
@given(mutated("toy"))
def test_a_mutated_toy_is_a_package_or_a_refusal(text: str) -> None:
    judge("toy", {"toy.poem": text})


@fuzzing
@given(mutated("llama_3"), mutated("blocks"), st.sampled_from(["package", "library", "both"]))
def test_a_mutated_llama_is_a_package_or_a_refusal(text: str, blocks: str, which: str) -> None:
    judge(
        "llama_3",
        {"llama_3.poem": SMALL_LLAMA if which == "library" else text, "lib/blocks.poem": BLOCKS if which == "package" else blocks},
    )


@given(st.text(max_size=200))
def test_any_text_is_a_package_or_a_refusal(text: str) -> None:
    judge("toy", {"toy.poem": text})


def test_the_texts_are_right_before_they_are_mutated() -> None:
    same = {name: joined(TOKEN.findall(text)) for name, text in TEXTS.items()}
    for name, files in (
        ("toy", {"toy.poem": same["toy"]}),
        ("llama_3", {"llama_3.poem": same["llama_3"], "lib/blocks.poem": same["blocks"]}),
    ):
        package = load_package_from_texts(name, files)
        for deployment in package.deployments:
            package.trace(deployment)
