"""`plan`: a graph and a bucket of sizes become launches."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from cupy_backend.errors import KernelError
from cupy_backend.kernels.arrays import unsupported
from cupy_backend.launch import Argument, Array, Launch, TensorMap
from cupy_backend.plan.arena import Life, pack
from cupy_backend.plan.lowering import SCRATCH, VALUE, Lowered, Lowering
from cupy_backend.plan.patterns import PATTERNS, Group, grouped
from cupy_backend.plan.record import ARCHS, Bucket, Columns, Options, Plan, Step
from cupy_backend.plan.rules import RULES
from poem.errors import PoemErrors
from poem.graph import Graph, Node

ARENA = "arena"
DEFAULTS = Options()


def plan(graph: Graph, bucket: Bucket, options: Options = DEFAULTS) -> Plan:
    """The launches of a pass over at most the sizes of a bucket.

    Raises KernelError (`kernel.unsupported`), several as PoemErrors, for each op, dtype, shape or arch that no kernel serves, at its
    .poem line, with what is supported.
    """
    if options.arch not in ARCHS:
        expected = " ".join(ARCHS)
        raise KernelError("kernel.arch", f"there are no kernels for {options.arch}", phase="plan", expected=expected, found=options.arch)
    lowering = Lowering(graph, bucket, options)
    lowered, refusals = lower(lowering, grouped(graph, PATTERNS if options.fuse else ()))
    if refusals:
        raise refusals[0] if len(refusals) == 1 else PoemErrors(refusals)
    offsets, arena = pack(_lives(graph, lowering, [found for _, found in lowered]))
    steps = []
    for group, found in lowered:
        launches = tuple(_moved(launch, offsets) for launch in found.launches)
        results = tuple(value for id in group.nodes for value in graph.nodes[id].results if value in lowering.places)
        steps.append(Step(group.pattern, group.nodes, results, launches, found.costs()))
    places = {value: Columns(_placed(where.array, offsets), where.start, where.width) for value, where in lowering.places.items()}
    cells = {cache.id: lowering.cells(cache) for cache in graph.caches if cache.kind == "kv"}
    return Plan(
        graph.digest(), graph.deployment, bucket, options, tuple(steps), places, lowering.inputs,
        tuple(lowering.lists.values()), tuple(lowering.stored.values()), lowering.tables, cells, arena,
    )  # fmt: skip


def lower(lowering: Lowering, groups: Sequence[Group]) -> tuple[list[tuple[Group, Lowered]], list[KernelError]]:
    """The launches of groups, in the order given, and why others of them have none. Equal refusals of several groups are one."""
    graph = lowering.graph
    lowered: list[tuple[Group, Lowered]] = []
    refusals: dict[str, KernelError] = {}
    for group in groups:
        try:
            lowered.append((group, _lower(lowering, group)))
        except KernelError as fault:
            refusal = _refusal(graph.nodes[group.nodes[0]], fault)
            refusals.setdefault(refusal.message + refusal.found, refusal)
            for id in group.nodes:
                for value in graph.nodes[id].results:
                    if value not in lowering.places and graph.values[value].type is not None:
                        with suppress(KernelError):  # the refusal of rows that no pass has is one already
                            lowering.new(value)
    return lowered, list(refusals.values())


def _lower(lowering: Lowering, group: Group) -> Lowered:
    rule = RULES.get(group.pattern)
    if rule is None:
        known = sorted(name for name in RULES if "." in name)
        raise unsupported("no kernel computes it yet", expected=", ".join(known))
    results = [value for id in group.nodes for value in lowering.graph.nodes[id].results]
    nodes = group.nodes
    if _is_empty(lowering, nodes):
        for value in results:
            lowering.new(value)
        return Lowered([])
    return rule(lowering, group)


def _is_empty(lowering: Lowering, nodes: Sequence[int]) -> bool:
    """Whether the last node has no rows to compute."""
    node = lowering.graph.nodes[nodes[-1]]
    values = node.results or tuple(ref.id for ref in node.operands.values() if isinstance(ref, tuple) and ref.kind == "value")
    types = [lowering.graph.values[value].type for value in values]
    return all(type is not None and lowering.rows(type.rows) == 0 for type in types)


def _refusal(node: Node, fault: KernelError) -> KernelError:
    """A fault of lowering, at the node's line."""
    file, line = (node.where[-1].file, node.where[-1].line) if node.where else ("", 0)
    return KernelError(
        fault.code, f"ops.{node.op}: {fault.message}", phase="plan", file=file, line=line, stack=node.where, expected=fault.expected,
        found=fault.found, hint=fault.hint,
    )  # fmt: skip


def _lives(graph: Graph, lowering: Lowering, lowered: Sequence[Lowered]) -> list[Life]:
    """From which step to which each value and each scratch memory must keep its bytes; outputs to the end."""
    spans: dict[str, list[int]] = {}
    sizes: dict[str, int] = {}
    for number, found in enumerate(lowered):
        for launch in found.launches:
            for array in launch.arrays().values():
                if array.buffer.startswith((VALUE, SCRATCH)):
                    spans.setdefault(array.buffer, [number, number])[1] = number
                    sizes[array.buffer] = max(sizes.get(array.buffer, 0), array.offset + array.nbytes)
    for where in lowering.places.values():
        if where.array.buffer in sizes:
            sizes[where.array.buffer] = max(sizes[where.array.buffer], where.array.nbytes)
    for output in graph.outputs:
        where = lowering.places[output.value]
        if where.array.buffer in spans:
            spans[where.array.buffer][1] = len(lowered)
    return [Life(name, sizes[name], first, last) for name, (first, last) in spans.items()]


def _placed(array: Array, offsets: dict[str, int]) -> Array:
    if not array.buffer.startswith((VALUE, SCRATCH)):
        return array
    return replace(array, buffer=ARENA, offset=offsets.get(array.buffer, 0) + array.offset)


def _moved(launch: Launch, offsets: dict[str, int]) -> Launch:
    """The launch with its arrays in the arena."""
    arguments: dict[str, Argument] = {}
    for name, argument in launch.arguments.items():
        if isinstance(argument, TensorMap):
            arguments[name] = replace(argument, array=_placed(argument.array, offsets))
        else:
            arguments[name] = _placed(argument, offsets) if isinstance(argument, Array) else argument
    return replace(launch, arguments=arguments)
