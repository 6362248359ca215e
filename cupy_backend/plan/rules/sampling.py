"""Rules for the ops that choose tokens."""

from cupy_backend.kernels import sampling
from cupy_backend.launch import Launch
from cupy_backend.plan.lowering import Lowered, Lowering, elements
from cupy_backend.plan.patterns import Group, operand
from cupy_backend.plan.rules.registry import node_of, rule


@rule("sampling.argmax")
def _argmax(lowering: Lowering, group: Group) -> Lowered:
    node = node_of(lowering, group)
    given = node.operands["x"]
    refs = given if isinstance(given, list) else [operand(node, "x")]
    values, ids = [lowering.whole(ref.id) for ref in refs], lowering.new(node.results[0])
    launches: list[Launch] = []
    for column, x in enumerate(values):
        scratch = lowering.scratch(sampling.argmax_scratch(*x.shape))
        launches += sampling.argmax(x, ids, column=column, scratch=scratch, nodes=group.nodes)
    return Lowered(launches, sum(map(elements, values)))
