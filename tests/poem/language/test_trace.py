"""Tracing: the examples of the language give the graphs that it states, and the same graph everywhere."""

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from poem.errors import Frame, PackageError, PoemErrors
from poem.graph import Cut, Graph, ValueType
from poem.package import Package, load_package, load_package_from_texts
from poem.tracer import Tracer
from tests.poem.language.package_texts import BLOCKS, FOLDER, LLAMA, TOY, package, swapped, toy


def llama() -> Package:
    return load_package_from_texts("llama_3", {"llama_3.poem": LLAMA, "lib/blocks.poem": BLOCKS})


def test_the_toy_has_the_graph_that_the_language_states() -> None:
    graph = toy().trace("toy-tiny-bf16-kv-bf16")
    assert [param.name for param in graph.params] == ["embed", "attn_norm", "q", "k", "v", "o", "mlp_norm", "gate_up", "down", "norm"]
    assert graph.params[0].aliases == ("head",)
    assert (len(graph.nodes), len(graph.inputs), len(graph.params), len(graph.spaces), len(graph.caches)) == (18, 3, 10, 1, 1)
    assert [(output.name, graph.output(output.name).type) for output in graph.outputs] == [("logits", ValueType("readouts", 256, "bf16"))]


@pytest.mark.parametrize(
    ("deployment", "weights", "nodes", "rows"),
    [("llama31-8b-bf16-kv-bf16", 259, 452, 32), ("llama32-1b-bf16-kv-bf16", 130, 228, 16), ("llama31-8b-mini-bf16-kv-bf16", 19, 32, 2)],
)
def test_llama_has_the_counts_that_the_language_states(deployment: str, weights: int, nodes: int, rows: int) -> None:
    graph = llama().trace(deployment)
    assert (len(graph.params), len(graph.nodes), len(graph.caches)) == (weights, nodes, rows)


def test_a_tied_head_is_an_alias_of_the_embedding() -> None:
    graph = llama().trace("llama32-1b-bf16-kv-bf16")
    assert graph.param("head") is graph.param("embed")
    assert graph.nodes[-1].operands["w"] == ("param", graph.param("embed").id)


def test_cuts_reach_the_graph() -> None:
    graph = toy().trace("toy-tiny-bf16-kv-bf16")
    assert graph.param("q").cut == Cut(0, (), (4,))
    assert graph.param("o").cut == Cut(1)
    assert graph.param("gate_up").cut == Cut(0, (128, 128))
    assert graph.param("norm").cut is None


def test_a_node_knows_the_line_in_the_library_and_who_called_it() -> None:
    graph = llama().trace("llama-test-mini-bf16-kv-bf16")
    node = next(node for node in graph.nodes if node.op == "attn.attend")
    lines = {"llama_3.poem": LLAMA.split("\n"), "lib/blocks.poem": BLOCKS.split("\n")}
    assert [(frame.file, frame.function) for frame in node.where] == [
        ("llama_3.poem", "forward"),
        ("llama_3.poem", "block"),
        ("lib/blocks.poem", "attention"),
    ]
    texts = [lines[frame.file][frame.line - 1] for frame in node.where]
    assert ["fold_layers" in texts[0], "attention(x" in texts[1], "attend(" in texts[2]] == [True, True, True], texts


def test_nodes_of_a_fold_know_their_layer_and_the_fold_what_it_carried() -> None:
    graph = llama().trace("llama-test-mini-bf16-kv-bf16")
    layers = [node.layer for node in graph.nodes]
    assert layers == [None] + [(0, 0)] * 14 + [(0, 1)] * 14 + [None] * 3
    (fold,) = graph.folds
    before, between, after = fold.carried
    assert before == graph.nodes[0].results
    assert between == graph.nodes[14].results
    assert after == graph.nodes[28].results


def test_a_fold_that_carries_a_struct_and_a_list_carries_all_their_values() -> None:
    graph = toy(
        (
            "y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)",
            "y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)\n"
            '    z = inputs.fold_layers([1, 2], struct(b = y, a = [y, 3], c = "text"), '
            "lambda l, w, y: struct(b = ops.elemwise.silu(y.b), a = y.a, c = None))\n",
        )
    ).trace("toy-tiny-bf16-kv-bf16")
    embed = graph.nodes[0].results[0]
    assert graph.folds[0].carried == ((embed, embed), (embed, graph.nodes[1].results[0]), (embed, graph.nodes[2].results[0]))


def test_an_empty_fold_gives_back_what_it_was_given() -> None:
    graph = toy(
        (
            "y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)",
            "y = inputs.fold_layers([], ops.gather.embed(inputs.tokens(), m.embed, VOCAB), lambda l, w, y: None)",
        )
    ).trace("toy-tiny-bf16-kv-bf16")
    assert len(graph.nodes) == 18
    assert graph.folds[0].carried == (graph.nodes[0].results,)


def test_two_folds_are_counted() -> None:
    fold = "    y = inputs.fold_layers([0], y, lambda l, w, y: ops.elemwise.silu(y))\n"
    graph = toy(("m.embed, VOCAB)\n", f"m.embed, VOCAB)\n{fold}{fold}")).trace("toy-tiny-bf16-kv-bf16")
    assert [node.layer for node in graph.nodes[:4]] == [None, (0, 0), (1, 0), None]
    assert [fold.id for fold in graph.folds] == [0, 1]


