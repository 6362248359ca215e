"""ops.gather: rows and columns copied by index."""

import numpy as np

from interp.call import Call
from poem.dtypes.tensor import Tensor

COPIES = ("gather_rows",)


def embed(call: Call, ids: np.ndarray, table: Tensor, vocab: int) -> np.ndarray:
    """`table[ids]`; an id outside the vocabulary reads row 0."""
    return call.rows(table, np.where((ids >= 0) & (ids < vocab), ids, 0))


def gather_rows(call: Call, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """`x[rows]`; an index outside x is an error."""
    outside = rows.view(np.uint32) >= len(x)  # as unsigned, negative indices are large
    if outside.any():
        row = int(outside.argmax())
        raise call.error("run.index", f"rows is {rows[row]}, but x has {len(x)} rows", row=row)
    return x[rows]
