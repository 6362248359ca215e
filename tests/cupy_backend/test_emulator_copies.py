"""The copy engine of the emulator: boxes of tensor maps, in and out, against indexing in NumPy and the published swizzles."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cupy_backend.emulator import EmulatedDevice
from cupy_backend.errors import KernelError
from tests.cupy_backend import cute
from tests.cupy_backend.running import Tiles, launch_of, run, schedules

SOURCE = "selftest.cu"
DTYPES = (np.uint8, np.uint16, np.uint32)


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    kernels = [f"load_box<{rank}, {multicast}>" for rank in (2, 3) for multicast in ("true", "false")]
    EmulatedDevice().prepare(launch_of(SOURCE, kernel, (1,), 32, {}) for kernel in [*kernels, "store_box<2>", "store_box<3>"])


@st.composite
def boxes(draw: st.DrawFn) -> dict[str, object]:
    """An array of rank 2 or 3, a box whose rows are as wide as the swizzle, coordinates that may lie outside."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    rank = draw(st.sampled_from((2, 3)))
    swizzle = draw(st.sampled_from((0, 32, 64, 128)))
    row = swizzle or draw(st.sampled_from((16, 48, 128, 240)))
    box = (*(draw(st.integers(1, 9)) for _ in range(rank - 1)), row // dtype.itemsize)
    step = 16 // dtype.itemsize  # rows of the array are whole 16 bytes
    shape = (*(draw(st.integers(1, 12)) for _ in range(rank - 1)), draw(st.integers(1, 12)) * step)
    at = tuple(draw(st.integers(-extent - 1, dim + 1)) for extent, dim in zip(box, shape, strict=True))
    return {"dtype": dtype, "shape": shape, "box": box, "at": at, "swizzle": swizzle}


def image_places(box: tuple[int, ...], itemsize: int, swizzle: int) -> np.ndarray:
    """Where each element of a box lies in shared memory, in bytes: rows one after another, 16-byte chunks swizzled."""
    linear = np.arange(math.prod(box)).reshape(box) * itemsize
    return cute.swizzle(swizzle, linear // 16 * 16) + linear % 16


def inside(case: dict[str, object], array: np.ndarray) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The indices into the array of each element of the box, clipped, and which of them are in the array."""
    axes = np.meshgrid(*(np.arange(extent) + at for extent, at in zip(case["box"], case["at"], strict=True)), indexing="ij")  # type: ignore[call-overload]
    there = np.logical_and.reduce([(axis >= 0) & (axis < dim) for axis, dim in zip(axes, array.shape, strict=True)])
    return tuple(np.clip(axis, 0, dim - 1) for axis, dim in zip(axes, array.shape, strict=True)), there


@settings(max_examples=80)
@given(boxes(), st.sampled_from(("true", "false")), schedules, st.integers(0, 2**31))
def test_a_box_is_loaded_with_zeros_outside_and_its_chunks_swizzled(  # type: ignore[no-untyped-def]
    case: dict[str, object], multicast: str, schedule, seed: int
) -> None:
    array = (
        np.random.default_rng(seed).integers(1, 256, (*case["shape"], case["dtype"].itemsize), dtype=np.uint8).view(case["dtype"])[..., 0]
    )  # type: ignore[attr-defined, misc]
    array = np.ascontiguousarray(array)
    nbytes = math.prod(case["box"]) * array.itemsize  # type: ignore[call-overload]
    image = np.empty(nbytes // 4, np.uint32)
    c0, c1, c2 = (*case["at"][::-1], 0)[:3]  # type: ignore[index]
    arguments = {
        "map": Tiles(array, "read", case["box"], case["swizzle"]), "image": (image, "scratch"), "bytes": nbytes,  # type: ignore[arg-type]
        "c0": c0, "c1": c1, "c2": c2,
    }  # fmt: skip
    run(SOURCE, f"load_box<{array.ndim}, {multicast}>", (1,), 32, arguments, schedule=schedule, shared=32768)  # type: ignore[arg-type]
    index, there = inside(case, array)
    places = image_places(case["box"], array.itemsize, case["swizzle"])  # type: ignore[arg-type]
    got = image.view(np.uint8)[places[..., None] + np.arange(array.itemsize)].view(array.dtype)[..., 0]
    assert np.array_equal(got, np.where(there, array[index], 0))


@settings(max_examples=80)
@given(boxes(), schedules, st.integers(0, 2**31))
def test_a_box_is_stored_where_the_array_is_and_nowhere_else(case: dict[str, object], schedule, seed: int) -> None:  # type: ignore[no-untyped-def]
    array = np.full(case["shape"], 0xA5, case["dtype"])  # type: ignore[call-overload]
    nbytes = math.prod(case["box"]) * array.itemsize  # type: ignore[call-overload]
    image = np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)
    c0, c1, c2 = (*case["at"][::-1], 0)[:3]  # type: ignore[index]
    arguments = {
        "map": Tiles(array, "update", case["box"], case["swizzle"]), "image": (image.view(np.uint32), "read"), "bytes": nbytes,  # type: ignore[arg-type]
        "c0": c0, "c1": c1, "c2": c2,
    }  # fmt: skip
    run(SOURCE, f"store_box<{array.ndim}>", (1,), 32, arguments, schedule=schedule, shared=32768)  # type: ignore[arg-type]
    want = np.full(case["shape"], 0xA5, case["dtype"])  # type: ignore[call-overload]
    index, there = inside(case, want)
    places = image_places(case["box"], array.itemsize, case["swizzle"])  # type: ignore[arg-type]
    values = image[places[..., None] + np.arange(array.itemsize)].view(array.dtype)[..., 0]
    want[tuple(axis[there] for axis in index)] = values[there]
    assert np.array_equal(array, want)


@pytest.mark.parametrize(
    ("shape", "box", "swizzle", "strides", "says"),
    [
        ((8, 60), (8, 64), 128, None, "strides that are multiples of 16"),
        ((8, 64), (8, 60), 0, None, "a box row of a multiple of 16 bytes"),
        ((8, 128), (8, 128), 128, None, "a box row of 128 bytes with this swizzle"),
        ((8, 64), (8, 64), 64, None, "a box row of 64 bytes with this swizzle"),
        ((8, 64), (8, 64), 96, None, "a swizzle of 0, 32, 64 or 128 bytes"),
        ((512, 64), (257, 64), 128, None, "1 to 256 elements of a box along each axis"),
        ((64,), (64,), 0, None, "2 to 5 axes"),
        ((2, 2, 2, 2, 2, 16), (1, 1, 1, 1, 1, 16), 0, None, "2 to 5 axes"),
        ((8, 64), (64,), 128, None, "a box of 2 axes"),
        ((0, 64), (8, 64), 128, None, "1 to 2^32 elements along each axis"),
        ((8, 64), (8, 64), 128, (136,), "strides that are multiples of 16"),
        ((8, 64), (8, 64), 128, (128, 2), "1 strides"),
    ],
)
def test_a_tensor_map_that_the_driver_would_refuse_is_refused_with_the_rule(
    shape: tuple[int, ...], box: tuple[int, ...], swizzle: int, strides: tuple[int, ...] | None, says: str
) -> None:
    from cupy_backend import tensor_map
    from cupy_backend.launch import Array, Launch, TensorMap

    argument = TensorMap(Array("x", "read", shape, "bf16"), box, swizzle, strides)
    launch = Launch("elemwise.cu", "k", (1, 1, 1), (32, 1, 1), {"map": argument}, nodes=(7,))
    with pytest.raises(KernelError) as caught:
        tensor_map.tiling(launch, "map", argument)
    assert f"tensor map `map`: {says}" in caught.value.message
    assert "nodes 7" in caught.value.message


def test_a_tensor_map_may_walk_rows_that_are_not_contiguous() -> None:
    """As for one head of `[tokens, heads, head_dim]`: rows of 16 elements, 3 of them apart."""
    from cupy_backend.launch import Array, Launch, Scalar, TensorMap

    device = EmulatedDevice()
    memory = {"x": device.upload(np.arange(8 * 48, dtype=np.uint32).reshape(8, 48)), "image": device.empty((4 * 16,), "u32")}
    rows = Array("x", "read", (8, 16), "u32", offset=16 * 4)
    launch = Launch(
        SOURCE, "load_box<2, false>", (1, 1, 1), (32, 1, 1),
        {
            "map": TensorMap(rows, (4, 16), 0, (48 * 4,)), "image": Array("image", "write", (64,), "u32"),
            "bytes": Scalar(256, "i32"), "c0": Scalar(0, "i32"), "c1": Scalar(2, "i32"), "c2": Scalar(0, "i32"),
        },
        shared=1024,
    )  # fmt: skip
    device.run(launch, memory)
    assert np.array_equal(memory["image"].reshape(4, 16), memory["x"][2:6, 16:32])
