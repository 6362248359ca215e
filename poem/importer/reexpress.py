"""Exact re-expressions: codes that mean the same under another term, with factors repeated or widened.

a scale for the whole tensor -> one a row, or one a tile        a longer run -> shorter runs that divide it
bf16, f16 or e8m0 factors -> f32                                wider factors -> bf16, where every one is a bf16 number
"""

import numpy as np

from poem.dtypes import Dtype, leaves
from poem.dtypes.tensor import Tensor
from poem.dtypes.term import Group, Grouped, Leaf
from poem.formats.lazy import Refusal


def can_reexpress(dtype: Dtype, wanted: Dtype) -> bool:
    """Whether the codes of a weight can stay as they are under another dtype. Values of narrower factors are checked later."""
    old, new = dtype.term, wanted.term
    if old == new:
        return True
    if not isinstance(old, Grouped) or not isinstance(new, Grouped) or (old.code, old.tail) != (new.code, new.tail):
        return False
    factors = [(old.gain, new.gain)] + ([(old.offset, new.offset)] if old.offset is not None else [])
    plain = all(isinstance(a, Leaf) and isinstance(b, Leaf) and b.name in leaves.WHOLE_FLOATS for a, b in factors)
    return plain and _divides(old.group, new.group)


def _divides(old: Group, new: Group) -> bool:
    if old == new:
        return True
    if old.kind == "tensor":
        return new.kind in ("row", "tile")
    return old.kind == new.kind == "run" and old.size % new.size == 0


def reexpress(tensor: Tensor, wanted: Dtype) -> Tensor:
    """The same values under `wanted`; `can_reexpress` holds. Refusal (`import.requantise`) where a factor would be rounded."""
    old, new = tensor.dtype.term, wanted.term
    if old == new:
        return Tensor(wanted, tensor.shape, tensor.planes)
    assert isinstance(old, Grouped)
    assert isinstance(new, Grouped)
    planes = {"code": tensor.planes["code"]}
    for path, before, after in (("gain", old.gain, new.gain), ("offset", old.offset, new.offset)):
        if before is None or after is None:
            continue
        stored = tensor.planes[path]
        exact = leaves.decode(stored.reshape(-1), str(before), np.float64).reshape(stored.shape)
        narrow = leaves.encode(exact, str(after))
        if not np.array_equal(leaves.decode(narrow.reshape(-1), str(after), np.float64).reshape(stored.shape), exact):
            raise Refusal(
                "import.requantise", f"a {path} stored as {before} is no {after} number, so the codes cannot be kept",
                hint="name the deployment and ask for it: --deployment NAME --requantise",
            )  # fmt: skip
        planes[path] = _repeated(narrow, old.group, new.group, tensor.shape)
    return Tensor(wanted, tensor.shape, planes)


def _repeated(factor: np.ndarray, old: Group, new: Group, shape: tuple[int, ...]) -> np.ndarray:
    if old == new:
        return factor
    wanted = new.factor_shape(shape)
    if old.kind == "tensor":
        return np.broadcast_to(factor.reshape((1,) * len(wanted)), wanted)
    return np.repeat(factor, old.size // new.size, axis=-1)
