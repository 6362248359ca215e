"""Sessions on the device `emu`: mini models within bounds of the interpreter, ragged batches, pages, observers, faults."""

from argparse import Namespace
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance.backend import compare_backend
from conformance.compare import Subject
from conformance.golden import open_golden
from conformance.isolated import prompt_alone, run_isolated
from conformance.options import Options as CheckOptions
from conformance.planned import subject_of
from cupy_backend.emulator import EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from cupy_backend.kernels import norms
from cupy_backend.plan import Options
from cupy_backend.session import Session
from cupy_backend.sources import folder
from interp import Session as Interpreter
from poem.batch import Chunk
from poem.checkpoint import open_checkpoint
from poem.cli import run_
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.generate import generate, generate_batch
from poem.graph import Node, ValueType
from poem.importer import plan_import
from poem.package import load_package
from poem.sampling import Sampling
from tests.cupy_backend.graphs import Made, gated_network
from tests.cupy_backend.running import with_fault

MODELS = Path(__file__).parents[2] / "models"
LLAMA = ("llama_3", "llama31-mini", "llama31-mini-bf16-kv-bf16")
MINIS = (
    LLAMA,
    ("llama_3", "llama-tied-mini", "llama-tied-mini-bf16-kv-bf16"),
    ("llama_3", "llama31-mini", "llama31-mini-nvfp4-kv-e4m3"),
    ("llama_3", "llama31-mini", "llama31-mini-u4g64-kv-bf16"),
    ("llama_3", "llama31-mini", "llama31-mini-e4m3tile128a8-kv-e4m3"),
    ("mistral", "mistral-mini", "mistral-mini-bf16-kv-bf16"),
    ("qwen_2", "qwen2-mini", "qwen2-mini-bf16-kv-bf16"),
)


@lru_cache
def subject(package: str, model: str, deployment: str) -> Subject:
    loaded, place = load_package(str(MODELS / f"{package}.poem")), MODELS / "goldens" / package / model
    plan = plan_import(open_checkpoint(place), [loaded], deployment=deployment)
    return subject_of(plan, loaded.trace(deployment), open_golden(place), CheckOptions(package))


def session(of: Subject, **settings: object) -> Session:
    return Session(of.graph, of.tensors, EmulatedDevice(), **settings)  # type: ignore[arg-type]


def prompts(seed: int, *counts: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, count).tolist() for count in counts]


# -- against the interpreter -------------------------------------------------------------------
@pytest.mark.parametrize("mini", MINIS, ids=lambda mini: mini[2])
def test_every_launch_and_the_whole_run_of_a_mini_agree_with_the_interpreter(mini: tuple[str, str, str]) -> None:
    of = subject(*mini)
    found = compare_backend(of, "emu", session(of))
    assert found.verdict == "agrees", f"{found.where} is {found.worst} of its bound; {[str(fault.line) for fault in found.faults]}"
    assert len(found.ops) > 2 * len({node.layer for node in of.graph.nodes})
    assert {row.tensor for row in found.rows} >= {"hidden.0", "hidden.2", "logits", "decoding"}


def test_what_a_launch_gets_wrong_is_named_with_its_nodes_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "/ sqrtf(run_sum<THREADS>(squares)"
    faulty = with_fault(folder() / "norms.cu", tmp_path, text, text.replace("run_sum", "1.02f * run_sum"))
    monkeypatch.setattr(norms, "SOURCE", str(faulty))
    of = subject(*LLAMA)
    wrong = [item for item in run_isolated(of.graph, of.tensors, session(of), prompt_alone(of.golden.tokens)) if not item.distance.agrees]
    assert {of.graph.nodes[item.node].op for item in wrong} == {"elemwise.rmsnorm"}
    assert wrong[0].nodes == (1,)
    assert wrong[0].kernels[0].startswith("rmsnorm<")
    place = of.graph.nodes[wrong[0].node].where[-1]
    assert "rmsnorm(y, w.attn_norm" in of.texts[place.file].splitlines()[place.line - 1]


@pytest.mark.parametrize("mini", [LLAMA, MINIS[4]], ids=lambda mini: mini[2])
def test_products_by_warpgroups_agree_with_the_interpreter_where_a_pass_has_rows_enough(mini: tuple[str, str, str]) -> None:
    of = subject(*mini)
    (tokens,) = prompts(11, 140)
    judged = run_isolated(of.graph, of.tensors, session(of, options=Options(warpgroups=True)), prompt_alone(tokens))
    wrong = [f"{item.what} by {item.kernels}: {item.distance.fraction} of its bound" for item in judged if not item.distance.agrees]
    assert not wrong, "\n".join(wrong)
    by_warpgroups = {of.graph.nodes[item.node].op for item in judged if "product_by_warpgroups" in item.kernels[-1]}
    assert by_warpgroups == {"linear.matmul", "linear.glu", "linear.lm_head"}


