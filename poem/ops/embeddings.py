"""ops.gather: rows of learned tables by id. Quantised tables are read weight-only."""

from poem.graph import ValueType
from poem.ops.checks import has_shape, has_width, holds, on_axis
from poem.ops.operands import Weight
from poem.ops.record import AnyWeight, Count, F32Value, Ids, op, result


def _table(table: Weight, vocab: int, rule: int) -> None:
    has_shape(table, (None, None), rule, "table")
    holds(vocab <= table.shape[0], rule + 1, "vocab", f"at most the table's {table.shape[0]} rows", vocab)


@op("gather")
def embed(ids: Ids, table: AnyWeight, vocab: Count) -> ValueType:
    """Rows of a table by id, without scaling.

    Shapes: ids i32 [N] on any axis, table [>= vocab, D] -> y [N, D], in the table's compute dtype (its own float dtype;
        bf16 for a quantised table)
    Formula: y[n] = table[ids[n]]
    Rounding: none for float tables; the decoded value of a quantised table is rounded once
    Rules:
        1. ids is one column.
        2. table is a matrix.
        3. vocab <= table.shape[0] (tables may be padded).
    Edge: an id below 0 or from vocab on reads row 0
    For: every text family
    Public: `nn.Embedding`
    """
    has_width(ids, 1, 1, "ids")
    _table(table, vocab, 2)
    return result(ids, width=table.shape[1], dtype=table.dtype.compute)


@op("gather")
def embed_weighted(ids: Ids, weights: F32Value, table: AnyWeight, vocab: Count) -> ValueType:
    """Weighted sums of table rows.

    Shapes: ids i32 [N, T] and weights f32 [N, T] on any one axis, table [>= vocab, D] -> y [N, D], in the table's compute
        dtype (its own float dtype; bf16 for a quantised table)
    Formula: y[n] = sum_t weights[n, t] * table[ids[n, t]], in the order of the taps
    Rounding: once, after the sum
    Rules:
        1. weights has the axis and width of ids.
        2. table is a matrix.
        3. vocab <= table.shape[0] (tables may be padded).
    Edge: an id below 0 or from vocab on reads row 0, with its weight
    For: position tables of the vision towers of qwen and gemma_4; self-conditioning
    """
    on_axis(weights, ids.rows, 1, "weights")
    has_width(weights, ids.width, 1, "weights")
    _table(table, vocab, 2)
    return result(ids, width=table.shape[1], dtype=table.dtype.compute)


@op("gather", extension=True)
def embed_concat(ids: Ids, table: AnyWeight, vocab: Count) -> ValueType:
    """Several table rows side by side.

    Shapes: ids i32 [N, J] on any axis, table [>= vocab, D] -> y [N, J*D], in the table's compute dtype (its own float dtype;
        bf16 for a quantised table)
    Formula: y[n, j*D + d] = table[ids[n, j], d]
    Rounding: none for float tables; the decoded value of a quantised table is rounded once
    Rules:
        1. table is a matrix.
        2. vocab <= table.shape[0] (tables may be padded).
    Edge: an id below 0 or from vocab on reads row 0
    For: n-gram tables
    """
    _table(table, vocab, 1)
    return result(ids, width=ids.width * table.shape[1], dtype=table.dtype.compute)
