"""ops.sampling: choosing tokens."""

import numpy as np

from interp.call import Call


def argmax(call: Call, x: np.ndarray | list[np.ndarray]) -> np.ndarray:
    """The lowest column of the largest entry of each row, for one value or several. NaN never wins."""
    values = [x] if isinstance(x, np.ndarray) else x
    return np.stack([np.where(np.isnan(value), -np.inf, value).argmax(axis=1) for value in values], axis=1).astype(np.int32)
