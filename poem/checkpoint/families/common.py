"""What the families share: names of companions, and weights whose planes lie in the checkpoint as they are."""

from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np

from poem.checkpoint.planes import bad_scale, select
from poem.checkpoint.stored import RawTensor, Stored, Table
from poem.dtypes import Dtype, Plane
from poem.dtypes.tensor import STORAGE, Tensor
from poem.errors import CheckpointError

ACTIVATION_SCALES = ("input_scale", "activation_scale", "input_global_scale")


def module_of(name: str) -> str:
    """A name without its ending `.weight`."""
    return name.removesuffix(".weight")


def companions(table: Table, name: str, *found: RawTensor | None) -> tuple[str, ...]:
    """The names of all tensors that count as read with a weight: those given, and static scales of its activations.

    Poem leaves activations alone or quantises them as they come, so their static scales are read and dropped.
    """
    module = module_of(name)
    joint = "." if name.endswith(".weight") else "_"
    dropped = [f"{module}{joint}{scale}" for scale in ACTIVATION_SCALES]
    return (*(tensor.name for tensor in found if tensor is not None), *(scale for scale in dropped if scale in table))


def from_planes(
    name: str, word: str, dtype: Dtype, shape: tuple[int, ...], tensors: tuple[str, ...], planes: Mapping[str, RawTensor | np.ndarray]
) -> Stored:
    """A stored weight whose planes are tensors of the checkpoint, viewed with the shapes that the term gives them."""
    try:
        wanted = {plane.path: plane for plane in dtype.planes(shape)}
    except ValueError as fault:
        return unreadable(name, word, shape, tensors, str(fault))
    for path, plane in planes.items():
        held, needed = plane.nbytes, wanted[path].nbytes
        if held != needed:
            return unreadable(name, word, shape, tensors, f"the {path} of {list(shape)} {word} takes {needed} bytes, found {held}")

    @cache
    def whole() -> Tensor:
        tensor = Tensor(dtype, shape, {path: _shaped(plane, wanted[path]) for path, plane in planes.items()})
        wrong = bad_scale(tensor)
        if wrong is not None:
            path, index = wrong
            held = planes[path]
            where = held.name if isinstance(held, RawTensor) else name
            raise CheckpointError(
                "import.bad-scale", f"a scale of `{name}` is not finite", phase="import",
                file=str(held.file.path) if isinstance(held, RawTensor) else "", found=f"`{where}` at {list(index)}",
                hint="the checkpoint is damaged, or was quantised wrongly",
            )  # fmt: skip
        return tensor

    return Stored(name, word, shape, dtype, tensors, lambda start, stop: _rows(whole(), start, stop))


def _shaped(plane: RawTensor | np.ndarray, wanted: Plane) -> np.ndarray:
    if isinstance(plane, np.ndarray):
        return plane
    storage = STORAGE[wanted.leaf]
    raw = plane.raw()
    return (raw.copy() if plane.offset % storage.itemsize else raw).view(storage).reshape(wanted.packed_shape)


def _rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    return tensor if (start, stop) == (0, tensor.shape[0]) else select(tensor, 0, range(start, stop))


def unreadable(name: str, word: str, shape: Iterable[int], tensors: tuple[str, ...], problem: str) -> Stored:
    """A stored weight that was recognised and cannot be read; `problem` says why."""

    def read(start: int, stop: int) -> Tensor:
        raise ValueError(problem)

    return Stored(name, word, tuple(shape), Dtype("u8"), tensors, read, problem=problem)
