"""Launches of gather.cu: rows by index, columns, rows of plain and quantised tables.

Each function turns arrays into launches; what no kernel serves is a KernelError (`kernel.unsupported`). Indices are not checked on the
device: whoever makes them answers for them, and one outside its rows reads row 0.
"""

import math
from collections.abc import Mapping, Sequence

from cupy_backend.errors import KernelError
from cupy_backend.kernels.arrays import reading, updating, writing
from cupy_backend.launch import Argument, Array, Launch, Scalar
from poem.dtypes import Dtype
from poem.dtypes.term import LEAF_BITS, Grouped, Leaf

SOURCE = "gather.cu"
THREADS = 256
UNITS = {1: "uint8_t", 2: "uint16_t", 4: "uint32_t", 8: "uint2", 16: "uint4"}  # what a thread copies, by bytes
COLUMNS = 8  # of a quantised row, decoded by a thread
CODES = {
    "u2": "u2", "u4": "u4", "e2m1": "e2m1", "u8": "uint8_t", "i8": "int8_t", "e4m3": "e4m3", "e5m2": "e5m2",
}  # fmt: skip
GAINS = {"bf16": "bf16", "f16": "f16", "f32": "float", "e8m0": "e8m0", "e4m3": "e4m3"}


def embed(ids: Array, table: Mapping[str, Array], out: Array, *, dtype: Dtype, vocab: int, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """out[n] = table[ids[n]], in the compute dtype of the table; ids i32 of any shape, out `[ids, width]` in their order.

    table: the planes of a weight `[rows, width]` of `dtype`, by path. Ids outside 0 .. vocab - 1 read row 0.
    """
    if isinstance(dtype.term, Leaf):
        return [_copy_rows(table["data"], ids, out, vocab, zeros=False, nodes=nodes)]
    return [_decode_rows(ids, table, out, dtype, vocab, nodes)]


def gather_rows(x: Array, rows: Array, out: Array, *, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """out[i] = x[rows[i]]: x `[N, width]`, rows i32 `[M]`, out `[M, width]`."""
    return [_copy_rows(x, rows, out, x.shape[0], zeros=False, nodes=nodes)]


def pack_rows(x: Array, rows: Array, out: Array, *, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """out[i] = x[rows[i]], a row of zeros where rows[i] is -1."""
    return [_copy_rows(x, rows, out, x.shape[0], zeros=True, nodes=nodes)]


def split_columns(x: Array, parts: Sequence[Array], *, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """The columns of x `[N, sum of widths]`, in order, into parts `[N, width]`: one launch for each part."""
    launches, first = [], 0
    for part in parts:
        width = part.shape[1]
        launches.append(_copy_columns(x, writing(part), x.shape[0], width, (x.shape[1], first), (width, 0), nodes))
        first += width
    return launches


def concat_columns(parts: Sequence[Array], out: Array, *, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """The columns of parts `[N, width]` side by side in out `[N, sum of widths]`: one launch for each part."""
    launches, first = [], 0
    for part in parts:
        width = part.shape[1]
        launches.append(_copy_columns(part, updating(out), out.shape[0], width, (width, 0), (out.shape[1], first), nodes))
        first += width
    return launches


def split_q_gate(x: Array, q: Array, gate: Array, *, head_dim: int, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """x `[N, heads * 2 * head_dim]` holds for each head head_dim columns of q, then as many of the gate."""
    heads = math.prod(x.shape) // (2 * head_dim)
    return [
        _copy_columns(x, writing(part), heads, head_dim, (2 * head_dim, first), (head_dim, 0), nodes)
        for part, first in ((q, 0), (gate, head_dim))
    ]


def _copy_rows(x: Array, rows: Array, out: Array, limit: int, *, zeros: bool, nodes: tuple[int, ...]) -> Launch:
    count, width = math.prod(rows.shape), x.shape[1]
    unit, units = _units(x, width, 0)
    arguments: dict[str, Argument] = {
        "x": reading(x), "rows": reading(rows), "out": writing(out), "count": Scalar(count, "i32"), "units": Scalar(units, "i32"),
        "limit": Scalar(limit, "i32"),
    }  # fmt: skip
    kernel = f"copy_rows<{unit}, {'true' if zeros else 'false'}>"
    return Launch(SOURCE, kernel, _grid(count * units), (THREADS, 1, 1), arguments, nodes=nodes)


def _copy_columns(
    x: Array, out: Array, rows: int, width: int, x_at: tuple[int, int], out_at: tuple[int, int], nodes: tuple[int, ...]
) -> Launch:
    """x_at and out_at: columns of a row, and the first of those that are copied."""
    unit, units = _units(x, width, math.gcd(*x_at, *out_at))
    scale = width // units  # elements in a unit
    sizes = {"rows": rows, "units": units, "x_stride": x_at[0] // scale, "x_first": x_at[1] // scale}
    sizes |= {"out_stride": out_at[0] // scale, "out_first": out_at[1] // scale}
    arguments: dict[str, Argument] = {"x": reading(x), "out": out, **{name: Scalar(size, "i32") for name, size in sizes.items()}}
    return Launch(SOURCE, f"copy_columns<{unit}>", _grid(rows * units), (THREADS, 1, 1), arguments, nodes=nodes)


def _units(x: Array, width: int, step: int) -> tuple[str, int]:
    """The largest unit that `width` elements, and steps of `step`, are whole numbers of, and how many a row has."""
    element = LEAF_BITS[x.dtype] // 8
    if element == 0:
        raise _unsupported("elements of whole bytes", x.dtype)
    size = math.gcd(max(UNITS), width * element, step * element)
    return UNITS[size], width * element // size


def _decode_rows(ids: Array, table: Mapping[str, Array], out: Array, dtype: Dtype, vocab: int, nodes: tuple[int, ...]) -> Launch:
    term = dtype.term
    assert isinstance(term, Grouped)
    count, width, rows = math.prod(ids.shape), out.shape[1], table["code"].shape[0]
    kernel, factors = _formula(term, table)
    groups = term.group
    if groups.kind == "tensor" or out.dtype != "bf16":
        raise _unsupported("runs, tiles or rows that share a gain, decoded to bf16", f"{dtype} to {out.dtype}")
    height, size = (groups.rows if groups.kind == "tile" else 1), (width if groups.kind == "row" else groups.size)
    columns = math.gcd(COLUMNS, width, size)
    if columns * LEAF_BITS[term.code] % 8:
        raise _unsupported("groups of a whole number of bytes", str(dtype))
    sizes = {"count": count, "width": width, "vocab": min(vocab, rows), "height": height, "size": size, "per_row": -(-width // size)}
    arguments: dict[str, Argument] = {
        "ids": reading(ids), "code": reading(table["code"]), **{name: reading(factor) for name, factor in factors.items()},
        "out": writing(out), **{name: Scalar(number, "i32") for name, number in sizes.items()},
    }  # fmt: skip
    form = f"{CODES[term.code]}, {GAINS[factors['gain'].dtype]}, {columns}"
    return Launch(SOURCE, f"{kernel}<{form}>", _grid(count * width // columns), (THREADS, 1, 1), arguments, nodes=nodes)


def _formula(term: Grouped, table: Mapping[str, Array]) -> tuple[str, dict[str, Array]]:
    """The kernel that decodes a term, and the factors it takes, by parameter name."""
    gain, offset = term.gain, term.offset
    if term.tail == "n" and isinstance(gain, Leaf):
        return "embed_scaled", {"gain": table["gain"]}
    if term.tail == "b" and gain == offset and isinstance(gain, Leaf):
        return "embed_affine", {"gain": table["gain"], "offset": table["offset"]}
    whole = isinstance(gain, Grouped) and gain.group.kind == "tensor" and gain.tail == "n" and gain.gain == Leaf("f32")
    if term.tail == "n" and whole and "gain.rows" not in table:
        return "embed_scaled_twice", {"gain": table["gain.code"], "outer": table["gain.gain"]}
    raise _unsupported("code * gain, code * gain * one number, or code * gain + offset", str(term))


def _grid(threads: int) -> tuple[int, int, int]:
    return max(1, -(-threads // THREADS)), 1, 1


def _unsupported(expected: str, found: str) -> KernelError:
    return KernelError("kernel.unsupported", "no gather kernel serves this", phase="plan", expected=expected, found=found)
