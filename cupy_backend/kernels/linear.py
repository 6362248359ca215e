"""Launches of linear.cu: matrix products of any number of rows, by weights of every format, with gated units where they follow.

Products of many rows on sm_90a may go to linear_warpgroups.cu instead.

Gains and offsets of weights are read along the rows, so `prepare` turns them once, when weights are loaded. Products that are cut into
slices need scratch memory and counters, `COUNTERS` u32 that are 0 before the first launch and which each launch leaves 0.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from cupy_backend.errors import KernelError
from cupy_backend.kernels import elemwise, linear_plain, linear_warpgroups
from cupy_backend.kernels.arrays import reading, updating, writing
from cupy_backend.kernels.linear_tables import (
    FORMATS,
    OUT_TYPES,
    RUN,
    Cut,
    Format,
    activation_name,
    cut,
    format_of,
    instantiation,
    multiplies_codes,
)  # fmt: skip
from cupy_backend.launch import Argument, Array, Launch, Scalar
from poem.dtypes import Dtype, leaves

SOURCE = "linear.cu"
ROW_ALIGNMENT = 16  # rows of turned gains are padded to a multiple of this
SCALE_ALIGNMENT = 4  # so are rows of activation scales


def prepare(dtype: Dtype, planes: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The planes of a weight `[..., M, K]` as the kernels read them, by name.

    data bf16, or code u8 with, where the format has them: gain and offset `[..., groups, M']`, M' being M rounded up to 16, and
    row_gain f32 `[..., M]`.
    """
    kernel = format_of(dtype)
    if dtype.is_leaf:
        return dict(planes)
    code = planes["code"]
    rows = code.shape[-2]
    made = {"code": code}
    if dtype.name == "u2g32":
        made["code"] = leaves.pack(leaves.unpack(code, 2), 4)
    if kernel.row_gain:
        made["row_gain"] = _by_row(planes, "gain.gain" if kernel.group else "gain", code.shape[:-1])
    if kernel.group:
        gain = planes["gain.code"] if kernel.row_gain else planes["gain"]
        if kernel.gain == "f32":
            gain = np.repeat(gain, RUN, axis=-2)[..., :rows, :]
        made["gain"] = _turned(gain)
    if kernel.has_offset:
        made["offset"] = _turned(planes["offset"])
    return made


