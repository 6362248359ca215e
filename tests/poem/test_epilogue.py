"""Epilogues: what a lane reads is what it put out, whatever else was in the pass."""

from typing import Any

import numpy as np
import pytest

import poem
from interp import Session
from poem.batch import Chunk
from poem.dtypes.tensor import Tensor
from poem.epilogue import Intrinsics
from poem.errors import UsageError
from poem.graph import Graph
from poem.package import load_package_from_texts
from tests.poem.language.package_texts import TOY, swapped

ATTN_NORM = "attn_norm = weight([HIDDEN], compute(w)),"
NORM = "x = ops.elemwise.rmsnorm(y, m.attn_norm, 1e-5)"
MORE = """
    routes, weights = ops.linear.moe_route(ops.gather.select(x, 0, 3), 3, 2)
    output("hidden", x)
    output("draft.tokens", ops.sampling.argmax(x))
    output("slots", ops.linear.moe_matmul_select(x, m.experts, routes, 2))
    output("lengths", inputs.kv_len())
    output("bounds", inputs.lane_indptr())
    output("table", ops.elemwise.relative_bucket_bias(inputs, m.buckets, 2, 4, 8, True))
"""
WEIGHTS = "\n        experts = weight([3, 2, HIDDEN], w), buckets = weight([4, 3], w),"
BATCH = [Chunk(0, [5, 9, 2], readouts="all"), Chunk(1, [7], readouts="none"), Chunk(2, [4, 4], readouts=[0]), Chunk(3, [])]


@pytest.fixture(scope="module")
def graph() -> Graph:
    text = swapped(TOY, (ATTN_NORM, ATTN_NORM + WEIGHTS), (NORM, NORM + MORE))
    return load_package_from_texts("toy", {"toy.poem": text}).trace("toy-tiny-f32-kv-f32")


def test_rows_are_cut_by_the_axis_of_the_output(graph: Graph) -> None:
    """Every row is given its own number: six tokens, four of them read out, in four lanes."""
    rows = {"logits": 4, "hidden": 6, "draft.tokens": 6, "slots": 12, "lengths": 4, "bounds": 5, "table": 3}
    seen = Intrinsics(graph, BATCH, {name: np.arange(count)[:, None] for name, count in rows.items()})
    want = {
        "logits": [[0, 1, 2], [], [3], []],
        "hidden": [[0, 1, 2], [3], [4, 5], []],
        "draft.tokens": [[0, 1, 2], [3], [4, 5], []],
        "slots": [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11], []],
        "lengths": [[0], [1], [2], [3]],
        "table": [[0, 1, 2]] * 4,
    }
    assert seen.lanes == 4
    for name, by_lane in want.items():
        assert [seen.output(lane, name)[:, 0].tolist() for lane in range(4)] == by_lane, name


@pytest.mark.parametrize(
    ("lane", "name", "says"),
    [(0, "logit", "did you mean `logits`?"), (4, "logits", "0 to 3"), (-1, "logits", "0 to 3"), (0, "bounds", "belong to no one lane")],
)
def test_what_no_lane_put_out_is_refused(graph: Graph, lane: int, name: str, says: str) -> None:
    seen = Intrinsics(graph, BATCH, {"logits": np.zeros((4, 1)), "bounds": np.zeros((5, 1))})
    with pytest.raises(UsageError) as caught:
        seen.output(lane, name)
    assert caught.value.code == "run.output"
    assert says in caught.value.render()


def test_a_sampler_and_a_reader_of_drafts_follow_a_pass(graph: Graph) -> None:
    generator = np.random.default_rng(0)
    weights = {param.name: Tensor.of(generator.standard_normal(param.shape).astype(np.float32)) for param in graph.params}

    def lane(intrinsics: Any, lane: int = 0) -> dict[str, np.ndarray]:
        return {name: intrinsics.output(lane, name) for name in ("logits", "hidden", "draft.tokens", "slots")}

    session = Session(graph, weights)
    batch = [Chunk(session.add_sequence(), tokens, readouts="all") for tokens in ([5, 9, 2], [7], [4, 4])]
    together = poem.run_pass(session, batch, lambda intrinsics: [lane(intrinsics, index) for index in range(intrinsics.lanes)])
    for chunk, got in zip(batch, together, strict=True):
        alone = Session(graph, weights)
        want = poem.run_pass(alone, [Chunk(alone.add_sequence(), chunk.tokens, readouts="all")], lane)
        for name, rows in want.items():
            np.testing.assert_array_equal(got[name], rows, err_msg=name)
        assert got["draft.tokens"].reshape(-1).tolist() == got["hidden"].argmax(1).tolist()
