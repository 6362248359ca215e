"""The prelude's conversions and functions on the host: conversions are bit for bit those of poem/dtypes, functions err as stated."""

import ml_dtypes
import numpy as np
import pytest

from cupy_backend.emulator import EmulatedDevice
from poem.dtypes import leaves
from tests.cupy_backend.running import run

SOURCE = "selftest.cu"
FAST = EmulatedDevice(checked=False)  # the checker adds nothing to elementwise arithmetic
STORED = {"bf16": ml_dtypes.bfloat16, "f16": np.float16}


def every_kind_of_float() -> np.ndarray:
    """All bf16 patterns, their neighbours in float32, the middles between codes of narrow formats and theirs, random bits."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    near = np.concatenate([upper, upper + 1, upper - 1, upper + 0x8000, upper + 0x7FFF, upper + 0x8001]).view(np.float32)
    middles = []
    for leaf in ("e4m3", "e5m2", "e2m1"):
        values = np.unique(leaves.values_of_codes(leaf)[np.isfinite(leaves.values_of_codes(leaf))])
        middles.append((values[1:] + values[:-1]) / 2)
    half = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles.append((half[1:] + half[:-1]) / 2)
    middle = np.concatenate(middles).astype(np.float32)
    around = [middle, -middle, np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))]
    random = np.random.default_rng(0).integers(0, 2**32, 1 << 18, dtype=np.uint32).view(np.float32)
    found = np.concatenate([near, *around, random])
    return np.concatenate([found, found[:1]]) if len(found) % 2 else found


def differing(x: np.ndarray, got: np.ndarray, want: np.ndarray, nan: np.ndarray) -> str:
    """The first inputs whose codes differ; codes of NaN must only be NaN."""
    wrong = np.flatnonzero(np.where(np.isnan(x), ~nan, got != want))
    return "\n".join(f"{x[i]!r} ({x.view(np.uint32)[i]:08x}): got {got[i]:#x}, want {want[i]:#x}" for i in wrong[:5])


@pytest.fixture(scope="module")
def encoded() -> dict[str, np.ndarray]:
    x = every_kind_of_float()
    out = {
        "as_bf16": np.empty(len(x), np.uint16), "as_f16": np.empty(len(x), np.uint16), "as_e4m3": np.empty(len(x), np.uint8),
        "as_e5m2": np.empty(len(x), np.uint8), "as_e2m1": np.empty(len(x) // 2, np.uint8),
    }  # fmt: skip
    run(
        SOURCE,
        "encode<>",
        (4,),
        256,
        {"x": (x, "read"), **{name: (array, "write") for name, array in out.items()}, "n": len(x)},
        device=FAST,
    )
    return {"x": x, **out}


@pytest.mark.parametrize("leaf", ["bf16", "f16", "e4m3", "e5m2"])
def test_rounding_to_a_leaf_gives_the_codes_of_the_dtypes(leaf: str, encoded: dict[str, np.ndarray]) -> None:
    x, got = encoded["x"], encoded[f"as_{leaf}"]
    want = leaves.encode(x, leaf).view(got.dtype)
    nan = np.isnan(leaves.decode(got.view(STORED.get(leaf, np.uint8)), leaf))
    assert not differing(x, got, want, nan), differing(x, got, want, nan)


def test_rounding_to_e2m1_gives_the_packed_codes_of_the_dtypes(encoded: dict[str, np.ndarray]) -> None:
    pairs = encoded["x"].reshape(-1, 2)
    finite = ~np.isnan(pairs).any(axis=1)  # a NaN has no code there, and the dtypes refuse it
    want = leaves.encode(pairs[finite], "e2m1")[:, 0]
    wrong = np.flatnonzero(encoded["as_e2m1"][finite] != want)
    assert not len(wrong), f"{pairs[finite][wrong[:3]]}: got {encoded['as_e2m1'][finite][wrong[:3]]}, want {want[wrong[:3]]}"


@pytest.mark.parametrize("leaf", ["bf16", "f16", "e4m3", "e5m2"])
def test_rounding_one_number_is_rounding_a_pair(leaf: str, encoded: dict[str, np.ndarray]) -> None:
    got = np.empty_like(encoded[f"as_{leaf}"])
    run(SOURCE, f"encode_one<{leaf}>", (4,), 256, {"x": (encoded["x"], "read"), "codes": (got, "write"), "n": len(got)}, device=FAST)
    assert np.array_equal(got, encoded[f"as_{leaf}"])


@pytest.mark.parametrize("leaf", ["bf16", "f16"])
def test_a_number_is_split_into_what_its_dtype_holds_and_what_that_leaves(leaf: str) -> None:
    x = np.random.default_rng(0).uniform(-1.0, 1.0, (1 << 12, 2)).astype(np.float32)
    got = np.empty((len(x), 2), np.uint32)
    given = {"x": (x.view(np.uint64).reshape(-1), "read"), "parts": (got, "write")}
    run(SOURCE, f"split_numbers<{leaf}>", (len(x) // 256,), 256, given, device=FAST)
    high = x.astype(STORED[leaf])
    low = (x - high.astype(np.float32)).astype(STORED[leaf])
    want = np.stack([high, low], axis=1).view(np.uint16)  # [numbers, part, first and second]
    np.testing.assert_array_equal(got.view(np.uint16).reshape(want.shape), want)


def test_nan_is_found() -> None:
    x = every_kind_of_float()[: 1 << 17]
    got = np.empty(len(x), np.int32)
    run(SOURCE, "find_nan<>", (len(x) // 256,), 256, {"x": (x, "read"), "nan": (got, "write")}, device=FAST)
    assert np.array_equal(got.astype(bool), np.isnan(x))
    assert got.any()


@pytest.mark.parametrize("leaf", ["bf16", "f16", "e4m3", "e5m2", "e8m0"])
def test_every_code_has_the_value_of_the_dtypes(leaf: str) -> None:
    codes = np.arange(1 << 16, dtype=np.uint16) if leaf in STORED else np.arange(256, dtype=np.uint8)
    got = np.empty(len(codes), np.float32)
    run(SOURCE, f"decode<{leaf}>", (4,), 256, {"codes": (codes, "read"), "values": (got, "write"), "n": len(codes)}, device=FAST)
    want = leaves.decode(codes.view(STORED.get(leaf, np.uint8)), leaf)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    real = ~np.isnan(want)
    wrong = np.flatnonzero(got[real].view(np.uint32) != want[real].view(np.uint32))
    assert not len(wrong), f"code {codes[real][wrong[0]]:#x}: got {got[real][wrong[0]]}, want {want[real][wrong[0]]}"


def test_pairs_of_codes_decode_low_code_first() -> None:
    e4m3, e5m2, e2m1 = (np.empty((size, 2), np.float32) for size in (1 << 16, 1 << 16, 256))
    given = {"of_e4m3": (e4m3, "write"), "of_e5m2": (e5m2, "write"), "of_e2m1": (e2m1, "write")}
    run(SOURCE, "decode_pairs<>", (256,), 256, given, device=FAST)
    for leaf, got, codes in (("e4m3", e4m3, 256), ("e5m2", e5m2, 256), ("e2m1", e2m1, 16)):
        values = leaves.values_of_codes(leaf).astype(np.float32)
        want = np.stack(np.broadcast_arrays(values[None, :], values[:, None]), axis=-1).reshape(codes * codes, 2)
        assert np.array_equal(got, want, equal_nan=True), leaf


def allowed(name: str, x: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """The errors that the PTX manual states."""
    size = np.abs(exact)
    spacing = np.spacing(size.astype(np.float32)).astype(np.float64)  # a unit in the last place
    if name == "log2":
        return np.where((x > 0.5) & (x < 2), 2.0**-22, 2.0**-22 * size)
    return {"exp2": 2 * spacing, "reciprocal": spacing, "rsqrt": 2.0**-22.9 * size, "tanh": 2.0**-11 * size}[name]


EXACT = {"exp2": np.exp2, "log2": np.log2, "reciprocal": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x), "tanh": np.tanh}


@pytest.fixture(scope="module")
def approximated() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    x = np.concatenate([
        rng.standard_normal(50_000), np.exp2(rng.uniform(-125, 125, 50_000)), rng.uniform(0.5, 2, 50_000), rng.uniform(-120, 120, 50_000),
        [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, 1e-40, -1e-40],
    ]).astype(np.float32)  # fmt: skip
    out = {name: np.empty(len(x), np.float32) for name in EXACT}
    run(
        SOURCE,
        "approximate<>",
        (4,),
        256,
        {"x": (x, "read"), **{name: (array, "write") for name, array in out.items()}, "n": len(x)},
        device=FAST,
    )
    return {"x": x, **out}


@pytest.mark.parametrize("name", EXACT)
def test_an_approximate_function_errs_by_what_its_instruction_may_and_not_by_less(name: str, approximated: dict[str, np.ndarray]) -> None:
    x, got = approximated["x"][:-8].astype(np.float64), approximated[name][:-8].astype(np.float64)
    with np.errstate(all="ignore"):
        exact = EXACT[name](x)
    normal = np.isfinite(exact) & (np.abs(exact) >= 2.0**-126) & (np.abs(exact) < 2.0**127)
    x, got, exact = x[normal], got[normal], exact[normal]
    used = np.abs(got - exact) / allowed(name, x, exact)
    worst = int(np.argmax(used))
    assert used[worst] <= 1, f"{name}({x[worst]!r}) = {got[worst]!r}, off by {used[worst]:.2f} of what is allowed"
    assert used.max() > 0.6, "a kernel that needs more accuracy than is promised would not be noticed"


def test_approximate_functions_keep_the_manuals_special_values(approximated: dict[str, np.ndarray]) -> None:
    inf, nan = np.inf, np.nan
    wanted = {  # of 0, -0, inf, -inf, nan, and of a subnormal and its negative, which count as zeros
        "exp2": [1, 1, inf, 0, nan, 1, 1], "log2": [-inf, -inf, inf, nan, nan, -inf, -inf],
        "reciprocal": [inf, -inf, 0, -0.0, nan, inf, -inf],
        "rsqrt": [inf, -inf, 0, nan, nan, inf, -inf], "tanh": [0, -0.0, 1, -1, nan],
    }  # fmt: skip
    for name, want in wanted.items():
        got = approximated[name][-8:][[0, 1, 2, 3, 4, 6, 7]][: len(want)]
        assert np.array_equal(got, np.float32(want), equal_nan=True), f"{name}: got {got}, want {want}"


@pytest.mark.parametrize("table", [0xF0, 0xCC, 0xAA, 0x6A, 0xEA, 0x96, 0x00, 0xFF])
def test_bit_operations_follow_their_tables(table: int) -> None:
    words = np.random.default_rng(table).integers(0, 2**32, (32, 3), dtype=np.uint32)
    words[:16, 2] = [
        0x3210,
        0x7654,
        0x5140,
        0x7362,
        0x8888,
        0xFEDC,
        0xBA98,
        0x0000,
        0x4321,
        0x9D2A,
        0x1032,
        0x0123,
        0x6420,
        0x7531,
        0xF0F0,
        0x0F0F,
    ]
    out = np.empty((32, 2), np.uint32)
    run(SOURCE, f"logic<{table}>", (1,), 32, {"x": (words, "read"), "out": (out, "write")})
    for (a, b, c), (logic, bytes_) in zip(words.tolist(), out.tolist(), strict=True):
        bits = [table >> (4 * (a >> i & 1) + 2 * (b >> i & 1) + (c >> i & 1)) & 1 for i in range(32)]
        assert logic == sum(bit << i for i, bit in enumerate(bits)), f"lop3 {table:#x} of {a:#x}, {b:#x}, {c:#x}"
        source = (a | b << 32).to_bytes(8, "little")
        picked = [source[c >> 4 * i & 7] if not c >> 4 * i & 8 else 255 * (source[c >> 4 * i & 7] >> 7) for i in range(4)]
        assert bytes_ == int.from_bytes(bytes(picked), "little"), f"prmt of {a:#x}, {b:#x} by {c:#x}"
