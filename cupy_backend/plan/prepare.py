"""What is put into device memory for a weight: its planes in the layout that kernels want, joined with those of other weights."""

from collections.abc import Mapping, Sequence

import numpy as np

from cupy_backend.kernels import linear
from cupy_backend.kernels.linear_tables import FORMATS, format_of
from cupy_backend.plan.record import Stored
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor

PRODUCT = "product"  # the layout of linear.prepare
# Planes of that layout whose rows of the weight lie along the last axis.
TURNED = ("gain", "offset")


def planes_of(dtype: Dtype, rows: Sequence[int], below: tuple[int, ...], prepare: str) -> dict[str, tuple[tuple[int, ...], str]]:
    """Shape and leaf of each plane of weights `[rows, *below]` joined along the first axis, by path."""
    shape = (sum(rows), *below)
    if prepare != PRODUCT or dtype.is_leaf:
        return {plane.path: (plane.shape, plane.leaf) for plane in dtype.planes(shape)}
    kernel, (*lead, width) = format_of(dtype), shape
    turned = (-(-width // kernel.group) if kernel.group else 0, sum(map(_padded, rows)))
    found = {"code": ((*lead, width * kernel.code_bits // 8), "u8")}
    if kernel.group:
        found["gain"] = (turned, kernel.gain)
    if kernel.has_offset:
        found["offset"] = (turned, kernel.gain)
    if kernel.row_gain:
        found["row_gain"] = ((shape[0],), "f32")
    return found


def is_joinable(dtype: Dtype, rows: Sequence[int]) -> bool:
    """Whether weights of so many rows can lie behind each other: turned planes leave no room for padding between them."""
    return dtype.is_float or (dtype.name in FORMATS and (not FORMATS[dtype.name].group or all(_padded(count) == count for count in rows)))


def _padded(rows: int) -> int:
    return -(-rows // linear.ROW_ALIGNMENT) * linear.ROW_ALIGNMENT


def stored_planes(wanted: Sequence[Stored], tensors: Sequence[Tensor]) -> Mapping[str, np.ndarray]:
    """The arrays of the buffers of one weight, or of several joined, by buffer."""
    prepared = [linear.prepare(tensor.dtype, tensor.planes) if wanted[0].prepare == PRODUCT else tensor.planes for tensor in tensors]
    found = {}
    for stored in wanted:
        axis = -1 if stored.prepare == PRODUCT and stored.plane in TURNED else 0
        planes = [planes[stored.plane] for planes in prepared]
        joined = planes[0] if len(planes) == 1 else np.concatenate(planes, axis)
        planned = f"{stored.dtype} {stored.shape}"
        assert joined.nbytes == stored.array.nbytes, f"{stored.buffer} is {joined.dtype} {joined.shape}, planned {planned}"
        found[stored.buffer] = joined
    return found
