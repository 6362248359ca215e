"""Faults planted in the kernels of attention are found: by the checker, or as results out of their bounds."""

import pytest

from cupy_backend import sources
from cupy_backend.errors import KernelError
from cupy_backend.kernels import attn
from tests.cupy_backend.attention import Case, check, prepared, run
from tests.cupy_backend.running import with_fault

FAULTS = {
    "a row sees one cell too many": ("cell > row.high)", "cell > row.high + 1)"),
    "a window that is one cell too wide": ("{position - window + 1,", "{position - window,"),
    "sums keep their old scale": ("      sum[i] *= shift;", "      ;"),
    "values keep their old scale": ("        o[n][i * 2] *= shift;", "        ;"),
    "the largest score of four lanes only": ("most[i] = fmaxf(most[i], __shfl_xor_sync(WARP, most[i], 2));", ";"),
    "a copy that is not waited for": ("    cp_async_wait<STAGES - 2>();", "    cp_async_wait<STAGES - 1>();"),
    "a tile that is read before all threads have it": ("<STAGES - 2>();\n    __syncthreads();", "<STAGES - 2>();\n"),
    "pages in the order of their numbers": ("(b.pages[number] - number)", "0"),
    "weights of one part": ("p[part][i] = parts[part];", "p[part][i] = part == 0 ? parts[part] : 0u;"),
}
FAULTS_OF_PIECES = {
    "an arrival without an order": ("atomic_add_acq_rel(counter, 1u)", "atomicAdd(counter, 1u)"),
    "an arrival before all threads have written": ("+ head;\n  __syncthreads();", "+ head;\n"),
    "pieces added up by the block that comes first": ("if (arrived[0] != pieces - 1) return;", "if (arrived[0] != 0) return;"),
    "counters that stay as they are": ("store_release(counter, 0u);", ";"),
    "pieces that all count alike": ("counts_for(state, most);\n      weights[piece", "1.0f;\n      weights[piece"),
    "weights read before they are there": ("f.y;\n  }\n  __syncthreads();", "f.y;\n  }\n"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, tmp_path, monkeypatch):
    monkeypatch.setattr(attn, "SOURCE", str(with_fault(sources.find("attn.cu"), tmp_path, *FAULTS[name])))
    case = Case(((40, 100),), False, head_dim=16, kv_heads=1, group=1, window=90, seed=4)
    with pytest.raises((AssertionError, KernelError)) as caught:
        check(case, *run(case))
    assert getattr(caught.value, "code", "emu.").startswith("emu."), f"the fault does not even compile: {caught.value}"


@pytest.mark.parametrize("name", FAULTS_OF_PIECES)
def test_a_fault_in_adding_up_pieces_is_found(name, tmp_path, monkeypatch):
    monkeypatch.setattr(attn, "SOURCE", str(with_fault(sources.find("attn.cu"), tmp_path, *FAULTS_OF_PIECES[name])))
    case = Case(((900, 1),), True, pieces=3, head_dim=16, kv_heads=1, seed=4)
    memory, launches = prepared(case)

    def run_twice() -> None:
        for _ in range(2):
            memory.run(launches)
            check(case, memory["out"], memory["lse"])

    with pytest.raises((AssertionError, KernelError)) as caught:
        run_twice()
    assert getattr(caught.value, "code", "emu.").startswith("emu."), f"the fault does not even compile: {caught.value}"
