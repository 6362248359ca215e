"""Selecting and joining stored weights: what comes out decodes to what NumPy makes of the decoded parts, codes untouched."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.checkpoint.planes import Chosen, GroupSplit, TileBoundary, bad_scale, join, select
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor

# dtype: a shape whose every axis has several groups, the last tiles being partial
SHAPES = {
    "bf16": (6, 8), "e4m3row": (6, 8), "g2x4_e4m3_f32_n": (7, 10), "u4g64": (4, 128), "u2g32": (3, 96), "mxfp4": (5, 64), "nvfp4": (6, 48),
    "g16_u8_bf16_z_bf16": (4, 32),
}  # fmt: skip


def made(dtype: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    return Tensor.encode(np.random.default_rng(seed).standard_normal(shape).astype(np.float32), Dtype(dtype))


def decoded(tensor: Tensor) -> np.ndarray:
    return tensor.decode(dtype=np.float64)


def picked(array: np.ndarray, axis: int, chosen: Chosen) -> np.ndarray:
    return np.take(array, list(chosen), axis)


@given(st.data())
def test_any_allowed_selection_decodes_to_the_selected_values(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(sorted(SHAPES)))
    lead = data.draw(st.sampled_from([(), (3,)]))
    tensor = made(dtype, (*lead, *SHAPES[dtype]))
    axis = data.draw(st.integers(0, len(tensor.shape) - 1))
    extent = tensor.shape[axis]
    start = data.draw(st.integers(0, extent - 1))
    step = data.draw(st.integers(1, 3))
    run = range(start, data.draw(st.integers(start + 1, extent)), step)
    chosen = data.draw(st.sampled_from([run, tuple(run)]))
    quantum = tensor.dtype.quantum[axis - len(tensor.shape)] if axis >= len(tensor.shape) - 2 else 1
    try:
        found = select(tensor, axis, chosen)
    except GroupSplit:
        whole = step == 1 and isinstance(chosen, range) and run.start % quantum == 0 and (run.stop % quantum == 0 or run.stop == extent)
        assert quantum > 1
        assert not whole, f"{dtype} {tensor.shape} axis {axis} {chosen} covers whole groups of {quantum}"
        return
    assert np.array_equal(decoded(found), picked(decoded(tensor), axis, chosen))


@pytest.mark.parametrize("dtype", SHAPES)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_parts_joined_again_are_the_whole(dtype: str, lead: tuple[int, ...]) -> None:
    tensor = made(dtype, (*lead, *SHAPES[dtype]))
    rank = len(tensor.shape)
    for axis in range(rank):
        quantum = tensor.dtype.quantum[axis - rank] if axis >= rank - 2 else 1
        cut = max(1, tensor.shape[axis] // quantum // 2) * quantum
        if cut >= tensor.shape[axis]:
            continue
        parts = [select(tensor, axis, range(cut)), select(tensor, axis, range(cut, tensor.shape[axis]))]
        whole = join(axis, parts)
        assert np.array_equal(decoded(whole), decoded(tensor)), f"{dtype} axis {axis}"
        assert np.array_equal(
            whole.planes["data" if tensor.dtype.is_leaf else "code"], tensor.planes["data" if tensor.dtype.is_leaf else "code"]
        )


@pytest.mark.parametrize("dtype", sorted(SHAPES))
def test_parts_of_different_weights_keep_their_own_scales(dtype: str) -> None:
    shape = {"g2x4_e4m3_f32_n": (4, 8)}.get(dtype, SHAPES[dtype])
    parts = [made(dtype, shape, 1), made(dtype, shape, 2)]
    assert np.array_equal(decoded(join(0, parts)), np.concatenate([decoded(part) for part in parts]))


def test_a_segmented_tensor_scale_follows_a_selection_of_rows() -> None:
    parts = [made("nvfp4", (4, 32), 1), made("nvfp4", (2, 32), 2), made("nvfp4", (3, 32), 3)]
    fused = join(0, parts)
    for chosen in (range(3, 6), range(0, 9, 2), (8, 0, 5), range(4, 6)):
        assert np.array_equal(decoded(select(fused, 0, chosen)), picked(decoded(fused), 0, chosen)), chosen


def test_a_partial_tile_in_the_middle_is_refused() -> None:
    with pytest.raises(TileBoundary):
        join(0, [made("g2x4_e4m3_f32_n", (3, 8)), made("g2x4_e4m3_f32_n", (2, 8))])
    join(0, [made("g2x4_e4m3_f32_n", (2, 8)), made("g2x4_e4m3_f32_n", (3, 8))])


@pytest.mark.parametrize("dtype", ["e4m3row", "nvfp4"])
def test_different_scales_of_whole_rows_cannot_be_joined_along_them(dtype: str) -> None:
    with pytest.raises(GroupSplit):
        join(1, [made(dtype, (4, 32), 1), made(dtype, (4, 32), 2)])


def test_selections_by_range_are_views() -> None:
    tensor = made("u4g64", (4, 128))
    for plane in select(tensor, 0, range(1, 3)).planes.values():
        assert plane.base is not None


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
