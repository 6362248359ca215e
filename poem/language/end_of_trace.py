"""What is checked when `forward` has returned, and what is only worth a note."""

from collections.abc import Iterator

from poem.errors import PackageError, PoemErrors
from poem.graph import Node, Ref
from poem.language.evaluation import Evaluation
from poem.ops import REGISTRY
from poem.tracer import Tracer

MAXIMUM_SHOWN = 20


def check_trace(evaluation: Evaluation, tracer: Tracer) -> None:
    """Raises PackageError (`forward.no-output`, `forward.read-before-append`, ...); several faults come together."""
    faults: list[PackageError] = []
    late: list[PackageError] = []
    if not tracer.outputs:
        faults.append(evaluation.error("forward.no-output", "forward registers no result", expected='output("logits", value)'))
    first_read: dict[int, Node] = {}
    appended: set[int] = set()
    for node in tracer.nodes:
        for operand in node.operands.values():
            if type(operand) is Ref and operand.kind == "cache" and tracer.caches[operand.id].kind == "kv":
                if REGISTRY[node.op].effect == "cache":
                    if operand.id in first_read and operand.id not in appended:
                        late.append(_read_before_append(evaluation, tracer, operand.id, first_read[operand.id], node))
                    appended.add(operand.id)
                elif operand.id not in appended:
                    first_read.setdefault(operand.id, node)
    if len(late) > MAXIMUM_SHOWN:
        late[MAXIMUM_SHOWN - 1].hint += f"; and {len(late) - MAXIMUM_SHOWN} more of this kind"
    faults += late[:MAXIMUM_SHOWN]
    if len(faults) == 1:
        raise faults[0]
    if faults:
        raise PoemErrors(faults)


def _read_before_append(evaluation: Evaluation, tracer: Tracer, cache: int, read: Node, append: Node) -> PackageError:
    def place(node: Node) -> str:
        return f"{node.where[-1].file}:{node.where[-1].line}" if node.where else "?"

    name = tracer.caches[cache].name
    return evaluation.error(
        "forward.read-before-append", f"the cache row `{name}` is read by ops.{read.op} before this pass's cells are appended", read.where,
        found=f"read at {place(read)}, appended at {place(append)}", hint="append first",
    )  # fmt: skip


def notes_of(tracer: Tracer) -> Iterator[str]:
    """Weights never used, rows never appended to or never read, results that nobody reads."""
    read: set[tuple[str, int]] = {("value", output.value) for output in tracer.outputs}
    appended: set[int] = set()
    effects = {name: REGISTRY[name].effect for name in {node.op for node in tracer.nodes}}
    for node in tracer.nodes:
        refs = node.references
        if effects[node.op] == "cache":
            appended.update(ref.id for ref in refs if ref.kind == "cache")
            refs = [ref for ref in refs if ref.kind != "cache"]
        read.update(refs)
    scales = {id for cache in tracer.caches for id in cache.scales or ()}
    unused = [param.name for param in tracer.params if ("param", param.id) not in read and param.id not in scales]
    yield from _listed("weights laid out but never used", unused)
    rows = [cache for cache in tracer.caches if cache.kind == "kv"]
    unread = [cache.name for cache in rows if ("cache", cache.id) not in read]
    never = [cache.name for cache in rows if cache.id not in appended]
    yield from _listed("cache rows never appended to and never read", [name for name in unread if name in never])
    yield from _listed("cache rows never read", [name for name in unread if name not in never])
    yield from _listed("cache rows never appended to", [name for name in never if name not in unread])
    states = [cache.name for cache in tracer.caches if cache.kind == "state" and ("cache", cache.id) not in read]
    yield from _listed("states never used", states)
    dead = [
        f"ops.{node.op} at {node.where[-1].file}:{node.where[-1].line}" if node.where else f"ops.{node.op}"
        for node in tracer.nodes
        if node.results and not effects[node.op] and read.isdisjoint([("value", id) for id in node.results])
    ]
    yield from _listed("results that nobody reads", list(dict.fromkeys(dead)))


def _listed(what: str, names: list[str]) -> Iterator[str]:
    if names:
        more = f" and {len(names) - MAXIMUM_SHOWN} more" if len(names) > MAXIMUM_SHOWN else ""
        yield f"{what}: {', '.join(names[:MAXIMUM_SHOWN])}{more}"
