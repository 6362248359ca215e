"""Launches of norms.cu: RMS and layer norms of rows and of heads, with a residual before, a gate beside, or codes for a product behind.

Each function turns arrays into launches. Shapes are those of the arrays; a shape or dtype that no kernel serves is a KernelError
(`kernel.unsupported`). None of these kernels lets the number of rows decide how a row is summed.
"""

import math
from typing import NamedTuple

from cupy_backend.kernels.arrays import reading, same_dtype, type_of, unsupported, updating, vector, writing
from cupy_backend.launch import Argument, Array, Launch, Scalar

SOURCE = "norms.cu"
WARP = 32
WARPS = 8  # in a block whose warps have a run each
# Runs of at most so many elements are normed by a block of so many threads: the fewest that leave a thread two packs or fewer.
THREADS = ((512, 64), (1024, 128), (4096, 256), (8192, 512), (16384, 1024))
MAXIMUM_ITEMS, MAXIMUM_HELD = 8, 16  # packs and elements of a run that a thread keeps in registers; longer runs are read twice
CODED_RUN = 128  # columns that share a scale
MISSING = Scalar(0, "u64")  # a null pointer


class Split(NamedTuple):
    """How a run is shared: elements of a pack, packs that a thread keeps, threads of the run."""

    vector: int
    items: int
    threads: int

    def grid(self, runs: int) -> tuple[int, int, int]:
        return (-(-runs // WARPS) if self.threads == WARP else runs), 1, 1

    @property
    def block(self) -> tuple[int, int, int]:
        return (WARP * WARPS if self.threads == WARP else self.threads), 1, 1


def _split(dtype: str, size: int, *, by_warp: bool = False) -> Split:
    """by_warp: one warp for a run that is short enough, else a block."""
    vec = vector(dtype, size)
    threads = next((threads for longest, threads in THREADS if size <= longest), THREADS[-1][1])
    if by_warp:
        narrow = vec
        while narrow > 1 and WARP * narrow > size:  # else lanes of the warp would idle
            narrow //= 2
        if -(-size // WARP) <= MAXIMUM_HELD and -(-size // (WARP * narrow)) <= MAXIMUM_ITEMS:
            vec, threads = narrow, WARP
    items = -(-size // (vec * threads))
    return Split(vec, items if items <= MAXIMUM_ITEMS and items * vec <= MAXIMUM_HELD else 0, threads)


def rmsnorm(
    x: Array, gain: Array | None, out: Array, *, eps: float, size: int | None = None, plus_one: bool = False, residual: Array | None = None,
    nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """out = rms(run) * gain for each run of `size` columns of x `[N, width]`, by default the whole row.

    gain `[size]` for all runs, `[width]`, or None for 1; plus_one: 1 + gain. With a residual, of whole rows, residual += x comes first and
    is what is normed, rounded to the residual's dtype. x, residual and out have one dtype.
    """
    rows, width = x.shape
    size = size or width
    split = _split(x.dtype, size, by_warp=size < width)
    same_dtype(x, out, *([residual] if residual is not None else []))
    form = f"{type_of(x)}, {type_of(x if gain is None else gain)}, {split.vector}, {split.items}, {split.threads}, {_flag(plus_one)}"
    arguments: dict[str, Argument] = {"x": reading(x)}
    if residual is not None:
        assert size == width, "a residual is added to whole rows"
        arguments["residual"] = updating(residual)
    arguments |= {"gain": MISSING if gain is None else reading(gain), "out": writing(out)}
    if residual is not None:
        arguments |= {"width": Scalar(width, "i32"), "eps": Scalar(eps, "f32")}
        return [Launch(SOURCE, f"add_rmsnorm<{form}>", (rows, 1, 1), split.block, arguments, nodes=nodes)]
    runs = rows * (width // size)
    arguments |= {**_runs(runs, size, gain), "eps": Scalar(eps, "f32")}
    return [Launch(SOURCE, f"rmsnorm<{form}>", split.grid(runs), split.block, arguments, nodes=nodes)]


def rmsnorm_codes(
    x: Array, gain: Array, codes: Array, scales: Array, *, eps: float, plus_one: bool = False, residual: Array | None = None,
    nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """`rmsnorm` of rows, rounded to x's dtype and then by the activation rule a8: what `linear.quantise_activations` makes of its result.

    codes `[N, width]`, scales f32 `[runs of 128 columns, N']`, N' being at least N; further scales are 1.
    """
    rows, width = x.shape
    split = _split(x.dtype, width)
    if split.vector * WARP < CODED_RUN or split.vector < 4:
        raise unsupported("no kernel rounds normed rows of this width to codes", expected="a multiple of 4", found=str(width))
    flags = f"{_flag(plus_one)}, {_flag(residual is not None)}"
    form = f"{type_of(x)}, {type_of(gain)}, {split.vector}, {split.items}, {split.threads}, {flags}"
    arguments: dict[str, Argument] = {
        "x": reading(x), "residual": MISSING if residual is None else updating(residual), "gain": reading(gain), "codes": writing(codes),
        "scales": writing(scales), "rows": Scalar(rows, "i32"), "width": Scalar(width, "i32"), "stride": Scalar(scales.shape[1], "i32"),
        "eps": Scalar(eps, "f32"),
    }  # fmt: skip
    return [Launch(SOURCE, f"rmsnorm_codes<{form}>", (rows, 1, 1), split.block, arguments, nodes=nodes)]


def rmsnorm_gated(
    x: Array, gate: Array, gain: Array, out: Array, *, size: int, eps: float, act: str, gate_first: bool, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """out = rms(run) * gain * act(gate) for each run of `size` columns, or with gate_first rms(run * act(gate)) * gain.

    gain `[size]` for all runs, or `[width]`. act: silu or sigmoid. gate and out have one dtype, x that or f32.
    """
    rows, width = x.shape
    same_dtype(gate, out)
    split = _split(x.dtype, size, by_warp=size < width)
    runs = rows * (width // size)
    form = f"{type_of(x)}, {type_of(gate)}, {type_of(gain)}, {split.vector}, {split.items}, {split.threads}"
    arguments: dict[str, Argument] = {
        "x": reading(x), "gate": reading(gate), "gain": reading(gain), "out": writing(out), **_runs(runs, size, gain),
        "eps": Scalar(eps, "f32"),
    }  # fmt: skip
    kernel = f"rmsnorm_gated<{form}, {_flag(act == 'silu')}, {_flag(gate_first)}>"
    return [Launch(SOURCE, kernel, split.grid(runs), split.block, arguments, nodes=nodes)]


def layernorm(x: Array, gain: Array | None, bias: Array | None, out: Array, *, eps: float, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """out = (x - mean) / sqrt(variance + eps) * gain + bias for rows `[N, width]`; without them 1 and 0."""
    rows, width = x.shape
    same_dtype(x, out)
    split = _split(x.dtype, width)
    types = ", ".join(type_of(x if weight is None else weight) for weight in (x, gain, bias))
    arguments: dict[str, Argument] = {
        "x": reading(x), "gain": MISSING if gain is None else reading(gain), "bias": MISSING if bias is None else reading(bias),
        "out": writing(out), "width": Scalar(width, "i32"), "eps": Scalar(eps, "f32"),
    }  # fmt: skip
    kernel = f"layernorm<{types}, {split.vector}, {split.items}, {split.threads}>"
    return [Launch(SOURCE, kernel, (rows, 1, 1), split.block, arguments, nodes=nodes)]


def _runs(runs: int, size: int, gain: Array | None) -> dict[str, Argument]:
    numbers = {"runs": runs, "size": size, "gain_runs": 1 if gain is None else math.prod(gain.shape) // size}
    return {name: Scalar(number, "i32") for name, number in numbers.items()}


def _flag(value: bool) -> str:
    return "true" if value else "false"
