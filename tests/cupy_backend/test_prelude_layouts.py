"""Matrix instructions of the emulator against the layouts that NVIDIA publishes in CuTe, with whole numbers, so exactly."""

import itertools
import re

import ml_dtypes
import numpy as np
import pytest

from cupy_backend import sources
from cupy_backend.emulator import EmulatedDevice
from tests.cupy_backend import cute
from tests.cupy_backend.running import Given, launch_of

SOURCE = "selftest.cu"
CHECKED = EmulatedDevice()
FAST = EmulatedDevice(checked=False)
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}


def whole_numbers(seed: int, *shape: int) -> np.ndarray:
    """Small whole numbers, whose products and sums every format holds exactly."""
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(np.float64)


def registers(matrix: np.ndarray, layout: tuple[object, object], dtype: str) -> np.ndarray:
    """The registers of each thread `[threads, registers]` that hold a matrix `[rows, columns]` in a published layout."""
    row, column = cute.places(layout, len(matrix))
    return np.ascontiguousarray(matrix[row, column].astype(TYPES[dtype])).view(np.uint32)


def matrix_of(values: np.ndarray, layout: tuple[object, object], rows: int, columns: int) -> np.ndarray:
    """The matrix whose elements threads hold as `values` `[threads, values]`."""
    row, column = cute.places(layout, rows)
    matrix = np.full((rows, columns), np.nan)
    matrix[row, column] = values
    return matrix


def go(device: EmulatedDevice, kernel: str, threads: int, given: dict[str, Given], **settings: object) -> None:
    launch = launch_of(SOURCE, kernel, (1,), threads, given, **settings)
    device.run(launch, {name: value[0] for name, value in given.items() if isinstance(value, tuple)})


@pytest.mark.parametrize("dtype", TYPES)
def test_mma_multiplies_matrices_held_as_published(dtype: str) -> None:
    k = 16 if np.dtype(TYPES[dtype]).itemsize == 2 else 32
    layout_a, layout_b = (cute.SM80_16x8x16_A, cute.SM80_16x8x16_B) if k == 16 else (cute.SM89_16x8x32_A, cute.SM89_16x8x32_B)
    a, b, c = whole_numbers(1, 16, k), whole_numbers(2, 8, k), whole_numbers(3, 16, 8)
    d = matrix_registers(c, cute.SM80_16x8_ROW)
    given = {"a": (registers(a, layout_a, dtype), "read"), "b": (registers(b, layout_b, dtype), "read"), "d": (d, "update"), "times": 1}
    go(CHECKED, f"multiply<{dtype}>", 32, given)
    assert np.array_equal(matrix_of(d, cute.SM80_16x8_ROW, 16, 8), a @ b.T + c)


def matrix_registers(matrix: np.ndarray, layout: tuple[object, object]) -> np.ndarray:
    """float32 accumulators `[threads, values]` that hold a matrix."""
    row, column = cute.places(layout, len(matrix))
    return np.ascontiguousarray(matrix[row, column].astype(np.float32))


@pytest.mark.parametrize(("count", "transposed", "pitch"), list(itertools.product((1, 2, 4), (False, True), (16, 48))))
def test_ldmatrix_gives_each_thread_the_published_bits(count: int, transposed: bool, pitch: int) -> None:
    tile = np.random.default_rng(count).integers(0, 2**16, (8 * count, 8), dtype=np.uint16)
    got = np.empty((32, count), np.uint32)
    kernel = f"load_matrices<{count}, {str(transposed).lower()}>"
    go(CHECKED, kernel, 32, {"tile": (tile, "read"), "registers": (got, "write"), "pitch": pitch}, shared=32 * 48)
    assert np.array_equal(got, published_registers(tile, count, transposed))


def published_registers(tile: np.ndarray, count: int, transposed: bool) -> np.ndarray:
    (threads, bits), (thread_stride, bit_stride) = (cute.LDSM_T if transposed else cute.LDSM_N)[count]
    offset = cute.offsets(threads, thread_stride)[:, None] + cute.offsets(bits, bit_stride)[None, :]
    source = np.unpackbits(tile.view(np.uint8).reshape(-1), bitorder="little")
    return np.packbits(source[offset], axis=1, bitorder="little").view(np.uint32)


@pytest.mark.parametrize(("count", "transposed"), list(itertools.product((2, 4), (False, True))))
def test_stmatrix_undoes_ldmatrix(count: int, transposed: bool) -> None:
    tile = np.random.default_rng(count).integers(0, 2**16, (8 * count, 8), dtype=np.uint16)
    got = np.empty_like(tile)
    kernel = f"store_matrices<{count}, {str(transposed).lower()}>"
    given = {"registers": (published_registers(tile, count, transposed), "read"), "tile": (got, "write"), "pitch": 16}
    go(CHECKED, kernel, 32, given, shared=32 * 48)
    assert np.array_equal(got, tile)


