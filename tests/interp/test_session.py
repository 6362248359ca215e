"""A session: rounding of results, inputs, observers, errors, and what it keeps between passes."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from interp import Session, check_supported, evaluate
from interp.evaluate import Given
from interp.steps import find_op
from poem.batch import Chunk
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import Frame, PoemError, UsageError
from poem.graph import Node, ValueType
from poem.ops import REGISTRY
from poem.ops.operands import Weight
from poem.tracer import Tracer
from tests.interp.decoder import Decoder

DECODER = Decoder()


def session(**settings: Any) -> Session:
    graph, weights = DECODER.trace()
    return Session(graph, weights, **settings)


def bf16(values: Any) -> Tensor:
    return Tensor.of(np.array(values, ml_dtypes.bfloat16))


# -- rounding ----------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("dtype", "value", "want"),
    [
        ("bf16", [1.00390625, 1.01171875, 0.3], [1.0, 1.015625, 0.30078125]),
        ("bf16", [3.4e38, 1e-45, np.nan], [np.inf, 0.0, np.nan]),
        ("f16", [1.00048828125, 65520.0, 0.1], [1.0, np.inf, 0.0999755859375]),
        ("f32", [0.1, 1e39, 3.0], [np.float32(0.1), np.inf, 3.0]),
    ],
)
def test_a_result_is_rounded_once_to_its_dtype(dtype: str, value: list[float], want: list[float]) -> None:
    got = evaluate("elemwise.residual_add", Given([[0.0] * 3], dtype), Given([value], dtype))
    assert got.dtype == np.float32
    np.testing.assert_array_equal(got, np.array([want], np.float32))


def test_a_sum_of_bf16_is_rounded_once_not_in_between() -> None:
    """1 + 3 * 2^-8 is a tie that rounds to even at 8 bits; summing in bf16 step by step would lose all three terms."""
    x, w = Given([[1.0, 2.0**-8, 2.0**-8, 2.0**-8]], "bf16"), bf16([[1, 1, 1, 1]])
    assert evaluate("linear.matmul", x, w)[0, 0] == 1 + 2.0**-6
    assert evaluate("linear.matmul", x, w, out=Tensor.of(np.zeros(1, np.float32)).dtype)[0, 0] == 1 + 3 * 2.0**-8


def test_rmsnorm_of_bf16_is_rounded_after_the_gain() -> None:
    got = evaluate("elemwise.rmsnorm", Given([[1, 2, -2, 4]], "bf16"), bf16([1, 0.5, 2, 1]), 1e-6)
    np.testing.assert_array_equal(got, np.array([[0.400390625, 0.400390625, -1.6015625, 1.6015625]], np.float32))


def test_a_residual_may_be_f32_beside_bf16() -> None:
    got = evaluate("elemwise.residual_add", Given([[1.00390625]], "f32"), Given([[1.0]], "bf16"))
    assert got[0, 0] == 2.0


def test_exact_mode_rounds_nothing() -> None:
    got = evaluate("elemwise.residual_add", Given([[0.0, 0.0]], "bf16"), Given([[0.1, 1e300]], "bf16"), mode="exact")
    assert got.dtype == np.float64
    np.testing.assert_array_equal(got, [[0.1, 1e300]])


def test_a_nan_payload_survives_rounding_as_nan() -> None:
    nan = np.array([[0x7F800001, 0x7FFFFFFF, 0xFFC00000]], np.uint32).view(np.float32)
    assert np.isnan(evaluate("elemwise.residual_add", Given(np.zeros((1, 3)), "bf16"), Given(nan, "bf16"))).all()


# -- running -----------------------------------------------------------------------------------
def test_outputs_come_by_name_in_the_real_type_of_the_mode() -> None:
    for mode, real in (("native", np.float32), ("exact", np.float64)):
        running = session(mode=mode)
        outputs = running.run([Chunk(running.add_sequence(), [1, 2, 3])])
        assert list(outputs) == ["hidden", "logits"]
        assert outputs["hidden"].shape == (3, DECODER.hidden)
        assert outputs["logits"].shape == (1, DECODER.vocab)
        assert {array.dtype for array in outputs.values()} == {np.dtype(real)}


def test_readouts_choose_rows_of_the_chunks() -> None:
    running = session()
    ids = [running.add_sequence() for _ in range(4)]
    everything = running.run([Chunk(id, [id, 5, 7], readouts="all", commit=0) for id in ids])["logits"]
    chosen = running.run(
        [
            Chunk(ids[0], [0, 5, 7]), Chunk(ids[1], [1, 5, 7], readouts="none"), Chunk(ids[2], [2, 5, 7], readouts=[1, 1, 0]),
            Chunk(ids[3], [], readouts="all"),
        ]
    )["logits"]  # fmt: skip
    np.testing.assert_array_equal(chosen, everything[[2, 7, 7, 6]])


def test_a_pass_without_rows_gives_no_rows() -> None:
    running = session()
    outputs = running.run([Chunk(running.add_sequence(), [])])
    assert [array.shape[0] for array in outputs.values()] == [0, 0]
    assert [array.shape[0] for array in running.run([]).values()] == [0, 0]


def test_rows_that_are_not_committed_are_written_over() -> None:
    """A guess of three tokens, of which one is kept, then another continuation: as if the other two had never been."""
    plain, guessing = session(), session()
    first, second = plain.add_sequence(), guessing.add_sequence()
    guessing.run([Chunk(second, [3, 4, 5], commit=1)])
    assert guessing.length(second) == 1
    plain.run([Chunk(first, [3])])
    np.testing.assert_array_equal(guessing.run([Chunk(second, [9, 2])])["logits"], plain.run([Chunk(first, [9, 2])])["logits"])


def test_a_dropped_sequence_gives_its_pages_back() -> None:
    running = session(page_size=4)
    for _ in range(5):
        id = running.add_sequence()
        running.run([Chunk(id, list(range(10)))])
        running.drop_sequence(id)
    assert running._tables[0].page_count == 3


def test_weights_that_do_not_fit_in_memory_are_decoded_in_strips_with_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp.weights.STRIP_BYTES", 1024)
    graph, weights = DECODER.trace()
    logits = []
    for memory in (1 << 30, 0):
        running = Session(graph, weights, weight_memory=memory)
        logits.append(running.run([Chunk(running.add_sequence(), [1, 2, 3])])["logits"])
        assert bool(running._store._decoded) == bool(memory)
    np.testing.assert_array_equal(*logits)
    fast = Session(graph, weights, weight_memory=0, setting="fast")
    np.testing.assert_allclose(fast.run([Chunk(fast.add_sequence(), [1, 2, 3])])["logits"], logits[0], atol=0.1)


@pytest.mark.parametrize("memory", [0, 1 << 20])
def test_a_weight_is_decoded_at_most_a_strip_at_a_time_past_the_memory(memory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("interp.weights.STRIP_BYTES", 1024)
    decoded = []
    plain = Tensor.decode

    def decode(self: Tensor, rows: slice | None = None, dtype: type = np.float32) -> np.ndarray:
        found = plain(self, rows, dtype)
        decoded.append(found.nbytes)
        return found

    monkeypatch.setattr(Tensor, "decode", decode)
    graph, weights = DECODER.trace()
    running = Session(graph, weights, weight_memory=memory)
    running.run([Chunk(running.add_sequence(), [1, 2])])
    assert (max(decoded) > 1024) == bool(memory)


# -- observers ---------------------------------------------------------------------------------
def test_an_observer_sees_every_node_and_may_replace_results() -> None:
    running = session()
    seen: list[str] = []

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...] | None:
        assert len(results) == len(node.results)
        seen.append(node.op)
        return (np.zeros_like(results[0]),) if node.op == "linear.lm_head" else None

    outputs = running.run([Chunk(running.add_sequence(), [1, 2])], observe)
    assert seen == [node.op for node in running.graph.nodes]
    assert not outputs["logits"].any()


def test_values_are_let_go_after_their_last_use() -> None:
    """While the last node runs, no more live than its operand, the outputs and the inputs."""
    import weakref

    running = session()
    alive: list[Any] = []

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> None:
        alive.extend(weakref.ref(result) for result in results)
        if node.op == "linear.lm_head":
            assert sum(ref() is not None for ref in alive) <= 3

    running.run([Chunk(running.add_sequence(), [1, 2])], observe)
    assert len(alive) > 20


@pytest.mark.parametrize("memory", [None, 0])
def test_products_of_one_value_are_one_step_of_the_fast_setting_and_give_the_same(memory: int | None) -> None:
    """x, of small integers, times three matrices: two of them give bf16, one f32. Observers see all three."""
    trace = Tracer("products", "products", "products")
    rng = np.random.default_rng(0)
    x = trace.input("x", ValueType("tokens", 5, "bf16"))
    weights = {f"w{index}": bf16(rng.integers(-3, 4, (height, 5))) for index, height in enumerate((4, 6, 3))}
    for name, dtype in zip(weights, (None, Dtype("f32"), None), strict=True):
        weight = Weight(weights[name].shape, weights[name].dtype)
        trace.add_param(weight, name)
        trace.output(name, trace.call("linear.matmul", (x, weight), {"out": dtype}, ()), ())
    running = Session(trace.graph(), weights, setting="fast", weight_memory=memory)
    given = rng.integers(-3, 4, (2, 5)).astype(np.float32)
    seen: list[tuple[int, ...]] = []

    def observe(node: Node, results: tuple[np.ndarray, ...]) -> None:
        seen.append(results[0].shape)

    for observer in (None, observe):
        outputs = running.run([Chunk(running.add_sequence(), [0, 0])], observer, {"x": given})
        for name, tensor in weights.items():
            np.testing.assert_array_equal(outputs[name], given @ tensor.decode().T, name)
    assert seen == [(2, 4), (2, 6), (2, 3)]
    assert len(running._steps._steps) == 2


# -- errors ------------------------------------------------------------------------------------
def test_missing_ops_are_named_with_their_lines_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("interp.ops.linear.glu")
    monkeypatch.delattr("interp.ops.attn.attend")
    graph, _ = DECODER.trace()
    with pytest.raises(PoemError) as refused:
        check_supported(graph)
    text = str(refused.value)
    assert refused.value.code == "run.unsupported"
    assert "decoder.poem:8: run: the interpreter has no ops.attn.attend yet" in text
    assert "decoder.poem:13: run: the interpreter has no ops.linear.glu yet" in text


def test_ops_are_found_by_name_and_helpers_are_not_ops() -> None:
    assert find_op("linear.matmul") is not None
    assert find_op("nowhere.matmul") is None
    assert find_op("linear.nothing") is None
    unknown = [f"{namespace}.{name}" for namespace in ("linear", "attn", "gather", "elemwise") for name in ("np", "Call", "Tensor")]
    assert not [name for name in unknown if name in REGISTRY]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("1.down"), "there is no weight `1.down`"),
        (lambda weights: weights.update({"1.down": bf16([[1.0]])}), "weight `1.down` does not fit the graph"),
    ],
)
def test_weights_are_checked_against_the_graph(change: Any, message: str) -> None:
    graph, weights = DECODER.trace()
    change(weights)
    with pytest.raises(PoemError, match=message) as refused:
        Session(graph, weights)
    assert refused.value.code == "run.weight"


def test_a_registered_weight_that_nobody_gives_is_told_as_such() -> None:
    graph, weights = DECODER.trace()
    params = tuple(replace(param, source="registered") if param.name == "1.down" else param for param in graph.params)
    del weights["1.down"]
    with pytest.raises(PoemError) as refused:
        Session(replace(graph, params=params), weights)
    assert "no checkpoint has it" in refused.value.hint


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        (lambda a, b: [Chunk(a, [1]), Chunk(a, [2])], "names a sequence twice"),
        (lambda a, b: [Chunk(77, [1])], "there is no sequence 77"),
        (lambda a, b: [Chunk(a, [1], readouts=[1])], "a readout is outside the tokens"),
        (lambda a, b: [Chunk(a, [1], readouts=[-1])], "a readout is outside the tokens"),
        (lambda a, b: [Chunk(a, [1, 2], commit=3)], "commit does not fit"),
        (lambda a, b: [Chunk(a, [1, 2], mask=np.ones((2, 4), bool))], "the mask does not fit"),
        (lambda a, b: [Chunk(a, [1, 2], mask=np.ones((2, 2)))], "the mask does not fit"),
        (lambda a, b: [Chunk(a, [1, 2], adapters=[1])], "adapters do not fit"),
        (lambda a, b: [Chunk(a, [1, 2], positions=np.zeros((2, 2)))], "positions do not fit"),
    ],
)
def test_a_bad_batch_is_refused_and_changes_nothing(chunks: Any, message: str) -> None:
    running, untouched = session(), session()
    a, b = running.add_sequence(), running.add_sequence()
    running.run([Chunk(a, [4])])
    with pytest.raises(UsageError, match=message) as refused:
        running.run(chunks(a, b))
    assert refused.value.code == "run.batch"
    assert running.length(a) == 1
    other = untouched.add_sequence()
    untouched.run([Chunk(other, [4])])
    np.testing.assert_array_equal(running.run([Chunk(a, [5])])["logits"], untouched.run([Chunk(other, [5])])["logits"])


def test_a_pass_that_fails_leaves_sequences_as_they_were() -> None:
    running, untouched = session(), session()
    a, other = running.add_sequence(), untouched.add_sequence()
    running.run([Chunk(a, [4])])
    untouched.run([Chunk(other, [4])])

    def fail(node: Node, results: tuple[np.ndarray, ...]) -> None:
        if node.op == "linear.lm_head":
            raise RuntimeError("an observer's own fault")

    with pytest.raises(RuntimeError):
        running.run([Chunk(a, [9, 9, 9])], fail)
    assert running.length(a) == 1
    np.testing.assert_array_equal(running.run([Chunk(a, [5])])["logits"], untouched.run([Chunk(other, [5])])["logits"])


def test_a_bad_index_is_an_error_at_the_line_of_the_op() -> None:
    trace = Tracer("p", "m", "d")
    x = trace.input("x", ValueType("tokens", 2, "f32"))
    rows = trace.input("rows", ValueType("readouts", 1, "i32"))
    trace.output("y", trace.call("gather.gather_rows", [x, rows], {}, (Frame("m.poem", 12, "forward"),)), ())
    running = Session(trace.graph(), {})
    id = running.add_sequence()
    values = {"x": np.arange(6.0).reshape(3, 2)}
    got = running.run([Chunk(id, [0] * 3)], inputs={**values, "rows": [2, 0]})["y"]
    np.testing.assert_array_equal(got, [[4, 5], [0, 1]])
    for bad in (3, -1):
        with pytest.raises(PoemError) as refused:
            running.run([Chunk(id, [0] * 3)], inputs={**values, "rows": [2, bad]})
        assert str(refused.value).startswith(f"m.poem:12: run: ops.gather.gather_rows: row 1: rows is {bad}, but x has 3 rows [run.index]")


def test_ids_outside_the_vocabulary_read_row_0() -> None:
    table = bf16([[1, 2], [3, 4], [5, 6]])
    np.testing.assert_array_equal(evaluate("gather.embed", Given([1, 2, -1, 9], "i32"), table, 2), [[3, 4], [1, 2], [1, 2], [1, 2]])


def test_an_input_that_no_batch_holds_must_be_given() -> None:
    trace = Tracer("p", "m", "d")
    x = trace.input("lane_vector", ValueType("lanes", 2, "bf16"), {"port": "t", "width": 2})
    trace.output("y", trace.call("elemwise.residual_add", [x, x], {}, ()), ())
    running = Session(trace.graph(), {})
    id = running.add_sequence()
    with pytest.raises(PoemError, match=r"needs values for the input `lane_vector\(t, 2\)`") as refused:
        running.run([Chunk(id, [])])
    assert refused.value.code == "run.input"
    got = running.run([Chunk(id, [])], inputs={"lane_vector(t, 2)": np.array([[0.3, 1.0]])})["y"]
    np.testing.assert_array_equal(got, np.array([[2 * 0.30078125, 2.0]], np.float32))
    with pytest.raises(PoemError, match="does not fit"):
        running.run([Chunk(id, [])], inputs={"lane_vector(t, 2)": np.zeros((1, 3))})


def test_geometry_inputs_describe_the_pass() -> None:
    trace = Tracer("p", "m", "d")
    trace.add_space("bf16")
    kinds = {
        "tokens": ("tokens", 1), "positions": ("tokens", 1), "request_of_token": ("tokens", 1), "write_page": ("tokens", 1),
        "write_offset": ("tokens", 1), "adapter_routes": ("tokens", 1), "mrope_positions": ("tokens", 3), "kv_len": ("lanes", 1),
        "last_page_len": ("lanes", 1), "kv_indptr": ("lanes+1", 1), "lane_indptr": ("lanes+1", 1), "readout_rows": ("readouts", 1),
    }  # fmt: skip
    for name, (rows, width) in kinds.items():
        arguments = {"space": 0} if name in ("write_page", "write_offset", "kv_len", "last_page_len", "kv_indptr") else {}
        trace.output(name, trace.input(name, ValueType(rows, width, "i32"), arguments), ())
    trace.output("row_valid", trace.input("row_valid", ValueType("tokens", 1, "u8")), ())
    running = Session(trace.graph(), {}, page_size=2)
    a, b = running.add_sequence(), running.add_sequence()
    running.run([Chunk(a, [1, 1, 1]), Chunk(b, [1])])
    got = running.run([Chunk(b, [7, 8], adapters=[2, -1], readouts="all"), Chunk(a, [9, 9], positions=np.array([[3, 4, 5], [6, 7, 8]]))])
    want = {
        "tokens": [7, 8, 9, 9], "positions": [1, 2, 3, 4], "request_of_token": [0, 0, 1, 1], "write_page": [2, 3, 1, 4],
        "write_offset": [1, 0, 1, 0], "adapter_routes": [2, -1, -1, -1],
        "mrope_positions": [[1, 1, 1], [2, 2, 2], [3, 4, 5], [6, 7, 8]], "kv_len": [3, 5], "last_page_len": [1, 1],
        "kv_indptr": [0, 2, 5], "lane_indptr": [0, 2, 4], "readout_rows": [0, 1, 3], "row_valid": [1, 1, 1, 1],
    }  # fmt: skip
    assert {name: array.tolist() for name, array in got.items()} == want
