"""The self-test of a device: complete, right on the emulator, and telling where bits differ."""

import ctypes
import re
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from bench.on_gpu import selftest, selftest_judges
from bench.on_gpu.selftest import Case, Verdict
from bench.on_gpu.selftest_cases import ALL, case, cases, numbers, words
from cupy_backend import cubin_cache, host_compiler, sources
from cupy_backend.emulator import EmulatedDevice, Schedule
from tests.cupy_backend.compiling import compiler

CASES = {found.name: found for found in cases()}


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    made = EmulatedDevice()
    made.prepare(launch for found in cases() for launch in found.launches)
    return made


# ------------------------------------------------------------------------------------------------------------ on the emulator
@pytest.mark.parametrize("name", CASES)
def test_the_checked_emulator_gives_what_is_recorded_or_what_a_judge_allows(name: str, device: EmulatedDevice) -> None:
    outputs = selftest.run(CASES[name], device)
    assert selftest.judged(CASES[name], outputs).problems == ()


def test_no_case_depends_on_the_order_of_events(device: EmulatedDevice) -> None:
    for seed in (1, 2):
        random = EmulatedDevice(schedule=Schedule("random", "random", seed))
        wrong = [found.name for found in cases() if selftest.judged(found, selftest.run(found, random)).problems]
        assert not wrong, f"seed {seed}: {wrong}"


def test_names_of_cases_are_unique_and_every_recorded_output_belongs_to_one() -> None:
    assert len(CASES) == len(cases())
    named = {f"{found.name}/{output}" for found in cases() if found.judge is None for output in found.outputs}
    assert named == set(selftest.expected()), "record anew: python -m bench.on_gpu.selftest --record"


def test_what_is_recorded_is_small() -> None:
    assert selftest.EXPECTED.stat().st_size < 300_000


# ---------------------------------------------------------------------------------------------------------------- complete
FUNCTION = re.compile(
    r"^(?:template <[^>]*> ?)?(?:template <> )?POEM_DEVICE (?:constexpr )?[\w:<>* ]+?[ *]([a-z]\w*)(?:<\w+>)?\(", re.MULTILINE
)


def prelude() -> str:
    return "\n".join(path.read_text() for path in sorted((sources.folder() / "prelude").glob("*.cuh")))


def test_every_function_of_the_prelude_is_called_by_a_kernel_or_by_another_function_that_is() -> None:
    text, kernels = prelude(), (sources.folder() / "selftest.cu").read_text()
    names = set(FUNCTION.findall(text))
    assert {"ldmatrix", "tma_store", "wgmma", "release_registers", "pack_e2m1", "mbarrier_wait", "fma_pair"} <= names
    missing = [name for name in names if not re.search(rf"\b{name}\b[<(]", kernels) and len(re.findall(rf"\b{name}\b[<(]", text)) < 2]
    assert not missing, f"no kernel of selftest.cu calls {missing}"


def test_every_stored_format_of_the_prelude_is_decoded() -> None:
    formats = set(
        re.findall(r"^(?:template <[^>]*> )?struct (\w+)(?: : \w+)? \{\s*static constexpr int [^;]*GROUP", prelude(), re.MULTILINE)
    )
    assert {"Plain", "E4m3Rows", "Affine", "Nvfp4"} <= formats
    decoded = {name.removeprefix("decode ").partition("<")[0] for name in CASES if name.startswith("decode ")}
    assert not formats - decoded, f"no case decodes {formats - decoded}"


def test_every_kernel_of_the_file_belongs_to_a_case() -> None:
    text = (sources.folder() / "selftest.cu").read_text()
    kernels = {re.search(r"(\w+)\(", re.sub(r"__\w+__(?:\([^)]*\))?", "", rest))[1] for rest in re.findall(r"__global__([^{]*)\{", text)}  # type: ignore[index]
    used = {launch.kernel.partition("<")[0] for found in cases() for launch in found.launches}
    assert kernels == used


DEVICES = {"sm_90a": ("900", "__CUDA_ARCH_FEAT_SM90_ALL"), "sm_100a": ("1000", "__CUDA_ARCH_FEAT_SM100_ALL")}


