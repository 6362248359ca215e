"""A tensor is checked when it is made: planes that are not those of its dtype and shape never get further."""

import re

import ml_dtypes
import numpy as np
import pytest

from poem.dtypes import NICKNAMES, Dtype
from poem.dtypes.tensor import Tensor
from tests.poem.dtypes.strategies import weight

NVFP4 = Tensor.encode(weight((2, 4, 32), 1), Dtype("nvfp4"))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"gain.gain": None}, "the plane `gain.gain` is missing"),
        ({"code": np.zeros((2, 4, 32), np.uint8)}, "the plane `code` is uint8 [2, 4, 16], found uint8 [2, 4, 32]"),
        ({"gain.gain": np.ones((2, 1), np.float64)}, "the plane `gain.gain` is float32 [2, 1], found float64 [2, 1]"),
        ({"offset": np.zeros(2)}, "nvfp4 has no plane `offset`"),
        ({"gain.rows": np.array([3], np.int64)}, "each 1 or more, 4 in all; found [3]"),
        ({"gain.rows": np.array([5, -1], np.int64), "gain.gain": np.ones((2, 2), np.float32)}, "found [5, -1]"),
        ({"gain.rows": None}, "the plane `gain.gain` is float32 [], found float32 [2, 1]"),
        ({"code.rows": np.array([4], np.int64)}, "nvfp4 has no plane `code.rows`"),
    ],
)
def test_planes_that_do_not_fit_are_refused(change: dict, says: str) -> None:
    planes = {path: plane for path, plane in {**NVFP4.planes, **change}.items() if plane is not None}
    with pytest.raises(ValueError, match=re.escape(says)):
        Tensor(NVFP4.dtype, NVFP4.shape, planes)


def test_one_scale_may_serve_a_whole_bank() -> None:
    planes = {**NVFP4.planes, "gain.gain": np.array(2, np.float32)}
    del planes["gain.rows"]
    both = Tensor(NVFP4.dtype, NVFP4.shape, {**NVFP4.planes, "gain.gain": np.full((2, 1), 2, np.float32)})
    np.testing.assert_array_equal(Tensor(NVFP4.dtype, NVFP4.shape, planes).decode(), both.decode())


@pytest.mark.parametrize("name", NICKNAMES)
def test_encoded_planes_are_in_file_order_and_as_large_as_the_dtype_says(name: str) -> None:
    tensor = Tensor.encode(weight((3, 128), 2), Dtype(name))
    planes = Dtype(name).planes((3, 128))
    assert list(tensor.planes) == [plane.path for plane in planes]
    assert tensor.nbytes == sum(plane.nbytes for plane in planes)
    assert tensor.size == 384


def test_a_leaf_tensor_shares_the_memory_of_its_array() -> None:
    array = np.ones((2, 3), ml_dtypes.bfloat16)
    assert Tensor.of(array).planes["data"] is array
    with pytest.raises(ValueError, match="no dtype is stored as complex128"):
        Tensor.of(np.zeros(2, complex))


def test_decoding_does_not_write_to_planes() -> None:
    array = np.ones((2, 3), np.float32)
    values = Tensor.of(array).decode()
    values[:] = 7
    assert (array == 1).all()


@pytest.mark.parametrize("name", [name for name in NICKNAMES if name != "bf16"])
@pytest.mark.parametrize("shape", [(700, 128), (3, 300, 256)])
def test_values_read_some_rows_at_a_time_encode_as_they_do_at_once(name: str, shape: tuple[int, ...]) -> None:
    values = weight(shape, 5)
    matrix = values.reshape(-1, shape[-1])
    asked: list[slice] = []

    def read(rows: slice) -> np.ndarray:
        asked.append(rows)
        return matrix[rows]

    got, want = Tensor.encode_rows(read, shape, Dtype(name)), Tensor.encode(values, Dtype(name))
    for path, plane in want.planes.items():
        np.testing.assert_array_equal(got.planes[path], plane, path)
    rows = [row for part in asked for row in range(part.start, part.stop)]
    assert rows == 2 * list(range(len(matrix))), "every row is asked for twice, in order"
    assert max((part.stop - part.start) * shape[-1] for part in asked) <= 65536