class Case:
    """A wgmma: element type, N, and for each operand the swizzle's bytes and what its rows run along."""

    def __init__(self, dtype: str, n: int, a: tuple[int, str] | None, b: tuple[int, str]) -> None:
        self.dtype, self.n, self.a, self.b = dtype, n, a, b

    def __str__(self) -> str:
        a = "registers" if self.a is None else f"{self.a[1]}{self.a[0]}"
        return f"{self.dtype}-n{self.n}-{a}-{self.b[1]}{self.b[0]}"

    @property
    def kernel(self) -> str:
        names = {0: "none", 32: "bytes32", 64: "bytes64", 128: "bytes128"}
        b, tb = f"Swizzle::{names[self.b[0]]}", str(self.b[1] == "MN").lower()
        if self.a is None:
            return f"multiply_registers<{self.dtype}, {self.n}, {b}, {tb}>"
        return f"multiply_shared<{self.dtype}, {self.n}, Swizzle::{names[self.a[0]]}, {b}, {str(self.a[1] == 'MN').lower()}, {tb}>"


CASES = [
    *(Case("bf16", 64, (width, major), (width, major)) for width in (0, 32, 64, 128) for major in ("K", "MN")),
    *(Case("bf16", n, (128, "K"), (128, "K")) for n in (8, 24, 128, 256)),
    Case("f16", 64, (128, "K"), (64, "MN")),
    Case("f16", 16, None, (128, "K")),
    *(Case("e4m3", 64, (width, "K"), (width, "K")) for width in (0, 32, 64, 128)),
    *(Case("bf16", 64, None, (128, major)) for major in ("K", "MN")),
    Case("e4m3", 96, None, (64, "K")),
]
BYTES = 32768  # of shared memory for each operand


def image(matrix: np.ndarray, dtype: str, width: int, major: str) -> tuple[np.ndarray, int, int]:
    """A matrix `[rows, K]` as it lies in shared memory, with the two offsets of its descriptor, in bytes."""
    element = np.dtype(TYPES[dtype]).itemsize
    rows, k = matrix.shape
    if major == "K":
        # Without swizzle any distances serve; these leave gaps, to tell one from the other.
        leading, stride = (rows // 8 * 160 + 16, 160) if width == 0 else (16, 8 * width)
        chunks = matrix.astype(TYPES[dtype]).view(np.uint8).reshape(rows, 2, 16)
    else:
        pattern = 8 * max(width, 16)
        leading, stride = (rows // 8 * 160 + 16, 160) if width == 0 else (2 * pattern, pattern)
        chunks = matrix.T.astype(TYPES[dtype]).copy().view(np.uint8).reshape(k, rows // 8, 16).transpose(1, 0, 2)
    where = cute.swizzle(width, cute.canonical(width, major, rows, 32 // element, leading, stride))
    assert len(np.unique(where)) == where.size
    memory = np.zeros(BYTES, np.uint8)
    memory[where[..., None] + np.arange(16)] = chunks
    return memory.view(np.uint32).reshape(-1, 4), leading, stride


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    def prepared(device: EmulatedDevice, *kernels: str) -> None:
        device.prepare(launch_of(SOURCE, kernel, (1,), 32, {}) for kernel in kernels)

    prepared(FAST, *(case.kernel for case in CASES))
    matrices = [f"load_matrices<{n}, {t}>" for n in (1, 2, 4) for t in ("true", "false")]
    matrices += [f"store_matrices<{n}, {t}>" for n in (2, 4) for t in ("true", "false")]
    prepared(CHECKED, *matrices, *(f"multiply<{dtype}>" for dtype in TYPES))


@pytest.mark.parametrize("case", CASES, ids=str)
def test_wgmma_multiplies_operands_that_lie_as_published(case: Case) -> None:
    k = 32 // np.dtype(TYPES[case.dtype]).itemsize
    a, b, c = whole_numbers(1, 64, k), whole_numbers(2, case.n, k), whole_numbers(3, 64, case.n)
    b_image, leading_b, stride_b = image(b, case.dtype, *case.b)
    layout = cute.clayout_64xn(case.n)
    d = matrix_registers(c, layout)
    given: dict[str, Given]
    if case.a is None:
        layout_a = cute.ALAYOUT_64X16 if k == 16 else cute.ALAYOUT_64X32
        given = {"a": (registers(a, layout_a, case.dtype), "read"), "b": (b_image, "read"), "d": (d, "write"), "bytes": BYTES}
        c = np.zeros_like(c)  # that kernel does not accumulate
    else:
        a_image, leading_a, stride_a = image(a, case.dtype, *case.a)
        given = {
            "a": (a_image, "read"),
            "b": (b_image, "read"),
            "d": (d, "update"),
            "bytes": BYTES,
            "leading_a": leading_a,
            "stride_a": stride_a,
        }
    given |= {"leading_b": leading_b, "stride_b": stride_b}
    go(FAST, case.kernel, 128, given, shared=2 * BYTES)
    assert np.array_equal(matrix_of(d, layout, 64, case.n), a @ b.T + c)


def test_the_operands_of_every_wgmma_are_numbered_after_its_accumulators() -> None:
    text = (sources.folder() / "prelude" / "wgmma.cuh").read_text()
    for n in range(8, 257, 8):
        first = n // 2
        lists = re.search(rf'^#define POEM_R{n} (?:POEM_R{n - 8} )?"(.*)"$', text, re.MULTILINE)
        assert lists is not None, n
        assert re.findall(r"%(\d+)", lists[1]) == [str(i) for i in range(first - 4, first)], n
        assert re.search(rf"^#define POEM_D{n} (?:POEM_D{n - 8}, )?POEM_F4\({first - 4}\)$", text, re.MULTILINE), n
        numbers = ", ".join(f'"%{first + i}"' for i in range(7))
        assert f"POEM_WGMMA({n}, POEM_R{n}, POEM_D{n}, {numbers})" in text, n
