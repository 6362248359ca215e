"""NVRTC compiles matrix products for every architecture, and no thread runs out of registers."""

import pytest

from cupy_backend import compile_matrix
from cupy_backend.compile_matrix import Budget
from cupy_backend.kernels import linear, linear_tables
from cupy_backend.launch import Array, Launch
from poem.dtypes import Dtype
from tests.cupy_backend.compiling import compiler

# The instantiations that hold most in registers, or that use what an architecture alone has.
CASES = (
    ("sm_80", "bf16", 500, True, "silu"), ("sm_80", "u2g128", 32, False, "silu"), ("sm_80", "e4m3tile128a8", 64, True, None),
    ("sm_89", "e4m3tile128a8", 500, False, "gelu"), ("sm_89", "u4g64", 16, False, None), ("sm_90a", "u4g64", 64, True, None),
    ("sm_90a", "bf16", 500, False, None), ("sm_90a", "bf16", 500, False, "gelu_tanh"), ("sm_90a", "e4m3tile128a8", 500, False, "silu"),
    ("sm_100a", "nvfp4", 16, False, None), ("sm_120a", "mxfp4", 500, True, None),
)  # fmt: skip


def launch(arch: str, word: str, rows: int, batch_invariant: bool, act: str | None) -> Launch:
    """The product of a weight of 4096 x 4096."""
    size, dtype = 4096, Dtype(word)
    kernel = linear_tables.format_of(dtype)
    words = {"data": "bf16", "code": "u8", "gain": kernel.gain, "offset": "bf16", "row_gain": "f32"}
    planes = {name: Array(name, "constant", (32, 2 * size), leaf) for name, leaf in words.items()}
    x, out = Array("x", "read", (rows, size), "bf16"), Array("out", "write", (rows, size), "bf16")
    scratch, counters = Array("scratch", "scratch", (1 << 30,), "u8"), Array("counters", "update", (linear_tables.COUNTERS,), "u32")
    return linear.matmul(
        x, planes, out, dtype=dtype, arch=arch, batch_invariant=batch_invariant, act=act, warpgroups=not batch_invariant, scratch=scratch,
        counters=counters,
    )[-1]  # fmt: skip


# By the kernel's file and the types that it multiplies: copies of 16 bytes, and products by the tensor cores.
BUDGETS = {
    "linear.cu": Budget(registers=255, instructions=("LDGSTS", "HMMA.16816.F32.BF16")),
    "linear.cu product<E4m3Tiles, e4m3, e4m3": Budget(registers=255, instructions=("LDGSTS",)),
    "linear_warpgroups.cu product_by_warpgroups<bf16": Budget(
        registers=168, instructions=("HGMMA.64x256x16.F32.BF16", "UTMALDG.2D", "UTMASTG.2D", "USETMAXREG")
    ),
    "linear_warpgroups.cu product_by_warpgroups<e4m3": Budget(
        registers=168, instructions=("QGMMA.64x128x32.F32.E4M3.E4M3", "UTMALDG.2D", "UTMASTG.2D", "USETMAXREG", "UBLKCP")
    ),
}  # fmt: skip


@pytest.mark.parametrize(("arch", "word", "rows", "batch_invariant", "act"), CASES)
def test_products_keep_their_budget(arch, word, rows, batch_invariant, act):
    [report] = compile_matrix.check([launch(arch, word, rows, batch_invariant, act)], arch, compiler(), BUDGETS)
    assert not report.faults, report.line()
