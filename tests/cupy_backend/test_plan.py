"""Planning: which nodes share a launch, where values lie, what is refused, what a plan says of itself."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.errors import KernelError
from cupy_backend.plan import ARCHS, Bucket, Options, Plan, nearest_arch, plan
from cupy_backend.plan.arena import ALIGNMENT, Life, pack
from cupy_backend.plan.describe import as_json, as_lines, launches_per_layer
from cupy_backend.plan.patterns import PATTERNS, grouped
from poem.errors import PoemErrors
from poem.graph import Graph, ValueType
from poem.package import load_package
from tests.cupy_backend.graphs import Made, gated_network

MODELS = Path(__file__).parents[2] / "models"


def traced(package: str, deployment: str) -> Graph:
    return load_package(str(MODELS / f"{package}.poem")).trace(deployment)


def decode(graph: Graph, lanes: int = 1, cells: int = 1024, **options: Any) -> Plan:
    pages = lanes * cells // 16
    return plan(graph, Bucket(lanes, lanes, lanes, 1, 1, cells, (pages,) * len(graph.spaces)), Options(**options))


# -- the arena ---------------------------------------------------------------------------------
lives = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 6)), max_size=24).map(
    lambda drawn: [Life(f"v{i}", size, first, first + length) for i, (size, first, length) in enumerate(drawn)]
)


@given(lives)
@settings(deadline=None)
def test_arrays_that_live_together_lie_apart_and_aligned(given_lives: list[Life]) -> None:
    offsets, arena = pack(given_lives)
    for i, one in enumerate(given_lives):
        assert offsets[one.name] % ALIGNMENT == 0
        assert offsets[one.name] + one.nbytes <= arena
        for other in given_lives[:i]:
            together = one.first <= other.last and other.first <= one.last
            apart = offsets[one.name] + one.nbytes <= offsets[other.name] or offsets[other.name] + other.nbytes <= offsets[one.name]
            place = f"{one} at {offsets[one.name]}, {other} at {offsets[other.name]}"
            assert apart or not together or not one.nbytes or not other.nbytes, place


@given(lives)
@settings(deadline=None)
def test_the_arena_is_no_larger_than_all_arrays_and_no_smaller_than_the_fullest_moment(given_lives: list[Life]) -> None:
    _, arena = pack(given_lives)
    sizes = {life: -(-life.nbytes // ALIGNMENT) * ALIGNMENT for life in given_lives}
    fullest = max((sum(sizes[life] for life in given_lives if life.first <= at <= life.last) for at in range(20)), default=0)
    assert fullest <= arena <= sum(sizes.values())


def test_arrays_that_never_live_together_share_memory() -> None:
    offsets, arena = pack([Life("a", 1000, 0, 1), Life("b", 1000, 2, 3), Life("c", 1000, 4, 9)])
    assert (offsets, arena) == ({"a": 0, "b": 0, "c": 0}, 1024)


# -- fusion ------------------------------------------------------------------------------------
def test_every_node_of_a_graph_is_in_one_group_and_runs_after_what_it_reads() -> None:
    for package, deployment in (
        ("llama_3", "llama31-mini-bf16-kv-bf16"), ("qwen_2", "qwen2-mini-bf16-kv-bf16"), ("mistral", "mistral-mini-bf16-kv-bf16"),
        ("llama_3", "llama31-mini-u4g64-kv-bf16"), ("llama_3", "llama31-8b-nvfp4-kv-e4m3"),
    ):  # fmt: skip
        graph = traced(package, deployment)
        groups = grouped(graph)
        assert sorted(id for group in groups for id in group.nodes) == [node.id for node in graph.nodes], deployment
        at = {id: number for number, group in enumerate(groups) for id in group.nodes}
        for node in graph.nodes:
            for operand in node.operands.values():
                for ref in operand if isinstance(operand, list) else [operand]:
                    maker = graph.producer_of(ref.id) if ref is not None and ref.kind == "value" else None
                    assert maker is None or at[maker.id] <= at[node.id], f"{deployment}: node {node.id} runs before node {maker.id}"


def test_a_layer_of_llama_is_eight_groups() -> None:
    graph = traced("llama_3", "llama31-mini-bf16-kv-bf16")
    layer = [group for group in grouped(graph) if graph.nodes[group.nodes[-1]].layer == (0, 1)]
    assert [group.pattern for group in layer] == [
        "add_rmsnorm", "joined_matmul", "rope_append", "attn.attend", "linear.matmul", "add_rmsnorm", "matmul_glu", "linear.matmul",
    ]  # fmt: skip


def test_biases_of_joined_products_are_joined_too() -> None:
    graph = traced("qwen_2", "qwen2-mini-bf16-kv-bf16")
    joined = next(group for group in grouped(graph) if group.pattern == "joined_matmul")
    assert [graph.nodes[id].op for id in joined.nodes] == ["linear.matmul", "elemwise.add_bias"] * 3


def test_a_bias_of_another_dtype_than_its_product_is_added_by_itself() -> None:
    for dtype, want in (("bf16", ["gather.embed", "matmul_bias"]), ("f32", ["gather.embed", "linear.matmul", "elemwise.add_bias"])):
        made = Made()
        y = made.call("gather.embed", made.tokens(), made.weight("embed", 32, 64), 32)
        product = made.call("linear.matmul", y, made.weight("w", 128, 64))
        graph, _ = made.graph("out", made.call("elemwise.add_bias", made.weight("bias", 128, dtype=dtype), product))
        assert [group.pattern for group in grouped(graph)] == want


def test_a_residual_that_is_read_again_is_not_overwritten() -> None:
    made = Made()
    y = made.call("gather.embed", made.tokens(), made.weight("embed", 32, 64), 32)
    x = made.call("linear.matmul", y, made.weight("w", 64, 64))
    total = made.call("elemwise.residual_add", x, y)
    normed = made.call("elemwise.rmsnorm", total, made.weight("n", 64), 1e-5)
    graph, _ = made.graph("out", made.call("elemwise.residual_add", normed, y))
    assert "add_rmsnorm" not in [group.pattern for group in grouped(graph)]


def test_a_product_that_is_an_output_is_not_hidden_in_a_gated_unit() -> None:
    made = Made()
    y = made.call("gather.embed", made.tokens(), made.weight("embed", 32, 64), 32)
    product = made.call("linear.matmul", y, made.weight("w", 128, 64))
    made.trace.output("product", product, ())
    graph, _ = made.graph("out", made.call("linear.glu", product, 64))
    assert [group.pattern for group in grouped(graph)] == ["gather.embed", "linear.matmul", "linear.glu"]


def test_every_pattern_says_what_it_covers_and_where_it_rounds() -> None:
    assert all(pattern.covers and pattern.rounds for pattern in PATTERNS)
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS)


# -- plans -------------------------------------------------------------------------------------
def test_a_plan_is_the_same_every_time() -> None:
    graph, _ = gated_network()
    assert decode(graph, 3) == decode(graph, 3)


def test_every_node_is_covered_by_a_launch_and_every_launch_has_a_cost() -> None:
    graph, _ = gated_network()
    made = decode(graph, 3)
    assert sorted(id for step in made.steps for id in step.nodes) == [node.id for node in graph.nodes]
    for step in made.steps:
        assert step.launches
        assert len(step.costs) == len(step.launches)
        assert all(cost.read > 0 and cost.written > 0 for cost in step.costs), step.pattern
        assert all(set(launch.nodes) == set(step.nodes) for launch in step.launches)


def test_bytes_and_operations_of_a_product_are_those_of_its_shapes() -> None:
    graph, _ = gated_network(hidden=64, inter=128, vocab=48)
    step = next(step for step in decode(graph, 3).steps if step.pattern == "matmul_glu")
    assert (step.cost.read, step.cost.written, step.cost.flops) == (2 * (256 * 64 + 3 * 64), 2 * 3 * 128, 2 * 3 * 256 * 64)


def test_values_of_a_step_lie_inside_the_arena() -> None:
    graph, _ = gated_network()
    made = decode(graph, 5)
    for launch in made.launches:
        for name, array in launch.arrays().items():
            assert array.buffer != "arena" or array.offset + array.nbytes <= made.arena, f"{name} of {launch.described()}"


def test_a_pass_without_readouts_launches_no_head() -> None:
    graph, _ = gated_network()
    made = plan(graph, Bucket(4, 1, 0, 4, 4, 64, ()))
    assert [step.pattern for step in made.steps if not step.launches] == ["gather.gather_rows", "linear.lm_head"]


# -- refusals ----------------------------------------------------------------------------------
def test_an_op_without_a_kernel_is_refused_at_its_line_with_what_is_supported() -> None:
    made = Made()
    y = made.call("gather.embed", made.tokens(), made.weight("embed", 32, 64), 32)
    graph, _ = made.graph("out", made.call("elemwise.hadamard", y, 64))
    with pytest.raises(KernelError) as caught:
        decode(graph)
    assert (caught.value.code, caught.value.place()) == ("kernel.unsupported", "small.poem:2")
    assert "ops.elemwise.hadamard" in caught.value.message
    assert "elemwise.rmsnorm" in caught.value.expected


def test_a_weight_dtype_without_a_kernel_is_refused_with_those_that_have_one() -> None:
    graph, _ = gated_network(dtype="gr_i8_f32_n")
    with pytest.raises(KernelError) as caught:
        decode(graph)
    assert caught.value.code == "kernel.unsupported"
    assert caught.value.file == "small.poem"
    assert "bf16" in caught.value.expected
    assert "gr_i8_f32_n" in caught.value.message + caught.value.found


def test_several_refusals_are_reported_together() -> None:
    made = Made()
    y = made.call("gather.embed", made.tokens(), made.weight("embed", 32, 64), 32)
    y = made.call("elemwise.hadamard", y, 64)
    graph, _ = made.graph("out", made.call("elemwise.hc_mean", y, 2))
    with pytest.raises(PoemErrors) as caught:
        decode(graph)
    assert [error.line for error in caught.value.errors] == [2, 3]


def test_an_architecture_without_kernels_is_refused() -> None:
    graph, _ = gated_network()
    with pytest.raises(KernelError) as caught:
        decode(graph, arch="sm_70")
    assert (caught.value.code, caught.value.found) == ("kernel.arch", "sm_70")
    assert caught.value.expected == " ".join(ARCHS)


@pytest.mark.parametrize(("device", "want"), [("sm_80", "sm_80"), ("sm_86", "sm_80"), ("sm_90a", "sm_90a"), ("sm_103a", "sm_100a")])
def test_a_device_takes_the_choices_of_the_newest_architecture_before_its_own(device: str, want: str) -> None:
    assert nearest_arch(device) == want


# -- what a plan says --------------------------------------------------------------------------
def test_the_text_has_a_line_for_each_launch_and_the_json_the_same_numbers() -> None:
    graph, _ = gated_network()
    made = decode(graph, 2)
    lines, data = list(as_lines(graph, made)), json.loads(json.dumps(as_json(graph, made)))
    assert len(lines) == len(made.launches) + 4
    assert len(data["launches"]) == len(made.launches)
    assert sum(launch["read"] for launch in data["launches"]) == data["total"]["read"] == made.cost.read
    assert all(launch["where"].startswith("small.poem:") for launch in data["launches"])
    assert launches_per_layer(graph, made) is None


def test_the_documentation_lists_every_pattern() -> None:
    text = (MODELS.parent / "docs" / "backend.md").read_text()
    assert [pattern.name for pattern in PATTERNS if f"| `{pattern.name}` |" not in text] == []


def test_rows_that_no_pass_over_text_has_are_refused() -> None:
    made = Made()
    x = made.trace.input("x", ValueType("patches", 24, "bf16"))
    graph, _ = made.graph("y", made.call("elemwise.rmsnorm", x, made.weight("norm", 24), 1e-5))
    with pytest.raises(KernelError, match="no such rows yet") as refused:
        plan(graph, Bucket(4, 1, 1, 4, 4, 64, ()), Options())
    assert refused.value.found == "rows on patches"
