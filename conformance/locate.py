"""From the first tensor that differs to the op to blame, where several ops lie between it and what is known to be right."""

import re
from collections.abc import Callable, Mapping

import numpy as np

from conformance.align import Alignment, layer_in
from conformance.bounds import BOUNDS
from conformance.forced import Difference, Forced
from conformance.metrics import worst_fraction
from poem.graph import Graph

# Tensors that ops are handed. A value that equals one of these is right, and may still be in the wrong place.
_HANDED = re.compile(r"module\..*\.input|hidden\.\d+|attention\.\d+\.(query|key|value)")
Rerun = Callable[[Mapping[int, np.ndarray]], Forced]


def locate(fault: Difference, forced: Forced, graph: Graph, alignment: Alignment, expected: Mapping[str, np.ndarray], rerun: Rerun) -> None:
    """Move the blame of `fault` to the op at fault, if the original's tensors tell which it is.

    rerun: a forced run with values put in place of what the ops give.
    """
    if fault.handed:
        return
    if not _handed_another(fault, forced, graph, expected):
        _repaired(fault, graph, alignment, expected, rerun)


def _handed_another(fault: Difference, forced: Forced, graph: Graph, expected: Mapping[str, np.ndarray]) -> bool:
    """A value on the way equals a tensor that the original hands to another op: the op that reads it here is to blame."""
    for id in fault.region:
        for value in graph.nodes[id].results:
            if value not in forced.own:
                continue
            got, bound = forced.own[value]
            for name, want in expected.items():
                if name == fault.point.name or not _HANDED.fullmatch(name) or want.shape != got.shape:
                    continue
                if worst_fraction(got, want, bound) > 1.0:
                    continue
                readers = [reader for reader in fault.region if reader > id and _reads(graph, reader, value)]
                blamed = readers[0] if readers else fault.point.consumer
                if blamed is None:
                    continue
                fault.node, fault.handed, fault.verified, fault.region = blamed, True, name, (blamed,)
                return True
    return False


def _repaired(fault: Difference, graph: Graph, alignment: Alignment, expected: Mapping[str, np.ndarray], rerun: Rerun) -> None:
    """Put a result of the original that nothing was aligned with in place of an earlier op's: if that mends the tensor, that op
    is to blame."""
    suspects = [id for id in fault.region if not BOUNDS[graph.nodes[id].op].copies]
    if len(suspects) < 2:
        fault.region = tuple(suspects) or fault.region
        return
    candidates = [name for name in alignment.unaligned if name.endswith(".output") and layer_in(name) == layer_in(fault.point.name)]
    for id in suspects[:-1]:
        for value in graph.nodes[id].results:
            type = graph.values[value].type
            for name in candidates:
                want = expected[name]
                if type is None or want.shape[1] != type.width:
                    continue
                if rerun({value: want}).fraction(fault.point) <= 1.0:
                    fault.node, fault.verified, fault.region = id, name, (id,)
                    return
    fault.region = tuple(suspects)


def _reads(graph: Graph, node: int, value: int) -> bool:
    return any(
        ref is not None and ref.kind == "value" and ref.id == value
        for operand in graph.nodes[node].operands.values()
        for ref in (operand if isinstance(operand, list) else [operand])
    )
