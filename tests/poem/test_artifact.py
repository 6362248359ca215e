"""The .zt file: what is written comes back bit for bit, appears whole or not at all, and a damaged file is refused."""

import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ztensor

from poem.artifact import Container, verify, write_artifact
from poem.artifact.container import Object, object_of, publish, side_file_object
from poem.checkpoint import open_checkpoint
from poem.dtypes import Dtype, slicing
from poem.dtypes.tensor import Tensor
from poem.errors import CheckpointError
from poem.importer import plan_import
from tests.poem.checkpoint.files import bf16, write_checkpoint
from tests.poem.importer.fakes import package, pairs, weight

ROOT = Path(__file__).parents[2]


def tensor_object(tensor: Tensor) -> Callable[[], Object]:
    segments = {path: plane.size for path, plane in tensor.planes.items() if path.endswith("rows")}
    planes = sorted(tensor.dtype.planes(tensor.shape, segments))
    return lambda: object_of(tensor.dtype, tensor.shape, planes, (tensor.planes[plane.path] for plane in planes))


def made(dtype: str, shape: tuple[int, ...] = (256, 128)) -> Tensor:
    values = np.random.default_rng(0).standard_normal(shape)
    if dtype == "bool":
        return Tensor.of(values > 0)
    if dtype[0] in "iu" and "g" not in dtype:
        values = np.abs(values) * 10
    return Tensor.encode(values.astype(np.float32), Dtype(dtype))


def segmented() -> Tensor:
    return slicing.join(0, [made("nvfp4"), Tensor.encode(np.full((4, 128), 3.0, np.float32), Dtype("nvfp4"))])


# -- the container ---------------------------------------------------------------------------------
LAYOUTS = {
    "f32": {"data": ("f32", None)}, "f16": {"data": ("f16", None)}, "bf16": {"data": ("bf16", None)}, "i32": {"data": ("i32", None)},
    "i64": {"data": ("i64", None)}, "u8": {"data": ("u8", None)}, "bool": {"data": ("u8", "bool")}, "e4m3": {"data": ("u8", "f8_e4m3fn")},
    "e5m2": {"data": ("u8", "f8_e5m2")},
    "u4g64": {"code": ("u8", None), "gain": ("bf16", None), "offset": ("bf16", None)},
    "u8g64": {"code": ("u8", None), "gain": ("bf16", None), "offset": ("bf16", None)},
    "mxfp4": {"code": ("u8", None), "gain": ("u8", "f8_e8m0")},
    "nvfp4": {"code": ("u8", None), "gain.code": ("u8", "f8_e4m3fn"), "gain.gain": ("f32", None)},
    "e4m3row": {"code": ("u8", "f8_e4m3fn"), "gain": ("f32", None)},
    "e4m3tile128": {"code": ("u8", "f8_e4m3fn"), "gain": ("f32", None)},
    "e4m3tile128a8": {"code": ("u8", "f8_e4m3fn"), "gain": ("f32", None)},
}  # fmt: skip


@pytest.mark.parametrize("dtype", LAYOUTS)
def test_every_dtype_is_stored_under_its_layout_and_comes_back_bit_for_bit(dtype: str, tmp_path: Path) -> None:
    tensor, file = made(dtype), tmp_path / "x.zt"
    publish(file, {"layers.3.w": tensor_object(tensor)}, {})
    raw = ztensor.open(str(file))["layers.3.w"]
    assert raw.layout == ("dense" if tensor.dtype.is_leaf else f"poem.{dtype}/1")
    assert {part: (raw[part].dtype, raw[part].logical) for part in raw.parts} == LAYOUTS[dtype]
    found = Container(file).tensor("layers.3.w", tensor.dtype, tensor.shape)
    for path, plane in tensor.planes.items():
        assert np.array_equal(found.planes[path].reshape(-1).view(np.uint8), np.ascontiguousarray(plane).reshape(-1).view(np.uint8)), path
        assert not found.planes[path].flags.owndata, f"{path} was copied"
        assert not found.planes[path].flags.writeable
    assert Container(file).stored_dtype("layers.3.w") == dtype


