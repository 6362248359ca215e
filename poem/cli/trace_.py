"""`poem trace`: the graph of a deployment, one line for each thing in it."""

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

from poem.graph import Attribute, Cache, Graph, Node, Operand, Param, Ref, Value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem trace`."""
    parser.add_argument("package", metavar="MODEL.poem", help="a package, by path or name")
    parser.add_argument("--deployment", metavar="NAME", help="which deployment (default: the first)")
    parser.add_argument("--json", action="store_true", help="print the graph as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the graph; notes go to standard error. Raises PackageError."""
    from poem.package import load_package

    package = load_package(arguments.package)
    graph = package.trace(arguments.deployment or next(iter(package.deployments)))
    print(json.dumps(as_json(graph), indent=2) if arguments.json else "\n".join(as_lines(graph)))
    for note in package.notes:
        print(f"note: {note}", file=sys.stderr)
    if arguments.deployment is None and len(package.deployments) > 1 and not arguments.json:
        print(f"one of {len(package.deployments)} deployments; `poem models {arguments.package}` lists them", file=sys.stderr)
    return 0


def as_json(graph: Graph) -> dict[str, Any]:
    """`digest`, `graph` as in `Graph.canonical()`, and `where`: for each node its user frames [file, line, function]."""
    return {
        "digest": graph.digest(),
        "graph": json.loads(graph.canonical()),
        "where": [[list(frame) for frame in node.where] for node in graph.nodes],
    }


def as_lines(graph: Graph) -> Iterator[str]:
    """The graph as a person reads it."""
    yield f"{graph.deployment}: {len(graph.nodes)} nodes, {len(graph.params)} params, package {graph.package}"
    yield from _section("params", [_param(param) for param in graph.params])
    yield from _section(
        "spaces", [[f"{space.id}", space.dtype, f"window {space.window}" if space.window else ""] for space in graph.spaces]
    )
    yield from _section("caches", [_cache(cache) for cache in graph.caches])
    yield from _section(
        "inputs",
        [
            [f"%{asked.value}", _type(graph.values[asked.value]), f"{asked.method}({_attributes(asked.arguments)})"]
            for asked in graph.inputs
        ],
    )
    yield from _section("nodes", [_node(graph, node) for node in graph.nodes])
    yield from _section("outputs", [[output.name, f"%{output.value}", _type(graph.values[output.value])] for output in graph.outputs])
    yield f"digest {graph.digest()}"


def _section(title: str, rows: list[list[str]]) -> Iterator[str]:
    """A titled table; columns are as wide as their widest cell, the last one excepted."""
    if not rows:
        return
    yield title
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield ("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))).rstrip()


def _param(param: Param) -> list[str]:
    cut = ""
    if param.cut is not None:
        parts = [f"axis {param.cut.axis}"]
        parts += [f"segments {list(param.cut.segments)}"] if param.cut.segments else []
        parts += [f"heads {list(param.cut.heads)}"] if param.cut.heads else []
        cut = f"cut {', '.join(parts)}"
    source = param.source if param.source != "checkpoint" else ""
    also = f"also {', '.join(param.aliases)}" if param.aliases else ""
    return [param.name, str(list(param.shape)), param.dtype, "; ".join(filter(None, (cut, source, also)))]


def _cache(cache: Cache) -> list[str]:
    if cache.kind == "state":
        split = f", split {cache.split}" if cache.split is not None else ""
        return [cache.name, "state", f"slab {list(cache.slab)} {cache.dtype}{split}"]
    heads = " by head" if cache.heads else ""
    scales = f", scales {list(cache.scales)}" if cache.scales else ""
    return [cache.name, f"kv, space {cache.space}", f"planes {list(cache.planes)}, head_dim {cache.head_dim}{heads}{scales}"]


def _type(value: Value) -> str:
    return str(value.type) if value.type is not None else value.kind


def _node(graph: Graph, node: Node) -> list[str]:
    results = ", ".join(f"%{id} {_type(graph.values[id])}" for id in node.results)
    operands = [f"{name}={_operand(graph, operand)}" for name, operand in node.operands.items() if operand is not None]
    attributes = _attributes(node.attributes)
    call = f"{node.op}({', '.join([*operands, *([attributes] if attributes else [])])})"
    layer = f"layer {node.layer[0]}.{node.layer[1]}" if node.layer else ""
    place = f"{node.where[-1].file}:{node.where[-1].line}" if node.where else ""
    return [results or "-", call, layer, place]


def _operand(graph: Graph, operand: Operand) -> str:
    if isinstance(operand, list):
        return f"[{', '.join(_operand(graph, ref) for ref in operand)}]"
    assert isinstance(operand, Ref)
    if operand.kind == "param":
        return graph.params[operand.id].name
    if operand.kind == "cache":
        return graph.caches[operand.id].name
    return "inputs" if operand.kind == "inputs" else f"%{operand.id}"


def _attributes(attributes: dict[str, Attribute]) -> str:
    """The attributes that are not None."""
    return ", ".join(f"{name}={_attribute(value)}" for name, value in attributes.items() if value is not None)


def _attribute(value: Attribute) -> str:
    if isinstance(value, dict):
        return f"{value.get('kind', '')}({', '.join(f'{k}={_attribute(v)}' for k, v in value.items() if k != 'kind')})"
    return f"{value:.9g}" if isinstance(value, float) else json.dumps(value) if isinstance(value, str) else str(value)
