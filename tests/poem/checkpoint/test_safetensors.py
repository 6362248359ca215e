"""The safetensors reader: what it accepts equals the format's own package, and what it refuses says why."""

import random
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st

from poem.checkpoint import open_checkpoint
from poem.checkpoint.safetensors import read_safetensors
from poem.errors import CheckpointError
from tests.poem.checkpoint.files import safetensors_bytes, safetensors_of

ONE = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def two(first: list[int], second: list[int]) -> dict[str, object]:
    return {
        name: {"dtype": "U8", "shape": [end - begin], "data_offsets": [begin, end]} for name, (begin, end) in (("a", first), ("b", second))
    }


# name: the file, and what its error must say
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "too short"),
    "seven bytes": (b"1234567", "too short"),
    "header longer than the file": (safetensors_bytes({"a": ONE}, b"data", length=10_000), "ends within its header"),
    "header of 2**64 - 1 bytes": (safetensors_bytes({"a": ONE}, b"data", length=2**64 - 1), "impossible length"),
    "header over 100 MB": (safetensors_bytes({"a": ONE}, b"data", length=100_000_001), "impossible length"),
    "header of no bytes": (safetensors_bytes(b"", b"data"), "impossible length"),
    "header that is no JSON": (safetensors_bytes(b"{not json}"), "no valid JSON"),
    "header that is a list": (safetensors_bytes(b"[1, 2]"), "no JSON object"),
    "header that starts with white space": (safetensors_bytes(b" {}"), "no JSON object"),
    "header that is not UTF-8": (safetensors_bytes(b'{"\xff": 1}'), "no valid JSON"),
    "header nested very deeply": (safetensors_bytes(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "too deeply"),
    "half of a surrogate pair": (safetensors_bytes(b'{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'), "no valid JSON"),
    "text after the header's object": (safetensors_bytes(b"{}{}"), "no valid JSON"),
    "duplicate tensor": (
        safetensors_bytes(b"{" + b",".join([b'"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}'] * 2) + b"}", b"ab"),
        "'a' is there twice",
    ),
    "duplicate key in an entry": (
        safetensors_bytes(b'{"a":{"dtype":"U8","dtype":"I8","shape":[0],"data_offsets":[0,0]}}'), "'dtype' is there twice",
    ),
    "NaN as an extent": (safetensors_bytes(b'{"a":{"dtype":"U8","shape":[NaN],"data_offsets":[0,4]}}', b"data"), "NaN"),
    "infinity as an offset": (safetensors_bytes(b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,1e999]}}', b"data"), "1e999"),
    "entry that is a number": (safetensors_bytes({"a": 4}), "incomplete"),
    "entry without shape": (safetensors_bytes({"a": {"dtype": "U8", "data_offsets": [0, 4]}}, b"data"), "incomplete"),
    "dtype that does not exist": (safetensors_bytes({"a": {**ONE, "dtype": "F7"}}, b"data"), "dtype"),
    "dtype that is a number": (safetensors_bytes({"a": {**ONE, "dtype": 8}}, b"data"), "dtype"),
    "negative extent": (safetensors_bytes({"a": {**ONE, "shape": [-4]}}, b"data"), "shape is wrong"),
    "negative zero extent": (safetensors_bytes(b'{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}'), "shape is wrong"),
    "extent that is a float": (safetensors_bytes({"a": {**ONE, "shape": [4.0]}}, b"data"), "shape is wrong"),
    "extent that is a bool": (safetensors_bytes({"a": {**ONE, "shape": [True], "data_offsets": [0, 1]}}, b"d"), "shape is wrong"),
    "shape that is a number": (safetensors_bytes({"a": {**ONE, "shape": 4}}, b"data"), "shape is wrong"),
    "extents whose product wraps around 64 bits": (
        safetensors_bytes({"a": {"dtype": "U8", "shape": [2**33, 2**31 + 1, 2], "data_offsets": [0, 4]}}, b"data"),
        "more elements than can be counted",
    ),
    "extents that overflow before a zero": (
        safetensors_bytes({"a": {"dtype": "U8", "shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}}), "more elements than can be counted",
    ),
    "three offsets": (safetensors_bytes({"a": {**ONE, "data_offsets": [0, 2, 4]}}, b"data"), "data_offsets"),
    "offsets the wrong way round": (safetensors_bytes({"a": {**ONE, "data_offsets": [4, 0]}}, b"data"), "data_offsets"),
    "offset beyond the file": (safetensors_bytes({"a": {**ONE, "shape": [9], "data_offsets": [0, 9]}}, b"data"), "ends within tensor `a`"),
    "size that does not follow from the shape": (safetensors_bytes({"a": {**ONE, "shape": [3]}}, b"data"), "does not follow from its"),
    "half a byte": (safetensors_bytes({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}, b"da"), "does not follow from its"),
    "hole": (safetensors_bytes(two([0, 2], [3, 4]), b"data"), "leave a hole"),
    "hole at the start": (safetensors_bytes({"a": {**ONE, "shape": [3], "data_offsets": [1, 4]}}, b"data"), "leave a hole"),
    "overlap": (safetensors_bytes(two([0, 3], [2, 4]), b"data"), "overlap"),
    "two tensors at one place": (safetensors_bytes(two([0, 4], [0, 4]), b"data"), "overlap"),
    "trailing byte": (safetensors_bytes({"a": ONE}, b"data!"), "bytes follow the last tensor"),
    "data without tensors": (safetensors_bytes({}, b"data"), "bytes follow the last tensor"),
    "short data": (safetensors_bytes({"a": ONE}, b"dat"), "ends within tensor `a`"),
    "metadata that is a list": (safetensors_bytes({"__metadata__": ["x"]}), "__metadata__"),
    "metadata that holds numbers": (safetensors_bytes({"__metadata__": {"x": 1}}), "__metadata__"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_with_place_and_reason(name: str, tmp_path: Path) -> None:
    content, reason = HOSTILE[name]
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(CheckpointError) as caught:
        read_safetensors(file)
    assert caught.value.code == "import.corrupt"
    assert caught.value.file == str(file)
    assert reason in caught.value.message, caught.value.render()
    assert caught.value.hint


def test_a_truncated_file_says_how_many_bytes_are_there_and_how_many_should_be(tmp_path: Path) -> None:
    whole = safetensors_of({"a": np.arange(100, dtype=np.float32)})
    (tmp_path / "model.safetensors").write_bytes(whole[:-40])
    with pytest.raises(CheckpointError) as caught:
        open_checkpoint(tmp_path)
    assert f"{len(whole)} bytes" in caught.value.expected
    assert f"{len(whole) - 40} bytes" in caught.value.found


RIGHT = {
    "no tensors": safetensors_of({}),
    "a scalar": safetensors_of({"s": np.float32(3.5).reshape(())}),
    "an empty tensor": safetensors_of({"e": np.zeros((0, 3), np.float32), "f": np.ones(2, np.float32)}),
    "metadata": safetensors_of({"a": np.arange(3)}, {"format": "pt"}),
    "padding after the header": safetensors_bytes(b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}      ', b"x"),
    "keys that are not known": safetensors_bytes({"a": {**ONE, "note": [1, {"b": None}]}}, b"data"),
    "tensors out of order": safetensors_bytes(dict(reversed(two([0, 1], [1, 4]).items())), b"data"),
    "an odd address": safetensors_of({"a": np.arange(3, dtype=np.uint8), "b": np.arange(5, dtype=np.float64)}),
    "every tag of whole bytes": safetensors_of(
        {
            tag.lower(): (tag, np.arange(size * 2, dtype=np.uint8).view(f"V{size}"))
            for tag, size in (
                ("U8", 1), ("I8", 1), ("U16", 2), ("I16", 2), ("F16", 2), ("BF16", 2), ("U32", 4), ("I32", 4), ("F32", 4),
                ("U64", 8), ("I64", 8), ("F64", 8), ("F8_E4M3", 1), ("F8_E5M2", 1), ("F8_E8M0", 1),
            )
        }
    ),
}  # fmt: skip


def agrees_with_the_package(content: bytes, file: Path) -> None:
    """Loads equal to the safetensors package, or is refused."""
    file.write_bytes(content)
    try:
        tensors, _ = read_safetensors(file)
    except CheckpointError:
        return
    theirs = dict(safetensors.deserialize(content))
    assert tensors.keys() == theirs.keys()
    for name, held in theirs.items():
        assert list(tensors[name].shape) == held["shape"], name
        assert tensors[name].tag == held["dtype"], name
        assert tensors[name].raw().tobytes() == bytes(held["data"]), name


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_file_loads_as_the_safetensors_package_loads_it(name: str, tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(RIGHT[name])
    read_safetensors(file)
    agrees_with_the_package(RIGHT[name], file)


SEED = safetensors_of(
    {"first.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros((), np.int16), "c": np.ones((4, 0), np.uint8)}, {"k": "v"}
)
PIECES = [b"{", b"}", b"[", b"]", b",", b":", b'"', b"0", b"9", b"-", b".", b"e", b"null", b"true", b"\\", b"\\u0000", b" ", b"\x00",
          b"\xc3", b"18446744073709551615", b"F32", b"BF16", b'"dtype"', b"data_offsets", b"__metadata__"]  # fmt: skip


@given(seed=st.integers(0, 2**32 - 1), edits=st.integers(1, 4), fix_length=st.booleans())
@settings(max_examples=400, deadline=None)
def test_any_mutation_of_a_file_loads_as_the_package_loads_it_or_is_refused(
    seed: int, edits: int, fix_length: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw = random.Random(seed)
    content = bytearray(SEED)
    header_end = 8 + int.from_bytes(SEED[:8], "little")
    grown = 0
    for _ in range(edits):
        at = draw.randrange(8 if fix_length else 0, header_end)
        kind = draw.randrange(4)
        if kind == 0:
            content[at] = draw.randrange(256)
        elif kind == 1:
            del content[at]
            grown -= 1
        elif kind == 2:
            piece = draw.choice(PIECES)
            content[at:at] = piece
            grown += len(piece)
        else:
            other = draw.randrange(8, header_end)
            length = draw.randrange(1, 12)
            content[at : at + length] = content[other : other + length]
    if fix_length:
        content[:8] = max(0, header_end - 8 + grown).to_bytes(8, "little")
    agrees_with_the_package(bytes(content), tmp_path_factory.getbasetemp() / "mutated.safetensors")


def test_a_tensor_is_a_read_only_view_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(safetensors_of({"a": np.arange(8, dtype=np.float32)}))
    data = open_checkpoint(tmp_path).tensor("a").planes["data"]
    assert not data.flags.owndata
    assert not data.flags.writeable
    assert data.tolist() == list(range(8))


def test_a_tensor_at_an_odd_address_is_copied_into_place(tmp_path: Path) -> None:
    values = np.linspace(-1, 1, 5).astype(ml_dtypes.bfloat16)
    (tmp_path / "model.safetensors").write_bytes(safetensors_of({"a": np.zeros(3, np.uint8), "b": values}))
    data = open_checkpoint(tmp_path).tensor("b").planes["data"]
    assert data.flags.aligned
    assert np.array_equal(data, values)


def test_a_tag_without_a_dtype_of_ours_is_refused_only_when_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(
        safetensors_of({"a": np.ones(2, np.float32), "c.weight": ("C64", np.zeros(2, np.complex64))})
    )
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.tensor("a").shape == (2,)
    with pytest.raises(CheckpointError, match=r"cannot read `c\.weight`, stored as c64"):
        checkpoint.tensor("c.weight")
