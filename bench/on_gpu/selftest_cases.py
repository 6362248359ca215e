"""The cases of the self-test: for each wrapper of the prelude the kernel that tries it, and what it is given.

Inputs follow from a seed by arithmetic that is written here, not from a library's generator, so that they are the same everywhere.
"""

from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import ml_dtypes
import numpy as np

from bench.on_gpu import selftest_judges as judges
from bench.on_gpu.selftest import Case
from cupy_backend.launch import Argument, Array, Direction, Launch, Scalar, TensorMap
from poem.dtypes.leaves import STORAGE

SOURCE = "selftest.cu"
ALL = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")
FROM_89, FROM_90, HOPPER = ALL[1:], ALL[2:], ("sm_90a",)
TYPES = {"bf16": ml_dtypes.bfloat16, "f16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
WORDS = {np.dtype(f"{kind}{size}"): f"{kind}{size * 8}" for kind in "iu" for size in (1, 2, 4, 8)}
WORDS |= {np.dtype(np.float32): "f32", np.dtype(np.float64): "f64", np.dtype(ml_dtypes.bfloat16): "bf16", np.dtype(np.float16): "f16"}


# ---------------------------------------------------------------------------------------------------------------------- inputs
def words(seed: int, count: int) -> np.ndarray:
    """Random 32-bit words: the upper halves of SplitMix64 from `seed` (Steele, Lea and Flood, 2014)."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64) + np.uint64(seed << 32)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) >> np.uint64(32)).astype(np.uint32)


def uniform(seed: int, count: int, low: float, high: float) -> np.ndarray:
    """float64, evenly between two numbers."""
    return low + (high - low) * (words(seed, count) / 2.0**32)


def whole(seed: int, dtype: str, count: int) -> np.ndarray:
    """Codes of whole numbers from -4 to 4, whose products and sums are exact in any order."""
    codes = np.arange(-4, 5).astype(TYPES[dtype]).view(np.uint8 if dtype.startswith("e") else np.uint16)
    return codes[words(seed, count) % 9]


def bf16_of(values: np.ndarray) -> np.ndarray:
    return values.astype(ml_dtypes.bfloat16)


def numbers() -> np.ndarray:
    """Floats of every kind: special ones, every exponent, and around each place where a narrow format rounds, an even count."""
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38], np.float32)
    exponents = (np.arange(256, dtype=np.uint32) << 23 | words(1, 256) >> 9).view(np.float32)
    narrow = np.concatenate([_values_of(leaf) for leaf in ("e4m3", "e5m2")] + [np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])])
    narrow = np.unique(narrow[np.isfinite(narrow) & (narrow >= 0)])
    middles = np.concatenate([narrow, (narrow[1:] + narrow[:-1]) / 2]).astype(np.float32)
    halves = (np.arange(0, 0x7C00, 31, dtype=np.uint16).view(np.float16).astype(np.float32).view(np.uint32) | 0x1000).view(np.float32)
    tops = np.array([65504, 65519.996, 65520, 448, 463.99997, 464, 57344, 61439.996, 61440, 6, 7, 3.3895314e38], np.float32)
    ties = (words(2, 256) & 0xFFFF0000 | 0x8000).view(np.float32)
    base = np.concatenate([middles, halves, tops, ties, exponents])
    base = base[np.isfinite(base)]
    around = [base, np.nextafter(base, np.float32(np.inf)), np.nextafter(base, np.float32(-np.inf))]
    found = np.concatenate([special, *around, *(-part for part in around), words(3, 4096).view(np.float32)])
    return found[: len(found) // 2 * 2]


def _values_of(leaf: str) -> np.ndarray:
    return np.arange(256, dtype=np.uint8).view(TYPES[leaf]).astype(np.float64)


def ordinary(seed: int, count: int) -> np.ndarray:
    """float64 of many sizes, none near 0 or infinity, without NaN."""
    return np.where(words(seed, count) & 1, 1.0, -1.0) * np.exp2(uniform(seed + 1, count, -12, 12))


# ----------------------------------------------------------------------------------------------------------- making of a case
class Out(NamedTuple):
    """An output: every element is written. leaf: by which it is read."""

    shape: tuple[int, ...]
    leaf: str


class Updated(NamedTuple):
    """An output that is there before."""

    values: np.ndarray


class Tiles(NamedTuple):
    """A tensor map of an array; stored through it if it is an output."""

    values: np.ndarray
    box: tuple[int, ...]
    swizzle: int
    stored: bool = False


Given = np.ndarray | Out | Updated | Tiles | int


def case(
    name: str, kernel: str, threads: int, given: Mapping[str, Given], *, blocks: int = 1, shared: int = 0, cluster: int = 1,
    archs: tuple[str, ...] = ALL, judge: "judges.Judge | None" = None,
) -> Case:  # fmt: skip
    """One launch whose buffers have the parameters' names."""
    arguments: dict[str, Argument] = {}
    memory: dict[str, np.ndarray] = {}
    outputs = []
    for parameter, value in given.items():
        if isinstance(value, int):
            arguments[parameter] = Scalar(value, "i32")
            continue
        array, memory[parameter], is_output = _array(parameter, value)
        outputs += [parameter] if is_output else []
        arguments[parameter] = TensorMap(array, value.box, value.swizzle) if isinstance(value, Tiles) else array
    launch = Launch(SOURCE, kernel, (blocks, 1, 1), (threads, 1, 1), arguments, shared=shared, cluster=(cluster, 1, 1))
    return Case(name, (launch,), memory, tuple(outputs), archs, judge)


def _array(name: str, value: np.ndarray | Out | Updated | Tiles) -> tuple[Array, np.ndarray, bool]:
    """The argument, what it holds before, and whether it is an output."""
    if isinstance(value, Out):
        poison = np.full(value.shape, 0xA5, np.uint8).repeat(STORAGE[value.leaf].itemsize, -1).view(STORAGE[value.leaf])
        return Array(name, "write", value.shape, value.leaf), poison, True
    is_output = isinstance(value, Updated) or (isinstance(value, Tiles) and value.stored)
    values = value if isinstance(value, np.ndarray) else value.values
    direction: Direction = "update" if is_output else "read"
    return Array(name, direction, values.shape, WORDS[values.dtype]), values, is_output


# ------------------------------------------------------------------------------------------------------------------- numbers
def conversions() -> Iterator[Case]:
    x = numbers()
    n = len(x)
    packed = {f"as_{leaf}": Out((n,), leaf) for leaf in ("bf16", "f16", "e4m3", "e5m2")} | {"as_e2m1": Out((n // 2,), "u8")}
    yield case("pack", "encode<>", 256, {"x": x, **packed, "n": n}, blocks=4)
    for leaf in ("bf16", "f16", "e4m3", "e5m2"):
        yield case(f"from_float<{leaf}>", f"encode_one<{leaf}>", 256, {"x": x, "codes": Out((n,), leaf), "n": n}, blocks=4)
    for leaf in ("bf16", "f16", "e4m3", "e5m2", "e8m0"):
        codes = np.arange(1 << 16, dtype=np.uint16) if leaf in ("bf16", "f16") else np.arange(256, dtype=np.uint8)
        given: dict[str, Given] = {"codes": codes, "values": Out((len(codes),), "f32"), "n": len(codes)}
        yield case(f"to_float({leaf})", f"decode<{leaf}>", 256, given, blocks=4)
    finite = np.concatenate([np.zeros(4, np.float32), ordinary(10, 4092).astype(np.float32)])
    scaled: dict[str, Given] = {"x": finite, "scales": Out((1024,), "f32"), "codes": Out((1024,), "u32")}
    yield case("activation_scale, activation_codes", "encode_activations<>", 256, scaled, blocks=4)
    pairs = {"of_e4m3": Out((1 << 16, 2), "f32"), "of_e5m2": Out((1 << 16, 2), "f32"), "of_e2m1": Out((256, 2), "f32")}
    yield case("unpack 8 and 4 bits", "decode_pairs<>", 256, pairs, blocks=256)
    every = np.arange(1 << 16, dtype=np.uint32) | np.arange(1 << 16, dtype=np.uint32)[::-1] << 16
    for leaf in ("bf16", "f16"):
        yield case(f"unpack<{leaf}>", f"decode_halves<{leaf}>", 256, {"pairs": every, "values": Out((1 << 16, 2), "f32")}, blocks=256)
    both = ordinary(11, 1 << 11).astype(np.float32).view(np.uint64)
    for leaf in ("bf16", "f16"):
        yield case(f"split<{leaf}>", f"split_numbers<{leaf}>", 256, {"x": both, "parts": Out((len(both), 2), "u32")}, blocks=4)
    yield case("is_nan", "find_nan<>", 256, {"x": x[: 1 << 12], "nan": Out((1 << 12,), "i32")}, blocks=16)


def stored_formats() -> Iterator[Case]:
    """Codes of every kind; gains and offsets of both signs, some 0."""
    threads, blocks = 256, 4
    n = threads * blocks
    gain = bf16_of(ordinary(21, n))
    offset = bf16_of(-gain.astype(np.float64) * uniform(23, n, -2, 18))
    gain[::97] = 0
    bytes_ = (words(25, n) % 255).astype(np.uint8)
    formats: dict[str, tuple[int, int, np.ndarray, np.ndarray]] = {  # words a thread decodes, bits, gains, offsets
        "Plain": (4, 16, bytes_, bytes_), "E4m3Rows": (2, 8, bytes_, bytes_),
        "E4m3Tiles": (2, 8, ordinary(27, n).astype(np.float32), ordinary(28, n).astype(np.float32)),
        "Affine<8, 64>": (2, 8, gain, offset), "Affine<4, 64>": (1, 4, gain, offset), "Affine<4, 32>": (1, 4, gain, offset),
        "Affine<2, 64>": (1, 2, gain, offset), "Affine<2, 128>": (1, 2, gain, offset),
        "Nvfp4": (1, 4, bytes_ & 0x7F, bytes_), "Mxfp4": (1, 4, bytes_, bytes_),
    }  # fmt: skip
    for number, (name, (count, bits, gains, offsets)) in enumerate(formats.items()):
        codes = words(40 + number, n * count)
        if name.startswith("E4m3"):  # every pair of codes
            codes[: 1 << 9] = np.arange(1 << 9, dtype=np.uint32) * 0x01010101 + 0x03020100
        given: dict[str, Given] = {
            "codes": codes, "gain": gains, "offset": offsets, "pairs": Out((n * count * 16 // bits, 2), "bf16"),
            "parts": Out((n, 2), "f32"),
        }  # fmt: skip
        yield case(f"decode {name}", f"decode_stored<{name}>", threads, given, blocks=blocks)


def arithmetic() -> Iterator[Case]:
    n = 4096
    signs = words(50, n) & 1
    x = np.concatenate([
        ordinary(51, n // 4), uniform(53, n // 4, -20, 20), np.exp2(uniform(54, n // 4, -100, 100)), uniform(55, n // 4, 0.5, 2)
    ])  # fmt: skip
    special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-40, -1e-40], np.float32)
    approximated = {name: Out((n + 8,), "f32") for name in ("exp2", "log2", "reciprocal", "rsqrt", "tanh")}
    inputs = np.concatenate([x.astype(np.float32), special])
    yield case(
        "approximate functions", "approximate<>", 256, {"x": inputs, **approximated, "n": n + 8}, blocks=4, judge=judges.approximations
    )
    for table in (0x6A, 0x96, 0xCA):
        triples = words(table, 3 * 128)
        triples[2:96:3] = np.arange(32) * 0x1357 & 0xFFFF
        yield case(f"lop3<{table:#x}>, permute_bytes", f"logic<{table}>", 128, {"x": triples, "out": Out((256,), "u32")})
    single = np.where(signs, -x, x).astype(np.float32)
    other = ordinary(57, n).astype(np.float32)
    given: dict[str, Given] = {"x": single, "y": other, "out": Out((18 * n,), "f32"), "whole": Out((10 * n,), "i32"), "n": n}
    yield case("exact functions", "exact_functions<>", 256, given, blocks=4)
    double: dict[str, Given] = {"x": single * np.float64(1.0000000001), "y": other.astype(np.float64), "out": Out((8 * n,), "f64"), "n": n}
    yield case("exact functions of doubles", "exact_doubles<>", 256, double, blocks=4)
    argument, positive = uniform(60, n, -10, 10).astype(np.float32), np.exp2(uniform(61, n, -20, 20)).astype(np.float32)
    single_given: dict[str, Given] = {"x": argument, "p": positive, "out": Out((16 * n,), "f32"), "n": n}
    yield case("functions", "functions<>", 256, single_given, blocks=4, judge=judges.functions)
    double_given: dict[str, Given] = {
        "x": argument.astype(np.float64), "p": positive.astype(np.float64), "out": Out((4 * n,), "f64"), "n": n,
    }  # fmt: skip
    yield case("functions of doubles", "doubles<>", 256, double_given, blocks=4, judge=judges.doubles)


# ------------------------------------------------------------------------------------------------------------ matrices of a warp
def matrices() -> Iterator[Case]:
    for flag in ("false", "true"):
        for count in (1, 2, 4):
            given: dict[str, Given] = {
                "tile": words(count, 64 * count).astype(np.uint16),
                "registers": Out((32, count), "u32"),
                "pitch": 48,
            }
            yield case(f"ldmatrix x{count}, transposed {flag}", f"load_matrices<{count}, {flag}>", 32, given, shared=32 * 48)
        for count in (2, 4):
            given = {"registers": words(count, 32 * count), "tile": Out((64 * count,), "u16"), "pitch": 48}
            name = f"stmatrix x{count}, transposed {flag}"
            yield case(name, f"store_matrices<{count}, {flag}>", 32, given, shared=32 * 48, archs=FROM_90)
    for dtype in TYPES:
        archs, per_word = (FROM_89, 4) if dtype.startswith("e") else (ALL, 2)
        whole_numbers: dict[str, Given] = {
            "a": whole(70, dtype, 128 * per_word).view(np.uint32), "b": whole(71, dtype, 64 * per_word).view(np.uint32),
            "d": Updated((words(72, 128) % 64).astype(np.float32)), "times": 3,
        }  # fmt: skip
        yield case(f"mma {dtype}", f"multiply<{dtype}>", 32, whole_numbers, archs=archs)
        random: dict[str, Given] = {
            "a": _random(73, dtype, 128 * per_word), "b": _random(74, dtype, 64 * per_word),
            "d": Updated(uniform(75, 128, -1, 1).astype(np.float32)), "times": 1,
        }  # fmt: skip
        yield case(f"mma {dtype}, rounding", f"multiply<{dtype}>", 32, random, archs=archs, judge=judges.product_of(dtype))
        a, b = judges.probes(dtype)
        probing: dict[str, Given] = {"a": a, "b": b, "d": Updated(np.zeros(128, np.float32)), "times": 1}
        yield case(f"mma {dtype}, bits kept", f"multiply<{dtype}>", 32, probing, archs=archs, judge=judges.kept_by(dtype))


def _random(seed: int, dtype: str, count: int) -> np.ndarray:
    return np.ascontiguousarray(uniform(seed, count, -2, 2).astype(TYPES[dtype])).view(np.uint32)


# ------------------------------------------------------------------------------------------------------------------ warpgroups
SWIZZLES = {0: "none", 32: "bytes32", 64: "bytes64", 128: "bytes128"}
IMAGE = 32768  # bytes of an operand in shared memory


def warpgroups() -> Iterator[Case]:
    shared_operands = [
        *(("bf16", 64, (width, along), (width, along)) for width in SWIZZLES for along in ("K", "MN")),
        *(("e4m3", 64, (width, "K"), (width, "K")) for width in SWIZZLES),
        *(("f16", 64, (128, "K"), (width, along)) for width, along in ((64, "MN"), (0, "K"), (128, "MN"))),
        ("bf16", 64, (64, "MN"), (32, "K")), ("f16", 128, (32, "MN"), (128, "K")), ("e4m3", 128, (64, "K"), (128, "K")),
    ]  # fmt: skip
    for dtype, n, a, b in shared_operands:
        kernel = f"multiply_shared<{dtype}, {n}, {_swizzle(a)}, {_swizzle(b)}, {_along(a)}, {_along(b)}>"
        leading_a, stride_a = _offsets(64, a)
        leading_b, stride_b = _offsets(n, b)
        given: dict[str, Given] = {
            "a": _image(80, dtype), "b": _image(81, dtype), "d": Updated((words(82, 64 * n) % 64).astype(np.float32)), "bytes": IMAGE,
            "leading_a": leading_a, "stride_a": stride_a, "leading_b": leading_b, "stride_b": stride_b,
        }  # fmt: skip
        name = f"wgmma {dtype} n{n}, A along {a[1]} swizzle {a[0]}, B along {b[1]} swizzle {b[0]}"
        yield case(name, kernel, 128, given, shared=2 * IMAGE, archs=HOPPER)
    for dtype, n, b in (
        *(("bf16", 64, (width, along)) for width in SWIZZLES for along in ("K", "MN")),
        *(("e4m3", 96, (width, "K")) for width in SWIZZLES), ("f16", 16, (128, "K")), ("f16", 64, (64, "MN")),
    ):  # fmt: skip
        kernel = f"multiply_registers<{dtype}, {n}, {_swizzle(b)}, {_along(b)}>"
        leading_b, stride_b = _offsets(n, b)
        given = {
            "a": _image(83, dtype)[:128], "b": _image(84, dtype), "d": Out((128, n // 2), "f32"), "bytes": IMAGE,
            "leading_b": leading_b, "stride_b": stride_b,
        }  # fmt: skip
        name = f"wgmma {dtype} n{n}, A in registers, B along {b[1]} swizzle {b[0]}"
        yield case(name, kernel, 128, given, shared=IMAGE, archs=HOPPER)
    for dtype in ("bf16", "f16", "e4m3"):
        for flag in ("false", "true"):
            given = {"a": _image(85, dtype), "b": _image(86, dtype), "d": Out((64 * sum(range(8, 257, 8)),), "f32"), "bytes": IMAGE}
            source = "registers" if flag == "true" else "shared memory"
            name = f"wgmma {dtype} of every width, A in {source}"
            yield case(name, f"multiply_widths<{dtype}, {flag}>", 128, given, shared=2 * IMAGE, archs=HOPPER)
        registers, image = judges.warpgroup_probes(dtype)
        given = {"a": registers, "b": image, "d": Out((128, 4), "f32"), "bytes": image.nbytes, "leading_b": 16, "stride_b": 1024}
        kernel = f"multiply_registers<{dtype}, 8, Swizzle::bytes128, false>"
        name = f"wgmma {dtype}, bits kept"
        yield case(name, kernel, 128, given, shared=image.nbytes, archs=HOPPER, judge=judges.kept_by_warpgroups(dtype))
    given = {"x": words(87, 384), "out": Out((384,), "u32")}
    yield case("release_registers, acquire_registers", "register_budgets<>", 384, given, archs=HOPPER)


def _image(seed: int, dtype: str) -> np.ndarray:
    """Whole numbers wherever an operand may look, `[chunks, 4]` words."""
    return whole(seed, dtype, IMAGE // (1 if dtype.startswith("e") else 2)).view(np.uint32).reshape(-1, 4)


def _swizzle(operand: tuple[int, str]) -> str:
    return f"Swizzle::{SWIZZLES[operand[0]]}"


def _along(operand: tuple[int, str]) -> str:
    """Whether the operand's rows run along M or N."""
    return str(operand[1] == "MN").lower()


def _offsets(rows: int, operand: tuple[int, str]) -> tuple[int, int]:
    """Leading and stride of an operand's descriptor, in bytes; without swizzle unlike each other and with gaps."""
    width, along = operand
    if width == 0:
        return rows // 8 * 160 + 16, 160
    return (16, 8 * width) if along == "K" else (16 * width, 8 * width)


# ----------------------------------------------------------------------------------------------------------- copies, memory
def copies() -> Iterator[Case]:
    boxes: list[tuple[np.dtype, tuple[int, ...], tuple[int, ...], int, tuple[int, ...]]] = [  # dtype, shape, box, swizzle, first element
        (np.dtype(np.uint16), (40, 80), (16, 64), 128, (8, 16)), (np.dtype(np.uint16), (40, 80), (16, 64), 128, (30, 40)),
        (np.dtype(np.uint8), (20, 96), (9, 64), 64, (-3, -16)), (np.dtype(np.uint32), (12, 16), (8, 8), 32, (2, 4)),
        (np.dtype(np.uint32), (9, 64), (5, 60), 0, (6, 8)), (np.dtype(np.uint16), (3, 20, 64), (2, 8, 64), 128, (1, 4, 0)),
        (np.dtype(np.uint8), (4, 10, 48), (3, 4, 32), 32, (2, 8, 32)), (np.dtype(np.uint32), (3, 7, 20), (2, 5, 12), 0, (-1, 4, 12)),
    ]  # fmt: skip
    for number, (dtype, shape, box, swizzle, at) in enumerate(boxes):
        size = int(np.prod(shape))
        values = words(90 + number, size).astype(dtype).reshape(shape)
        nbytes = int(np.prod(box)) * dtype.itemsize
        rank = len(shape)
        corner = dict(zip(("c0", "c1", "c2"), (*at[::-1], 0)[:3], strict=True))
        name = f"{rank}-D box {'x'.join(map(str, box))} of {8 * dtype.itemsize} bits at {at}, swizzle {swizzle}"
        for flag, word in (("false", "tma_load"), ("true", "tma_load_multicast")):
            given: dict[str, Given] = {
                "map": Tiles(values, box, swizzle), "image": Out((nbytes // 4,), "u32"), "bytes": nbytes, **corner
            }  # fmt: skip
            yield case(f"{word}, {name}", f"load_box<{rank}, {flag}>", 32, given, shared=32768, archs=FROM_90)
        given = {
            "map": Tiles(np.full_like(values, 0x5A), box, swizzle, True),
            "image": words(110 + number, nbytes // 4),
            "bytes": nbytes,
            **corner,
        }
        yield case(f"tma_store, {name}", f"store_box<{rank}>", 32, given, shared=32768, archs=FROM_90)
    for width in (128, 64, 32):
        rows = words(118, 4 * width).reshape(16, width // 4)
        given = {"map": Tiles(rows, rows.shape, width), "out": Out((rows.size,), "u32"), "row_bytes": width}
        yield case(f"swizzled, {width} bytes", f"read_swizzled<Swizzle::bytes{width}>", 32, given, shared=4096, archs=FROM_90)
    shared_box: dict[str, Given] = {
        "map": Tiles(words(120, 32 * 64).astype(np.uint16).reshape(32, 64), (16, 64), 128), "image": Out((2 * 32 * 32,), "u32"),
        "bytes": 2048, "rows": 16,
    }  # fmt: skip
    yield case("tma_load_multicast to a cluster of 2", "share_box<>", 32, shared_box, blocks=2, cluster=2, shared=32768, archs=FROM_90)
    yield case("bulk_load through a ring", "bulk_ring<>", 160, {"x": words(121, 1024), "out": Out((1024,), "u32")}, archs=FROM_90)
    yield case("bulk_store", "bulk_out<>", 128, {"x": words(122, 128), "out": Out((256,), "u32")}, archs=FROM_90)
    for size in (4, 8, 16):
        counts = (words(123, 128) % (size + 1)).astype(np.int32)
        given = {"x": words(124, 32 * size).view(np.uint8), "bytes": counts, "out": Out((64 * size,), "u32")}
        yield case(f"cp_async<{size}>", f"copy<{size}>", 128, given)
    given = {"x": words(125, 256), "out": Out((256,), "u32")}
    yield case("cp_async_mbarrier_arrive", "copy_to_mbarrier<>", 128, given, archs=FROM_90)
    for width in (1, 2, 4):
        given = {"x": words(126, 256 * width), "out": Out((512 * width,), "u32")}
        yield case(f"load_constant, load_streaming of {4 * width} bytes", f"load_words<Pack<uint32_t, {width}>>", 128, given, blocks=2)


def memory_order() -> Iterator[Case]:
    cells = np.array([0, 0, 2**32 - 1, 2**32 - 1, 0, 0x80000000, 0x7FFFFFFF, 0, 0], np.uint32)
    given: dict[str, Given] = {
        "x": words(130, 256), "cells": Updated(cells), "own": Updated(words(131, 512)), "before": Out((1024,), "u32")
    }  # fmt: skip
    yield case("atomics", "atomics<>", 64, given, blocks=4)
    zeros = np.zeros(8, np.uint32)
    given = {"x": words(132, 512), "parts": Updated(np.zeros(512, np.uint32)), "count": Updated(zeros), "sums": Updated(zeros.repeat(16))}
    yield case("atomic_add_acq_rel, the last block", "last_block<>", 128, given, blocks=4)
    given = {"x": words(133, 256), "data": Updated(np.zeros(256, np.uint32)), "flags": Updated(zeros), "right": Out((256,), "u32")}
    yield case("store_release, load_acquire", "published<>", 128, given, blocks=2)


# ------------------------------------------------------------------------------------------------------- threads and launches
def threads() -> Iterator[Case]:
    given: dict[str, Given] = {"x": words(140, 128), "out": Out((128,), "u32")}
    yield case("barrier_sync, barrier_arrive", "named_barriers<>", 128, given)
    # elect_lane is of sm_90; the same kernel tries what older devices have too.
    yield case(
        "warp functions, elect_lane", "warp_functions<>", 128, {"x": words(141, 256), "out": Out((256, 16), "u32")}, blocks=2, archs=FROM_90
    )
    given = {"x": words(142, 512), "out": Out((512, 4), "u32")}
    yield case("clusters", "exchange<>", 128, given, blocks=4, cluster=2, archs=FROM_90)
    yield case("alignment of shared memory", "alignment<>", 32, {"out": Out((32, 3), "u32")}, shared=64)
    yield relay()


def relay() -> Case:
    """Four launches, each overlapping the one before it."""
    names = ("x", "first", "second", "third", "out")
    arrays = [Array(name, "read", (1024,), "u32") for name in names]
    launches: list[Launch] = []
    for before, after in pairwise(arrays):
        arguments: dict[str, Argument] = {"x": before, "out": Array(after.buffer, "write", (1024,), "u32")}
        launches.append(Launch(SOURCE, "relay<>", (8, 1, 1), (128, 1, 1), arguments, overlaps=bool(launches)))
    memory = {name: np.full(1024, 0xA5A5A5A5, np.uint32) for name in names} | {"x": words(143, 1024)}
    return Case("grid_dependency_wait, grid_dependency_launch", tuple(launches), memory, ("out",), FROM_90)


@lru_cache
def cases() -> tuple[Case, ...]:
    """All of them, the plainest first."""
    groups = (conversions, stored_formats, arithmetic, threads, memory_order, matrices, copies, warpgroups)
    return tuple(case for group in groups for case in group())
