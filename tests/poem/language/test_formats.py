"""Formats: expressions, pairs, states, queries and `reads`, as plain data."""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest

from poem.errors import PackageError
from poem.formats.declared import (
    Bias,
    Cast,
    Concat,
    Constant,
    Expression,
    Fill,
    Format,
    Gather,
    Pair,
    ReadStatement,
    Reshape,
    Rows,
    Scale,
    Slice,
    Src,
    Stack,
    Stride,
    Transmute,
    Transpose,
    Unary,
)
from poem.package import load_package_from_texts
from tests.poem.language.package_texts import BLOCKS, LLAMA, TOY, package

DEPLOYMENT = "toy-tiny-bf16-kv-bf16"


class Source:
    """A checkpoint of two tensors."""

    tensors: ClassVar = {"a.weight": ([4, 3], "bf16"), "b.weight": ([2], "u4g64")}
    config: ClassVar = {"hidden_size": 64, "deep": {"list": [1, 2.5, "x", None]}, "map": {"k": 1}}

    def has(self, name: str) -> bool:
        return name in self.tensors

    def has_prefix(self, prefix: str) -> bool:
        return any(name.startswith(prefix) for name in self.tensors)

    def shape(self, name: str) -> list[int]:
        return self.tensors[name][0]

    def stored(self, name: str) -> str:
        return self.tensors[name][1]

    def text_attribute(self, key: str) -> str | None:
        return {"arch": "llama"}.get(key)

    def attribute_value(self, key: str) -> Any:
        return {"arch": "llama", "count": 3, "nan": float("nan"), "rates": [1.0, 2.0]}.get(key)

    def config_value(self, path: str) -> Any:
        found: Any = self.config
        for part in path.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        return found


def declared(body: str, source: Source | None = None) -> list[Format]:
    """The formats of the toy with another body of `formats`."""
    start, end = TOY.index("def formats"), TOY.index("def caches")
    text = f"{TOY[:start]}def formats(m):\n{body}\n\n{TOY[end:]}"
    return package("toy", text).read_formats(DEPLOYMENT, source)


def read(statements: str, source: Source | None = None) -> Sequence[Pair | ReadStatement]:
    """What a `read` function of these statements records."""
    lines = "\n".join(f"        {line}" for line in statements.split("\n"))
    return declared(f'    def read(reads):\n{lines}\n    return [format("f", read = read)]', source)[0].read()


def without_where(item: Any) -> Any:
    """Plain data without the frames, to compare with."""
    if hasattr(item, "__dataclass_fields__"):
        values = [without_where(getattr(item, name)) for name in item.__dataclass_fields__ if name != "where"]
        return (type(item).__name__, *values)
    return tuple(without_where(part) for part in item) if isinstance(item, (list, tuple)) else item


def expression(text: str) -> Expression:
    (statement,) = read(f'reads.read_expr("embed", {text})')
    assert isinstance(statement, ReadStatement)
    assert not isinstance(statement.left, (str, tuple, Rows))
    return statement.left


# -- pairs ---------------------------------------------------------------------------------------------------------------
def test_the_pairs_of_llama_are_read_as_written() -> None:
    loaded = load_package_from_texts("llama_3", {"llama_3.poem": LLAMA, "lib/blocks.poem": BLOCKS})
    (hub,) = loaded.read_formats("llama31-8b-mini-bf16-kv-bf16", None)
    pairs = hub.read()
    assert len(pairs) == 11
    assert [pair.index for pair in pairs if isinstance(pair, Pair)] == list(range(11))
    assert without_where(pairs[3]) == ("Pair", "model.layers.{l}.input_layernorm.weight", "layers.{l}.attn_norm", 3)
    assert without_where(pairs[9])[1] == ("model.layers.{l}.mlp.gate_proj.weight", "model.layers.{l}.mlp.up_proj.weight")
    assert without_where(hub.states) == (
        ("State", "config", "hidden_size", 4096, False),
        ("State", "config", "num_hidden_layers", 2, True),
        ("State", "config", "num_key_value_heads", 8, False),
        ("State", "config", "vocab_size", 128256, False),
    )


def test_a_pair_points_at_the_line_that_it_is_written_on() -> None:
    (form,) = declared('    return [format("f", read = [\n        ("a", "embed"),\n        ("b", None),\n        ("c", "norm"),\n    ])]')
    first = TOY[: TOY.index("def formats")].count("\n") + 1
    lines = [pair.where[-1].line - first for pair in form.read()]
    assert lines[0] == 2
    assert lines[2] == 4
    assert [pair.right for pair in form.read()] == ["embed", None, "norm"]  # type: ignore[union-attr]


