"""The container of a .zt file: what is written comes back bit for bit, and an object that is not exactly its dtype is refused."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ztensor

from poem.artifact import Container
from poem.artifact.container import publish, side_file_object
from poem.dtypes import Dtype, slicing
from poem.dtypes.tensor import Tensor
from poem.errors import CheckpointError
from tests.poem.artifact.objects import made, tensor_object
from tests.poem.checkpoint.files import write_checkpoint


def segmented() -> Tensor:
    return slicing.join(0, [made("nvfp4"), Tensor.encode(np.full((4, 128), 3.0, np.float32), Dtype("nvfp4"))])


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
