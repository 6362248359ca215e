"""Expressions: read in any strips of rows they give what NumPy gives of the whole, and wrong ones are refused by shape alone."""

import itertools
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from poem.checkpoint import open_checkpoint
from poem.dtypes import Dtype, slicing
from poem.dtypes.tensor import STORAGE, Tensor
from poem.formats import lazy
from poem.formats.lazy import Lazy, Refusal, Use
from tests.poem.checkpoint.files import write_checkpoint

BF16, F32, F16 = Dtype("bf16"), Dtype("f32"), Dtype("f16")


def held(array: np.ndarray, name: str = "w") -> Lazy:
    """An array as one stored weight."""
    tensor = Tensor.of(array)
    return Lazy(
        array.shape, tensor.dtype, lambda a, b: Tensor(tensor.dtype, (b - a, *array.shape[1:]), {"data": array[a:b]}), tensor.dtype.name,
        uses=(Use(name),), direct=True,
    )  # fmt: skip


def quantised(array: np.ndarray, dtype: str, name: str = "w") -> Lazy:
    tensor = Tensor.encode(array, Dtype(dtype))

    def read(start: int, stop: int) -> Tensor:
        return slicing.select(tensor, 0, range(start, stop))

    return Lazy(array.shape, tensor.dtype, read, dtype, True, (Use(name),), direct=True)


def whole(array: Lazy) -> np.ndarray:
    return array.whole().planes["data"]


def in_strips(array: Lazy, cuts: list[int]) -> np.ndarray:
    edges = sorted({0, *(cut % (array.shape[0] + 1) for cut in cuts), array.shape[0]})
    return np.concatenate([array.read(a, b).planes["data"] for a, b in itertools.pairwise(edges)])


