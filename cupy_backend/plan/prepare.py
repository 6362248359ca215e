"""What is put into device memory for a weight: planes joined along the first axis, in the layout that the kernel wants."""

from collections.abc import Sequence

import numpy as np

from cupy_backend.plan.record import Stored
from poem.dtypes.tensor import Tensor


def stored_plane(stored: Stored, tensors: Sequence[Tensor]) -> np.ndarray:
    """The bytes of one buffer, from the tensors of its params."""
    planes = [tensor.planes[stored.plane] for tensor in tensors]
    return planes[0] if len(planes) == 1 else np.concatenate(planes)
