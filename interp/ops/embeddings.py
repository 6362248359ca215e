"""ops.gather: rows of tables. An id outside the vocabulary reads row 0."""

import numpy as np

from interp.call import Call
from poem.dtypes.tensor import Tensor


def embed(call: Call, ids: np.ndarray, table: Tensor, vocab: int) -> np.ndarray:
    """`table[ids]`."""
    return call.rows(table, _known(ids, vocab))


def embed_weighted(call: Call, ids: np.ndarray, weights: np.ndarray, table: Tensor, vocab: int) -> np.ndarray:
    """`sum_t weights[:, t] * table[ids[:, t]]`, in the order of the taps."""
    taps = _known(ids, vocab).reshape(weights.shape)
    total = np.zeros((len(taps), table.shape[1]), call.numeric.real)
    for tap in range(weights.shape[1]):
        total += weights[:, tap : tap + 1] * call.rows(table, taps[:, tap])
    return total


def embed_concat(call: Call, ids: np.ndarray, table: Tensor, vocab: int) -> np.ndarray:
    """The rows of all ids of a row side by side."""
    columns = 1 if ids.ndim < 2 else ids.shape[1]
    return call.rows(table, _known(ids, vocab).reshape(-1)).reshape(len(ids), columns * table.shape[1])


def _known(ids: np.ndarray, vocab: int) -> np.ndarray:
    known = ids.astype(np.uint32) < vocab  # negative ids become large ones
    return ids if np.count_nonzero(known) == known.size else np.where(known, ids, 0)
