"""Which kernels plans launch: those of the shipped models, and those that other models and `poem run` need besides.

Planning tells, not a list: every listed deployment is lowered for passes of all kinds of sizes, with every option. To keep that cheap, of
a model's layers only those are looked at that show something new, and what several models have in common is lowered once.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from cupy_backend import choosing
from cupy_backend.kernels import linear_warpgroups
from cupy_backend.kernels.linear_tables import FORMATS
from cupy_backend.launch import Array, Launch
from cupy_backend.plan import Bucket, Columns, Options
from cupy_backend.plan.build import lower
from cupy_backend.plan.lowering import Lowering
from cupy_backend.plan.patterns import PATTERNS, Group, grouped, references
from poem.graph import Graph, Node, Operand
from poem.home import shipped_models
from poem.package import Package, load_package

# Decoding, alone and in batches of each tile of rows, over few cells and many; prompts, short and long; both in one pass. Pages are filled
# in for each kv space.
BUCKETS = (
    Bucket(rows=1, lanes=1, readouts=1, shortest=1, longest=1, cells=64, pages=()),
    Bucket(rows=16, lanes=16, readouts=16, shortest=1, longest=1, cells=8192, pages=()),
    Bucket(rows=32, lanes=32, readouts=32, shortest=1, longest=1, cells=8192, pages=()),
    Bucket(rows=64, lanes=64, readouts=64, shortest=1, longest=1, cells=4096, pages=(), padded=True),
    Bucket(rows=100, lanes=1, readouts=1, shortest=100, longest=100, cells=128, pages=()),
    Bucket(rows=4096, lanes=2, readouts=4096, shortest=2048, longest=2048, cells=4096, pages=()),
    Bucket(rows=520, lanes=9, readouts=9, shortest=1, longest=512, cells=4096, pages=()),
)
# A package of models that are not shipped: heads, activations and dtypes of theirs that choose other kernels.
OTHER_MODELS = Path(__file__).with_name("other_models.poem")
OF_OTHER_FORMATS = "llama31-8b"  # the model that is planned with the weight formats and caches that no listed deployment has
VOCABULARY = 128256


class Part(NamedTuple):
    """A group of nodes, all that rules may know of it, and the values that it reads and others make."""

    group: Group
    kind: tuple[str, ...]
    read: tuple[int, ...]


class Outline(NamedTuple):
    """What of a graph is looked at, without fusion and with it."""

    graph: Graph
    parts: dict[bool, list[Part]]


def options(arch: str) -> list[Options]:
    """Options of plans for `arch`: none, and each alone, for they act on different choices."""
    found = [Options(arch), Options(arch, batch_invariant=True), Options(arch, fuse=False)]
    return [*found, Options(arch, warpgroups=True)] if arch == linear_warpgroups.ARCH else found


@lru_cache
def shipped(arch: str) -> tuple[Launch, ...]:
    """One launch of each instantiation, block, shared memory and cluster that plans of the shipped models' deployments have on `arch`."""
    return tuple(_unlike(_planned(_shipped_outlines(), arch)))


@lru_cache
def others(arch: str) -> tuple[Launch, ...]:
    """The same of what the shipped models' listed deployments do not need: other weight formats, caches and models, and sampling."""
    found = _unlike(chain(shipped(arch), _planned(_other_outlines(), arch), _beside_plans()))
    return tuple(found[len(shipped(arch)) :])


def _unlike(launches: Iterable[Launch]) -> list[Launch]:
    """The first of those that compile and occupy a device alike."""
    found: dict[tuple[Any, ...], Launch] = {}
    for launch in launches:
        found.setdefault((launch.source, launch.kernel, launch.block, launch.shared, launch.cluster), launch)
    return list(found.values())


