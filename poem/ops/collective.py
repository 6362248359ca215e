"""ops.collective: sums and gathers over the ranks of a sharded run.

A sharding pass inserts them, packages do not. On one device, with world 1, each is the identity.
"""

from poem.graph import ValueType
from poem.ops.checks import width_divides
from poem.ops.record import Activation, Count, op, result


@op("collective", extension=True)
def all_reduce(x: Activation) -> ValueType:
    """Sum a value over all ranks.

    Shapes: x [N, W] on any axis -> [N, W], x's dtype
    Formula: the sum of the ranks' x, in the order of the ranks; x itself on one device
    Rounding: once
    For: partial sums of products cut along the contracted axis
    """
    return result(x)


@op("collective", extension=True)
def all_gather(x: Activation, world: Count) -> ValueType:
    """Lay the columns of all ranks side by side.

    Shapes: x [N, W] on any axis -> [N, world*W], x's dtype
    Formula: column r*W + c is column c of rank r; x itself on one device
    Rounding: none
    For: values cut by columns
    """
    return result(x, width=x.width * world)


@op("collective", extension=True)
def reduce_scatter(x: Activation, world: Count) -> ValueType:
    """Sum a value over all ranks and leave each rank its share of the columns.

    Shapes: x [N, W] on any axis -> [N, W/world], x's dtype
    Formula: rank r keeps columns r*W/world .. of the sum of the ranks' x, in the order of the ranks; x itself on one device
    Rounding: once
    Rules:
        1. world divides x.width.
    For: partial sums whose result stays cut
    """
    return result(x, width=width_divides(x, world, 1, "x"))
