"""Scales that no checkpoint may hold are found with their plane and index."""

from typing import Any

import numpy as np
import pytest

from poem.checkpoint.scales import bad_scale
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor

SHAPES = {"e4m3row": (6, 8), "u4g64": (4, 128), "mxfp4": (5, 64), "nvfp4": (6, 48)}


def made(dtype: str, shape: tuple[int, ...]) -> Tensor:
    return Tensor.encode(np.random.default_rng(0).standard_normal(shape).astype(np.float32), Dtype(dtype))


@pytest.mark.parametrize(
    ("dtype", "path", "bad", "index"),
    [
        ("e4m3row", "gain", np.nan, (3,)),
        ("u4g64", "offset", np.inf, (2, 1)),
        ("nvfp4", "gain.code", 0x7F, (1, 2)),
        ("nvfp4", "gain.code", 0xFF, (1, 2)),
        ("nvfp4", "gain.gain", -np.inf, ()),
        ("mxfp4", "gain", 0xFF, (4, 0)),
    ],
)
def test_a_scale_that_is_not_finite_is_found(dtype: str, path: str, bad: Any, index: tuple[int, ...]) -> None:
    tensor = made(dtype, SHAPES[dtype])
    assert bad_scale(tensor.dtype.term, tensor.planes) is None
    tensor.planes[path][index] = bad
    assert bad_scale(tensor.dtype.term, tensor.planes) == (path, index, "NaN" if bad in (0x7F, 0xFF) else "not finite")


@pytest.mark.parametrize(
    ("dtype", "path", "bad", "said"),
    [
        ("e4m3row", "gain", 0, "zero"),
        ("nvfp4", "gain.code", 0x00, "zero"),
        ("nvfp4", "gain.code", 0x80, "zero"),
        ("nvfp4", "gain.gain", 0, "zero"),
        ("nvfp4", "gain.gain", -0.5, "negative"),
    ],
)
def test_a_scale_of_zero_is_found_where_none_may_be(dtype: str, path: str, bad: Any, said: str) -> None:
    tensor = made(dtype, SHAPES[dtype])
    assert bad_scale(tensor.dtype.term, tensor.planes, zeros=False) is None
    tensor.planes[path].reshape(-1)[-1] = bad
    wrong = bad_scale(tensor.dtype.term, tensor.planes, zeros=False)
    assert wrong is not None
    assert (wrong[0], wrong[2]) == (path, said)
    assert bad_scale(tensor.dtype.term, tensor.planes) is None


def test_the_whole_scale_of_every_entry_of_a_bank_is_positive() -> None:
    bank = made("nvfp4", (3, 4, 32))
    assert bad_scale(bank.dtype.term, bank.planes, zeros=False) is None
    bank.planes["gain.gain"][2, 0] *= -1
    assert bad_scale(bank.dtype.term, bank.planes, zeros=False) == ("gain.gain", (2, 0), "negative")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("word", [0x7F81, 0xFFFF])
def test_any_nan_is_found_without_a_warning(word: int) -> None:
    tensor = made("u4g64", SHAPES["u4g64"])
    tensor.planes["gain"].view(np.uint16)[1, 1] = word
    assert bad_scale(tensor.dtype.term, tensor.planes, zeros=False) == ("gain", (1, 1), "not finite")


def test_an_offset_of_zero_is_no_bad_scale_and_e8m0_has_none() -> None:
    affine, micro = made("u4g64", SHAPES["u4g64"]), made("mxfp4", SHAPES["mxfp4"])
    affine.planes["offset"][:] = 0
    micro.planes["gain"][:] = 0
    assert bad_scale(affine.dtype.term, affine.planes, zeros=False) is None
    assert bad_scale(micro.dtype.term, micro.planes, zeros=False) is None


def test_codes_that_mean_nan_are_no_bad_scale() -> None:
    tensor = made("e4m3row", (2, 4))
    tensor.planes["code"][0, 0] = 0x7F
    assert bad_scale(tensor.dtype.term, tensor.planes) is None