def test_lists_and_tuples_are_pairs_alike() -> None:
    (form,) = declared('    return [format("f", read = [["a", "embed"], (("b", "c"), "norm"), (src("d"), "q")])]')
    assert [without_where(pair)[1] for pair in form.read()] == ["a", ("b", "c"), ("Src", "d")]


@pytest.mark.parametrize(
    "pair",
    [
        "3",
        '("a",)',
        '("a", "b", "c")',
        '(3, "a")',
        '("a", True)',
        '([], "a")',
        '(["a", 3], "a")',
        '(src("a"), None)',
        '(m.q, "a")',
        "(None, None)",
        '("a", m.q)',
    ],
)
@pytest.mark.parametrize("way", ["list", "reads"])
def test_a_malformed_pair_is_refused_with_its_index(pair: str, way: str) -> None:
    body = {
        "list": f'    return [format("f", read = [("x", "embed"), {pair}])]',
        "reads": f'    return [format("f", read = lambda reads: reads.pairs([("x", "embed"), {pair}]))]',
    }[way]
    with pytest.raises(PackageError) as caught:
        declared(body)[0].read()
    assert caught.value.code == "formats.bad-pair", caught.value.render()
    assert "pair 1:" in caught.value.message
    assert (caught.value.file, caught.value.line) == ("toy.poem", TOY[: TOY.index("def formats")].count("\n") + 2)


# -- reads ---------------------------------------------------------------------------------------------------------------
def test_reads_record_what_lands_where() -> None:
    statements = read(
        'reads.pairs([("a", "embed")])\n'
        'reads.read(m.q, "q.weight")\n'
        'reads.read("layers.0.q", "r.weight")\n'
        'reads.read_concat(m.gate_up, ["g", "u"])\n'
        'reads.read_expr(m.k, src("k").cast(dtype.f32))\n'
        'reads.read_over(m.norm, "n", lambda x: x.bias(-1.0))\n'
        'reads.read_stack(m.v, [["a", "b"], ["c", "d"]])\n'
        'reads.ignore("rest.{x}")'
    )
    assert [without_where(statement) for statement in statements] == [
        ("Pair", "a", "embed", 0),
        ("ReadStatement", "q", "q.weight", "read"),
        ("ReadStatement", "layers.0.q", "r.weight", "read"),
        ("ReadStatement", "gate_up", ("g", "u"), "read_concat"),
        ("ReadStatement", "k", ("Cast", ("Src", "k"), "f32"), "read_expr"),
        ("ReadStatement", "norm", ("Bias", ("Src", "n"), -1.0), "read_over"),
        ("ReadStatement", "v", ("Rows", (("a", "b"), ("c", "d"))), "read_stack"),
        ("Pair", "rest.{x}", None, 0),
    ]
    assert all(statement.where for statement in statements)


def test_a_format_can_be_read_again_and_after_a_failure() -> None:
    (form,) = declared('    return [format("f", recognizes = lambda c: 1 // 0, read = lambda reads: reads.read(m.q, "q"))]', Source())
    assert form.recognizes is not None
    assert (form.recognizes().answer, "division by zero" in form.recognizes().reason) == (False, True)
    assert without_where(form.read()) == without_where(form.read()) == (("ReadStatement", "q", "q", "read"),)


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ('reads.read(3, "q")', "call.wrong-kind"),
        ("reads.read(m.q)", "call.missing-argument"),
        ('reads.read(m.q, ["q"])', "call.wrong-kind"),
        ("reads.read_concat(m.q, [])", "call.bad-value"),
        ('reads.read_over(m.q, "q", 3)', "call.wrong-kind"),
        ('reads.read_over(m.q, "q", lambda x: 3)', "call.wrong-kind"),
        ("reads.read_stack(m.q, [[]])", "call.bad-value"),
        ('reads.red(m.q, "q")', "formats.unknown-field"),
        ("weight([1], dtype.f32)", "phase.wrong"),
        ('fail("no")', "formats.refused"),
        ('reads.read(m.lost(), "q")', "formats.unreachable-weight"),
    ],
)
def test_a_wrong_statement_is_refused(statement: str, code: str) -> None:
    start, end = TOY.index("def formats"), TOY.index("def caches")
    text = f'{TOY[:start]}def formats(m):\n    return [format("f", read = lambda reads: {statement})]\n\n{TOY[end:]}'
    text = text.replace("    embed = weight", "    lost = weight([3], w)\n    embed = weight").replace(
        "head = embed,", "head = embed,\n        lost = lambda: lost,"
    )
    with pytest.raises(PackageError) as caught:
        package("toy", text).read_formats(DEPLOYMENT, None)[0].read()
    assert caught.value.code == code, caught.value.render()
    if code == "formats.unreachable-weight":
        assert "made at toy.poem:16" in caught.value.found


