"""NVRTC in tests: each installed version, or a reason to skip that says how to install it."""

import pytest

from cupy_backend import compile_matrix, nvrtc
from cupy_backend.errors import KernelError
from cupy_backend.nvrtc import Nvrtc

MAJORS = (12, 13)


def compiler(major: int | None = None) -> Nvrtc:
    """NVRTC of this CUDA version, or the newest; skips the test where it is not installed."""
    try:
        return nvrtc.load(major)
    except KernelError as error:
        pytest.skip(f"{error.message}: {error.hint}")


def needs_disassembler() -> None:
    """Skips the test where machine code cannot be read."""
    if compile_matrix.disassembler() is None:
        pytest.skip(f"machine code is read with cuobjdump and nvdisasm: {compile_matrix.INSTALL_DISASSEMBLER}")