# -- sameness ------------------------------------------------------------------------------------------------------------
SCRIPT = "import sys; from poem.package import load_package; print(load_package(sys.argv[1], search=[]).trace(sys.argv[2]).digest())"


def test_the_digest_is_the_same_in_every_process() -> None:
    digests = set()
    for seed in ("0", "1", "12345"):
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT, str(FOLDER / "llama_3.poem"), "llama32-1b-bf16-kv-bf16"],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[3],
        )
        digests.add(ran.stdout.strip())
    digests.add(llama().trace("llama32-1b-bf16-kv-bf16").digest())
    assert len(digests) == 1


def test_comments_and_moved_lines_change_no_digest_and_a_changed_op_does() -> None:
    plain = toy().trace("toy-tiny-bf16-kv-bf16")
    moved = package("toy", "# a comment\n\n" + TOY.replace("def forward(m, inputs):\n", "def forward(m, inputs):\n    # why\n\n")).trace(
        "toy-tiny-bf16-kv-bf16"
    )
    other = toy(("10000.0", "10001.0")).trace("toy-tiny-bf16-kv-bf16")
    assert moved.digest() == plain.digest()
    assert moved.nodes[0].where != plain.nodes[0].where
    assert other.digest() != plain.digest()


def test_spelling_out_defaults_and_names_changes_no_digest() -> None:
    named = toy(
        (
            "ops.attn.attend(q, pages, inputs, HEAD_DIM, KV_HEADS, m.sm_scale)",
            "ops.attn.attend(q = q, cache = pages, inputs = inputs, sm_scale = m.sm_scale, "
            "head_dim = HEAD_DIM, kv_heads = KV_HEADS, causal = True, lse = False)",
        )
    ).trace("toy-tiny-bf16-kv-bf16")
    assert named.digest() == toy().trace("toy-tiny-bf16-kv-bf16").digest()


def test_tracing_twice_gives_equal_graphs() -> None:
    loaded = llama()
    assert loaded.trace("llama32-1b-bf16-kv-bf16").digest() == loaded.trace("llama32-1b-bf16-kv-bf16").digest()


def shown(graph: Graph) -> tuple[object, ...]:
    return graph.canonical(), [node.where for node in graph.nodes]


@pytest.mark.parametrize("file", ["llama_3.poem", "qwen_2.poem", "mistral.poem"])
def test_a_repeated_call_records_what_a_checked_one_does(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of an op that were met before skip the checks; with plans switched off, none does."""
    loaded = load_package(Path(__file__).parents[3] / "models" / file)
    deployments = [name for name, deployment in loaded.deployments.items() if deployment.model.layers <= 30]
    planned = [shown(loaded.trace(name)) for name in deployments]
    monkeypatch.setattr(Tracer, "plan", lambda *_: None)
    for name, before in zip(deployments, planned, strict=True):
        assert shown(loaded.trace(name)) == before, name


ALTERNATING = """
def forward(m, inputs):
    y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)

    def block(l, w, y):
        if l % 2:
            return ops.elemwise.mul_scalar(0.5, y)
        y = ops.elemwise.mul_scalar(0.5, y)
        return ops.elemwise.mul_scalar(1, ops.elemwise.mul_scalar(1.0, y))

    y = inputs.fold_layers([0] * 6, y, block)
    output("y", y)
"""


def test_repeated_calls_keep_their_own_lines() -> None:
    text = TOY[: TOY.index("def forward")] + ALTERNATING.lstrip()
    graph = package("toy", text).trace("toy-tiny-bf16-kv-bf16")
    first = text[: text.index("        if l % 2")].count("\n") + 1
    lines = [node.where[-1].line - first for node in graph.nodes[1:]]
    assert lines == [2, 3, 3, 1] * 3
    assert [node.attributes["s"] for node in graph.nodes[1:5]] == [0.5, 1.0, 1.0, 0.5]


LOST = """
def forward(m, inputs):
    y = ops.gather.embed(inputs.tokens(), m.embed, VOCAB)
    y = inputs.fold_layers([m.attn_norm, m.attn_norm, m.lost()], y, lambda l, w, y: ops.elemwise.rmsnorm(y, w, 1e-5))
    output("y", y)
