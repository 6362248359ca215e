"""Whole kernels on the emulator: three matrix products, right in any order of events, and caught when a fault is planted in their text."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.emulator import Counters, EmulatedDevice, Schedule
from cupy_backend.errors import KernelError
from tests.cupy_backend.running import KERNELS, Tiles, launch_of, line_of, normal, run, schedules, with_fault

MMA, WGMMA, PIPELINED = (KERNELS / f"{name}_gemm.cu" for name in ("mma", "wgmma", "pipelined"))
TILE = (64, 64, 32, 4, 2, 2)
FIFO = Schedule()


class Product(NamedTuple):
    """What a kernel computed, the exact product, and the product of the magnitudes, which bounds every rounding."""

    got: np.ndarray
    exact: np.ndarray
    magnitude: np.ndarray
    counters: Counters


def product(got: np.ndarray, a: np.ndarray, b: np.ndarray, counters: Counters) -> Product:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return Product(got.astype(np.float64), a @ b.T, np.abs(a) @ np.abs(b).T, counters)


def mma(
    m: int = 128, n: int = 128, k: int = 256, *, source: Path = MMA, schedule: Schedule = FIFO, device: EmulatedDevice | None = None,
    tile: tuple[int, ...] = TILE,
) -> Product:  # fmt: skip
    bm, bn, bk, stages, wm, wn = tile
    a, b, c = normal(1, m, k), normal(2, n, k), np.empty((m, n), np.float32)
    counters = run(
        source, f"mma_gemm<{bm}, {bn}, {bk}, {stages}, {wm}, {wn}>", (-(-n // bn), -(-m // bm)), wm * wn * 32,
        {"A": (a, "read"), "B": (b, "read"), "C": (c, "write"), "M": m, "N": n, "K": k},
        schedule=schedule, device=device, shared=stages * (bm + bn) * bk * 2,
    )  # fmt: skip
    return product(c, a, b, counters)


def wgmma(
    m: int = 128, n: int = 128, k: int = 512, *, source: Path = WGMMA, schedule: Schedule = FIFO, device: EmulatedDevice | None = None
) -> Product:
    a, b, c = normal(1, m, k), normal(2, n, k), np.empty((m, n), np.float32)
    counters = run(
        source, "wgmma_gemm<3>", (-(-n // 64), -(-m // 64)), 128,
        {"A": (a, "read"), "B": (b, "read"), "C": (c, "write"), "M": m, "N": n, "K": k},
        schedule=schedule, device=device, shared=3 * 16384,
    )  # fmt: skip
    return product(c, a, b, counters)


def pipelined(
    m: int = 128, n: int = 128, k: int = 640, *, dtype: str = "bf16", cluster: int = 1, source: Path = PIPELINED, schedule: Schedule = FIFO,
    device: EmulatedDevice | None = None, positive: bool = False,
) -> Product:  # fmt: skip
    numbers = {"bf16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn}[dtype]
    a, b, d = normal(1, m, k, dtype=numbers), normal(2, n, k, dtype=numbers), np.empty((m, n), ml_dtypes.bfloat16)
    if positive:
        a, b = np.abs(a), np.abs(b)
    stored = [x.view(np.uint8) if dtype == "e4m3" else x for x in (a, b)]
    depth = 128 // np.dtype(numbers).itemsize
    arguments = {
        "A": Tiles(stored[0], "read", (128, depth)), "B": Tiles(stored[1], "read", (128 // cluster, depth)),
        "D": Tiles(d, "write", (64, 64)), "K": k,
    }  # fmt: skip
    grid = (-(-n // 128), -(-m // (128 * cluster)) * cluster)
    counters = run(
        source, f"pipelined_gemm<{dtype}, 4, {cluster}>", grid, 384, arguments, schedule=schedule, device=device, shared=4 * 32768,
        cluster=(1, cluster, 1),
    )  # fmt: skip
    return product(d, a, b, counters)


# Sums of exact products in float32, in an order that is not said: k roundings of at most 2^-24 of the sum of magnitudes. A bf16 result is
# rounded once more.
def check(result: Product, k: int, *, bf16: bool = False) -> None:
    bound = k * 2.0**-24 * result.magnitude
    if bf16:
        bound = bound + 2.0**-8 * (np.abs(result.exact) + bound)
    excess = np.abs(result.got - result.exact) / bound
    assert excess.max() <= 1, f"element {np.unravel_index(np.argmax(excess), excess.shape)} is off by {excess.max():.2f} of its bound"


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    tile = ", ".join(map(str, TILE))
    kernels = [(MMA, f"mma_gemm<{tile}>"), (WGMMA, "wgmma_gemm<3>")]
    kernels += [(PIPELINED, f"pipelined_gemm<{kind}>") for kind in ("bf16, 4, 1", "bf16, 4, 2", "e4m3, 4, 1", "e4m3, 4, 2")]
    EmulatedDevice().prepare(launch_of(source, kernel, (1,), 32, {}) for source, kernel in kernels)


# ------------------------------------------------------------------------------------------------------------- right in any order
@settings(max_examples=30)
@given(schedules, st.integers(1, 150), st.integers(1, 150), st.integers(1, 40))
def test_a_cp_async_product_is_right_for_ragged_shapes_in_any_order(schedule: Schedule, m: int, n: int, k: int) -> None:
    check(mma(m, n, 8 * k, schedule=schedule), 8 * k)


@settings(max_examples=8)
@given(schedules, st.integers(1, 130), st.integers(1, 130), st.integers(1, 5))
def test_a_wgmma_product_is_right_for_ragged_shapes_in_any_order(schedule: Schedule, m: int, n: int, k: int) -> None:
    check(wgmma(m, n, 64 * k, schedule=schedule), 64 * k)


@settings(max_examples=12)
@given(schedules, st.sampled_from((1, 2)), st.integers(1, 260), st.integers(1, 20), st.integers(1, 60))
def test_a_pipelined_product_is_right_for_ragged_shapes_in_any_order(schedule: Schedule, cluster: int, m: int, n: int, k: int) -> None:
    check(pipelined(m, 8 * n, 8 * k, cluster=cluster, schedule=schedule), 8 * k, bf16=True)


def test_the_schedule_changes_no_bit_of_a_result() -> None:
    for kernel in (mma, wgmma, pipelined):
        results = [
            kernel(schedule=Schedule(order, timing, 3)).got for order, timing in (("fifo", "late"), ("lifo", "early"), ("random", "random"))
        ]
        assert all(np.array_equal(result, results[0]) for result in results), kernel.__name__


def test_fast_mode_computes_the_same_bits_as_checked_mode() -> None:
    for kernel in (mma, wgmma, pipelined):
        assert np.array_equal(kernel(device=EmulatedDevice(checked=False)).got, kernel().got), kernel.__name__


def test_bank_conflicts_of_matrix_loads_are_counted(tmp_path: Path) -> None:
    good = mma().counters
    assert good.matrix_wavefronts == good.matrix_phases == 4096
    plain = with_fault(MMA, tmp_path, "(row * CHUNKS + (chunk ^ (row >> SHIFT & (CHUNKS - 1))))", "(row * CHUNKS + chunk)")
    assert mma(source=plain).counters.matrix_wavefronts == 4 * 4096  # rows of 64 bytes: 8 rows share 2 of 8 columns


# ------------------------------------------------------------------------------------------------------------------- 8-bit sums
def test_sums_of_8_bit_products_that_are_promoted_stay_within_13_bits_of_each_tile() -> None:
    """Each wgmma cuts 32 products and the sum at 2^-13 of the largest, which is at most the sum of the magnitudes of a tile of 128."""
    result = pipelined(k=1024, dtype="e4m3", cluster=1)
    bound = 33 * 2.0**-13 * result.magnitude + 2.0**-8 * np.abs(result.exact)
    assert (np.abs(result.got - result.exact) <= bound).all()


def test_sums_of_8_bit_products_that_are_not_promoted_drift(tmp_path: Path) -> None:
    """That is why the emulator keeps few bits: of terms of one sign every product cuts some off, and the cuts add up."""
    source = with_fault(PIPELINED, tmp_path, "sizeof(T) == 2 || kk > 0);", "kt > 0 || kk > 0);    ")
    source = with_fault(source, tmp_path, "acc[i] += tile_acc[i];", "acc[i] = tile_acc[i]; ")

    def error(kernel: Path, fp8_bits: int) -> float:
        result = pipelined(k=4096, dtype="e4m3", source=kernel, device=EmulatedDevice(checked=False, fp8_bits=fp8_bits), positive=True)
        return float(np.linalg.norm(result.got - result.exact) / np.linalg.norm(result.exact))

    assert error(PIPELINED, 13) < 2.0**-8
    assert error(source, 13) > 10 * 2.0**-8
    assert error(source, 0) < 2.0**-8


# ------------------------------------------------------------------------------------------------------------------ planted faults
class Fault(NamedTuple):
    """Text of a kernel and what replaces it; the run that finds it; the code, words of the message, and text of the line it names."""

    name: str
    source: Path
    text: str
    replacement: str
    run: Callable[..., Product]
    code: str
    says: str
    line: str = ""
    settings: dict[str, object] = {}  # noqa: RUF012


PAIR: dict[str, object] = {"m": 256, "cluster": 2}
FENCE = "    wgmma_fence();\n"
WAIT = "    wgmma_wait<0>();\n    __syncthreads();\n"
FULL = "mbarrier_wait(full + 8 * s, kt / STAGES % 2);"
RELEASE = "      wgmma_wait<0>();\n      if (own < CLUSTER) "
STAGED = "reinterpret_cast<uint32_t*>(memory"
FAULTS = [
    Fault(
        "wait_group off by one", MMA, "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();", mma,
        "emu.async", "a cp.async fills and nobody has waited for", "ldmatrix(a[i]",
    ),
    Fault("no barrier after the wait", MMA, "    __syncthreads();\n", "\n", mma, "emu.unwritten", "that was never written", "ldmatrix("),
    Fault(
        "overlapping blocks", MMA, "blockIdx.y * BM", "blockIdx.y * (BM - 16)", mma,
        "emu.conflict", "which block 0 writes in the same launch", "C[(size_t)m",
    ),
    Fault(
        "a row past the end", MMA, "m < M && n < N", "n < N", mma,
        "emu.bounds", "past the end of `C` [77, 128] f32, at `C`[79, 4]", "C[(size_t)m", {"m": 77},
    ),
    Fault(
        "source rows not guarded", MMA, "first + r < limit && k < K", "k < K", mma,
        "emu.bounds", "read of 16 bytes past the end of `A`", "cp_async(to", {"m": 77},
    ),
    Fault("no proxy fence", WGMMA, "    fence_async_proxy();\n", "\n", wgmma, "emu.fence", "without fence_async_proxy", "wgmma<bf16>"),
    Fault(
        "tile reused under wgmma", WGMMA, WAIT, "    __syncthreads();\n\n", wgmma,
        "emu.async", "cp.async to shared memory that an unfinished wgmma or bulk store reads", "cp_async(",
    ),
    Fault(
        "accumulators read before the wait", WGMMA, WAIT, "    acc[0] += 1;\n    __syncthreads();\n", wgmma,
        "emu.async", "accumulator of a wgmma that has not been waited for", "acc[0] += 1",
    ),
    Fault("no wgmma_fence", WGMMA, FENCE, "\n", wgmma, "emu.fence", "a wgmma without a wgmma_fence before it", "wgmma<bf16>"),
    Fault(
        "accumulators changed without a fence", WGMMA, FENCE, "    if (kt) acc[0] += 1; else wgmma_fence();\n", wgmma,
        "emu.fence", "accumulators were written since the last wgmma", "wgmma<bf16>",
    ),
    Fault(
        "full barrier skipped", PIPELINED, FULL, ";", pipelined,
        "emu.race", "read by wgmma of shared memory that a copy that completes on an mbarrier wrote", "wgmma<T>",
    ),
    Fault(
        "full barrier skipped later", PIPELINED, FULL, "if (kt < STAGES) mbarrier_wait(full + 8 * s, 0);", pipelined,
        "emu.race", "that a copy that completes on an mbarrier wrote, with no barrier between", "wgmma<T>",
    ),
    Fault(
        "empty barrier skipped", PIPELINED, "mbarrier_wait(empty + 8 * s, kt / STAGES % 2 ^ 1);", ";", pipelined,
        "emu.protocol", "gets more in one phase", "mbarrier_arrive_expect",
    ),
    Fault(
        "slot released before wgmma ends", PIPELINED, RELEASE, RELEASE.replace("<0>", "<1>"), pipelined,
        "emu.async", "write to shared memory that an unfinished wgmma or bulk store reads", "tma_load(",
    ),
    Fault(
        "wrong byte count", PIPELINED, "mbarrier_arrive_expect(bar, STAGE);", "mbarrier_arrive_expect(bar, STAGE + 128);", pipelined,
        "emu.deadlock", "threads 128 to 383: in mbarrier_wait at",
    ),
    Fault(
        "initialisation not visible to the copy engine", PIPELINED, "    mbarrier_init_fence();\n", "\n", pipelined,
        "emu.fence", "mbarrier_init_fence is missing", "tma_load(",
    ),
    Fault(
        "no barrier after initialisation", PIPELINED, "  else __syncthreads();\n", "\n", pipelined,
        "emu.race", "an mbarrier is used without a barrier after its initialisation by thread 0",
    ),
    Fault(
        "consumers do not wait for each other", PIPELINED, "    barrier_sync(1, 256);\n", "\n", pipelined,
        "emu.race", "write to shared memory that a wgmma of warpgroup", STAGED,
    ),
    Fault(
        "store without a proxy fence", PIPELINED, "    fence_async_proxy();\n", "\n", pipelined,
        "emu.fence", "read by a bulk store", "tma_store(",
    ),
    Fault(
        "store without a barrier", PIPELINED, "    barrier_sync(2 + half, 128);\n", "\n", pipelined,
        "emu.race", "that thread 128 reads, with no barrier between", STAGED,
    ),
    Fault(
        "exit before the store has read", PIPELINED, "      bulk_wait_read<0>();\n", "\n", pipelined,
        "emu.protocol", "bulk_wait_read<0> are missing",
    ),
    Fault(
        "too many registers", PIPELINED, "acquire_registers<232>", "acquire_registers<240>", pipelined,
        "emu.protocol", "66560 registers together", "acquire_registers",
    ),
    Fault(
        "empty barrier of the own block only", PIPELINED, "mbarrier_arrive_cluster(cluster_address(empty + 8 * s, own));",
        "mbarrier_arrive(empty + 8 * s);", pipelined, "emu.race", "of block 1 of the cluster", "tma_load_multicast(", PAIR,
    ),
    Fault(
        "no cluster barrier after initialisation", PIPELINED, "  if (CLUSTER > 1) cluster_sync();\n  else",
        "  if (CLUSTER > 1) __syncthreads();\n  else", pipelined, "emu.race",
        "an mbarrier is used without a barrier after its initialisation by thread 0 of block 1 of the cluster", "", PAIR,
    ),
    Fault(
        "exit while the other block arrives", PIPELINED, "  if (CLUSTER > 1) cluster_sync();  // the other", "  // the other", pipelined,
        "emu.protocol", "of the cluster, which has exited", "", PAIR,
    ),
    Fault(
        "multicast past the cluster", PIPELINED, "(1 << CLUSTER) - 1,", "(2 << CLUSTER) - 1,", pipelined,
        "emu.bounds", "of a cluster of 2", "tma_load_multicast(", PAIR,
    ),
    Fault(
        "tile begins inside the swizzle's pattern", PIPELINED, "base = shared_address(memory),", "base = shared_address(memory) + 128,",
        pipelined, "emu.misaligned", "TMA with a 128-byte swizzle", "tma_load(",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The changed file of each fault; all are compiled together."""
    found = {fault.name: with_fault(fault.source, tmp_path_factory.mktemp("fault"), fault.text, fault.replacement) for fault in FAULTS}
    tile = ", ".join(map(str, TILE))
    kernels = {mma: f"mma_gemm<{tile}>", wgmma: "wgmma_gemm<3>"}
    EmulatedDevice().prepare(
        launch_of(found[fault.name], kernels.get(fault.run, f"pipelined_gemm<bf16, 4, {fault.settings.get('cluster', 1)}>"), (1,), 32, {})
        for fault in FAULTS
    )
    return found


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_found_at_its_line(fault: Fault, planted: dict[str, Path]) -> None:
    source = planted[fault.name]
    with pytest.raises(KernelError) as caught:
        fault.run(source=source, **fault.settings)
    error = caught.value
    assert (error.code, fault.says in error.message) == (fault.code, True), f"want {fault.code}: {fault.says}\ngot {error.render()}"
    assert fault.source.stem in error.message, error.message
    if fault.line:
        lines = [number for number, text in enumerate(source.read_text().splitlines(), 1) if fault.line in text]
        assert error.line in lines, f"want a line with `{fault.line}`, {lines}\ngot {error.render()}"


def test_the_line_of_a_fault_is_that_of_the_unchanged_kernel(tmp_path: Path) -> None:
    changed = with_fault(MMA, tmp_path, "cp_async_wait<STAGES - 2>();", "cp_async_wait<STAGES - 1>();")
    assert line_of(changed, "ldmatrix(a[i]") == line_of(MMA, "ldmatrix(a[i]")
