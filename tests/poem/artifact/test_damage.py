"""A .zt file whose manifest lies, that is cut short, or in which a byte has changed, is refused."""

import re
import struct
from pathlib import Path
from typing import Any

import pytest
import ztensor

from poem.artifact import Container, verify
from poem.artifact.container import publish
from poem.dtypes import Dtype
from poem.errors import CheckpointError
from tests.poem.artifact.objects import made, tensor_object


# -- manifests that the wheel would not write ------------------------------------------------------------
def cbor(value: Any) -> bytes:
    """Canonical CBOR of ints, texts, lists and maps."""

    def head(major: int, number: int) -> bytes:
        if number < 24:
            return bytes([major << 5 | number])
        size = next(size for size in (1, 2, 4, 8) if number < 1 << 8 * size)
        return bytes([major << 5 | 24 + size.bit_length() - 1]) + number.to_bytes(size, "big")

    if isinstance(value, int):
        return head(0, value)
    if isinstance(value, str):
        return head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return head(4, len(value)) + b"".join(map(cbor, value))
    return head(5, len(value)) + b"".join(sorted(cbor(key) + cbor(item) for key, item in value.items()))


def digest(data: bytes, folder: Path) -> str:
    """The container's digest of some bytes, as the wheel itself computes it."""
    file = folder / "digest.zt"
    writer = ztensor.Writer(str(file))
    writer.add_object("x", [len(data)], {"data": {"dtype": "u8", "data": data}})
    writer.finish()
    found = re.search(rb"xxh3:([0-9a-f]{16})", file.read_bytes()[-4096:])
    file.unlink()
    assert found is not None
    return found[1].decode()


def with_manifest(file: Path, manifest: dict[str, Any], data: bytes = b"abcd") -> Path:
    """A file with any manifest and a right hash of it. The data lies at 65536."""
    magic = b"\x89ZT2\r\n\x1a\n"
    body = magic.ljust(65536, b"\0") + data
    body += b"\0" * (-len(body) % 65536)
    text = cbor(manifest)
    footer = struct.pack("<QQQQ", len(body), len(text), int(digest(text, file.parent), 16), 2)
    file.write_bytes(body + text + footer + magic)
    return file


def an_object(folder: Path, shape: list[int], blob: list[int], layout: str = "dense", **more: Any) -> dict[str, Any]:
    return {
        "shape": shape,
        "layout": layout,
        "parts": {"data": {"dtype": "u8", "blob": blob, "digest": f"xxh3:{digest(b'abcd', folder)}", **more}},
    }


def test_a_manifest_made_by_hand_is_read_so_that_wrong_ones_mean_something(tmp_path: Path) -> None:
    container = Container(with_manifest(tmp_path / "x.zt", {"objects": {"w": an_object(tmp_path, [4], [65536, 4])}}))
    assert container.tensor("w", Dtype("u8"), (4,)).planes["data"].tobytes() == b"abcd"


@pytest.mark.parametrize(
    ("shape", "blob", "layout"),
    [
        ([1 << 40], [65536, 1 << 40], "dense"),
        ([4], [1 << 63, (1 << 63) - 1], "x.y/1"),
        ([4], [0, 4], "dense"),
        ([5], [65536, 4], "dense"),
        ([1 << 50], [65536, 4], "x.y/1"),
        ([1 << 32] * 3, [65536, 4], "x.y/1"),
        ([0, 4], [65536, 0], "dense"),
        ([], [65536, 4], "x.y/1"),
    ],
    ids=[
        "beyond the file",
        "wrapping around",
        "inside the header",
        "too short",
        "a huge shape",
        "a shape that overflows",
        "empty",
        "no shape",
    ],
)
def test_a_manifest_that_lies_about_an_object_is_refused(shape: list[int], blob: list[int], layout: str, tmp_path: Path) -> None:
    file = with_manifest(tmp_path / "x.zt", {"objects": {"w": an_object(tmp_path, shape, blob, layout)}})
    with pytest.raises(CheckpointError) as caught:
        Container(file).tensor("w", Dtype("u8"), (4,))
    assert caught.value.code == "artifact.corrupt"


def test_a_manifest_that_refers_to_a_sibling_file_is_refused(tmp_path: Path) -> None:
    sibling = with_manifest(tmp_path / "x-other.zt", {"objects": {"w": an_object(tmp_path, [4], [65536, 4])}})
    content = sibling.read_bytes()
    shards = {"other": {"size": len(content), "digest": f"xxh3:{digest(content, tmp_path)}"}}
    file = with_manifest(tmp_path / "x.zt", {"shards": shards, "objects": {"w": an_object(tmp_path, [4], [65536, 4], shard="other")}})
    assert ztensor.open(str(file)).files != [str(file)], "the wheel would not read a sibling"
    with pytest.raises(CheckpointError, match="refers to other files"):
        Container(file)


def test_a_truncated_file_is_refused_at_every_length(tmp_path: Path) -> None:
    file = tmp_path / "x.zt"
    publish(file, {"w": tensor_object(made("f32", (64,)))}, {"a": "b"})
    whole = file.read_bytes()
    for length in (*range(0, 200, 7), len(whole) // 2, *range(len(whole) - 100, len(whole))):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError) as caught:
            Container(file)
        assert caught.value.code == "artifact.corrupt", length


def test_a_flipped_byte_anywhere_in_a_part_is_found_by_verify(tmp_path: Path) -> None:
    tensor, file = made("u4g64", (4, 64)), tmp_path / "x.zt"
    publish(file, {"w": tensor_object(tensor)}, {})
    assert verify(file) == 1
    whole = file.read_bytes()
    source = ztensor.open(str(file))["w"]
    spots = [source[part].location.offset + at for part in source.parts for at in (0, source[part].nbytes - 1)]
    for spot in spots:
        file.write_bytes(whole[:spot] + bytes([whole[spot] ^ 0x40]) + whole[spot + 1 :])
        with pytest.raises(CheckpointError) as caught:
            verify(file)
        assert caught.value.code == "artifact.corrupt", spot
        assert "w" in caught.value.message


def test_a_flipped_byte_in_the_manifest_is_found_on_opening(tmp_path: Path) -> None:
    file = tmp_path / "x.zt"
    publish(file, {"w": tensor_object(made("f32", (4,)))}, {"key": "some attribute"})
    whole = file.read_bytes()
    spot = whole.rindex(b"some attribute")
    file.write_bytes(whole[:spot] + b"S" + whole[spot + 1 :])
    with pytest.raises(CheckpointError) as caught:
        Container(file)
    assert caught.value.code == "artifact.corrupt", caught.value.render()
