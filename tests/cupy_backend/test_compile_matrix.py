"""Every kernel compiles for every architecture within its budget; every wrapper of the prelude assembles to its instruction."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from cupy_backend import budgets, compile_matrix, cubin_cache, sources
from cupy_backend.budgets import BUDGETS, Budget
from cupy_backend.compile_matrix import LIMITS, Report, resident_blocks
from cupy_backend.launch import Launch
from cupy_backend.nvrtc import Resources
from tests.cupy_backend.compiling import MAJORS, compiler, needs_disassembler
from tests.cupy_backend.running import KERNELS, with_fault
from tests.cupy_backend.test_emulator_rules import RULES

TILE = "64, 64, 32, 4, 2, 2"
FROM_89 = ("sm_89", "sm_90a", "sm_100a", "sm_120a")
FROM_90 = ("sm_90a", "sm_100a", "sm_120a")
HOPPER = ("sm_90a",)
MULTICAST = ("sm_90a", "sm_100a")  # on sm_120a the instruction is an ordinary load
# The kernels of the tests, as launches and what they must keep.
TEST_KERNELS = (
    Budget("mma_gemm.cu *", registers=128, occupancy=0.125, instructions=("HMMA.16816.F32.BF16", "LDSM.16.M88.4", "LDGSTS")),
    Budget("wgmma_gemm.cu *", registers=128, instructions=("HGMMA.64x64x16.F32.BF16",)),
    Budget(
        "pipelined_gemm.cu *<bf16, 4, 1*", registers=168,
        instructions=("HGMMA.64x128x16.F32.BF16", "UTMALDG.2D", "UTMASTG.2D", "USETMAXREG", "SYNCS"),
    ),
    Budget("pipelined_gemm.cu *<e4m3, 4, 2*", registers=168, instructions=("QGMMA.64x128x32.F32.E4M3.E4M3", "UTMALDG.2D.MULTICAST")),
)  # fmt: skip


def launch(name: str, kernel: str, threads: int, shared: int = 0) -> Launch:
    return Launch(str(KERNELS / f"{name}.cu"), kernel, (2, 2, 1), (threads, 1, 1), {}, shared=shared)


TEST_LAUNCHES = [
    launch("mma_gemm", f"mma_gemm<{TILE}>", 128, 4 * 128 * 64),
    launch("wgmma_gemm", "wgmma_gemm<3>", 128, 3 * 16384),
    *(launch("pipelined_gemm", f"pipelined_gemm<{kind}>", 384, 4 * 32768) for kind in ("bf16, 4, 1", "e4m3, 4, 2")),
]


def faults(reports: list[Report]) -> str:
    return "\n".join(report.line() for report in reports if report.faults)


@pytest.mark.parametrize("arch", sorted(LIMITS, key=lambda arch: arch != compile_matrix.TESTED_WHOLLY))
def test_every_kernel_keeps_its_budget(arch: str) -> None:
    """As far as `compile_matrix.tested` goes; the command line goes all the way. One test for both compilers: planning takes seconds."""
    reports = []
    for major in MAJORS:
        newest = major == MAJORS[-1]
        reports += compile_matrix.check(compile_matrix.tested(arch, newest), arch, compiler(major), disassemble=newest)
    assert not faults(reports), faults(reports)


@pytest.mark.parametrize("arch", LIMITS)
@pytest.mark.parametrize("major", MAJORS)
def test_the_kernels_of_the_emulators_tests_compile_for_the_devices_they_stand_for(major: int, arch: str) -> None:
    launches = TEST_LAUNCHES if arch in HOPPER else TEST_LAUNCHES[:1]  # the others are written for wgmma
    reports = compile_matrix.check(launches, arch, compiler(major), TEST_KERNELS, disassemble=major == MAJORS[-1])
    assert not faults(reports), faults(reports)


ROWS = "Swizzle::bytes128, Swizzle::bytes128"
# Kernels of selftest.cu, the architectures that have what they use, and what must be in their machine code.
WRAPPERS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("encode<>", tuple(LIMITS), ("F2F",)),
    ("encode_one<bf16>", tuple(LIMITS), ("F2F",)),
    ("decode<e4m3>", tuple(LIMITS), ()),
    ("decode<e8m0>", tuple(LIMITS), ()),
    ("decode_pairs<>", tuple(LIMITS), ()),
    ("approximate<>", tuple(LIMITS), ("MUFU.EX2", "MUFU.LG2", "MUFU.RCP", "MUFU.RSQ", "MUFU.TANH")),
    ("logic<106>", tuple(LIMITS), ("LOP3.LUT", "PRMT")),
    *((f"load_matrices<{count}, false>", tuple(LIMITS), ("LDSM.16.M88",)) for count in (1, 2, 4)),
    *((f"load_matrices<{count}, true>", tuple(LIMITS), ("LDSM.16.MT88",)) for count in (1, 2, 4)),
    *((f"store_matrices<{count}, false>", FROM_90, ("STSM.16.M88",)) for count in (2, 4)),
    *((f"store_matrices<{count}, true>", FROM_90, ("STSM.16.MT88",)) for count in (2, 4)),
    ("multiply<bf16>", tuple(LIMITS), ("HMMA.16816.F32.BF16",)),
    ("multiply<f16>", tuple(LIMITS), ("HMMA.16816.F32",)),
    ("multiply<e4m3>", FROM_89, ()),
    ("multiply<e5m2>", FROM_89, ()),
    ("load_box<2, false>", FROM_90, ("UTMALDG.2D", "SYNCS")),
    ("load_box<2, true>", MULTICAST, ("UTMALDG.2D.MULTICAST",)),
    ("load_box<3, true>", MULTICAST, ("UTMALDG.3D.MULTICAST",)),
    ("load_box<3, false>", FROM_90, ("UTMALDG.3D",)),
    ("store_box<2>", FROM_90, ("UTMASTG.2D", "ELECT")),
    ("store_box<3>", FROM_90, ("UTMASTG.3D",)),
    *((f"multiply_shared<bf16, {n}, {ROWS}, false, false>", HOPPER, (f"HGMMA.64x{n}x16.F32.BF16",)) for n in (8, 96, 256)),
    ("multiply_shared<bf16, 64, Swizzle::bytes64, Swizzle::bytes32, true, true>", HOPPER, ("HGMMA.64x64x16.F32.BF16",)),
    ("multiply_shared<f16, 64, Swizzle::none, Swizzle::bytes128, false, true>", HOPPER, ("HGMMA.64x64x16.F32",)),
    (f"multiply_shared<e4m3, 192, {ROWS}, false, false>", HOPPER, ("QGMMA.64x192x32.F32.E4M3.E4M3",)),
    ("multiply_registers<bf16, 64, Swizzle::bytes128, true>", HOPPER, ("HGMMA.64x64x16.F32.BF16",)),
    ("multiply_registers<f16, 16, Swizzle::bytes128, false>", HOPPER, ("HGMMA.64x16x16.F32",)),
    ("multiply_registers<e4m3, 96, Swizzle::bytes64, false>", HOPPER, ("QGMMA.64x96x32.F32.E4M3.E4M3",)),
]  # fmt: skip


@pytest.mark.parametrize("arch", LIMITS)
def test_every_wrapper_assembles_to_its_instruction(arch: str) -> None:
    needs_disassembler()
    source = "selftest.cu"
    wanted = {kernel: instructions for kernel, architectures, instructions in WRAPPERS if arch in architectures}
    made = cubin_cache.get(source, sorted(wanted), arch, compiler())
    code = compile_matrix.machine_code(made.cubin)
    assert code is not None
    missing = [f"{kernel} has no {name}" for kernel, names in wanted.items() for name in names if name not in code[made.names[kernel]]]
    assert not missing, "\n".join(missing)


@pytest.mark.parametrize("major", MAJORS)
def test_the_kernel_of_every_rule_compiles(major: int) -> None:
    made = cubin_cache.get(str(KERNELS / "rules.cu"), [f"{rule.name}<true>" for rule in RULES], "sm_90a", compiler(major))
    assert len(made.names) == len(RULES)


# ---------------------------------------------------------------------------------------------------------------------- the matrix itself
@pytest.mark.parametrize(
    ("registers", "shared", "threads", "arch", "blocks"),
    [
        (32, 0, 256, "sm_90a", 8),  # 64 warps / 8
        (64, 0, 256, "sm_90a", 4),  # 65536 registers / (64 * 32 * 8)
        (65, 0, 256, "sm_90a", 3),  # 72 registers after rounding up to 256 for a warp: 65536 / 18432
        (168, 132 << 10, 384, "sm_90a", 1),
        (32, 100 << 10, 128, "sm_90a", 2),  # 228 KB / 101 KB
        (32, 99 << 10, 128, "sm_89", 1),
        (32, 100 << 10, 128, "sm_89", 0),  # a block has at most 99 KB there
        (16, 0, 32, "sm_89", 24),
    ],
)  # fmt: skip
def test_resident_blocks_follow_from_the_scarcest_resource(registers: int, shared: int, threads: int, arch: str, blocks: int) -> None:
    assert resident_blocks(Resources(registers, 0, 0, 0), threads, shared, arch) == blocks


def test_what_exceeds_a_budget_is_a_fault_in_words() -> None:
    needs_disassembler()
    tight = Budget(registers=16, occupancy=0.9, under_way=256 << 10, instructions=("HGMMA", "LDSM"))
    report = compile_matrix.check(TEST_LAUNCHES[:1], "sm_80", compiler(), [tight])[0]
    assert report.faults == ("more than 16 registers", "less than 90% occupancy", "less than 262144 bytes under way", "no HGMMA")
    assert "sm_80" in report.line()
    assert report.line().endswith("more than 16 registers; less than 90% occupancy; less than 262144 bytes under way; no HGMMA")


def test_spilled_registers_are_a_fault(tmp_path: Path) -> None:
    source = with_fault(KERNELS / "mma_gemm.cu", tmp_path, "WARPS_M * WARPS_N * 32)\n", "WARPS_M * WARPS_N * 32, 12)\n")
    report = compile_matrix.check([replace(TEST_LAUNCHES[0], source=str(source))], "sm_80", compiler(), [Budget(spilled=4)])[0]
    assert report.faults == ("more than 4 bytes spilled",)


def test_products_that_warpgroups_have_to_wait_for_are_a_fault(tmp_path: Path) -> None:
    """ptxas waits for each product if sums are read between them, and says so."""
    product = "wgmma<T>(sum, a, b, kt > 0 || kk > 0)"
    source = with_fault(sources.folder() / "linear_warpgroups.cu", tmp_path, product, f"{product}, sum[1] += sum[0]")
    kernel = "product_by_warpgroups<bf16, bf16, NO_ACTIVATION, 256, 4>"
    report = compile_matrix.check([Launch(str(source), kernel, (1, 1, 1), (384, 1, 1), {})], "sm_90a", compiler(), disassemble=False)[0]
    assert any("serialized" in fault for fault in report.faults), report.line()


def test_the_first_budget_that_is_about_a_kernel_and_an_architecture_counts() -> None:
    given = (Budget("a.cu big<bf16*", registers=3), Budget("a.cu *", registers=2, architectures=HOPPER), Budget("a.cu big*", registers=1))
    for kernel, arch, registers in (
        ("big<bf16, 8>", "sm_80", 3), ("big<f16>", "sm_90a", 2), ("big<f16>", "sm_80", 1), ("small", "sm_80", Budget().registers),
    ):  # fmt: skip
        assert budgets.of(Launch("/x/a.cu", kernel, (1, 1, 1), (32, 1, 1), {}), arch, given).registers == registers, (kernel, arch)


def test_every_budget_is_about_a_kernel() -> None:
    archs = ("sm_89", "sm_90a", "sm_100a", "sm_120a")  # with 8-bit products and without, with warpgroups, and the newest
    about = {budgets.of(launch, arch, BUDGETS) for arch in archs for launch in compile_matrix.everything(arch)}
    assert [budget.kernels for budget in BUDGETS if budget not in about] == []


@pytest.mark.parametrize("arch", ["sm_89", "sm_90a"])
def test_of_each_template_the_tests_compile_one_by_every_compiler(arch: str) -> None:
    def templates(launches: Iterable[Launch]) -> set[tuple[str, str]]:
        return {(launch.source, launch.kernel.partition("<")[0]) for launch in launches}

    everything = templates(compile_matrix.everything(arch))
    assert templates(compile_matrix.tested(arch, newest=False)) == everything
    assert templates(compile_matrix.tested(arch, newest=True)) == everything


def test_a_template_is_told_from_its_arguments() -> None:
    kernels = {"product<Affine<4, 64>, bf16, 8>": 1, "product<Affine<4, 64>, bf16, 16>": 3, "product<Affine<2, 64>, bf16>": 2, "plain": 0}
    launches = [Launch("a.cu", kernel, (1, 1, 1), (32, 1, 1), {}, shared=shared) for kernel, shared in kernels.items()]
    assert compile_matrix.one_of_each(launches) == [launches[1], launches[3]]
    assert compile_matrix.one_of_each(launches, arguments=1) == [launches[1], launches[2], launches[3]]


def test_products_with_the_same_weights_are_told_apart_by_their_tiles() -> None:
    kernels = [f"product<Plain, bf16, bf16, bf16, {act}, 64, {rows}, 64, 5, 2, 1, false>" for act in ("SILU", "GELU") for rows in (8, 16)]
    launches = [Launch("linear.cu", kernel, (1, 1, 1), (64, 1, 1), {}, shared=10) for kernel in kernels]
    assert compile_matrix.one_of_each(launches) == launches[:1]
    assert compile_matrix.one_of_each(launches, arguments=1) == launches[:2]