# -- expressions ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("text", "tree"),
    [
        ('src("a")', Src("a")),
        ("constant([1, 2.5], [2, 1], dtype.bf16)", Constant((1, 2.5), (2, 1), "bf16")),
        ("constant([9007199254740993], [1], dtype.i64)", Constant((9007199254740993,), (1,), "i64")),
        ("fill(0.5, [2], dtype.f32)", Fill(0.5, (2,), "f32")),
        ('concat(-1, [src("a"), src("b")])', Concat(-1, (Src("a"), Src("b")))),
        ('stack("e.{e}", over = "e")', Stack("e.{e}", "e")),
        ('stack(["e.{e}.g", "e.{e}.u"], over = "e", count = 4)', Stack(("e.{e}.g", "e.{e}.u"), "e", 4)),
        ('stack(src("e.{e}").slice(0, 0, 2), "e")', Stack(Slice(Src("e.{e}"), 0, 0, 2), "e")),
        ('src("a").slice(0, 1, 2)', Slice(Src("a"), 0, 1, 2)),
        ('src("a").stride(1, 0, 4, 2)', Stride(Src("a"), 1, 0, 4, 2)),
        ('src("a").gather(0, [2, 0])', Gather(Src("a"), 0, (2, 0))),
        ('src("a").reshape([2, -1])', Reshape(Src("a"), (2, -1))),
        ('src("a").transpose([1, 0])', Transpose(Src("a"), (1, 0))),
        ('src("a").transmute([4], dtype.u8)', Transmute(Src("a"), (4,), "u8")),
        ('src("a").cast(dtype.f16)', Cast(Src("a"), "f16")),
        ('src("a").scale(2)', Scale(Src("a"), 2.0)),
        ('src("a").bias(-1)', Bias(Src("a"), -1.0)),
        ('src("a").unary("neg_ln")', Unary(Src("a"), "neg_ln")),
    ],
)
def test_an_expression_is_a_tree(text: str, tree: Expression) -> None:
    assert without_where(expression(text)) == without_where(tree)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("constant([1], [2], dtype.f32)", "call.bad-value"),
        ("constant([1], [1], dtype.u4g64)", "call.bad-value"),
        ("constant(['x'], [1], dtype.f32)", "call.wrong-kind"),
        ("fill(float('inf'), [1], dtype.f32)", "call.bad-value"),
        ("concat(0, [])", "call.bad-value"),
        ("concat(0, ['a'])", "call.wrong-kind"),
        ("stack(3, 'e')", "call.wrong-kind"),
        ("stack('e', 'e', count = 0)", "call.bad-value"),
        ("src('a').slice(0, -1, 2)", "call.bad-value"),
        ("src('a').slice(0, 0, 0)", "call.bad-value"),
        ("src('a').gather(0, [])", "call.bad-value"),
        ("src('a').reshape([-1, -1])", "call.bad-value"),
        ("src('a').transpose([0, 0])", "call.bad-value"),
        ("src('a').transpose([0, 2])", "call.bad-value"),
        ("src('a').cast(dtype.u4g64)", "call.bad-value"),
        ("src('a').unary('neg_nl')", "call.bad-value"),
        ("src('a').scale(float('nan'))", "call.bad-value"),
        ("src(3)", "call.wrong-kind"),
        ("src('a').slise(0, 1, 2)", "formats.unknown-field"),
        ("src('a').scale(1, 2)", "call.too-many"),
        ("m.q", "call.wrong-kind"),
    ],
)
def test_a_wrong_expression_is_refused(text: str, code: str) -> None:
    with pytest.raises(PackageError) as caught:
        expression(text)
    assert caught.value.code == code, caught.value.render()


def test_an_expression_that_nests_without_end_is_refused() -> None:
    with pytest.raises(PackageError) as caught:
        read('e = src("a")\nfor i in range(1000):\n    e = e.scale(1.0)\nreads.read_expr(m.q, e)')
    assert caught.value.code == "formats.too-deep"


# -- recognizing ---------------------------------------------------------------------------------------------------------
def recognition(answer: str, source: Source | None = None) -> tuple[bool, str]:
    (form,) = declared(f'    return [format("f", recognizes = lambda checkpoint: {answer}, read = [])]', source or Source())
    assert form.recognizes is not None
    found = form.recognizes()
    return found.answer, found.reason


