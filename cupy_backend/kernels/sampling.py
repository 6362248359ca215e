"""Launches of sampling.cu: the largest entry of each row, and tokens drawn from logits.

No result depends on how many rows there are, or on the order of a sum: see sampling.cu. What no kernel serves is a KernelError
(`kernel.unsupported`).
"""

from cupy_backend.kernels.arrays import reading, type_of, unsupported, updating, vector, writing
from cupy_backend.launch import Argument, Array, Launch, Scalar

SOURCE = "sampling.cu"
ARGMAX_THREADS = 256
PIECE = 8192  # columns that one block looks through
SAMPLE_THREADS = 1024
MAXIMUM_VOCABULARY = 3 << 17  # weights of more tokens might not add up in 64 bits


def argmax_scratch(rows: int, width: int) -> int:
    """Bytes of scratch of `argmax`."""
    return rows * _pieces(width) * 8


def argmax(x: Array, ids: Array, *, column: int = 0, scratch: Array, nodes: tuple[int, ...] = ()) -> list[Launch]:
    """ids[n, column] is the column of the largest entry of row n of x `[N, width]`, the lowest among equals; NaN never wins.

    ids i32 `[N]` or `[N, columns]`, of which one column is written. scratch: `argmax_scratch` bytes. A row of NaN or of -inf gives 0.
    """
    rows, width = x.shape
    pieces, vec = _pieces(width), vector(x.dtype, width, PIECE)
    columns = ids.shape[1] if len(ids.shape) > 1 else 1
    best = Array(scratch.buffer, "write", (rows, pieces), "u64", scratch.offset)
    first: dict[str, Argument] = {"x": reading(x), "best": best, "width": Scalar(width, "i32"), "columns": Scalar(PIECE, "i32")}
    second: dict[str, Argument] = {
        "best": reading(best), "ids": writing(ids) if columns == 1 else updating(ids), "pieces": Scalar(pieces, "i32"),
        "stride": Scalar(columns, "i32"), "column": Scalar(column, "i32"),
    }  # fmt: skip
    return [
        Launch(SOURCE, f"largest_of_pieces<{type_of(x)}, {vec}>", (pieces, rows, 1), (ARGMAX_THREADS, 1, 1), first, nodes=nodes),
        Launch(SOURCE, "index_of_largest", (rows, 1, 1), (32, 1, 1), second, nodes=nodes),
    ]


def sample(
    logits: Array, ids: Array, *, temperature: Array, top_k: Array, top_p: Array, min_p: Array, uniform: Array,
    log_probabilities: Array, nodes: tuple[int, ...] = (),
) -> list[Launch]:  # fmt: skip
    """One token id for each row of logits `[N, vocabulary]`, chosen as `poem.sampling` does from the row's own numbers, all `[N]`.

    ids i32; temperature, top_p, min_p and uniform (the draws, in 0..1) f64; top_k i32. A row that is no distribution (NaN, +inf, or
    nothing but -inf) gives -1. Weights are multiples of 2^-45 of the largest: a token less likely than half of that is never drawn.
    log_probabilities: f64, of the tokens under the logits themselves, as `poem.sampling.log_probability` but for 2^-20.
    """
    rows, width = logits.shape
    if width > MAXIMUM_VOCABULARY:
        raise unsupported("no kernel samples from so many tokens", expected=f"at most {MAXIMUM_VOCABULARY}", found=str(width))
    given = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "uniform": uniform}
    arguments: dict[str, Argument] = {
        "logits": reading(logits), **{name: reading(array) for name, array in given.items()}, "ids": writing(ids),
        "log_probabilities": writing(log_probabilities), "width": Scalar(width, "i32"),
    }  # fmt: skip
    kernel = f"sample<{type_of(logits)}, {SAMPLE_THREADS}>"
    return [Launch(SOURCE, kernel, (rows, 1, 1), (SAMPLE_THREADS, 1, 1), arguments, nodes=nodes)]


def _pieces(width: int) -> int:
    return -(-width // PIECE)