# -- batches -----------------------------------------------------------------------------------
def run_together(made: Session, passes: list[list[list[int]]]) -> list[list[np.ndarray]]:
    """Logits by sequence, each after each pass that brings it tokens."""
    sequences = [made.add_sequence() for _ in passes[0]]
    found: list[list[np.ndarray]] = [[] for _ in sequences]
    for chunks in passes:
        logits = iter(made.run([Chunk(sequence, tokens) for sequence, tokens in zip(sequences, chunks, strict=True)])["logits"])
        for i, tokens in enumerate(chunks):
            if tokens:
                found[i].append(next(logits))
    return found


PASSES = [prompts(1, 5, 1, 20), prompts(2, 1, 1, 1), prompts(3, 0, 1, 3), prompts(4, 30, 1, 0), prompts(5, 1, 1, 1)]


@pytest.mark.parametrize("mini", [LLAMA, MINIS[5], MINIS[3]], ids=lambda mini: mini[2])
def test_with_batch_invariance_a_sequence_gets_the_same_bits_in_any_batch(mini: tuple[str, str, str]) -> None:
    of = subject(*mini)
    invariant = Options(batch_invariant=True)
    together = run_together(session(of, options=invariant), PASSES)
    for i in range(3):
        (alone,) = run_together(session(of, options=invariant), [[chunks[i]] for chunks in PASSES if chunks[i]])
        for step, (got, want) in enumerate(zip(together[i], alone, strict=True)):
            np.testing.assert_array_equal(got, want, err_msg=f"sequence {i}, step {step}")


def test_padding_changes_no_bits() -> None:
    of = subject(*LLAMA)
    exact, padded = (run_together(session(of, padded=padded), PASSES) for padded in (False, True))
    for i, (got, want) in enumerate(zip(padded, exact, strict=True)):
        np.testing.assert_array_equal(np.stack(got), np.stack(want), err_msg=f"sequence {i}")


@pytest.mark.parametrize(("axis", "rows"), [("tokens", 3), ("tokens*3", 9), ("lanes", 1), ("readouts*2", 6)])
def test_a_padded_pass_hands_out_the_rows_that_belong_to_it(axis: str, rows: int) -> None:
    made = Made()
    graph, weights = made.graph("y", made.call("elemwise.copy", made.trace.input("x", ValueType(axis, 8, "f32"))))
    x = np.arange(8.0 * rows, dtype=np.float32).reshape(rows, 8)
    padded = Session(graph, weights, EmulatedDevice(), padded=True)
    found = padded.run([Chunk(padded.add_sequence(), [1, 2, 3], readouts="all")], inputs={"x": x})
    np.testing.assert_array_equal(found["y"], x)


def test_captured_passes_follow_the_memory_that_grows() -> None:
    """Decoding until pages, and with them the cells, have moved several times."""
    of = subject(*LLAMA)
    decoding = [[[token], [token + 1]] for token in range(40)]
    passes = [prompts(20, 3, 9), *decoding, prompts(21, 100, 2), *decoding[:4]]
    exact, captured = (run_together(session(of, padded=padded, page_size=4), passes) for padded in (False, True))
    for i, (got, want) in enumerate(zip(captured, exact, strict=True)):
        np.testing.assert_array_equal(np.stack(got), np.stack(want), err_msg=f"sequence {i}")


def test_a_random_schedule_changes_no_bits() -> None:
    of = subject(*LLAMA)
    device = EmulatedDevice(schedule=Schedule(order="random", timing="random", seed=7))
    got, want = run_together(Session(of.graph, of.tensors, device), PASSES[:2]), run_together(session(of), PASSES[:2])
    for i, (one, other) in enumerate(zip(got, want, strict=True)):
        np.testing.assert_array_equal(np.stack(one), np.stack(other), err_msg=f"sequence {i}")


def test_fused_launches_give_the_bits_of_single_ones() -> None:
    """Patterns round where their nodes do."""
    graph, weights = gated_network()
    found = []
    for fuse in (True, False):
        run = Session(graph, weights, EmulatedDevice(), options=Options(fuse=fuse))
        found.append(run.run([Chunk(run.add_sequence(), list(range(20)))])["logits"])
        assert ({"add_rmsnorm", "matmul_glu"} <= {step.pattern for step in run.plan.steps}) == fuse
    np.testing.assert_array_equal(*found)