def test_segments_of_a_tensor_scale_are_kept(tmp_path: Path) -> None:
    tensor, file = segmented(), tmp_path / "x.zt"
    publish(file, {"w": tensor_object(tensor)}, {})
    found = Container(file).tensor("w", tensor.dtype, tensor.shape)
    assert found.planes["gain.rows"].tolist() == [256, 4]
    assert np.array_equal(found.decode(), tensor.decode())


def test_arrays_outlive_the_container(tmp_path: Path) -> None:
    tensor, file = made("f32"), tmp_path / "x.zt"
    publish(file, {"w": tensor_object(tensor)}, {})
    data = Container(file).tensor("w", tensor.dtype, tensor.shape).planes["data"]
    assert np.array_equal(data, tensor.planes["data"])


def test_names_in_any_order_are_written_in_the_order_of_their_bytes(tmp_path: Path) -> None:
    file = tmp_path / "x.zt"
    names = ["layers.10.q", "layers.2.q", "a", "Z", "poem.file/tokenizer.json"]
    objects = {name: tensor_object(made("f32", (2,))) for name in names[:-1]} | {names[-1]: lambda: side_file_object(b"{}")}
    publish(file, objects, {})
    container = Container(file)
    assert container.weights() == ["Z", "a", "layers.10.q", "layers.2.q"]
    assert container.side_file("tokenizer.json") == b"{}"


def foreign(
    file: Path, name: str, shape: list[int], parts: dict[str, Any], layout: str = "dense", attributes: dict[str, Any] | None = None
) -> Path:
    """A file that the wheel writes and Poem would not."""
    writer = ztensor.Writer(str(file))
    writer.set_attributes(attributes or {})
    writer.add_object(name, shape, parts, layout=layout)
    writer.finish()
    return file


CODE, GAIN, U4 = {"dtype": "u8", "data": bytes(128)}, {"dtype": "bf16", "data": bytes(8)}, "poem.u4g64/1"
RIGHT = {"code": CODE, "gain": GAIN, "offset": GAIN}
# name: parts, layout, shape, and what the error must say
WRONG_OBJECTS: dict[str, tuple[dict[str, Any], str, list[int], str]] = {
    "another layout": (RIGHT, "poem.u4g32/1", [4, 64], "another layout"),
    "a later layout": (RIGHT, "poem.u4g64/2", [4, 64], "another layout"),
    "another shape": (RIGHT, U4, [64, 4], "another shape"),
    "a part too few": ({"code": CODE, "gain": GAIN}, U4, [4, 64], "other parts"),
    "a part too many": (RIGHT | {"more": GAIN}, U4, [4, 64], "other parts"),
    "a part too short": (RIGHT | {"gain": {"dtype": "bf16", "data": bytes(6)}}, U4, [4, 64], "another type or size"),
    "a part too long": (RIGHT | {"code": {"dtype": "u8", "data": bytes(129)}}, U4, [4, 64], "another type or size"),
    "another type": (RIGHT | {"gain": {"dtype": "f16", "data": bytes(8)}}, U4, [4, 64], "another type or size"),
    "row counts that it must not have": (RIGHT | {"gain.rows": {"dtype": "i64", "data": bytes(8)}}, U4, [4, 64], "other parts"),
}


@pytest.mark.parametrize("name", WRONG_OBJECTS)
def test_an_object_that_is_not_exactly_its_dtype_is_refused(name: str, tmp_path: Path) -> None:
    parts, layout, shape, said = WRONG_OBJECTS[name]
    container = Container(foreign(tmp_path / "x.zt", "w", shape, parts, layout))
    with pytest.raises(CheckpointError) as caught:
        container.tensor("w", Dtype("u4g64"), (4, 64))
    assert caught.value.code == "artifact.corrupt"
    assert "w" in caught.value.message
    assert said in caught.value.message, caught.value.render()


