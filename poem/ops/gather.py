"""ops.gather: moving rows and columns. Copies keep bits."""

from poem.graph import ValueType
from poem.ops.checks import has_rank, has_width, holds
from poem.ops.record import AnyValue, AnyWeight, Count, Ids, op, result


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
    has_rank(table, 2, 2, "table")
    holds(vocab <= table.shape[0], 3, "vocab", f"at most the table's {table.shape[0]} rows", vocab)
    return result(ids, width=table.shape[1], dtype=table.dtype.compute)


@op("gather")
def gather_rows(x: AnyValue, rows: Ids) -> ValueType:
    """Rows of x by index; any dtype.

    Shapes: x [A, W] on any axis, rows i32 [B] on any axis -> y [B, W], on the axis of rows
    Formula: y[i] = x[rows[i]]
    Rounding: none, bits are kept
    Rules:
        1. rows is one column.
    Edge: an index outside x's rows is a run-time error
    For: readout rows; spreading one row per lane over the tokens
    """
    has_width(rows, 1, 1, "rows")
    return result(x, rows=rows.rows)