def test_a_norm_whose_codes_are_multiplied_gives_the_bits_of_one_that_is_rounded_to_codes_afterwards() -> None:
    graph, weights = gated_network(hidden=128, inter=256, dtype="e4m3tile128a8")
    found, launches = [], []
    for fuse in (True, False):
        run = Session(graph, weights, EmulatedDevice(), options=Options(fuse=fuse))
        found.append(run.run([Chunk(run.add_sequence(), list(range(19)))])["logits"])
        launches.append([launch.kernel.partition("<")[0] for launch in run.plan.launches])
    np.testing.assert_array_equal(*found)
    assert (launches[0].count("rmsnorm_codes"), launches[0].count("elementwise_codes")) == (1, 1), "the second product takes a gated unit"
    assert (launches[1].count("rmsnorm_codes"), launches[1].count("elementwise_codes")) == (0, 2)


def test_pages_of_a_sequence_that_left_serve_another() -> None:
    of = subject(*LLAMA)
    used, fresh = session(of), session(of)
    first = used.add_sequence()
    used.run([Chunk(first, prompts(8, 40)[0])])
    used.drop_sequence(first)
    found = [made.run([Chunk(made.add_sequence(), prompts(9, 21)[0], "all")])["logits"] for made in (used, fresh)]
    np.testing.assert_array_equal(*found)


def test_rows_that_are_not_committed_are_written_over() -> None:
    of = subject(*LLAMA)
    (tokens, guess) = prompts(10, 6, 3)
    speculating, plain = session(of), session(of)
    sequence = speculating.add_sequence()
    speculating.run([Chunk(sequence, tokens)])
    speculating.run([Chunk(sequence, guess, commit=1)])
    assert speculating.length(sequence) == 7
    other = plain.add_sequence()
    plain.run([Chunk(other, tokens)])
    plain.run([Chunk(other, guess[:1])])
    found = [made.run([Chunk(id, [17])])["logits"] for made, id in ((speculating, sequence), (plain, other))]
    np.testing.assert_array_equal(*found)


# -- observers, errors -------------------------------------------------------------------------
def test_an_observer_sees_every_node_and_what_it_returns_takes_the_results_place() -> None:
    graph, weights = gated_network()
    interpreter, made = Interpreter(graph, weights), Session(graph, weights, EmulatedDevice())
    seen: list[int] = []

    def zero_after_embedding(node: Node, results: tuple[np.ndarray | None, ...]) -> tuple[np.ndarray, ...] | None:
        seen.append(node.id)
        return (np.zeros_like(results[0]),) if node.op == "gather.embed" and results[0] is not None else None

    runs: list[Any] = [interpreter, made]
    found = [run.run([Chunk(run.add_sequence(), [3, 4])], zero_after_embedding)["logits"] for run in runs]
    np.testing.assert_array_equal(*found)
    assert sorted(seen[len(graph.nodes) :]) == [node.id for node in graph.nodes]


def test_argmax_gives_the_ids_that_the_interpreter_gives() -> None:
    made = Made()
    x = made.call("linear.matmul", made.call("gather.embed", made.tokens(), made.weight("embed", 64, 64), 64), made.weight("head", 96, 64))
    graph, weights = made.graph("ids", made.call("sampling.argmax", x))
    runs: list[Any] = [Interpreter(graph, weights), Session(graph, weights, EmulatedDevice())]
    want, got = (run.run([Chunk(run.add_sequence(), list(range(30)))])["ids"] for run in runs)
    assert got.dtype == want.dtype == np.int32
    np.testing.assert_array_equal(got, want)


def test_the_command_that_generates_opens_the_backend_that_is_asked_for() -> None:
    of = subject(*LLAMA)
    model = SimpleNamespace(graph=of.graph, weights=of.tensors)
    arguments = Namespace(backend="emu", mode="native", setting="reference", warpgroups=False)
    made: Any = run_._session(arguments, model)  # type: ignore[arg-type]
    assert isinstance(made, Session)
    assert made.options.batch_invariant
    tokens = list(generate(made, of.golden.tokens, maximum=4))
    assert tokens == of.ids[len(of.golden.tokens) :][:4]