@pytest.mark.parametrize("counts", [[3, 2], [0, 4], [-1, 5], [4, 4], [2**62, 2**62, 2**62, 2**62 + 4]])
def test_row_counts_that_do_not_sum_to_the_rows_are_refused(counts: list[int], tmp_path: Path) -> None:
    parts = {
        "code": {"dtype": "u8", "data": bytes(4 * 8)},
        "gain.code": {"dtype": "u8", "data": bytes([0x38] * 4), "logical": "f8_e4m3fn"},
        "gain.gain": {"dtype": "f32", "data": np.ones(len(counts), np.float32).tobytes()},
        "gain.rows": {"dtype": "i64", "data": np.array(counts).tobytes()},
    }
    container = Container(foreign(tmp_path / "x.zt", "w", [4, 16], parts, "poem.nvfp4/1"))
    for read in (container.check, container.tensor):  # on opening, and again when it is used
        with pytest.raises(CheckpointError) as caught:
            read("w", Dtype("nvfp4"), (4, 16))
        assert caught.value.code == "artifact.corrupt"
        assert "counts rows" in caught.value.message


@pytest.mark.parametrize("name", ["a/b", "poem.file/../x", "poem.file/.hidden", "poem.file/a/b", "poem.files/x", "a b", "a\tb"])
def test_a_name_that_no_weight_can_have_is_refused(name: str, tmp_path: Path) -> None:
    foreign(tmp_path / "x.zt", name, [4], {"data": {"dtype": "u8", "data": b"abcd"}})
    with pytest.raises(CheckpointError) as caught:
        Container(tmp_path / "x.zt")
    assert caught.value.code == "artifact.corrupt"


def test_attributes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    foreign(tmp_path / "x.zt", "w", [4], {"data": {"dtype": "u8", "data": b"abcd"}}, attributes={"poem.format": 1})
    with pytest.raises(CheckpointError, match="not all text"):
        Container(tmp_path / "x.zt")


def test_another_format_is_refused_even_under_our_ending(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, {"a": np.ones(3, np.float32)})
    shutil.copy(tmp_path / "model.safetensors", tmp_path / "x.zt")
    for content in (None, b"", b"zt", os.urandom(1000)):
        if content is not None:
            (tmp_path / "x.zt").write_bytes(content)
        with pytest.raises(CheckpointError) as caught:
            Container(tmp_path / "x.zt")
        assert caught.value.code == "artifact.corrupt"


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        Container(tmp_path / "absent.zt")
    assert caught.value.code == "artifact.not-found"


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
    with pytest.raises(CheckpointError):
        Container(file)


# -- publishing --------------------------------------------------------------------------------------
def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failing_object_leaves_nothing_and_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    file = tmp_path / "x.zt"
    file.write_bytes(b"before")

    def fails() -> Object:
        raise CheckpointError("import.overflow", "too large")

    with pytest.raises(CheckpointError, match="too large"):
        publish(file, {"a": tensor_object(made("f32")), "b": fails}, {})
    assert left_in(tmp_path) == ["x.zt"]
    assert file.read_bytes() == b"before"


def test_a_failure_in_the_middle_of_a_weight_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Any:
        yield np.zeros(64, np.float32)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "x.zt", {"a": lambda: object_of(Dtype("f32"), (128,), Dtype("f32").planes((128,)), chunks())}, {})
    assert left_in(tmp_path) == []


def test_the_file_of_a_dead_import_is_removed_by_the_next(tmp_path: Path) -> None:
    (tmp_path / ".x.zt.123.abcd.partial").write_bytes(b"half")
    (tmp_path / ".y.zt.123.abcd.partial").write_bytes(b"another target's")
    publish(tmp_path / "x.zt", {"a": tensor_object(made("f32"))}, {})
    assert left_in(tmp_path) == [".y.zt.123.abcd.partial", "x.zt"]


def test_a_second_import_of_one_target_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    file = tmp_path / "x.zt"

    def nested() -> Object:
        with pytest.raises(CheckpointError) as caught:
            publish(file, {"a": tensor_object(made("f32"))}, {})
        assert caught.value.code == "import.busy"
        return tensor_object(made("f32"))()

    publish(file, {"a": nested}, {})
    assert left_in(tmp_path) == ["x.zt"]


def test_the_lock_of_an_import_that_ends_meanwhile_is_not_taken_for_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between opening the lock's file and locking it, who held it may remove it, and a third may make another."""
    file, flock = tmp_path / "x.zt", fcntl.flock

    def late(descriptor: int, operation: int) -> None:
        (tmp_path / ".x.zt.lock").unlink()
        (tmp_path / ".x.zt.lock").touch()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(CheckpointError) as caught:
        publish(file, {"a": tensor_object(made("f32"))}, {})
    assert caught.value.code == "import.busy"
    assert left_in(tmp_path) == [".x.zt.lock"]


