"""The kernels of the compile matrix are those that the planner chooses."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from cupy_backend import instantiations
from cupy_backend.instantiations import BUCKETS
from cupy_backend.launch import Launch
from cupy_backend.plan import Bucket, Options, plan
from cupy_backend.plan.rules import RULES
from poem.graph import Graph
from poem.package import load_package

MODELS = Path(__file__).parents[2] / "models"
# Ops whose rows no pass on a device has yet.
WITHOUT_ROWS = {"gather.group_rows", "gather.pool_rows"}


def kinds(launches: list[Launch]) -> set[tuple[object, ...]]:
    return {(launch.source, launch.kernel, launch.block, launch.shared, launch.cluster) for launch in launches}


def planned(graph: Graph, bucket: Bucket, options: Options) -> list[Launch]:
    pages = bucket.lanes * -(-bucket.cells // bucket.page_size)
    return list(plan(graph, replace(bucket, pages=(pages,) * len(graph.spaces)), options).launches)


@pytest.mark.parametrize(
    ("package", "deployment"),
    [
        ("llama_3", "llama32-1b-bf16-kv-bf16"), ("llama_3", "llama31-8b-e4m3tile128a8-kv-e4m3"), ("qwen_2", "qwen2-0.5b-bf16-kv-bf16"),
        ("mistral", "mistral-7b-v0.1-bf16-kv-bf16"),
    ],
)  # fmt: skip
def test_every_launch_of_a_whole_plan_with_any_options_is_among_them(package: str, deployment: str) -> None:
    graph = load_package(MODELS / f"{package}.poem").trace(deployment)
    found = kinds(instantiations.shipped("sm_90a"))
    combined = [Options("sm_90a", *flags) for flags in product((False, True), repeat=3)]
    for bucket, options in zip(BUCKETS, combined, strict=False):
        missing = kinds(planned(graph, bucket, options)) - found
        assert not missing, f"{bucket}, {options}: {missing}"


def test_sizes_between_those_of_the_buckets_choose_nothing_else() -> None:
    graph = load_package(MODELS / "llama_3.poem").trace("llama31-8b-u4g64-kv-bf16")
    found = kinds(instantiations.shipped("sm_90a"))
    for rows in (3, 5, 8, 9, 24, 33, 65, 127, 129, 1000):
        for longest in (1, rows):
            bucket = Bucket(rows, 1 if longest > 1 else rows, 1, longest, longest, max(4096, longest), ())
            missing = kinds(planned(graph, bucket, Options(batch_invariant=rows % 2 == 0))) - found
            assert not missing, f"{rows} rows, {longest} of a sequence: {missing}"


def test_a_kernel_is_listed_once() -> None:
    for arch in ("sm_89", "sm_90a"):
        launches = [*instantiations.shipped(arch), *instantiations.others(arch)]
        assert len(kinds(launches)) == len(launches)


def test_warpgroups_multiply_only_where_they_are() -> None:
    sources = {arch: {launch.source for launch in instantiations.shipped(arch)} for arch in ("sm_89", "sm_90a")}
    assert sources["sm_90a"] - sources["sm_89"] == {"linear_warpgroups.cu"}


def test_every_op_that_has_kernels_is_in_a_model() -> None:
    """Where this fails, the op is in no shipped model: add a call of it to cupy_backend/other_models.poem."""
    outlines = [*instantiations._shipped_outlines(), *instantiations._other_outlines()]
    found = {part.kind[0] for outline in outlines for parts in outline.parts.values() for part in parts}
    assert sorted(set(RULES) - found - WITHOUT_ROWS) == []
