"""Launches of gather.cu: rows by index, columns, sums of rows, rows of plain and quantised tables.

Each function turns arrays into launches; what no kernel serves is a KernelError (`kernel.unsupported`). Indices are not checked on the
device: whoever makes them answers for them, and one outside its rows reads row 0.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cupy_backend.errors import KernelError
from cupy_backend.kernels.arrays import reading, type_of, vector, writing
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
    """The columns of x `[N, sum of widths]`, in order, into parts `[N, width]`."""
    unit, units = _units_of_parts(parts)
    count = x.shape[0] * sum(units)
    arguments: dict[str, Argument] = {"x": reading(x), "count": Scalar(count, "i64")}
    arguments |= {f"part_{number}": writing(part) for number, part in enumerate(parts)}
    return [Launch(SOURCE, f"split_columns<{unit}, {_listed(units)}>", _grid(count), (THREADS, 1, 1), arguments, nodes=nodes)]


def concat_columns(parts: Sequence[Array], out: Array, *, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """The columns of parts `[N, width]` side by side in out `[N, sum of widths]`."""
    unit, units = _units_of_parts(parts)
    count = out.shape[0] * sum(units)
    arguments: dict[str, Argument] = {"out": writing(out), "count": Scalar(count, "i64")}
    arguments |= {f"part_{number}": reading(part) for number, part in enumerate(parts)}
    return [Launch(SOURCE, f"concat_columns<{unit}, {_listed(units)}>", _grid(count), (THREADS, 1, 1), arguments, nodes=nodes)]


def split_q_gate(x: Array, q: Array, gate: Array, *, head_dim: int, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """x `[N, heads * 2 * head_dim]` holds for each head head_dim columns of q, then as many of the gate."""
    heads = math.prod(x.shape) // (2 * head_dim)
    parts = [replace(part, shape=(heads, head_dim)) for part in (q, gate)]
    return split_columns(replace(x, shape=(heads, 2 * head_dim)), parts, nodes=nodes)


def select_columns(x: Array, first: int, out: Array, *, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """out `[N, width]` = columns `first .. first + width` of x."""
    rows, width = out.shape
    unit, units = _units(x, width, math.gcd(x.shape[1], first))
    scale = width // units  # elements in a unit
    sizes = {"rows": rows, "units": units, "stride": x.shape[1] // scale, "first": first // scale}
    arguments: dict[str, Argument] = {
        "x": reading(x), "out": writing(out), **{name: Scalar(size, "i32") for name, size in sizes.items()}
    }  # fmt: skip
    return [Launch(SOURCE, f"select_columns<{unit}>", _grid(rows * units), (THREADS, 1, 1), arguments, nodes=nodes)]


def scatter_rows(
    src: Array, routes: Array, y: Array | None, out: Array, *, live: Array | None = None, rows_of_live: int = 1, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """out `[N, width]` = y, or zeros without it, where no route leads; row routes[i] is src[i], of several the last.

    routes i32, at least as many as src has rows; those that are no row of out lead nowhere. live: i32 `[1]`, where src has more rows than
    the pass: only the first live * rows_of_live count.
    """
    unit, units = _units(src, out.shape[1], 0)
    missing = Scalar(0, "u64")  # a null pointer
    arguments: dict[str, Argument] = {
        "src": reading(src), "routes": reading(routes), "y": missing if y is None else reading(y), "out": writing(out),
        "live": missing if live is None else reading(live), "count": Scalar(src.shape[0] if live is None else rows_of_live, "i32"),
        "units": Scalar(units, "i32"),
    }  # fmt: skip
    return [Launch(SOURCE, f"scatter_rows<{unit}>", (out.shape[0], 1, 1), (THREADS, 1, 1), arguments, nodes=nodes)]


def mean_rows(x: Array, out: Array, *, size: int, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """out[n] `[N, width]` = the mean of the n-th run of `size` rows of x."""
    rows, width = out.shape
    vec = vector(x.dtype, width)
    sizes = {"rows": rows, "width": width, "size": size}
    arguments: dict[str, Argument] = {"x": reading(x), "out": writing(out), **{name: Scalar(of, "i32") for name, of in sizes.items()}}
    kernel = f"mean_rows<{type_of(x)}, {vec}>"
    return [Launch(SOURCE, kernel, _grid(rows * width // vec), (THREADS, 1, 1), arguments, nodes=nodes)]


def embed_weighted(
    ids: Array, weights: Array, table: Mapping[str, Array], out: Array, *, dtype: Dtype, vocab: int, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """out[n] `[N, width]` = the sum over t of weights[n, t] * table[ids[n, t]]; ids i32, weights f32 `[N, taps]`.

    A plain table of out's dtype. Ids outside 0 .. vocab - 1 read row 0.
    """
    if not isinstance(dtype.term, Leaf):
        raise _unsupported("weighted rows of plain tables", str(dtype))
    (rows, width), taps = out.shape, math.prod(ids.shape) // out.shape[0]
    vec = vector(out.dtype, width)
    sizes = {"rows": rows, "taps": taps, "width": width, "vocab": vocab}
    arguments: dict[str, Argument] = {
        "ids": reading(ids), "weights": reading(weights), "table": reading(table["data"]), "out": writing(out),
        **{name: Scalar(size, "i32") for name, size in sizes.items()},
    }  # fmt: skip
    kernel = f"embed_weighted<{type_of(out)}, {vec}>"
    return [Launch(SOURCE, kernel, _grid(rows * width // vec), (THREADS, 1, 1), arguments, nodes=nodes)]


def _copy_rows(x: Array, rows: Array, out: Array, limit: int, *, zeros: bool, nodes: tuple[int, ...]) -> Launch:
    count, width = math.prod(rows.shape), x.shape[1]
    unit, units = _units(x, width, 0)
    arguments: dict[str, Argument] = {
        "x": reading(x), "rows": reading(rows), "out": writing(out), "count": Scalar(count, "i32"), "units": Scalar(units, "i32"),
        "limit": Scalar(limit, "i32"),
    }  # fmt: skip
    kernel = f"copy_rows<{unit}, {'true' if zeros else 'false'}>"
    return Launch(SOURCE, kernel, _grid(count * units), (THREADS, 1, 1), arguments, nodes=nodes)


def _units_of_parts(parts: Sequence[Array]) -> tuple[str, list[int]]:
    """The largest unit that the rows of all parts are whole numbers of, and how many each has."""
    widths = [part.shape[1] for part in parts]
    unit, units = _units(parts[0], math.gcd(*widths), 0)
    return unit, [width * units // math.gcd(*widths) for width in widths]


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


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
