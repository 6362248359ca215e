"""A plan as text and as JSON: its launches with their nodes, bytes, operations and time floors."""

from collections.abc import Iterator
from typing import Any

from cupy_backend.plan.record import Cost, Plan
from poem.graph import Graph

# What an H200 was measured to reach: bytes copied and bf16 operations per second.
H200_BYTES = 4.3e12
H200_FLOPS = 790e12


def floor(cost: Cost) -> float:
    """Seconds that an H200 needs at least."""
    return max(cost.nbytes / H200_BYTES, cost.flops / H200_FLOPS)


def as_json(graph: Graph, plan: Plan) -> dict[str, Any]:
    """The whole plan but the contents of its tables."""
    bucket, options = plan.bucket, plan.options
    return {
        "deployment": plan.deployment,
        "graph": plan.graph,
        "arch": options.arch,
        "batch_invariant": options.batch_invariant,
        "warpgroups": options.warpgroups,
        "bucket": {
            "rows": bucket.rows, "lanes": bucket.lanes, "readouts": bucket.readouts, "cells": bucket.cells, "pages": list(bucket.pages),
            "page_size": bucket.page_size,
        },
        "arena": plan.arena,
        "weights": sum(stored.array.nbytes for stored in plan.stored),
        "launches": [
            {
                "pattern": step.pattern, "kernel": launch.kernel, "source": launch.source, "grid": list(launch.grid),
                "block": list(launch.block), "shared": launch.shared, "nodes": list(step.nodes),
                "ops": [graph.nodes[id].op for id in step.nodes], "layers": _layers(graph, step.nodes),
                "where": _where(graph, step.nodes[0]), "read": cost.read, "written": cost.written, "flops": cost.flops,
                "floor_seconds": floor(cost),
            }
            for step in plan.steps
            for launch, cost in zip(step.launches, step.costs, strict=True)
        ],
        "total": {"read": plan.cost.read, "written": plan.cost.written, "flops": plan.cost.flops, "floor_seconds": total_floor(plan)},
        "launches_per_layer": launches_per_layer(graph, plan),
    }  # fmt: skip


def as_lines(graph: Graph, plan: Plan) -> Iterator[str]:
    """The plan as a person reads it: a line for each launch, then what it amounts to."""
    bucket, options = plan.bucket, plan.options
    chosen = ", batch invariant" * options.batch_invariant + ", by warpgroups" * options.warpgroups
    yield (
        f"{plan.deployment} on {options.arch}{chosen}: {bucket.rows} rows of {bucket.lanes} sequences of up to {bucket.cells} tokens, "
        f"{bucket.readouts} read out"
    )
    rows = [["", "step", "kernel", "blocks", "nodes", "read", "written", "flops", "floor", "line"]]
    number = 0
    for step in plan.steps:
        for launch, cost in zip(step.launches, step.costs, strict=True):
            blocks, threads = "x".join(map(str, launch.grid)).removesuffix("x1").removesuffix("x1"), launch.block[0]
            rows.append([
                str(number), step.pattern, f"{launch.source.removesuffix('.cu')}: {launch.kernel}", f"{blocks} of {threads}",
                ",".join(map(str, step.nodes)), _amount(cost.read, "B"), _amount(cost.written, "B"), _amount(cost.flops, ""),
                f"{floor(cost) * 1e6:.2f} us", _where(graph, step.nodes[0]),
            ])  # fmt: skip
            number += 1
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    right = {0, 5, 6, 7, 8}
    for row in rows:
        padded = (cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
        yield "  ".join(padded).rstrip()
    seconds, cost, per_layer = total_floor(plan), plan.cost, launches_per_layer(graph, plan)
    layers = f", {per_layer:.3g} a layer" if per_layer is not None else ""
    work = f"{_amount(cost.nbytes, 'B')} moved, {_amount(cost.flops, 'FLOP')}"
    yield f"{number} launches{layers}; {work}, no faster than {seconds * 1e6:.1f} us on an H200"
    weights = sum(stored.array.nbytes for stored in plan.stored)
    cells = sum(array.nbytes for arrays in plan.cells.values() for array in arrays)
    yield f"memory: {_amount(weights, 'B')} weights, {_amount(cells, 'B')} cells, {_amount(plan.arena, 'B')} within a pass"


def total_floor(plan: Plan) -> float:
    """Seconds of all launches, one after another."""
    return sum(floor(cost) for step in plan.steps for cost in step.costs)


def launches_per_layer(graph: Graph, plan: Plan) -> float | None:
    """Launches whose last node is in a layer, divided by the number of layers. None for a graph without layers."""
    layers = {node.layer for node in graph.nodes if node.layer is not None}
    count = sum(len(step.launches) for step in plan.steps if graph.nodes[step.nodes[-1]].layer is not None)
    return count / len(layers) if layers else None


def _layers(graph: Graph, nodes: tuple[int, ...]) -> list[str]:
    found = (graph.nodes[id].layer for id in nodes)
    return sorted({f"{layer[0]}.{layer[1]}" for layer in found if layer is not None})


def _where(graph: Graph, node: int) -> str:
    where = graph.nodes[node].where
    return f"{where[-1].file}:{where[-1].line}" if where else ""


def _amount(number: float, unit: str) -> str:
    """Three digits and a decimal prefix."""
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5 or prefix == "T":
            return f"{number:.3g} {prefix}{unit}".rstrip() if prefix or unit else f"{number:.0f}"
        number /= 1000
    raise AssertionError