@st.composite
def expressions(draw: st.DrawFn) -> tuple[Lazy, np.ndarray]:
    """A chain of operations on a small array, and the same by NumPy."""
    shape = draw(st.sampled_from([(6,), (4, 6), (2, 3, 4), (2, 2, 2, 3)]))
    expected = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    array = held(expected)
    for _ in range(draw(st.integers(1, 5))):
        rank = len(array.shape)
        axis = draw(st.integers(-rank, rank - 1))
        extent = array.shape[axis]
        kind = draw(st.sampled_from(["slice", "stride", "gather", "reshape", "transpose", "concat", "stack", "scale"]))
        if kind in ("slice", "stride"):
            start = draw(st.integers(0, extent - 1))
            step = 1 if kind == "slice" else draw(st.integers(1, 3))
            chosen = range(start, draw(st.integers(start + 1, extent)), step)
            array, expected = lazy.select(array, axis, chosen), np.take(expected, list(chosen), axis)
        elif kind == "gather":
            indices = tuple(draw(st.lists(st.integers(0, extent - 1), min_size=1, max_size=5)))
            array, expected = lazy.select(array, axis, indices), np.take(expected, indices, axis)
        elif kind == "reshape":
            size = int(np.prod(array.shape))
            first = draw(st.sampled_from([n for n in range(1, size + 1) if size % n == 0]))
            form = draw(st.sampled_from([(first, size // first), (first, -1), (-1, 1, first), (size,)]))
            array, expected = lazy.reshape(array, form), expected.reshape(form)
        elif kind == "transpose":
            axes = tuple(draw(st.permutations(range(rank))))
            array, expected = lazy.transpose(array, axes), expected.transpose(axes)
        elif kind == "concat":
            array, expected = lazy.concat(axis, [array, array]), np.concatenate([expected, expected], axis)
        elif kind == "stack":
            array, expected = lazy.stack([array, array]), np.stack([expected, expected])
        else:
            array, expected = lazy.in_f32(array, lambda x: x * np.float32(2), "scale(2)"), expected * np.float32(2)
    return array, expected


@given(expressions(), st.lists(st.integers(0, 100), max_size=3))
def test_an_expression_read_in_any_strips_is_what_numpy_makes_of_the_whole(pair: tuple[Lazy, np.ndarray], cuts: list[int]) -> None:
    array, expected = pair
    assert array.shape == expected.shape
    assert np.array_equal(whole(array), expected)
    assert np.array_equal(in_strips(array, cuts), expected)


@pytest.mark.parametrize(
    ("make", "code", "said"),
    [
        (lambda w: lazy.select(w, 0, range(3, 7)), "import.shape", "3 to 6"),
        (lambda w: lazy.select(w, 0, range(2, 2)), "import.shape", "none"),
        (lambda w: lazy.select(w, 2, range(1)), "import.shape", "no axis 2"),
        (lambda w: lazy.select(w, 1, (0, 6)), "import.shape", "0 to 6"),
        (lambda w: lazy.select(w, -3, range(1)), "import.shape", "no axis -3"),
        (lambda w: lazy.reshape(w, (5, 5)), "import.shape", "cannot reshape"),
        (lambda w: lazy.reshape(w, (-1, 7)), "import.shape", "cannot reshape"),
        (lambda w: lazy.reshape(w, (-1, -1)), "import.shape", "cannot reshape"),
        (lambda w: lazy.reshape(w, ()), "import.shape", "cannot reshape"),
        (lambda w: lazy.transpose(w, (0, 0)), "import.shape", "no order"),
        (lambda w: lazy.transpose(w, (0,)), "import.shape", "no order"),
        (lambda w: lazy.transmute(w, (4, 6), BF16), "import.shape", "96 bytes"),
        (lambda w: lazy.concat(0, [w, lazy.select(w, 1, range(3))]), "import.shape", "differ in another extent"),
        (lambda w: lazy.concat(0, [w, lazy.reshape(w, (24,))]), "import.shape", "differ in another extent"),
        (lambda w: lazy.concat(0, []), "import.shape", "nothing to join"),
        (lambda w: lazy.stack([w, lazy.transpose(w, (1, 0))]), "import.shape", "differ in shape"),
        (lambda w: lazy.converted(w, Dtype("i32")), "import.illegible", "floats and integers"),
        (lambda w: lazy.concat(0, [w, held(np.zeros((1, 6), np.int32))]), "import.illegible", "floats and integers"),
        (lambda w: lazy.in_f32(held(np.zeros(3, np.int32)), np.negative, "neg"), "import.illegible", "works on floats"),
        (lambda w: lazy.constant([1, 2], (3,), F32), "import.shape", "fill its shape"),
        (lambda w: lazy.constant([1], (1,), Dtype("u4g64")), "import.illegible", "cannot be written as"),
        (lambda w: lazy.constant([300], (1,), Dtype("u8")), "import.overflow", "does not fit"),
        (lambda w: lazy.constant([0.5], (1,), Dtype("i32")), "import.overflow", "does not fit"),
        (lambda w: lazy.fill(1e39, (2,), BF16), "import.overflow", "does not fit"),
        (lambda w: lazy.fill(2**70, (2,), Dtype("i64")), "import.overflow", "does not fit"),
    ],
)
def test_a_wrong_expression_is_refused_before_anything_is_read(make: Callable[[Lazy], Lazy], code: str, said: str) -> None:
    def never(start: int, stop: int) -> Tensor:
        raise AssertionError("tensor data was read")

    weight = Lazy((4, 6), F32, never, "f32", uses=(Use("w"),), direct=True)
    with pytest.raises(Refusal) as caught:
        make(weight)
    assert caught.value.code == code
    assert said in f"{caught.value.message} {caught.value.found} {caught.value.expected}"


@pytest.mark.parametrize(
    ("name", "values", "expected"),
    [
        ("neg_ln", [-1.0, -np.e, -0.5], [0.0, 1.0, np.log(0.5)]),
        ("sqrt", [0.0, 4.0, 2.0], [0.0, 2.0, np.sqrt(2.0)]),
        ("rsqrt", [1.0, 4.0, 0.5], [1.0, 0.5, np.sqrt(2.0)]),
        ("neg", [1.0, -0.0, 3.5], [-1.0, 0.0, -3.5]),
        ("exp", [0.0, 1.0, -2.0], [1.0, np.e, np.exp(-2.0)]),
    ],
)
def test_unary_functions_are_computed_in_f32(name: str, values: list[float], expected: list[float]) -> None:
    found = whole(lazy.in_f32(held(np.array(values, np.float32)), lazy.UNARY[name], name))
    assert found.dtype == np.float32
    assert np.allclose(found, expected, rtol=3e-7, atol=0)


@pytest.mark.parametrize(
    ("name", "value"), [("neg_ln", 1.0), ("neg_ln", 0.0), ("sqrt", -1.0), ("rsqrt", 0.0), ("rsqrt", -2.0), ("exp", 1000.0)]
)
def test_a_value_outside_the_domain_is_refused_with_its_index(name: str, value: float) -> None:
    values = np.full((3, 2), -1.0 if name == "neg_ln" else 1.0, np.float32)
    values[2, 1] = value
    array = lazy.in_f32(held(values), lazy.UNARY[name], name)
    with pytest.raises(Refusal) as caught:
        array.read(1, 3)
    assert (caught.value.code, caught.value.found) == ("import.bad-value", f"{value} at [2, 1]")


def test_scale_and_bias_round_once_at_the_landing() -> None:
    """1 + 2^-8 in bf16 is 1; through f32 it is kept until the landing: (x + 2^-8) rounds once."""
    value = np.array([1.0, 3.0], ml_dtypes.bfloat16)
    biased = lazy.in_f32(held(value), lambda x: x + np.float32(2**-8), "bias")
    doubled = lazy.converted(lazy.in_f32(biased, lambda x: x * np.float32(256), "scale"), F32)
    assert whole(doubled).tolist() == [257.0, 769.0]


@pytest.mark.parametrize("narrow", ["bf16", "f16"])
def test_floats_are_cast_to_nearest_even(narrow: str) -> None:
    bits = 8 if narrow == "bf16" else 11
    ulp = 2.0 ** (1 - bits)
    values = np.array([1 + ulp / 2, 1 + 3 * ulp / 2, 1 + ulp / 2 + 2.0**-22, -1 - ulp / 2], np.float32)
    found = whole(lazy.converted(held(values), Dtype(narrow))).astype(np.float64)
    assert found.tolist() == [1, 1 + 2 * ulp, 1 + ulp, -1]


@pytest.mark.parametrize(("value", "wanted"), [(70000.0, "f16"), (3.4e38, "bf16"), (-65520.0, "f16")])
def test_a_finite_value_that_would_become_infinite_is_refused(value: float, wanted: str) -> None:
    array = lazy.converted(held(np.array([0.0, value], np.float32)), Dtype(wanted))
    with pytest.raises(Refusal) as caught:
        array.whole()
    assert caught.value.code == "import.overflow"
    assert "[1]" in caught.value.found


def test_infinity_and_nan_are_cast_as_they_are() -> None:
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    found = whole(lazy.converted(held(values), F16))
    assert found.tolist()[:2] == [np.inf, -np.inf]
    assert np.isnan(found[2])


def test_integers_are_cast_only_when_every_value_fits() -> None:
    values = np.array([-5, 127], np.int64)
    assert whole(lazy.converted(held(values), Dtype("i8"))).tolist() == [-5, 127]
    for wrong in (np.array([128], np.int64), np.array([-129], np.int64)):
        with pytest.raises(Refusal) as caught:
            lazy.converted(held(wrong), Dtype("i8")).whole()
        assert caught.value.code == "import.overflow"


def test_bytes_are_read_as_another_dtype() -> None:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    words = lazy.transmute(held(values.view(np.uint32)), (3, 4), F32)
    assert np.array_equal(whole(words), values)
    halves = lazy.transmute(held(values), (6, 4), Dtype("u16"))
    assert np.array_equal(in_strips(halves, [1, 2, 5]), values.view(np.uint16).reshape(6, 4))


def test_codes_survive_selections_and_joins_and_everything_else_decodes() -> None:
    draw = np.random.default_rng(5)
    a, b = (quantised(draw.standard_normal((4, 128)).astype(np.float32), "u4g64", name) for name in "ab")
    kept = lazy.concat(0, [lazy.select(a, 0, range(1, 3)), b])
    assert kept.dtype.name == "u4g64"
    rows = np.concatenate([a.whole().decode()[1:3], b.whole().decode()])
    assert np.array_equal(kept.whole().decode(), rows)
    decoded = lazy.reshape(a, (2, 256))
    assert (decoded.dtype, decoded.quantised) == (F32, True)
    assert np.array_equal(whole(decoded), a.whole().decode().reshape(2, 256))
    stacked = lazy.stack([a, b])
    assert (stacked.shape, stacked.dtype.name) == ((2, 4, 128), "u4g64")
    assert np.array_equal(stacked.whole().decode(), np.stack([a.whole().decode(), b.whole().decode()]))


@pytest.mark.parametrize("chosen", [range(32, 96), range(0, 128, 2), (0, 1)])
def test_part_of_a_group_is_refused(chosen: range | tuple[int, ...]) -> None:
    array = quantised(np.ones((4, 128), np.float32), "u4g64")
    with pytest.raises(Refusal) as caught:
        lazy.select(array, 1, chosen)
    assert (caught.value.code, caught.value.expected) == ("import.group-split", "a run of whole groups of 64")


def test_parts_stored_differently_are_refused_when_codes_are_to_be_kept() -> None:
    one = quantised(np.ones((4, 128), np.float32), "u4g64")
    with pytest.raises(Refusal) as caught:
        lazy.concat(0, [one, held(np.ones((4, 128), ml_dtypes.bfloat16))])
    assert (caught.value.code, caught.value.found) == ("import.mixed-storage", "u4g64 and bf16")


def test_tiles_must_end_where_a_part_ends() -> None:
    parts = [quantised(np.ones((rows, 128), np.float32), "e4m3tile128") for rows in (100, 128)]
    with pytest.raises(Refusal) as caught:
        lazy.concat(0, parts)
    assert (caught.value.code, caught.value.expected) == ("import.tile-boundary", "a multiple of 128 on axis 0")
    assert lazy.concat(0, parts[::-1]).shape == (228, 128)


def test_float_parts_of_different_dtypes_widen_exactly() -> None:
    joined = lazy.concat(0, [held(np.array([1.5], ml_dtypes.bfloat16)), held(np.array([1e-8], np.float32))])
    assert joined.dtype is F32
    assert whole(joined).tolist() == [1.5, float(np.float32(1e-8))]


def test_selections_say_which_entries_they_read() -> None:
    array = held(np.zeros((10, 4), np.float32))
    twice = lazy.select(lazy.select(array, 0, range(2, 8)), 0, range(0, 6, 2))
    assert [(use.name, use.axis, tuple(use.entries)) for use in twice.uses] == [("w", 0, (2, 4, 6))]
    assert lazy.concat(0, [twice, array]).uses[1] == Use("w")


def test_a_view_of_a_checkpoint_stays_a_view_through_selections(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_checkpoint(tmp_path, {"w": np.arange(24, dtype=np.float32).reshape(6, 4)}))
    stored = checkpoint.find("w")
    assert stored is not None
    found = whole(lazy.select(lazy.source(stored), 0, range(1, 6, 2)))
    assert not found.flags.owndata
    assert found.tolist() == [[4, 5, 6, 7], [12, 13, 14, 15], [20, 21, 22, 23]]


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i32", "u8"])
def test_constants_and_fills_hold_their_numbers(dtype: str) -> None:
    assert whole(lazy.constant([1, 2, 3, 4], (2, 2), Dtype(dtype))).astype(float).tolist() == [[1, 2], [3, 4]]
    filled = lazy.fill(3, (4, 2), Dtype(dtype))
    assert filled.read(1, 3).planes["data"].dtype == STORAGE[dtype]
    assert whole(filled).astype(float).tolist() == [[3, 3]] * 4