@pytest.mark.parametrize(
    "question",
    [
        'has("a.weight")',
        'not has("c.weight")',
        'has_prefix("b.")',
        'shape("a.weight") == [4, 3]',
        'stored("b.weight") == "u4g64"',
        'text_attribute("arch") == "llama"',
        'text_attribute("none") == None',
        'attribute_value("count") == 3',
        'attribute_value("rates") == [1.0, 2.0]',
        'attribute_value("nan") == None',
        'config_value("hidden_size") == 64',
        'config_value("deep.list") == [1, 2.5, "x", None]',
        'config_value("deep.x") == None',
    ],
)
def test_a_format_asks_the_checkpoint(question: str) -> None:
    assert recognition(question) == (True, "")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("False", ""),
        ("1", "neither True nor False"),
        ("None", "neither True nor False"),
        ('shape("c.weight")', "holds no `c.weight`"),
        ('config_value("map")', "is a map"),
        ("fail('no')", "no"),
    ],
)
def test_an_error_or_another_answer_counts_as_no(answer: str, reason: str) -> None:
    assert recognition(answer)[0] is False
    assert reason in recognition(answer)[1]


def test_without_a_checkpoint_a_question_says_so() -> None:
    (form,) = declared('    return [format("f", recognizes = lambda checkpoint: has("a"), read = [])]')
    assert form.recognizes is not None
    with pytest.raises(PackageError) as caught:
        form.recognizes()
    assert caught.value.code == "formats.no-checkpoint"
    with pytest.raises(PackageError) as caught:
        declared('    return [format("f", read = [("a", "embed")] if has("a") else [])]')
    assert caught.value.code == "formats.no-checkpoint"


def test_a_format_without_recognizes_says_that_by_none() -> None:
    assert declared('    return [format("f", read = [])]')[0].recognizes is None


def test_states_keep_kind_key_and_value() -> None:
    (form,) = declared(
        '    return [format("f", read = [], states = [config("a.b", 1.5), attribute("k", "x"), '
        'config("n", 3, or_deeper = True), config("flag", False), '
        'config(path = "p", want = 100000000000000000000), attribute("d", 2, True)])]'
    )
    assert [without_where(state)[1:] for state in form.states] == [
        ("config", "a.b", 1.5, False),
        ("attribute", "k", "x", False),
        ("config", "n", 3, True),
        ("config", "flag", False, False),
        ("config", "p", 100000000000000000000, False),
        ("attribute", "d", 2, True),
    ]
    lines = TOY[: TOY.index("def formats")].count("\n") + 2
    assert [state.where[-1].line for state in form.states] == [lines] * 6


def test_formats_can_be_asked_against_a_checkpoint_after_a_check_without_one() -> None:
    """A check keeps what it laid out for an import that follows; not where an evaluation failed in it."""
    for body, wanted in (
        ('    return [format("f", read = [("a", "embed")])]', ["a"]),
        ('    return [format("f", read = [("a", "embed")] if has("a.weight") else [])]', ["a"]),
    ):
        start, end = TOY.index("def formats"), TOY.index("def caches")
        loaded = package("toy", f"{TOY[:start]}def formats(m):\n{body}\n\n{TOY[end:]}")
        loaded.check(DEPLOYMENT)
        for _ in range(2):
            (form,) = loaded.read_formats(DEPLOYMENT, Source())
            assert [pair.left for pair in form.read()] == wanted, body


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ('format("f")', "call.missing-argument"),
        ('format("f", read = 3)', "call.wrong-kind"),
        ('format("f", read = [], recognizes = 3)', "call.wrong-kind"),
        ('format("f", read = [], states = [1])', "call.wrong-kind"),
        ("format(3, read = [])", "call.wrong-kind"),
        ('format("f", reed = [])', "call.unknown-argument"),
        ('format("f", read = [], states = [config("a", [1])])', "call.wrong-kind"),
        ('format("f", read = [], states = [config("a", float("nan"))])', "call.bad-value"),
        ('format("f", read = [], states = [config(3, 1)])', "call.wrong-kind"),
        ('format("f", read = [], states = [attribute("a", 1, or_deeper = 1)])', "call.wrong-kind"),
        ('format("f", read = [], states = [attribute("a")])', "call.missing-argument"),
        ('format("f", read = [], states = [config("a", 1, deeper = True)])', "call.unknown-argument"),
        ('format("f", read = config("a", 1))', "call.wrong-kind"),
    ],
)
def test_a_wrong_format_is_refused(made: str, code: str) -> None:
    with pytest.raises(PackageError) as caught:
        declared(f"    return [{made}]")
    assert caught.value.code == code, caught.value.render()