def _turned(factors: np.ndarray) -> np.ndarray:
    """`[..., M, groups]` as `[..., groups, M']`."""
    *lead, rows, groups = factors.shape
    turned = np.zeros((*lead, groups, -(-rows // ROW_ALIGNMENT) * ROW_ALIGNMENT), factors.dtype)
    turned[..., :rows] = np.swapaxes(factors, -1, -2)
    return turned


def _by_row(planes: Mapping[str, np.ndarray], path: str, shape: tuple[int, ...]) -> np.ndarray:
    """Gains f32 for each row: stored so, one for the whole tensor, or one for each segment of rows."""
    gain = planes[path]
    segments = planes.get("gain.rows")
    if segments is not None:
        gain = np.repeat(gain, segments, axis=-1)
    elif gain.shape != shape:
        gain = np.broadcast_to(gain.reshape(gain.shape + (1,) * (len(shape) - gain.ndim)), shape)
    return np.ascontiguousarray(gain, np.float32)


class Codes(NamedTuple):
    """Activations rounded by the rule a8: codes `[N, K]` and scales f32 `[runs, N']`, as `quantise_activations` makes them."""

    codes: Array
    scales: Array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.codes.shape


def matmul(
    x: Array | Codes, w: Mapping[str, Array], out: Array, *, dtype: Dtype, arch: str, batch_invariant: bool = False, act: str | None = None,
    bias: Array | None = None, warpgroups: bool = False, scratch: Array | None = None, counters: Array | None = None,
    nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """out `[N, M]` (bf16 or f32) = x `[N, K]` (bf16) times the transpose of w `[M, K]`, whose planes `prepare` made.

    x may come as codes where the weight's dtype has the rule a8. Weights of floats take x and out of any float dtype: `linear_plain`.

    act: silu, gelu_tanh or gelu, for w `[2 M, K]` of gates over ups: out = act(gate) * up, where gate and up are rounded to out's dtype
    first. So it equals the product followed by the gated unit.

    bias: `[M]` of out's dtype, added to the product after that is rounded; without act.

    warpgroups: let bf16 and e4m3tile128a8 products of many rows use TMA and wgmma on sm_90a, unless batch_invariant. Off until a
    device's self-test has shown that the emulator is right about them.

    scratch: `matmul_scratch` bytes. An infinite activation gives NaN with weights that have offsets. KernelError (`kernel.unsupported`)
    where no kernel serves the shapes or dtypes.
    """
    (rows, width), outputs = x.shape, out.shape[1]
    assert bias is None or (bias.dtype == out.dtype and act is None)
    if isinstance(x, Array) and linear_plain.serves(x.dtype, out.dtype, dtype, width):
        if act:
            raise _unsupported(f"a gated unit of products from {x.dtype} over {width} columns of {dtype}", "from bf16, by bf16")
        return linear_plain.matmul(x, w["data"], out, bias=bias, nodes=nodes) if rows else []
    kernel = format_of(dtype)
    _check(x, out, kernel, dtype, act)
    if rows == 0:
        return []
    chosen = _cut(rows, outputs, width, dtype, arch, batch_invariant, act)
    launches, x_scale, scale_stride, type_of_x = [], None, 0, "bf16"
    if dtype.act and isinstance(x, Array):
        assert scratch is not None
        coded, scratch = _codes_in(rows, width, scratch)
        launches, x = [quantise_activations(x, *coded, nodes=nodes)], coded
    if isinstance(x, Codes):
        assert dtype.act, "codes are for products by the rule a8"
        type_of_x, scale_stride = "e4m3", x.scales.shape[1]
        x_scale, x = x.scales, x.codes
    codes_meet = multiplies_codes(dtype, arch)
    takes_warpgroups = warpgroups and not batch_invariant and (dtype.name == "bf16" or codes_meet)
    if takes_warpgroups and linear_warpgroups.serves(rows, outputs, arch=arch):
        code = w["data" if dtype.is_leaf else "code"]
        return [*launches, linear_warpgroups.matmul(x, code, out, x_scale=x_scale, gain=w.get("gain"), act=act, bias=bias, nodes=nodes)]
    tile = chosen.tile
    kernel_name = instantiation(
        "product", kernel.name, type_of_x, "e4m3" if codes_meet else "bf16", OUT_TYPES[out.dtype], activation_name(act), tile.outputs,
        tile.rows, chosen.columns, chosen.stages, tile.warps_outputs, tile.warps_rows, chosen.sliced,
    )  # fmt: skip
    missing = Scalar(0, "u64")  # a null pointer
    partial: Argument = missing
    if chosen.splits > 1:
        assert scratch is not None
        assert counters is not None
        partial = replace(scratch, direction="scratch", shape=(_partials(chosen),), dtype="f32")
    arguments: dict[str, Argument] = {
        "x": reading(x), "x_scale": missing if x_scale is None else reading(x_scale),
        "code": reading(w["data" if dtype.is_leaf else "code"]),
        "gain": reading(w["gain"]) if kernel.group else missing, "offset": reading(w["offset"]) if kernel.has_offset else missing,
        "row_gain": reading(w["row_gain"]) if kernel.row_gain else missing, "bias": missing if bias is None else reading(bias),
        "out": writing(out), "partial": partial,
        "counters": updating(counters) if chosen.splits > 1 and counters is not None else missing, "rows": Scalar(rows, "i32"),
        "outputs": Scalar(outputs, "i32"), "width": Scalar(width, "i32"), "scale_stride": Scalar(scale_stride, "i32"),
        "gain_stride": Scalar(w["gain"].shape[-1] if kernel.group else 0, "i32"), "slice": Scalar(chosen.slice, "i32"),
    }  # fmt: skip
    size = 2 if out.dtype == "bf16" else 4
    staged = tile.rows * (tile.outputs // (2 if act else 1) + 16 // size) * size
    shared = max(chosen.stages * chosen.stage_bytes, staged)
    threads = 32 * tile.warps_outputs * tile.warps_rows
    grid = (*chosen.grid, chosen.splits)
    return [*launches, Launch(SOURCE, kernel_name, grid, (threads, 1, 1), arguments, shared=shared, nodes=nodes)]


def matmul_scratch(
    rows: int, outputs: int, width: int, *, dtype: Dtype, arch: str, batch_invariant: bool = False, act: str | None = None,
    coded: bool = False,
) -> int:  # fmt: skip
    """Bytes of scratch that `matmul` needs for x `[rows, width]` and out `[rows, outputs]`. coded: x comes as codes."""
    if rows == 0 or dtype.name not in FORMATS:  # those that need scratch
        return 0
    chosen = _cut(rows, outputs, width, dtype, arch, batch_invariant, act)
    activations = _codes_bytes(rows, width) if dtype.act and not coded else 0
    return activations + (4 * _partials(chosen) if chosen.splits > 1 else 0)


def quantise_activations(x: Array, codes: Array, scales: Array, *, nodes: tuple[int, ...] = ()) -> Launch:
    """codes `[N, K]` and scales f32 `[runs, N']` of x `[N, K]` by the activation rule a8. N' is at least N; further scales are 1."""
    return elemwise.elementwise_codes("Same", [x], codes, scales, dtype=x.dtype, nodes=nodes)[0]


def _cut(rows: int, outputs: int, width: int, dtype: Dtype, arch: str, batch_invariant: bool, act: str | None) -> Cut:
    return cut(rows, outputs * (2 if act else 1), width, dtype, arch, batch_invariant=batch_invariant)


def _partials(chosen: Cut) -> int:
    return chosen.grid[0] * chosen.grid[1] * chosen.splits * chosen.tile.outputs * chosen.tile.rows


def _aligned(nbytes: int) -> int:
    return -(-nbytes // 256) * 256


def codes_shapes(rows: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Shapes of the codes and of the scales of activations `[rows, width]`."""
    return (rows, width), (-(-width // RUN), -(-rows // SCALE_ALIGNMENT) * SCALE_ALIGNMENT)


def _codes_bytes(rows: int, width: int) -> int:
    codes, scales = codes_shapes(rows, width)
    return _aligned(math.prod(codes)) + _aligned(4 * math.prod(scales))


def _codes_in(rows: int, width: int, scratch: Array) -> tuple[Codes, Array]:
    """Codes and scales at the start of scratch, and the rest of it."""
    codes, scales = codes_shapes(rows, width)
    coded = Codes(
        replace(scratch, shape=codes, dtype="u8"),
        replace(scratch, shape=scales, dtype="f32", offset=scratch.offset + _aligned(math.prod(codes))),
    )
    return coded, replace(scratch, offset=scratch.offset + _codes_bytes(rows, width))


def _check(x: Array | Codes, out: Array, kernel: Format, dtype: Dtype, act: str | None) -> None:
    """Rows of x and of codes are copied 16 bytes at a time, gains of as many rows as 16 bytes hold."""
    width, outputs = x.shape[1], out.shape[1]
    columns = 16 if dtype.act else max(8, 128 // kernel.code_bits)
    if width % columns:
        raise _unsupported(f"a product over {width} columns of {dtype}", f"a multiple of {columns} columns")
    if act and kernel.group and outputs % ROW_ALIGNMENT:
        raise _unsupported(f"a gated unit of {outputs} columns by a weight of {dtype}", f"a multiple of {ROW_ALIGNMENT}")
    given = "bf16" if isinstance(x, Codes) else x.dtype
    if given != "bf16" or out.dtype not in OUT_TYPES:
        raise _unsupported(f"a product from {given} to {out.dtype}", "from bf16 to bf16 or f32")
    if act and act not in ("silu", "gelu_tanh", "gelu"):
        raise _unsupported(f"a gated unit of {act}", "silu, gelu_tanh or gelu")


def _unsupported(found: str, expected: str) -> KernelError:
    return KernelError("kernel.unsupported", "no matrix product serves this", phase="plan", expected=expected, found=found)
