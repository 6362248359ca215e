"""Launches of norms.cu: RMS norms of rows, with and without a residual, and of heads.

Each function turns arrays into launches. Shapes are those of the arrays; a shape or dtype that no kernel serves is a KernelError
(`kernel.unsupported`). None of these kernels lets the number of rows decide how a row is summed.
"""

from cupy_backend.kernels.arrays import reading, same_dtype, type_of, unsupported, updating, vector, writing
from cupy_backend.launch import Argument, Array, Launch, Scalar

SOURCE = "norms.cu"
THREADS = 256
WARP = 32
# Rows of at most so many elements are normed by a block of so many threads: the fewest that leave a thread two packs or fewer.
NORM_THREADS = ((512, 64), (1024, 128), (4096, 256), (8192, 512), (16384, 1024))
MAXIMUM_ITEMS, MAXIMUM_HELD = 8, 32  # packs and elements of a row that a thread keeps in registers; wider rows are read twice


def rmsnorm(
    x: Array, gain: Array, out: Array, *, eps: float, plus_one: bool = False, residual: Array | None = None, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """out = rms(x) * gain for rows `[N, width]`; with a residual, residual += x comes first and is what is normed.

    The sum is rounded to the residual's dtype before it is normed. x, residual and out have one dtype.
    """
    rows, width = x.shape
    held, vec = type_of(x), vector(x.dtype, width)
    threads = next((threads for widest, threads in NORM_THREADS if width <= widest), NORM_THREADS[-1][1])
    items = -(-width // (vec * threads))
    items = items if items <= MAXIMUM_ITEMS and items * vec <= MAXIMUM_HELD else 0
    same_dtype(x, out, *([residual] if residual is not None else []))
    form = f"{held}, {type_of(gain)}, {vec}, {items}, {threads}, {_flag(plus_one)}"
    arguments: dict[str, Argument] = {"x": reading(x)}
    if residual is not None:
        arguments["residual"] = updating(residual)
    arguments |= {"gain": reading(gain), "out": writing(out), "width": Scalar(width, "i32"), "eps": Scalar(eps, "f32")}
    name = "rmsnorm" if residual is None else "add_rmsnorm"
    return [Launch(SOURCE, f"{name}<{form}>", (rows, 1, 1), (threads, 1, 1), arguments, nodes=nodes)]


def rmsnorm_per_head(
    x: Array, gain: Array, out: Array, *, head_dim: int, eps: float, plus_one: bool = False, nodes: tuple[int, ...] = ()
) -> list[Launch]:
    """Each run of head_dim columns of x `[N, heads * head_dim]` on its own: out = rms(run) * gain `[head_dim]`."""
    rows, width = x.shape
    runs = rows * (width // head_dim)
    vec = vector(x.dtype, head_dim)
    while vec > 1 and WARP * vec > head_dim:  # else lanes of the warp would idle
        vec //= 2
    items = -(-head_dim // (WARP * vec))
    if items > MAXIMUM_ITEMS:
        raise unsupported("no kernel norms heads of this width", expected=f"at most {MAXIMUM_ITEMS * WARP * vec}", found=f"{head_dim}")
    same_dtype(x, out)
    form = f"{type_of(x)}, {type_of(gain)}, {vec}, {items}, {_flag(plus_one)}"
    arguments: dict[str, Argument] = {
        "x": reading(x), "gain": reading(gain), "out": writing(out), "runs": Scalar(runs, "i32"), "size": Scalar(head_dim, "i32"),
        "eps": Scalar(eps, "f32"),
    }  # fmt: skip
    grid = -(-runs // (THREADS // WARP))
    return [Launch(SOURCE, f"rmsnorm_per_head<{form}>", (grid, 1, 1), (THREADS, 1, 1), arguments, nodes=nodes)]


def _flag(value: bool) -> str:
    return "true" if value else "false"