def test_a_disk_that_fills_up_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """The system's own limit on the size of a file stands for a full disk: writing fails half-way with an error."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(CheckpointError) as caught:
            publish(tmp_path / "x.zt", {f"w.{i}": tensor_object(made("f32", (1000, 100 + i))) for i in range(8)}, {})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.code == "import.disk-full"
    assert caught.value.file == str(tmp_path / "x.zt")
    assert left_in(tmp_path) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_no_space_left_on_the_device_is_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that gets ENOSPC from the system, as the wheel reports it."""

    class Full:
        def __init__(self, path: str) -> None:
            Path(path).write_bytes(b"half")

        def set_attributes(self, attributes: dict[str, str]) -> None:
            with open("/dev/full", "wb", buffering=0) as device:
                try:
                    device.write(b"x")
                except OSError as fault:
                    raise OSError(f"{fault.strerror} (os error {fault.errno})") from None

        def abandon(self) -> None:
            pass

    monkeypatch.setattr(ztensor, "Writer", Full)
    with pytest.raises(CheckpointError) as caught:
        publish(tmp_path / "x.zt", {}, {})
    assert caught.value.code == "import.disk-full"
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("target", ["absent/x.zt", "."])
def test_a_destination_that_cannot_be_written_is_refused_first(target: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as caught:
        publish(tmp_path / target, {}, {})
    assert caught.value.code == "import.destination"


# -- whole imports -------------------------------------------------------------------------------------
WEIGHTS = {"embed": weight([64, 32], aliases=["head"]), "layers.2.w": weight([40, 64], "f32"), "layers.10.w": weight([40, 64], "u4g64")}
READ = pairs(("tok", "embed"), ("l.{l}", "layers.{l}.w"), ("lm_head", "head"))
HELD = {"tok": bf16(64, 32, seed=1), "l.2": bf16(40, 64, seed=2), "l.10": bf16(40, 64, seed=3)}
TOKENIZER = {"model": {"vocab": {"</s>": 0}}, "added_tokens": []}


def planned(folder: Path, held: dict[str, Any] | None = None) -> Any:
    checkpoint = open_checkpoint(write_checkpoint(folder, HELD if held is None else held, {"hidden": 32}, tokenizer=TOKENIZER))
    return plan_import(checkpoint, [package(WEIGHTS, READ)])


def test_every_weight_of_a_plan_is_in_the_file_bit_for_bit(tmp_path: Path) -> None:
    plan, file = planned(tmp_path / "c"), tmp_path / "x.zt"
    steps: list[tuple[int, int, str]] = []
    size = write_artifact(file, plan, lambda *step: steps.append(step))
    assert size == file.stat().st_size
    container = Container(file)
    assert container.weights() == sorted(WEIGHTS)
    for name, tensor in plan.weights.items():
        found = container.tensor(name, tensor.dtype, tensor.shape)
        for path, plane in tensor.planes.items():
            assert np.array_equal(found.planes[path].reshape(-1).view(np.uint8), np.ascontiguousarray(plane).reshape(-1).view(np.uint8)), (
                name,
                path,
            )
    assert container.side_files() == ["tokenizer.json"]
    assert json.loads(container.side_file("tokenizer.json")) == TOKENIZER
    assert container.attributes == {
        "poem.format": "1", "poem.deployment": "toy-bf16-kv-bf16", "poem.package/name": "toy", "poem.package/api": "1",
        "poem.package/files/toy.poem": "# a toy", "poem.source/repo": "c", "poem.source/format": "hub",
        "poem.config/config.json": '{"hidden": 32}',
    }  # fmt: skip
    assert [name for _, _, name in steps][:: len(steps) - 1] == ["embed", "poem.file/tokenizer.json"]
    assert max(done for done, _, name in steps if not name.startswith("poem.file/")) == steps[0][1] == plan.nbytes


def test_the_same_import_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    digests = set()
    for name in ("a", "b"):
        write_artifact(tmp_path / f"{name}.zt", planned(tmp_path / "c"))
        digests.add(hashlib.sha256((tmp_path / f"{name}.zt").read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_check_that_needs_the_data_aborts_the_write(tmp_path: Path) -> None:
    other = HELD["tok"].copy()
    other[0, 0] = 9
    plan = planned(tmp_path / "c", HELD | {"lm_head": other})
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError) as caught:
        write_artifact(tmp_path / "out" / "x.zt", plan)
    assert caught.value.code == "import.tied-differs"
    assert left_in(tmp_path / "out") == []


def in_a_process(program: str, *arguments: object, **more: Any) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(program)
    return subprocess.run([sys.executable, "-c", text, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, check=False, **more)


SETUP = """
import signal, sys, threading, time
from pathlib import Path
import numpy as np
from poem.checkpoint import open_checkpoint
from poem.importer import plan_import
from poem.artifact import write_artifact
from tests.poem.importer.fakes import package, pairs, weight
"""


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    held = {f"l.{i}": np.full((256, 1024), i, np.float32) for i in range(40)}
    folder = write_checkpoint(tmp_path / "c", held)
    (tmp_path / "out").mkdir()
    program = (
        SETUP
        + """
weights = {f"w.{i}": weight((256, 1024), "f32") for i in range(40)}
plan = plan_import(open_checkpoint(sys.argv[1]), [package(weights, pairs(("l.{i}", "w.{i}")))])
def progress(done, total, name):
    if name == "w.3":
        partial = list(Path(sys.argv[2]).glob(".x.zt.*.partial"))
        assert partial and partial[0].stat().st_size > 0, "nothing was being written"
        signal.raise_signal(signal.SIGINT)
try:
    write_artifact(Path(sys.argv[2]) / "x.zt", plan, progress)
except KeyboardInterrupt:
    sys.exit(7)
"""
    )
    done = in_a_process(program, folder, tmp_path / "out")
    assert done.returncode == 7, done.stderr
    assert left_in(tmp_path / "out") == []


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak of resident memory from /proc")
def test_an_import_holds_little_more_than_its_largest_tensor(tmp_path: Path) -> None:
    """480 MB of tensors, the largest of 64 MB: cast, joined, transposed, encoded and copied. What the process holds at most
    (pages of the mapped files included) stays under three times the largest plus 200 MB; all of it at once would not."""
    largest = 64 << 20
    folder = tmp_path / "c"
    folder.mkdir()
    rows = largest // 4096
    shapes = {"big": (rows, 2048)} | {f"l.{i}": (rows // 8, 2048) for i in range(50)}
    header = {}
    at = 0
    for name, shape in shapes.items():
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + shape[0] * shape[1] * 2]}
        at += shape[0] * shape[1] * 2
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + at)  # a sparse file: zeros that take no space
    program = (
        SETUP
        + """
from poem.formats.declared import Src, Transpose
quantised = {0: "u4g64", 4: "nvfp4"}
weights = {"big": weight((2048, ROWS), "f32")} | {f"w.{i}": weight((ROWS // 8, 2048), quantised.get(i % 8, "bf16")) for i in range(48)}
weights["joined"] = weight((ROWS // 4, 2048), "bf16")
read = pairs((Transpose(Src("big"), (1, 0)), "big"), ("l.{i}", "w.{i}"), (["l.48", "l.49"], "joined"))
plan = plan_import(open_checkpoint(sys.argv[1]), [package(weights, read)])
write_artifact(sys.argv[2], plan)
status = Path("/proc/self/status").read_text()  # getrusage would count the pytest process this one was forked from
print(int(status.split("VmHWM:")[1].split()[0]) * 1024)
"""
    )
    done = in_a_process(program.replace("ROWS", str(rows)), folder, tmp_path / "x.zt")
    assert done.returncode == 0, done.stderr
    peak, bound, all_of_it = int(done.stdout), 3 * largest + 200_000_000, at
    assert peak < bound, f"peak of {peak / 1e6:.0f} MB; at most {bound / 1e6:.0f} MB"
    assert all_of_it > bound, "the test could not fail"
