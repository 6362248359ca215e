"""Faults planted in the kernels of matrix products are found: by the checker, or as results out of their bounds."""

from pathlib import Path

import numpy as np
import pytest

from cupy_backend import sources
from cupy_backend.errors import KernelError
from tests.cupy_backend.products import activations, agrees, bound, product, taken, weight
from tests.cupy_backend.running import with_fault

# A weight format, how many rows, the text and what takes its place.
FAULTS = (
    ("bf16", 5, "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();"),
    ("bf16", 5, "cp_async_wait<STAGES - 2>();\n    __syncthreads();", "cp_async_wait<STAGES - 2>();\n    __syncwarp();"),
    ("bf16", 20, "{a[0][p], a[1][p], a[0][p + 1], a[1][p + 1]}", "{a[0][p], a[0][p + 1], a[1][p], a[1][p + 1]}"),
    ("bf16", 5, "return m >= outputs ? -1", "return m > outputs ? -1"),
    ("bf16", 5, "if (arrived[0] != gridDim.z - 1) return;", "if (arrived[0] != 0) return;"),
    ("u4g64", 5, "x_sums[j][e] * f.rest", "x_sums[j][e] * 0.0f"),
    ("e4m3tile128a8", 5, "part[i][j][e] * scales[e % 2] * f.gain", "part[i][j][e] * scales[0] * f.gain"),
    ("e4m3row", 5, "v *= row < 0 ? 0.0f : row_gain[row];", "v *= row < 0 ? 0.0f : row_gain[0];"),
)
WARPGROUP_FAULTS = (
    ("bf16", "wgmma_wait<1>();\n", "\n"),
    ("bf16", "fence_async_proxy();", "__syncwarp();"),
    ("bf16", "mbarrier_wait(full + 8 * s, step / STAGES % 2);", "__syncwarp();"),
    ("bf16", "mbarrier_wait(empty + 8 * s, step / STAGES % 2 ^ 1);", "__syncwarp();"),
    ("e4m3tile128a8", "(high * g), sum[4 * j + 3]", "(low * g), sum[4 * j + 3]"),
    ("e4m3tile128a8", "m0 + j * 8 % BO < outputs ? of_w[j * 8] : 0.0f", "of_w[j * 8]"),
)


def is_found(word: str, rows: int, source: Path, *, warpgroups: bool) -> bool:
    width = 1040 if word == "bf16" else 1024
    x, w = activations("normal", rows, width, 1), weight(word, 136, width, 1)
    exact = taken(x, w) @ w.decode(dtype=np.float64).T
    try:
        got = product(x, w, source=source, warpgroups=warpgroups, fp8_bits=0).out
        agrees(got, exact, bound(taken(x, w), w, "f32", exact, False))
    except (KernelError, AssertionError) as found:
        return not isinstance(found, KernelError) or found.code.startswith("emu.")
    return False


@pytest.mark.parametrize(("word", "rows", "text", "replacement"), FAULTS)
def test_faults_are_found(tmp_path, word, rows, text, replacement):
    assert is_found(word, rows, with_fault(sources.folder() / "linear.cu", tmp_path, text, replacement), warpgroups=False)


@pytest.mark.parametrize(("word", "text", "replacement"), WARPGROUP_FAULTS)
def test_faults_of_the_warpgroup_kernel_are_found(tmp_path, word, text, replacement):
    source = with_fault(sources.folder() / "linear_warpgroups.cu", tmp_path, text, replacement)
    assert is_found(word, 130, source, warpgroups=True)