SAMPLINGS = (
    Sampling(), Sampling(0.8, seed=3), Sampling(1.5, top_k=20, seed=4), Sampling(1.2, top_p=0.7, seed=5),
    Sampling(2.0, top_k=40, top_p=0.9, min_p=0.02, seed=6),
)  # fmt: skip


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_tokens_chosen_on_the_device_are_those_that_the_host_chooses_of_its_logits(sampling: Sampling) -> None:
    """Several sequences, a prompt in pieces among them. A session without `choose` hands its logits to the host."""
    of, asked = subject(*LLAMA), prompts(31, 5, 40, 1)
    hiding = session(of)
    plain = SimpleNamespace(**{name: getattr(hiding, name) for name in ("add_sequence", "drop_sequence", "length", "run")})
    made: list[Any] = [session(of), plain]
    found = [list(generate_batch(one, asked, maximum=6, sampling=sampling, rows=24)) for one in made]
    for device, host in zip(*found, strict=True):
        assert device._replace(log_probability=0.0) == host._replace(log_probability=0.0)
        assert abs(device.log_probability - host.log_probability) < 2.0**-20


def test_logits_that_are_no_distribution_are_refused_as_the_host_refuses_them() -> None:
    made = Made()
    y = made.call("gather.embed", made.tokens(), made.weight("embed", 64, 64), 64)
    rows = made.trace.input("readout_rows", ValueType("readouts", 1, "i32"))
    graph, weights = made.graph("logits", made.call("gather.gather_rows", y, rows))
    weights["embed"].planes["data"][7, 5] = np.nan
    of = Session(graph, weights, EmulatedDevice())
    with pytest.raises(PoemError) as caught:
        of.choose([Chunk(of.add_sequence(), [3]), Chunk(of.add_sequence(), [7])], [Sampling(1.0)] * 2, [0.5, 0.5])
    assert (caught.value.code, caught.value.found) == ("generate.not-finite", "nan at token 5")


def test_a_graph_without_logits_chooses_no_tokens() -> None:
    of = best_of_given()
    with pytest.raises(PoemError) as caught:
        of.choose([], [], [])
    assert (caught.value.code, caught.value.found) == ("generate.no-logits", "best")


def test_a_failed_pass_leaves_sequences_as_they_were() -> None:
    graph, weights = gated_network()
    made = Session(graph, weights, EmulatedDevice())
    sequence = made.add_sequence()

    def fail(node: Node, results: tuple[np.ndarray | None, ...]) -> None:
        raise PoemError("test.stop", "stop")

    with pytest.raises(PoemError):
        made.run([Chunk(sequence, [1, 2])], fail)
    assert made.length(sequence) == 0


def test_a_launch_that_fails_says_which_line_it_stands_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "multiply<PLUS_ONE>(v, scale, own, column);\n    store_floats(out + start"
    faulty = with_fault(folder() / "norms.cu", tmp_path, text, f"{text} + size")
    monkeypatch.setattr(norms, "SOURCE", str(faulty))
    graph, weights = gated_network()
    made = Session(graph, weights, EmulatedDevice())
    with pytest.raises(KernelError) as caught:
        made.run([Chunk(made.add_sequence(), [1])])
    assert caught.value.file.endswith("norms.cu")
    assert caught.value.hint == "the launch stands for ops.elemwise.rmsnorm, from small.poem:2 on"


@pytest.mark.parametrize("damage", ["missing", "shape"])
def test_a_weight_that_is_not_the_graphs_is_refused(damage: str) -> None:
    graph, weights = gated_network()
    wrong: Mapping[str, Tensor] = {name: weight for name, weight in weights.items() if name != "norm"}
    if damage == "shape":
        wrong = {**wrong, "norm": weights["head"]}
    with pytest.raises(PoemError) as caught:
        Session(graph, wrong, EmulatedDevice())
    assert caught.value.code == "run.weight"
    assert "norm" in caught.value.message


def best_of_given() -> Session:
    """A session of a graph that takes the largest of an input that no batch holds."""
    made = Made()
    x = made.trace.input("x", ValueType("tokens", 24, "f32"))
    graph, weights = made.graph("best", made.call("sampling.argmax", x))
    return Session(graph, weights, EmulatedDevice())


def test_a_pass_takes_values_for_inputs_that_no_batch_holds() -> None:
    of, x = best_of_given(), np.random.default_rng(0).standard_normal((3, 24)).astype(np.float32)
    found = of.run([Chunk(of.add_sequence(), [0, 0, 0])], inputs={"x": x})["best"]
    np.testing.assert_array_equal(found, x.argmax(1))


@pytest.mark.parametrize(("inputs", "message"), [({}, "needs values for the input `x`"), ({"x": np.zeros((3, 25))}, "does not fit")])
def test_missing_and_misshapen_inputs_are_refused(inputs: dict[str, np.ndarray], message: str) -> None:
    of = best_of_given()
    batch = [Chunk(of.add_sequence(), [0, 0, 0])]
    with pytest.raises(PoemError, match=message):
        of.run(batch, inputs=inputs)
    assert of.length(batch[0].sequence) == 0, "a pass that fails leaves the sequences as they were"
