"""The registry of rules: one for each op, and one for each fusion pattern, by name."""

from cupy_backend.plan.lowering import Lowering, Rule
from cupy_backend.plan.patterns import Group
from poem.graph import Node

RULES: dict[str, Rule] = {}


def rule(*names: str):  # type: ignore[no-untyped-def]
    """Registers the decorated function for ops, or for patterns by name."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def node_of(lowering: Lowering, group: Group, which: int = 0) -> Node:
    """One of the nodes of a group, by its number among them."""
    return lowering.graph.nodes[group.nodes[which]]