def instructions(arch: str) -> set[str]:
    """Opcodes of all inline PTX of the prelude, as the preprocessor leaves it for an architecture."""
    number, feature = DEVICES[arch]
    command = [
        host_compiler.compiler()[0],
        "-E",
        "-P",
        "-x",
        "c++",
        f"-I{sources.folder()}",
        f"-D__CUDA_ARCH__={number}",
        f"-D{feature}",
        "-",
    ]
    done = subprocess.run(command, input='#include "prelude.cuh"\n', capture_output=True, text=True, check=True)
    return {opcode for text in _asm_texts(done.stdout) for opcode in opcodes(text)}


def _asm_texts(text: str) -> Iterator[str]:
    for literals in re.findall(r'asm\s*(?:volatile)?\s*\(\s*((?:"(?:[^"\\]|\\.)*"\s*)+)', text):
        yield "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals)).replace("\\n", "\n")


def opcodes(text: str) -> Iterator[str]:
    """The instructions of a stretch of PTX: first words of statements, without predicates, labels and declarations."""
    for statement in re.split(r"[;{}\n]", text):
        found = re.match(r"(?:@!?%?\w+\s+)?([a-z][\w.:]*)(?:\s|$)", statement.strip())
        if found and "." in found[1] and not found[1].endswith(":"):
            yield found[1]


def ptx_of_the_self_test(arch: str) -> str:
    """The PTX of its kernels for an architecture, but for those that multiply with every width, which take long to compile."""
    library = compiler()._library
    kernels = sorted({launch.kernel for launch in selftest.launches(arch) if not launch.kernel.startswith("multiply_widths")})
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    text = (sources.folder() / "selftest.cu").read_text()
    assert library.nvrtcCreateProgram(ctypes.byref(program), text.encode(), b"selftest.cu", 0, None, None) == 0
    for kernel in kernels:
        assert library.nvrtcAddNameExpression(program, kernel.encode()) == 0
    flags = [option for option in cubin_cache.OPTIONS if option != "-lineinfo"]
    flags += [f"--gpu-architecture=compute_{arch.removeprefix('sm_')}", f"-I{sources.folder()}"]
    assert library.nvrtcCompileProgram(program, len(flags), (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))) == 0
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    made = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, made)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    return made.value.decode()


