"""Exact re-expressions: codes that mean the same under another term, with factors repeated, widened or multiplied out.

a scale for a tensor or bank entry -> one a row or tile         a longer run -> shorter runs that divide it
bf16, f16 or e8m0 factors -> f32                                wider factors -> bf16, where every one is a bf16 number
(code - zero) * gain -> code * gain + offset, with offset = -zero * gain, where both are numbers of the new factors
"""

from collections.abc import Mapping

import numpy as np

from poem.dtypes import Dtype, leaves
from poem.dtypes.tensor import Tensor
from poem.dtypes.term import Group, Grouped, Leaf


def can_reexpress(dtype: Dtype, wanted: Dtype) -> bool:
    """Whether the codes of a weight can stay as they are under another dtype, as far as terms tell: see `inexact`."""
    old, new = dtype.term, wanted.term
    if old == new:
        return True
    if not isinstance(old, Grouped) or not isinstance(new, Grouped) or old.code != new.code:
        return False
    if (old.tail, new.tail) not in (("n", "n"), ("b", "b"), ("z", "b")):
        return False
    plain = all(factor is None or isinstance(factor, Leaf) for factor in (old.gain, old.offset))
    floats = all(factor is None or str(factor) in leaves.WHOLE_FLOATS for factor in (new.gain, new.offset))
    return plain and floats and _divides(old.group, new.group)


def _divides(old: Group, new: Group) -> bool:
    if old == new:
        return True
    if old.kind == "tensor":
        return new.kind in ("row", "tile")
    return old.kind == new.kind == "run" and old.size % new.size == 0


def inexact(dtype: Dtype, wanted: Dtype, factors: Mapping[str, np.ndarray]) -> str:
    """Why a weight of these factors cannot be re-expressed though its term could: which factor would be rounded. Or ""."""
    if dtype.term == wanted.term:
        return ""
    _, problem = _converted(dtype, wanted, factors)
    return problem


def reexpress(tensor: Tensor, wanted: Dtype) -> Tensor:
    """The same values under `wanted`; `can_reexpress` holds. ValueError where a factor would be rounded."""
    old, new = tensor.dtype.term, wanted.term
    if old == new:
        return Tensor(wanted, tensor.shape, tensor.planes)
    assert isinstance(old, Grouped)
    assert isinstance(new, Grouped)
    factors, problem = _converted(tensor.dtype, wanted, tensor.planes)
    if problem:
        raise ValueError(problem)
    repeated = {path: _repeated(factor, old.group, new.group, tensor.shape) for path, factor in factors.items()}
    return Tensor(wanted, tensor.shape, {"code": tensor.planes["code"], **repeated})


def _converted(dtype: Dtype, wanted: Dtype, planes: Mapping[str, np.ndarray]) -> tuple[dict[str, np.ndarray], str]:
    """The factors as the leaves of the wanted term, one for each old group; and which of them is not exact, or ""."""
    old, new = dtype.term, wanted.term
    assert isinstance(old, Grouped)
    assert isinstance(new, Grouped)
    # A zero point has 8 bits and a bf16 or f16 gain at most 11: their product is exact in float32.
    wide = np.float32 if str(old.gain) in ("bf16", "f16") and str(old.offset) not in ("f32", "f64") else np.float64
    exact = {"gain": leaves.decode(planes["gain"].reshape(-1), str(old.gain), wide).reshape(planes["gain"].shape)}
    if old.offset is not None:
        offset = leaves.decode(planes["offset"].reshape(-1), str(old.offset), wide).reshape(planes["offset"].shape)
        with np.errstate(over="ignore"):
            exact["offset"] = 0 - offset * exact["gain"] if old.tail == "z" else offset
    found: dict[str, np.ndarray] = {}
    for path, values in exact.items():
        leaf = str(new.gain if path == "gain" else new.offset)
        if leaf == str(old.gain if path == "gain" else old.offset):
            found[path] = planes[path]
            continue
        found[path] = leaves.encode(values, leaf)
        wrong = (leaves.decode(found[path].reshape(-1), leaf, wide).reshape(values.shape) != values) | np.isinf(values)
        if wrong.any():
            at = tuple(int(index) for index in np.argwhere(wrong)[0])
            return found, f"its codes can only be kept where every {path} is a {leaf} number: {float(values[at])!r} at {list(at)} is none"
    return found, ""


def _repeated(factor: np.ndarray, old: Group, new: Group, shape: tuple[int, ...]) -> np.ndarray:
    if old == new:
        return factor
    wanted = new.factor_shape(shape)
    if old.kind == "tensor":
        return np.broadcast_to(factor.reshape(factor.shape + (1,) * (len(wanted) - factor.ndim)), wanted)
    return np.repeat(factor, old.size // new.size, axis=-1)
