"""compressed-tensors' packed weights, under `P.weight_packed`.

U8 with P.weight_scale F8_E4M3 and P.weight_global_scale F32 [1]: nvfp4; the global scale is the reciprocal of ours
U8 with P.weight_scale U8: mxfp4
I32 with P.weight_scale [N, K/g] or [N, 1]: integers; element i of a row at bit `bits * i`, stored as q + 2^(bits - 1).
    P.weight_shape I64 [N, K];  P.weight_zero_point I32, packed along rows, where the groups are not symmetric;
    P.weight_g_idx I32 [K], the group of each column, where the groups are scattered.  value = (q - zero) * scale
"""

import numpy as np

from poem.checkpoint.families.common import companions, from_planes, illegible, unreadable
from poem.checkpoint.families.config import BITS, Stated
from poem.checkpoint.families.mlx import whole_scale
from poem.checkpoint.stored import RawTensor, Stored, Table
from poem.dtypes import Dtype, leaves
from poem.dtypes.tensor import Tensor

SCALES = ("bf16", "f16", "f32")


def find(table: Table, name: str, stated: Stated) -> Stored | None:
    """Packed codes of a weight of that name."""
    raw, scale, outer = table.get(f"{name}_packed"), table.get(f"{name}_scale"), table.get(f"{name}_global_scale")
    if raw is None or len(raw.shape) < 2:
        return None
    shape_of, zero, group_of = (table.get(f"{name}_{part}") for part in ("shape", "zero_point", "g_idx"))
    tensors = companions(table, name, raw, scale, outer, shape_of, zero, group_of)
    if scale is None:
        return unreadable(name, raw.tag.lower(), raw.shape, tensors, f"packed codes without their scale `{name}_scale`")
    if raw.tag == "I32" and outer is None and len(raw.shape) == 2:
        return _integers(name, raw, scale, shape_of, zero, group_of, tensors, stated)
    shape = (*raw.shape[:-1], raw.shape[-1] * 2)
    if zero is not None or group_of is not None:
        return unreadable(name, raw.tag.lower(), shape, tensors, "zero points and scattered groups belong to packed integers only")
    if raw.tag == "U8" and scale.tag == "F8_E4M3":
        if outer is None:
            return unreadable(name, "nvfp4", shape, tensors, f"NVFP4 codes without `{name}_global_scale`")
        if outer.tag != "F32" or outer.nbytes != 4 * int(np.prod(shape[:-2])):
            problem = f"NVFP4 wants one F32 global scale, found {list(outer.shape)} {outer.tag}"
            return unreadable(name, "nvfp4", shape, tensors, problem)
        with np.errstate(divide="ignore", over="ignore"):
            gain = np.float32(1) / outer.data()
        return from_planes(name, "nvfp4", Dtype("nvfp4"), shape, tensors, raw, {"gain.code": scale, **whole_scale(gain, shape)})
    if raw.tag == "U8" and scale.tag == "U8" and outer is None:
        return from_planes(name, "mxfp4", Dtype("mxfp4"), shape, tensors, raw, {"gain": scale})
    problem = f"packed {raw.tag} codes with {scale.tag} scales {'and' if outer is not None else 'without'} a global scale"
    return unreadable(name, raw.tag.lower(), raw.shape, tensors, problem)