def test_every_ptx_instruction_of_the_prelude_is_in_the_machine_code_of_the_self_test() -> None:
    compiler()
    wanted = {opcode for arch in DEVICES for opcode in instructions(arch)}
    assert {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", "griddepcontrol.wait", "cvt.rn.satfinite.e2m1x2.f32"} <= wanted
    assert len([opcode for opcode in wanted if opcode.startswith("wgmma.mma_async")]) == 3 * 32
    used = {_any_width(opcode) for arch in DEVICES for opcode in opcodes(ptx_of_the_self_test(arch))}
    missing = {_any_width(opcode) for opcode in wanted} - used
    assert not missing, f"no kernel has {sorted(missing)}"


def _any_width(opcode: str) -> str:
    """A product of a warpgroup by its types alone: other cases multiply with every width."""
    return re.sub(r"\.m64n\d+k", ".m64nNk", opcode)


@pytest.mark.parametrize("arch", ALL)
def test_every_case_compiles_for_the_architectures_that_it_names(arch: str) -> None:
    kernels = {launch.kernel for launch in selftest.launches(arch) if not launch.kernel.startswith("multiply_widths")}
    made = cubin_cache.get("selftest.cu", sorted(kernels), arch, compiler())
    assert made.names.keys() == kernels
    ignored = [line for line in made.log.splitlines() if "setmaxnreg ignored" in line]
    assert not ignored, ignored


# ----------------------------------------------------------------------------------------------------- inputs and verdicts
def test_words_are_those_of_splitmix64() -> None:
    """The first outputs from seed 0, as published with xoshiro (prng.di.unimi.it/splitmix64.c)."""
    assert words(0, 3).tolist() == [0xE220A839, 0x6E789E6A, 0x06C45D18]


def test_numbers_hold_every_kind_of_float() -> None:
    x = numbers()
    assert len(x) % 2 == 0
    exponents = set((x.view(np.uint32) >> 23 & 0xFF).tolist())
    assert exponents == set(range(256))
    assert {np.inf, -np.inf, 448.0, 464.0, 65520.0, 6.0} <= set(x.tolist())
    assert np.isnan(x).any()
    assert (np.signbit(x) & (x == 0)).any()


@pytest.fixture
def moving() -> Case:
    return CASES["ldmatrix x4, transposed false"]


def test_an_element_that_differs_is_told_with_its_bits(moving: Case, device: EmulatedDevice) -> None:
    outputs = selftest.run(moving, device)
    right = int(outputs["registers"].reshape(-1)[37])
    outputs["registers"].reshape(-1)[37] ^= 1
    assert selftest.judged(moving, outputs).problems == (
        f"1 of 128 elements of `registers` differ: [37] = {right ^ 1:08x}, recorded {right:08x}",
    )


def test_of_a_large_output_the_part_that_differs_is_told(device: EmulatedDevice) -> None:
    large = CASES["wgmma bf16 n64, A along K swizzle 128, B along K swizzle 128"]
    outputs = selftest.run(large, device)
    outputs["d"].reshape(-1)[1000] += 1
    (problem,) = selftest.judged(large, outputs).problems
    assert problem.startswith("1 of 64 parts of `d` differ: [960:1024] = ")


def test_an_output_that_was_not_recorded_says_how_to_record_it(moving: Case, device: EmulatedDevice) -> None:
    renamed = replace(moving, name="new")
    assert "--record" in selftest.judged(renamed, selftest.run(renamed, device)).problems[0]


def test_a_nan_is_a_nan_whatever_its_sign_and_payload() -> None:
    for dtype, leaf in ((np.float32, "f32"), (ml_dtypes.bfloat16, "bf16"), (np.float16, "f16"), (np.float64, "f64")):
        values = np.array([np.nan, -np.nan, np.inf, -np.inf, 1.0]).astype(dtype)
        values.view(f"u{values.itemsize}")[0] -= 1 if leaf != "f64" else 0
        got = selftest.canonical(values, leaf)
        assert got[0] == got[1]
        assert len(set(got.tolist())) == 4
    assert selftest.canonical(np.array([0x7E, 0x7F, 0xFF], np.uint8), "e4m3").tolist() == [0x7E, 0x7F, 0x7F]
    assert selftest.canonical(np.array([0x7C, 0x7D, 0xFE], np.uint8), "e5m2").tolist() == [0x7C, 0x7F, 0x7F]
    assert selftest.canonical(np.array([0x7F], np.uint8), "u8").tolist() == [0x7F]


@pytest.mark.parametrize(
    ("got", "exact", "fine"),
    [(1.5, 1.0, False), (1.05, 1.0, True), (np.nan, 1.0, False), (1.0, np.nan, False), (np.nan, np.nan, True), (np.inf, np.inf, True),
     (np.inf, 1.0, False), (-np.inf, np.inf, False)],
)  # fmt: skip
def test_a_value_is_within_its_bound_or_told(got: float, exact: float, fine: bool) -> None:
    problems = selftest_judges.within("f", np.array([0.0, got]), np.array([0.0, exact]), np.array([0.1, 0.1]))
    assert (problems == []) == fine
    assert fine or "1 of 2 of f are off: [1] = " in problems[0]


def test_a_product_that_loses_a_term_is_found(device: EmulatedDevice) -> None:
    for name in ("mma bf16, rounding", "mma e4m3, rounding"):
        found = CASES[name]
        outputs = selftest.run(found, device)
        outputs["d"][5] += 2.0
        assert found.judge is not None
        (problem,) = found.judge(found.memory, outputs).problems
        assert problem.startswith("1 of 128 of the product are off")


def test_kept_bits_are_counted_on_whatever_keeps_so_many() -> None:
    found = CASES["mma e4m3, bits kept"]
    assert found.judge is not None
    for bits, enough in ((11, False), (14, True)):
        outputs = selftest.run(found, EmulatedDevice(checked=False, fp8_bits=bits))
        verdict = found.judge(found.memory, outputs)
        assert verdict.facts is not None
        assert verdict.facts["bits kept"] == bits
        assert (verdict.problems == ()) == enough


def test_the_command_tests_a_device_and_says_what_differs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    few = [CASES["bulk_store"], replace(CASES["bulk_load through a ring"], judge=lambda memory, outputs: Verdict(("wrong",)))]
    monkeypatch.setattr(selftest, "all_cases", lambda arch: few)
    assert selftest.main(["--device", "emu"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["agrees", "differs"]
    assert lines[1].endswith("wrong  ")


def test_an_output_that_a_kernel_leaves_out_keeps_a_pattern_that_no_result_has() -> None:
    made = case("empty", "relay<>", 32, {"out": selftest_out()})
    assert set(made.memory["out"].view(np.uint8).tolist()) == {0xA5}


def selftest_out() -> object:
    from bench.on_gpu.selftest_cases import Out

    return Out((8,), "u32")
