"""Tensors to write, as objects of a container, and what a folder holds afterwards."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from poem.artifact.container import Object, object_of
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor


def tensor_object(tensor: Tensor) -> Callable[[], Object]:
    segments = {path: plane.size for path, plane in tensor.planes.items() if path.endswith("rows")}
    planes = sorted(tensor.dtype.planes(tensor.shape, segments))
    return lambda: object_of(tensor.dtype, tensor.shape, planes, (tensor.planes[plane.path] for plane in planes))


def made(dtype: str, shape: tuple[int, ...] = (256, 128)) -> Tensor:
    values = np.random.default_rng(0).standard_normal(shape)
    if dtype == "bool":
        return Tensor.of(values > 0)
    if dtype[0] in "iu" and "g" not in dtype:
        values = np.abs(values) * 10
    return Tensor.encode(values.astype(np.float32), Dtype(dtype))


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())