# -- integers --------------------------------------------------------------------------------------
def _integers(
    name: str, raw: RawTensor, scale: RawTensor, shape_of: RawTensor | None, zero: RawTensor | None, group_of: RawTensor | None,
    tensors: tuple[str, ...], stated: Stated,
) -> Stored:  # fmt: skip
    rows, words = raw.shape
    if shape_of is None or shape_of.leaf not in ("i64", "i32") or shape_of.nbytes != (16 if shape_of.leaf == "i64" else 8):
        return unreadable(name, "int", raw.shape, tensors, f"packed integers without their shape `{name}_shape`")
    held, columns = (int(extent) for extent in shape_of.data().reshape(-1))
    fitting = [bits for bits in BITS if -(-columns * bits // 32) == words]
    bits = stated.bits if stated.method == "compressed-tensors" and not stated.ignored else fitting[0] if len(fitting) == 1 else None
    shape = (rows, columns)
    word = f"int{bits}:g{columns // max(1, scale.shape[-1] if len(scale.shape) == 2 else 0)}"
    if held != rows or not fitting or bits not in (*fitting, None):
        said = f"{bits} bits" if fitting else "2, 4 or 8 bits"
        problem = f"packed words {list(raw.shape)} do not hold the shape [{held}, {columns}] that it states, in {said}"
        return unreadable(name, word, shape, tensors, problem)
    if bits is None:
        return unreadable(name, word, shape, tensors, "its bits are not told by the configuration")
    groups = scale.shape[-1] if len(scale.shape) == 2 else 0
    group = columns // max(1, groups)
    if scale.leaf not in SCALES or scale.shape != (rows, groups) or group * groups != columns or (stated.group or group) != group:
        wanted = f"[{rows}, {columns // stated.group if stated.group and columns % stated.group == 0 else '1 or K/group'}]"
        problem = f"the scales of {list(shape)} int{bits} are {wanted} floats, found {list(scale.shape)} {scale.tag}"
        return unreadable(name, word, shape, tensors, problem)
    if zero is None and stated.symmetric is False:
        return unreadable(name, word, shape, tensors, f"its groups are not symmetric, and `{name}_zero_point` is missing")
    if zero is not None and (zero.tag != "I32" or zero.shape != (-(-rows * bits // 32), groups)):
        problem = f"zero points of {list(shape)} int{bits} are I32 [{-(-rows * bits // 32)}, {groups}], found {list(zero.shape)} {zero.tag}"
        return unreadable(name, word, shape, tensors, problem)
    if columns * bits % 8:
        return unreadable(name, word, shape, tensors, f"a row of {columns} codes of {bits} bits is no whole number of bytes")

    def zeros() -> np.ndarray:
        if zero is None:
            return np.full((rows, groups), 1 << (bits - 1), np.uint8)
        packed = np.ascontiguousarray(zero.data().T).view(np.uint8)  # [groups, bytes of all rows]
        return np.ascontiguousarray(leaves.unpack(packed, bits)[:, :rows].T)

    def factors(start: int, stop: int) -> dict[str, np.ndarray]:
        return {"gain": scale.data(start, stop), "offset": zeros()[start:stop]}

    def codes(start: int, stop: int) -> np.ndarray:
        return raw.data(start, stop).view(np.uint8)[:, : columns * bits // 8]

    stored = from_planes(name, word, Dtype(f"g{group}_u{bits}_{scale.leaf}_z_u8"), shape, tensors, codes, factors)
    return stored if group_of is None or stored.problem else _scattered(stored, group_of, bits)


def _scattered(stored: Stored, group_of: RawTensor, bits: int) -> Stored:
    """Groups that are no runs of columns: column k belongs to group g_idx[k]. No term says so: they are decoded."""
    columns = stored.shape[1]

    def index() -> np.ndarray:
        groups = stored.factors()["gain"].shape[1]
        found = group_of.data().reshape(-1)
        if group_of.leaf not in ("i32", "i64") or found.shape != (columns,):
            raise illegible(stored.name, group_of, "every column wants its group", f"{list(group_of.shape)} {group_of.tag}")
        wrong = np.flatnonzero((found < 0) | (found >= groups))
        if wrong.size:
            raise illegible(stored.name, group_of, f"its groups are 0 to {groups - 1}", f"holds {found[wrong[0]]} at [{wrong[0]}]")
        return found

    def read(start: int, stop: int) -> Tensor:
        tensor, columns_of = stored.read(start, stop), index()
        gain, zero = (tensor.planes[path].astype(np.float32)[:, columns_of] for path in ("gain", "offset"))
        return Tensor.of((leaves.unpack(tensor.planes["code"], bits) - zero) * gain)

    def check() -> tuple[str, ...]:
        index()
        return stored.check()

    return Stored(stored.name, stored.word, stored.shape, Dtype("f32"), stored.tensors, read, decoded=True, check=check)