"""


def test_a_repeated_call_wants_a_weight_that_was_laid_out_too() -> None:
    text = swapped(
        TOY[: TOY.index("def forward")] + LOST.lstrip(), ("    embed = weight", "    lost = weight([HIDDEN], w)\n    embed = weight"),
        ("        attn_norm =", "        lost = lambda: lost,\n        attn_norm ="),
    )  # fmt: skip
    with pytest.raises(PackageError) as caught:
        package("toy", text).trace("toy-tiny-bf16-kv-bf16")
    assert (caught.value.code, caught.value.line) == ("forward.unreachable-weight", text[: text.index("ops.elemwise.rms")].count("\n") + 1)


def test_threads_may_trace_at_once() -> None:
    loaded = llama()
    names = list(loaded.deployments)[-8:]
    alone = [loaded.trace(name).digest() for name in names]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda name: loaded.trace(name).digest(), names)) == alone


def test_faults_at_the_end_of_a_trace_come_together() -> None:
    rows = "s = c.kv_space(m.kv)\n    for i in range(25):\n        c.kv(s, 'kv.%d' % i, [KV, KV], HEAD_DIM, heads = True)"
    attend = "o = ops.attn.attend(q, pages, inputs, HEAD_DIM, KV_HEADS, m.sm_scale)"
    late = (
        "for i in range(25):\n"
        "        o = ops.attn.attend(q, inputs.kv('kv.%d' % i), inputs, HEAD_DIM, KV_HEADS, m.sm_scale)\n"
        "        ops.attn.kv_append(k, k, inputs.kv('kv.%d' % i))"
    )
    loaded = toy(
        ('c.kv(c.kv_space(m.kv), "kv", [KV, KV], HEAD_DIM, heads = True)', rows),
        ('    pages = inputs.kv("kv")\n', ""),
        ("    ops.attn.kv_append(k, ops.linear.matmul(x, m.v), pages)\n", ""),
        (attend, late),
        ('output("logits"', '(lambda *given: None)("logits"'),
    )
    with pytest.raises(PoemErrors) as caught:
        loaded.trace("toy-tiny-bf16-kv-bf16")
    codes = [error.code for error in caught.value.errors]
    assert codes == ["forward.no-output"] + ["forward.read-before-append"] * 20
    assert "and 5 more" in caught.value.render()


# -- notes ---------------------------------------------------------------------------------------------------------------
def notes(*changes: tuple[str, str]) -> Sequence[str]:
    loaded = toy(*changes)
    loaded.trace("toy-tiny-bf16-kv-bf16")
    return loaded.notes


def test_the_toy_needs_no_note() -> None:
    assert notes() == []


def test_what_is_laid_out_or_declared_and_not_used_is_noted() -> None:
    name = "toy-tiny-bf16-kv-bf16: "
    assert notes(("head = embed,", "head = embed,\n        spare = weight([3], w),")) == [name + "weights laid out but never used: spare"]
    kv = 'c.kv(c.kv_space(m.kv), "kv", [KV, KV], HEAD_DIM, heads = True)'
    assert notes((kv, f'{kv}\n    c.kv(0, "more", [4], 4)\n    c.state("s", [4], dtype.f32)')) == [
        name + "cache rows never appended to and never read: more",
        name + "states never used: s",
    ]
    attend = "o = ops.attn.attend(q, pages, inputs, HEAD_DIM, KV_HEADS, m.sm_scale)"
    assert notes((attend, "o = q")) == [name + "cache rows never read: kv"]


def test_a_result_that_nobody_reads_is_noted_with_its_line() -> None:
    (note,) = notes(("    h = ops.linear.glu", "    ops.elemwise.silu(x)\n    h = ops.linear.glu"))
    assert note == "toy-tiny-bf16-kv-bf16: results that nobody reads: ops.elemwise.silu at toy.poem:55"


def test_a_print_goes_to_standard_error_with_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    toy(("VOCAB, HIDDEN", 'print("hello", 3, sep = "-")\nVOCAB, HIDDEN'))
    out, err = capsys.readouterr()
    assert (out, err) == ("", "toy.poem:10: hello-3\n")


def test_the_deployment_tells_layout_what_it_is() -> None:
    text = swapped(
        TOY,
        (
            "    w = deploy.weights[0]",
            '    fail("{} {} {} {} {} {} {}".format(id, deploy.weights, deploy.kv.name, deploy.parts, '
            "deploy.drafter, deploy.tp, deploy.name))\n    w = deploy.weights[0]",
        ),
    )
    with pytest.raises(Exception, match="toy-tiny") as caught:
        package("toy", text).trace("toy-tiny-bf16-f32-kv-e4m3-tp2")
    words = str(caught.value)
    assert 'name="bf16"' in words
    assert 'name="f32"' in words
    assert "e4m3 [] None 2 toy-tiny-bf16-f32-kv-e4m3-tp2" in words


def test_values_show_their_axis_shape_dtype_and_width() -> None:
    text = swapped(
        TOY,
        (
            "    x = ops.elemwise.rmsnorm(y, m.attn_norm, 1e-5)",
            '    fail("{} {} {} {} {}".format(y.rows, y.shape, y.dtype == dtype.bf16, y.width(), m.q.cut_axis))\n    x = 1',
        ),
    )
    with pytest.raises(Exception, match="tokens") as caught:
        package("toy", text).trace("toy-tiny-bf16-kv-bf16")
    assert 'tokens ["tokens", 64] True 64 0' in str(caught.value)


def test_a_frame_is_a_user_frame() -> None:
    graph = toy().trace("toy-tiny-bf16-kv-bf16")
    assert {frame.file for node in graph.nodes for frame in node.where} == {"toy.poem"}
    assert graph.nodes[0].where == (Frame("toy.poem", 44, "forward"),)