def _planned(outlines: Sequence[Outline], arch: str) -> Iterator[Launch]:
    """Launches of graphs for passes of all sizes with all options. What has no kernel is passed over."""
    for bucket in BUCKETS:
        pages = bucket.lanes * -(-bucket.cells // bucket.page_size)
        for chosen in options(arch):
            known: dict[Any, list[Columns | None]] = {}  # where the results of each kind of group lie
            for outline in outlines:
                lowering = Lowering(outline.graph, replace(bucket, pages=(pages,) * len(outline.graph.spaces)), chosen)
                yield from _lowered(outline, lowering, known)


def _lowered(outline: Outline, lowering: Lowering, known: dict[Any, list[Columns | None]]) -> Iterator[Launch]:
    """Launches of the groups that are not known yet."""
    nodes, places = outline.graph.nodes, lowering.places
    for part in outline.parts[lowering.options.fuse]:
        for value in part.read:
            if value not in places:  # made by a group that is left out
                lowering.new(value)
        results = [value for id in part.group.nodes for value in nodes[id].results]
        key = part.kind, *((where.start, where.width, where.array.shape) for where in map(places.get, part.read) if where)
        if key in known:
            places.update((value, where) for value, where in zip(results, known[key], strict=True) if where)
            continue
        for _, found in lower(lowering, [part.group])[0]:
            yield from found.launches
        known[key] = [places.get(value) for value in results]


def _beside_plans() -> list[Launch]:
    """What is launched on a plan's results: tokens chosen from logits."""
    logits = (Array("logits", "read", (1, VOCABULARY), dtype) for dtype in ("bf16", "f32"))
    return [launch for array in logits for launch in choosing.launches(array, 1)]


# -- models --------------------------------------------------------------------------------------
@lru_cache
def _shipped_outlines() -> list[Outline]:
    packages = (load_package(path) for path in sorted(shipped_models().glob("*.poem")))
    return _outlines((package, name) for package in packages for name in package.deployments)


@lru_cache
def _other_outlines() -> list[Outline]:
    owner = next(package for package in map(load_package, sorted(shipped_models().glob("*.poem"))) if OF_OTHER_FORMATS in package.models)
    formats = [(owner, f"{OF_OTHER_FORMATS}-{name}-kv-{kv}") for name, kv in [*((name, "e4m3") for name in FORMATS), ("bf16", "e5m2")]]
    other = load_package(OTHER_MODELS, search=[shipped_models()])
    return _outlines([*formats, *((other, name) for name in other.deployments)])


def _outlines(deployments: Iterable[tuple[Package, str]]) -> list[Outline]:
    """Of models that differ in names alone, the first."""
    found: dict[tuple[Any, ...], Outline] = {}
    for package, name in deployments:
        graph = package.trace(name)
        telling = _telling(graph)
        shape = tuple(_kind(graph, graph.nodes[id]) for id in sorted(telling))
        if shape not in found:
            found[shape] = Outline(graph, {fuse: _parts(graph, telling, fuse) for fuse in (False, True)})
    return list(found.values())


def _telling(graph: Graph) -> set[int]:
    """The nodes of no layer, and those of the first layer of each kind that follows a layer of each other kind."""
    layers: dict[tuple[int, int] | None, list[Node]] = {}
    for node in graph.nodes:
        layers.setdefault(node.layer, []).append(node)
    found = {node.id for node in layers.pop(None, [])}
    kinds = {layer: tuple(_kind(graph, node) for node in nodes) for layer, nodes in layers.items()}
    known = set()
    for before, layer in pairwise([None, *layers]):
        pair = (kinds[before] if before else None, kinds[layer])
        if pair not in known:
            known.add(pair)
            found |= {node.id for node in layers[layer]}
    return found


def _kind(graph: Graph, node: Node) -> str:
    """All that rules may know of a node: the op, its attributes, what it is given and what it gives."""

    def of(operand: Operand) -> object:
        if operand is None or isinstance(operand, list):
            return operand and [of(ref) for ref in operand]
        if operand.kind == "value":
            return graph.values[operand.id].type
        if operand.kind == "param":
            return graph.params[operand.id].shape, graph.params[operand.id].dtype
        if operand.kind == "cache":
            cache = graph.caches[operand.id]
            return replace(cache, id=0, name="", space=0), graph.spaces[cache.space].dtype
        return operand.kind

    results = [graph.values[value].type for value in node.results]
    return repr((node.op, sorted(node.attributes.items()), [(name, of(operand)) for name, operand in node.operands.items()], results))


def _parts(graph: Graph, telling: set[int], fuse: bool) -> list[Part]:
    found = []
    for group in grouped(graph, PATTERNS if fuse else ()):
        if telling & set(group.nodes):
            nodes = [graph.nodes[id] for id in group.nodes]
            made = {value for node in nodes for value in node.results}
            read = {ref.id: None for node in nodes for ref in references(node) if ref.kind == "value" and ref.id not in made}
            of_nodes = tuple(value for value in read if graph.values[value].type is not None and graph.producer_of(value) is not None)
            found.append(Part(group, (group.pattern, *(_kind(graph, node) for node in nodes)), of_nodes))
    return found
