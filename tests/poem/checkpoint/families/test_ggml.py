"""GGUF block types: values by the formulas of ggml's documentation, written as loops, and kept codes where a term says the same."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from poem.checkpoint import Checkpoint, open_checkpoint
from poem.errors import PoemError
from poem.importer import plan_import
from tests.poem.checkpoint.files import entry, gguf_bytes
from tests.poem.importer.fakes import package, pairs, weight

ROWS, K = 4, 512
# type: number in the file, elements and bytes of a block, where its f16 scales are
BLOCKS = {
    "Q4_0": (2, 32, 18, (0,)),
    "Q4_1": (3, 32, 20, (0, 2)),
    "Q5_0": (6, 32, 22, (0,)),
    "Q5_1": (7, 32, 24, (0, 2)),
    "Q8_0": (8, 32, 34, (0,)),
    "Q2_K": (10, 256, 84, (80, 82)),
    "Q3_K": (11, 256, 110, (108,)),
    "Q4_K": (12, 256, 144, (0, 2)),
    "Q5_K": (13, 256, 176, (0, 2)),
    "Q6_K": (14, 256, 210, (208,)),
}


def half(block: bytes, at: int) -> float:
    return float(np.frombuffer(block[at : at + 2], np.float16)[0])


def six_bits(scales: bytes, j: int) -> tuple[int, int]:
    """The scale and the minimum of part j of Q4_K and Q5_K."""
    if j < 4:
        return scales[j] & 63, scales[j + 4] & 63
    return (scales[j + 4] & 15) | (scales[j - 4] >> 6) << 4, (scales[j + 4] >> 4) | (scales[j] >> 6) << 4


def values_of(kind: str, b: bytes) -> list[float]:
    """The elements of one block."""
    d = half(b, BLOCKS[kind][3][0])
    m = half(b, BLOCKS[kind][3][1]) if len(BLOCKS[kind][3]) > 1 else 0.0
    out = [0.0] * BLOCKS[kind][1]
    if kind in ("Q4_0", "Q4_1"):
        for j in range(16):
            for place, q in ((j, b[-16 + j] & 15), (j + 16, b[-16 + j] >> 4)):
                out[place] = d * (q - 8) if kind == "Q4_0" else d * q + m
    elif kind in ("Q5_0", "Q5_1"):
        high = int.from_bytes(b[-20:-16], "little")
        for j in range(16):
            for place, q in ((j, b[-16 + j] & 15), (j + 16, b[-16 + j] >> 4)):
                q |= (high >> place & 1) << 4
                out[place] = d * (q - 16) if kind == "Q5_0" else d * q + m
    elif kind == "Q8_0":
        for j in range(32):
            out[j] = d * int(np.int8(np.uint8(b[2 + j])))
    elif kind == "Q2_K":
        for i in range(256):
            n, shift, at = i // 128, i % 128 // 32, i % 32
            q = b[16 + 32 * n + at] >> (2 * shift) & 3
            scale = b[i // 16]
            out[i] = d * (scale & 15) * q - m * (scale >> 4)
    elif kind == "Q3_K":
        for i in range(256):
            n, shift, at = i // 128, i % 128 // 32, i % 32
            low = b[32 + 32 * n + at] >> (2 * shift) & 3
            q = low - (0 if b[at] >> (4 * n + shift) & 1 else 4)
            j = i // 16
            scale = (b[96 + j % 8] >> (4 * (j // 8)) & 15) | (b[104 + j % 4] >> (2 * (j // 4)) & 3) << 4
            out[i] = d * (scale - 32) * q
    elif kind in ("Q4_K", "Q5_K"):
        codes = 16 if kind == "Q4_K" else 48
        for i in range(256):
            j, at = i // 32, i % 32
            scale, least = six_bits(b[4:16], j)
            q = b[codes + 32 * (j // 2) + at] >> (4 * (j % 2)) & 15
            if kind == "Q5_K":
                q |= (b[16 + at] >> j & 1) << 4
            out[i] = d * scale * q - m * least
    else:
        for i in range(256):
            n, part, at = i // 128, i % 128 // 32, i % 32
            low = b[64 * n + at + 32 * (part % 2)] >> (4 * (part // 2)) & 15
            q = (low | (b[128 + 32 * n + at] >> (2 * part) & 3) << 4) - 32
            out[i] = d * int(np.int8(np.uint8(b[192 + i // 16]))) * q
    return out


def checkpoint(folder: Path, kind: str, scales: Any = None) -> tuple[Checkpoint, np.ndarray]:
    """A file of one tensor of random blocks with positive f16 scales, and the values of its elements."""
    number, elements, size, places = BLOCKS[kind]
    draw = np.random.default_rng(number)
    blocks = draw.integers(0, 256, (ROWS * K // elements, size), np.uint8)
    for at in places:
        drawn = draw.uniform(0.01, 1, (len(blocks), 1)) if scales is None else np.full((len(blocks), 1), scales)
        blocks[:, at : at + 2] = drawn.astype(np.float16).view(np.uint8)
    path = folder / f"{kind}.gguf"
    path.write_bytes(gguf_bytes(entries=[entry("w.weight", [K, ROWS], number, 0)], data=blocks.tobytes()))
    return open_checkpoint(path), np.array([values_of(kind, bytes(block)) for block in blocks]).reshape(ROWS, K)


def plan(opened: Checkpoint, wanted: str, **options: Any) -> Any:
    held = package({"w": weight([ROWS, K], wanted)}, pairs(("w.weight", "w")), dtype=wanted)
    return plan_import(opened, [held], deployment=next(iter(held.deployments)), **options)


@pytest.mark.parametrize("kind", BLOCKS)
def test_every_block_type_is_decoded_to_the_values_of_its_formula(kind: str, tmp_path: Path) -> None:
    opened, values = checkpoint(tmp_path, kind)
    got = plan(opened, "f32").weights["w"].planes["data"]
    # K-quants round products of two scales on the way, in an order that their description leaves open
    bound = 0 if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0") else np.abs(values).max() * 2.0**-22
    assert np.abs(got - values.astype(np.float32)).max() <= bound
    if bound == 0:
        assert np.array_equal(plan(opened, "bf16").weights["w"].planes["data"], values.astype(np.float32).astype(ml_dtypes.bfloat16))


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1"])
def test_nibbles_are_kept_in_u4g32_only_where_every_scale_is_a_bf16_number(kind: str, tmp_path: Path) -> None:
    opened, values = checkpoint(tmp_path, kind, 0.375)
    kept = plan(opened, "u4g32")
    assert kept.actions["copied"] == 1
    assert np.array_equal(kept.weights["w"].decode(), values)
    opened, _ = checkpoint(tmp_path, kind)
    with pytest.raises(PoemError) as caught:
        plan(opened, "u4g32")
    assert caught.value.code == "import.requantise"
    assert "bf16 number" in caught.value.render()
    assert plan(opened, "u4g32", requantise=True).actions["encoded"] == 1


@pytest.mark.parametrize("kind", BLOCKS)
def test_other_quantised_dtypes_are_refused_unless_asked_for(kind: str, tmp_path: Path) -> None:
    opened, _ = checkpoint(tmp_path, kind)
    with pytest.raises(PoemError) as caught:
        plan(opened, "nvfp4")
    assert caught.value.code == "import.requantise"
    assert kind.lower() in caught.value.render()


def test_a_block_scale_of_zero_is_how_ggml_stores_zeros(tmp_path: Path) -> None:
    opened, values = checkpoint(tmp_path, "Q4_0", 0.0)
    assert np.array_equal(plan(opened, "bf16").weights["w"].decode(), values.astype(np.float32))


@pytest.mark.parametrize(("kind", "at"), [(kind, at) for kind, (*_, places) in BLOCKS.items() for at in places])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_scale_that_is_not_finite_is_refused_before_anything_is_decoded(kind: str, at: int, bad: float, tmp_path: Path) -> None:
    path = Path(checkpoint(tmp_path, kind)[0].place)
    content, (_, elements, size, _) = bytearray(path.read_bytes()), BLOCKS[kind]
    start = len(content) - size + at  # the last block, whose elements end row 3
    content[start : start + 2] = np.float16(bad).tobytes()
    path.write_bytes(content)
    with pytest.raises(PoemError) as caught:
        plan(open_checkpoint(path), "bf16")
    assert caught.value.code == "import.bad-scale"
    assert "`w.weight`" in caught.value.render()
    kept = f"the {'offset' if at else 'gain'} of `w.weight` at [3, 15]"  # of nibbles, whose scales are factors of a term
    assert caught.value.found == (kept if kind in ("Q4_0", "Q4_1") else f"the block of element {K - elements} of row 3")


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_blocks_that_ggufs_own_code_writes_are_read_as_its_own_code_reads_them(kind: str, tmp_path: Path) -> None:
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize, quantize

    matrix = np.random.default_rng(4).standard_normal((ROWS, K)).astype(np.float32)
    type_ = GGMLQuantizationType[kind]
    blocks = quantize(matrix, type_)
    path = tmp_path / "a.gguf"
    path.write_bytes(gguf_bytes(entries=[entry("w.weight", [K, ROWS], BLOCKS[kind][0], 0)], data=blocks.tobytes()))
    got = plan(open_checkpoint(path), "f32").weights["w"].planes["data"]
    assert np.array_equal(got, dequantize(blocks, type_))
