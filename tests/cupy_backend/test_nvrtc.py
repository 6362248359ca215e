"""Compiling for GPUs without a GPU: errors at the template's line, resources, the cache, and what is said when a part is missing."""

from pathlib import Path

import pytest

from cupy_backend import cubin_cache, nvrtc
from cupy_backend.errors import KernelError
from cupy_backend.nvrtc import Resources
from tests.cupy_backend.compiling import MAJORS, compiler

TEXT = """#include "prelude.cuh"
using namespace poem;
template <int N> __global__ void __launch_bounds__(N) reverse(const float* x, float* y) {
  POEM_SHARED(float, words, [N]);
  words[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = words[N - 1 - threadIdx.x];
}
"""


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel's file, and an empty cache."""
    monkeypatch.setenv("POEM_HOME", str(tmp_path))
    path = tmp_path / "reverse.cu"
    path.write_text(TEXT)
    return path


@pytest.mark.parametrize("major", MAJORS)
def test_a_cubin_holds_the_kernels_asked_for_and_what_they_take(major: int, kernel: Path) -> None:
    made = cubin_cache.get(str(kernel), ["reverse<64>", "reverse<256>"], "sm_90a", compiler(major))
    assert made.cubin[:4] == b"\x7fELF"
    assert set(made.names) == {"reverse<64>", "reverse<256>"}
    assert all(name.encode() in made.cubin for name in made.names.values())
    assert [made.resources[name].shared for name in ("reverse<64>", "reverse<256>")] == [256, 1024]
    assert all(used.spilled == used.stack == 0 and 4 <= used.registers <= 32 for used in made.resources.values())


@pytest.mark.parametrize("major", MAJORS)
def test_an_error_of_the_template_is_at_its_own_line(major: int, kernel: Path) -> None:
    kernel.write_text(TEXT.replace("words[N - 1", "word[N - 1"))
    with pytest.raises(KernelError) as caught:
        cubin_cache.get(str(kernel), ["reverse<64>"], "sm_80", compiler(major))
    error = caught.value
    assert (error.code, Path(error.file).name, error.line) == ("kernel.compile", "reverse.cu", 7)
    assert 'identifier "word" is undefined' in error.message
    assert f"NVRTC {major}." in error.message
    assert "for sm_80" in error.message


def test_an_instantiation_that_is_none_is_refused(kernel: Path) -> None:
    with pytest.raises(KernelError, match='identifier "revers" is undefined'):
        cubin_cache.get(str(kernel), ["revers<64>"], "sm_80", compiler())


def test_a_cubin_is_compiled_once(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cubin_cache.get(str(kernel), ["reverse<64>"], "sm_80", compiler())
    monkeypatch.setattr(nvrtc.Nvrtc, "compile", lambda *args: pytest.fail("compiled again"))
    assert cubin_cache.get(str(kernel), ["reverse<64>"], "sm_80", compiler()) == first


def test_text_kernels_architecture_options_and_compiler_each_make_another_cubin(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def files() -> int:
        return len(list((kernel.parent / "kernels").glob("*.cubin")))

    cubin_cache.get(str(kernel), ["reverse<64>"], "sm_80", compiler())
    cubin_cache.get(str(kernel), ["reverse<128>"], "sm_80", compiler())
    cubin_cache.get(str(kernel), ["reverse<64>"], "sm_89", compiler())
    assert files() == 3
    kernel.write_text(TEXT + "// changed\n")
    cubin_cache.get(str(kernel), ["reverse<64>"], "sm_80", compiler())
    assert files() == 4
    monkeypatch.setattr(cubin_cache, "OPTIONS", (*cubin_cache.OPTIONS, "--maxrregcount=32"))
    cubin_cache.get(str(kernel), ["reverse<64>"], "sm_80", compiler())
    assert files() == 5
    for major in MAJORS:
        cubin_cache.get(str(kernel), ["reverse<64>"], "sm_80", compiler(major))
    assert files() == 6  # one of the two is the newest, which was used before


def test_what_ptxas_says_is_read_from_its_words() -> None:
    """Two entries as ptxas 12.9 and 13.0 print them: with and without shared memory, stack and spills."""
    log = (
        "ptxas info    : 0 bytes gmem\n"
        "ptxas info    : Compiling entry function '_Z1aPf' for 'sm_90a'\n"
        "ptxas info    : Function properties for _Z1aPf\n"
        "    40 bytes stack frame, 24 bytes spill stores, 28 bytes spill loads\n"
        "ptxas info    : Used 168 registers, used 3 barriers, 40 bytes cumulative stack size, 1088 bytes smem\n"
        "ptxas info    : Compile time = 9.110 ms\n"
        "ptxas info    : Compiling entry function '_Z1bPf' for 'sm_90a'\n"
        "ptxas info    : Function properties for _Z1bPf\n"
        "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
        "ptxas info    : Used 23 registers, used 0 barriers\n"
    )
    assert nvrtc.resources(log) == {"_Z1aPf": Resources(168, 52, 40, 1088), "_Z1bPf": Resources(23, 0, 0, 0)}


def test_without_nvrtc_one_sentence_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvrtc, "libraries", list)
    nvrtc.load.cache_clear()
    with pytest.raises(KernelError) as caught:
        nvrtc.load()
    nvrtc.load.cache_clear()
    assert caught.value.code == "cuda.no-nvrtc"
    assert caught.value.message == "NVRTC compiles the kernels for the GPU, and it is not installed"
    assert caught.value.hint == "pip install nvidia-cuda-nvrtc (CUDA 13) or nvidia-cuda-nvrtc-cu12 (CUDA 12)"
