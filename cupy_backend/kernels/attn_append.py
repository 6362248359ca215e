"""Launches of attn_append.cu: rows into paged caches, with norms of heads and rotary positions on the way there.

A cache plane is `[pages, page_size, width]`. write_page and write_offset, i32 `[N]`, say where the cell of each row is; a row whose page or
offset does not exist is skipped, so that a padded row goes nowhere. scales: f32 `[1]` by which rows are divided, for cells of 8 bits.
"""

from dataclasses import dataclass
from typing import NamedTuple

from cupy_backend.kernels.arrays import Columns, columns_of, optional, reading, same_dtype, type_of, updating, vector, writing
from cupy_backend.kernels.paged import Scales, cell_of, row_arguments, scale_arguments
from cupy_backend.kernels.rope import Turn
from cupy_backend.launch import Argument, Array, Launch, Scalar

SOURCE = "attn_append.cu"
THREADS, ROPE_THREADS = 128, 256


class Slots(NamedTuple):
    """Where the cell of each row is."""

    write_page: Array
    write_offset: Array

    def arguments(self) -> dict[str, Argument]:
        return {"write_page": reading(self.write_page), "write_offset": reading(self.write_offset)}


def append(
    x: Array, cache: Array, slots: Slots, *, rows: Array | None = None, scale: Array | None = None, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """Stores each row of x in its cell of one plane. rows: i32 `[1]`, how many of them, where not all are to be stored."""
    arguments: dict[str, Argument] = {
        "x": reading(x), **slots.arguments(), "rows": optional(rows), "cache": updating(cache), "width": Scalar(x.shape[1], "i32"),
        **_pages(cache), "scale": optional(scale),
    }  # fmt: skip
    kernel = f"append<{type_of(x)}, {cell_of(cache)}, {vector_of(columns_of(x))}>"
    return [Launch(SOURCE, kernel, (x.shape[0], 1, 1), (THREADS, 1, 1), arguments, nodes=nodes)]


def kv_append(
    k: Array, v: Array, k_cache: Array, v_cache: Array, slots: Slots, *, rows: Array | None = None, scales: Scales = None,
    nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """Stores k and v of each row in its cells, each in its plane. rows: as for `append`."""
    same_dtype(k, v)
    arguments: dict[str, Argument] = {
        "k": reading(k), "v": reading(v), **slots.arguments(), "rows": optional(rows), "k_cache": updating(k_cache),
        "v_cache": updating(v_cache), "k_width": Scalar(k.shape[1], "i32"), "v_width": Scalar(v.shape[1], "i32"), **_pages(k_cache),
        **scale_arguments(scales),
    }  # fmt: skip
    kernel = f"kv_append<{type_of(k)}, {cell_of(k_cache)}, {vector_of(columns_of(k), columns_of(v))}>"
    return [Launch(SOURCE, kernel, (k.shape[0], 1, 1), (THREADS, 1, 1), arguments, nodes=nodes)]


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """The RMS norm of each head of q and of k: gains `[head_dim]`, to which plus_one adds 1."""

    q_gain: Array
    k_gain: Array
    eps: float
    plus_one: bool = False


def rope_append(
    q: Array | Columns, k: Array | Columns, v: Array | Columns, positions: Array, turn: Turn, q_out: Array, k_cache: Array, v_cache: Array,
    slots: Slots, *, head_dim: int, norm: HeadNorm | None = None, scales: Scales = None, nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """The norms of the heads of q and k, if any, their rope, then kv_append of k and v: q_out `[N, q's width]`.

    q and k are rounded to their dtype after each of these. positions: i32 `[N]`, or `[N, axes]`.
    """
    q, k, v = columns_of(q), columns_of(k), columns_of(v)
    same_dtype(q.array, k.array, v.array, q_out)
    lane_of_row, kv_len, switch_at = turn.switch or (None, None, 0)
    pairs, q_heads, kv_heads = turn.frequencies.shape[-1], q.width // head_dim, k.width // head_dim
    if norm is not None:
        same_dtype(norm.q_gain, norm.k_gain)
    numbers = {
        "q_heads": q_heads, "kv_heads": kv_heads, "head_dim": head_dim, "v_width": v.width,
        "axes": positions.shape[1] if len(positions.shape) > 1 else 1, "pairs": pairs, "packs_of_head": turn.packs.shape[0],
        "switch_at": switch_at,
    }  # fmt: skip
    arguments: dict[str, Argument] = {
        "q": reading(q.array), "k": reading(k.array), "v": reading(v.array), "q_gain": optional(norm.q_gain if norm else None),
        "k_gain": optional(norm.k_gain if norm else None), "positions": reading(positions), "columns": optional(turn.columns),
        "frequencies": reading(turn.frequencies), "packs": reading(turn.packs), "lane_of_row": optional(lane_of_row),
        "kv_len": optional(kv_len), **slots.arguments(), "q_out": writing(q_out), "k_cache": updating(k_cache),
        "v_cache": updating(v_cache), **row_arguments(q=q, k=k, v=v), **{name: Scalar(number, "i32") for name, number in numbers.items()},
        **_pages(k_cache), "factor": Scalar(turn.factor, "f32"), "sign": Scalar(-1.0 if turn.inverse else 1.0, "f32"),
        "eps": Scalar(norm.eps if norm else 0.0, "f32"), "gain_offset": Scalar(float(norm is not None and norm.plus_one), "f32"),
        **scale_arguments(scales),
    }  # fmt: skip
    gain = "void" if norm is None else type_of(norm.q_gain)
    kernel = f"rope_append<{type_of(q.array)}, {cell_of(k_cache)}, {gain}, {turn.vector}, {'true' if turn.neighbours else 'false'}>"
    shared = pairs * 8 + (q_heads + kv_heads) * 4
    return [Launch(SOURCE, kernel, (q.array.shape[0], 1, 1), (ROPE_THREADS, 1, 1), arguments, shared=shared, nodes=nodes)]


def vector_of(*parts: Columns) -> int:
    """Elements of rows that a thread may move at once."""
    return vector(parts[0].array.dtype, *(number for part in parts for number in (part.array.shape[1], part.start, part.width)))


def _pages(cache: Array) -> dict[str, Argument]:
    return {"page_size": Scalar(cache.shape[1], "i32"), "pages": Scalar(cache.shape[0], "i32")}
