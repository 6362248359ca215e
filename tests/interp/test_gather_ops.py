"""ops.gather: hand-computed values, definitions by plain indexing, bad indices, any dtype, and independent rows."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

from interp import evaluate
from interp.evaluate import Given
from poem.dtypes import Dtype
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.ops import REGISTRY
from tests.interp import cases
from tests.interp.cases import Case, given, indices, tensor, value, weight


# -- definitions: plain loops --------------------------------------------------------------------------------------------
def looked_up(ids: np.ndarray, table: np.ndarray, vocab: int) -> np.ndarray:
    return np.array([[table[id if 0 <= id < vocab else 0] for id in row] for row in ids])


def taps_of_grid(positions, grids, segments, kind, side):
    ids, weights = [], []
    image = 0
    for patch, (_, row, column) in enumerate(positions.tolist()):
        while patch >= segments.reshape(-1)[image + 1]:
            image += 1
        if kind == "axes":
            ids.append([min(column, side - 1), side + min(row, side - 1)])
            weights.append([1.0, 1.0])
            continue
        axes = []
        for index, size in ((row, grids[image, 1]), (column, grids[image, 2])):
            u = index * (side - 1) / max(size - 1, 1)
            low = int(np.floor(u + 1e-12))
            axes.append([(min(low, side - 1), 1 - (u - low)), (min(low + 1, side - 1), u - low)])
        ids.append([r * side + c for r, _ in axes[0] for c, _ in axes[1]])
        weights.append([wr * wc for _, wr in axes[0] for _, wc in axes[1]])
    return np.array(ids), np.array(weights)


def normalised(x, mean, std, order, temporal):
    side = int(np.sqrt(x.shape[1] // 3))
    y = np.empty((len(x), temporal * x.shape[1]))
    for n, f, row, column, c in np.ndindex(len(x), temporal, side, side, 3):
        v = (x[n, (row * side + column) * 3 + c] / 255 - mean[c]) / std[c]
        at = c * (temporal * side * side) + f * side * side + row * side + column
        y[n, at if order == "chw" else f * 3 * side * side + (row * side + column) * 3 + c] = v
    return y


def largest(x, k):
    values, columns = np.zeros((len(x), k)), np.zeros((len(x), k), int)
    for n, row in enumerate(x):
        ranked = sorted((c for c in range(len(row)) if not np.isnan(row[c])), key=lambda c: (-row[c], c))[:k]
        values[n, : len(ranked)], columns[n, : len(ranked)] = row[ranked], ranked
    return values, columns


def scattered(src, routes, y):
    y = y.copy()
    for row, route in zip(src, routes.reshape(-1), strict=False):
        if route >= 0:
            y[route] = row
    return y


# -- cases: rows that depend on their own row only --------------------------------------------------------------------------
def table_case(op: str, columns: int, define: Any, dtype: str = "f32") -> Case:
    def draw(rng: np.random.Generator, rows: int, _: str) -> dict[str, Any]:
        more = {"weights": value(rng, rows, columns)} if op == "embed_weighted" else {}
        return {"ids": indices(rng, rows, columns, -2, 9), **more, "table": weight(rng, 8, 5, dtype=dtype), "vocab": 6}

    return Case(f"gather.{op}", draw, define, f"{columns}-{dtype}")


def pixel_case(order: str, temporal: int) -> Case:
    def draw(rng: np.random.Generator, rows: int, _: str) -> dict[str, Any]:
        patches = Given(rng.integers(0, 256, (rows, 27)).astype(np.uint8), "u8", "patches")
        return {"x": patches, "mean": [0.48, 0.46, 0.41], "std": [0.27, 0.26, 0.28], "order": order, "temporal": temporal}

    def define(x, mean, std, order, temporal):
        return normalised(x, np.array(mean, np.float32).astype(float), np.array(std, np.float32).astype(float), order, temporal)

    return Case("gather.pixels", draw, define, f"{order}-{temporal}", rounds_inside=True)  # the result is bf16


def column_case(op: str, columns: int, define: Any, **attributes: Any) -> Case:
    return Case(f"gather.{op}", lambda rng, rows, dtype: {"x": value(rng, rows, columns, dtype), **attributes}, define)


def run_case(op: str, define: Any, **attributes: Any) -> Case:
    return Case(f"gather.{op}", lambda rng, rows, dtype: {"x": value(rng, rows * 4, 5, dtype, "tokens*4"), **attributes}, define)


CASES = [
    table_case("embed", 1, lambda ids, table, vocab: looked_up(ids, table, vocab)[:, 0]),
    table_case("embed", 1, lambda ids, table, vocab: looked_up(ids, table, vocab)[:, 0], "bf16"),
    *[
        table_case("embed_weighted", taps, lambda ids, weights, table, vocab: (weights[:, :, None] * looked_up(ids, table, vocab)).sum(1))
        for taps in (1, 3)
    ],
    *[table_case("embed_concat", taps, lambda ids, table, vocab: looked_up(ids, table, vocab).reshape(len(ids), -1)) for taps in (1, 3)],
    column_case("split_rows", 8, lambda x, width: (x[:, :3], x[:, 3:]), width=3),
    column_case("split_qkv", 8, lambda x, q_width, kv_width: (x[:, :4], x[:, 4:6], x[:, 6:]), q_width=4, kv_width=2),
    column_case("split_q_gate", 8, lambda x, head_dim: (x[:, [0, 1, 4, 5]], x[:, [2, 3, 6, 7]]), head_dim=2),
    column_case("select", 12, lambda x, index, width: x[:, 6:9], index=2, width=3),
    column_case("topk", 9, largest, k=4),
    Case(
        "gather.concat_cols",
        lambda rng, rows, dtype: {"values": [value(rng, rows, width, dtype) for width in (3, 1, 4)]},
        lambda values: np.concatenate(values, 1),
    ),
    run_case("group_rows", lambda x, side: x.reshape(len(x) // 4, -1), side=2),
    run_case("pool_rows", lambda x, side: x.reshape(len(x) // 4, 4, -1).mean(1), side=2),
    pixel_case("chw", 1),
    pixel_case("chw", 2),
    pixel_case("hwc", 2),
]
COPIES = ("split_rows", "split_qkv", "split_q_gate", "select", "concat_cols", "group_rows")


def test_every_op_of_the_namespace_has_a_case() -> None:
    below = {"gather_rows", "pack_rows", "unpack_rows", "scatter_live_rows", "scatter_rows", "grid_taps"}
    assert {name for name in REGISTRY if name.startswith("gather.")} == {case.op for case in CASES} | {f"gather.{name}" for name in below}


# -- rows by index: each against plain indexing ------------------------------------------------------------------------------
def rows_of(rng: np.random.Generator, rows: int, width: int, dtype: str, axis: str = "tokens") -> Given:
    """Values of any dtype, floats with an infinity and a NaN among them."""
    if dtype == "i32":
        return indices(rng, rows, width, -(2**31), 2**31 - 1, axis)
    made = value(rng, rows, width, dtype, axis)
    made.rows.reshape(-1)[::5] = rng.choice([np.nan, np.inf], made.rows.reshape(-1)[::5].shape)
    return made


def same(got: np.ndarray, want: np.ndarray, what: str) -> None:
    want = np.asarray(want).reshape(got.shape)
    equal = (got == want) | (np.isnan(got) & np.isnan(want))
    assert equal.all(), f"{what}: {np.argwhere(~equal)[0]} differs"


@pytest.mark.parametrize("dtype", ["f32", "bf16", "i32"])
@pytest.mark.parametrize("width", [1, 4])
@drawn(rows=st.integers(1, 12), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=20)
def test_rows_are_moved_bit_for_bit(dtype: str, width: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rows_of(rng, rows, width, dtype)
    array = np.asarray(x.rows)
    named = indices(rng, int(rng.integers(0, 9)), 1, 0, rows, "readouts")
    same(evaluate("gather.gather_rows", x, named), array[named.rows[:, 0]], "gather_rows")

    perm = rng.permutation(rows)
    perm[rng.random(rows) < 0.3] = -1
    packed = np.array([array[place] if place >= 0 else np.zeros(width, array.dtype) for place in perm])
    same(evaluate("gather.pack_rows", x, given(perm, "i32")), packed, "pack_rows")
    unpacked = np.zeros_like(array)
    for place, row in zip(perm, array, strict=True):
        if place >= 0:
            unpacked[place] = row
    same(evaluate("gather.unpack_rows", x, given(perm, "i32")), unpacked, "unpack_rows")

    count = int(rng.integers(0, rows + 1))
    src = rows_of(rng, count, width, dtype, "images")
    routes = indices(rng, count + 2, 1, -1, rows, "lanes")
    same(evaluate("gather.scatter_live_rows", src, routes, x), scattered(np.asarray(src.rows), routes.rows, array), "scatter_live_rows")
    routes = indices(rng, count + 2, 1, 0, rows, "lanes")
    same(evaluate("gather.scatter_rows", src, routes, x), scattered(np.asarray(src.rows), routes.rows, array), "scatter_rows")


@pytest.mark.parametrize("op", COPIES)
def test_copies_take_integers_too(op: str) -> None:
    case = next(case for case in CASES if case.op == f"gather.{op}")
    arguments = case.draw(np.random.default_rng(3), 4, "f32")

    def whole(argument: Any) -> Any:
        if isinstance(argument, list):
            return [whole(part) for part in argument]
        return (
            argument._replace(rows=np.rint(argument.rows * 100).astype(np.int32), dtype="i32") if isinstance(argument, Given) else argument
        )

    arguments = {name: whole(argument) for name, argument in arguments.items()}
    for got, want in zip(cases.run(case, arguments), cases.defined(case, arguments), strict=True):
        assert got.dtype == np.int32
        assert (got == want).all()


def test_unpacking_reverts_packing() -> None:
    x, perm = given([[1.0], [2], [3], [4]]), given([2, 0, 3, 1], "i32")
    packed = evaluate("gather.pack_rows", x, perm)
    assert evaluate("gather.unpack_rows", given(packed), perm).tolist() == x.rows.tolist()


@pytest.mark.parametrize("kind", ["bilinear", "axes"])
@drawn(seed=st.integers(0, 2**32 - 1), side=st.integers(1, 7))
@settings(max_examples=30)
def test_taps_of_a_grid_are_those_of_its_definition(kind: str, seed: int, side: int) -> None:
    rng = np.random.default_rng(seed)
    grids = np.array([[int(rng.integers(1, 3)), *rng.integers(1, 6, 2)] for _ in range(int(rng.integers(1, 4)))])
    positions = [p for grid in grids for p in np.ndindex(*grid)]
    segments = np.cumsum([0, *(int(np.prod(grid)) for grid in grids)])
    arguments = (
        Given(np.array(positions), "i32", "patches"), Given(grids, "i32", "images"), Given(segments, "i32", "images+1"), kind, side,
    )  # fmt: skip
    ids, weights = evaluate("gather.grid_taps", *arguments, mode="exact")
    want_ids, want_weights = taps_of_grid(np.array(positions), grids, segments, kind, side)
    np.testing.assert_allclose(weights, want_weights, atol=1e-9)
    counted = want_weights > 1e-9  # a tap of weight 0 may stand anywhere
    assert (ids[counted] == want_ids[counted]).all()


# -- hand-computed values -----------------------------------------------------------------------------------------------------
def exact(op: str, *arguments: Any, **named: Any) -> Any:
    return evaluate(f"gather.{op}", *arguments, mode="exact", **named)


def agrees(got: np.ndarray, want: Any) -> None:
    np.testing.assert_allclose(got, np.array(want, float), rtol=0, atol=1e-6)


def test_tables_at_known_points() -> None:
    table = tensor([[1, 0], [0, 1], [2, 2]])
    agrees(exact("embed", given([2, -1, 3], "i32"), table, 3), [[2, 2], [1, 0], [1, 0]])
    agrees(exact("embed_weighted", given([[0, 2], [1, 9]], "i32"), given([[0.5, 0.25], [1, 2]]), table, 3), [[1, 0.5], [2, 1]])


def test_cuts_at_known_points() -> None:
    x = given([[1, 2, 3, 4, 5, 6, 7, 8]])
    assert [part.tolist() for part in exact("split_q_gate", x, 2)] == [[[1, 2, 5, 6]], [[3, 4, 7, 8]]]
    assert [part.tolist() for part in exact("split_qkv", x, 4, 2)] == [[[1, 2, 3, 4]], [[5, 6]], [[7, 8]]]
    assert [part.tolist() for part in exact("split_rows", x, 3)] == [[[1, 2, 3]], [[4, 5, 6, 7, 8]]]


def test_moves_at_known_points() -> None:
    x, perm = given([[1], [2], [3], [4]]), given([2, 0, -1, 1], "i32")
    assert exact("pack_rows", x, perm).tolist() == [[3], [1], [0], [2]]
    assert exact("unpack_rows", x, perm).tolist() == [[2], [4], [1], [0]]
    four = x._replace(axis="tokens*4")
    assert exact("group_rows", four, 2).tolist() == [[1, 2, 3, 4]]
    assert exact("pool_rows", four, 2).tolist() == [[2.5]]
    src = Given([[7.0], [8], [9]], "f32", "images")
    assert exact("scatter_live_rows", src, Given([3, -1, 0], "i32", "images"), x).tolist() == [[9], [2], [3], [7]]


def test_of_rows_with_one_route_the_last_wins() -> None:
    src = Given([[7.0], [8], [9]], "f32", "images")
    assert exact("scatter_live_rows", src, Given([1, 0, 1], "i32", "images"), given([[1], [2]])).tolist() == [[8], [9]]


CHW = [-1, -0.529412, -0.058824, 0.411765, -0.843137, -0.372549, 0.098039, 0.568627, -0.686275, -0.215686, 0.254902, 0.72549]
HWC = [-1, -0.843137, -0.686275, -0.529412, -0.372549, -0.215686, -0.058824, 0.098039, 0.254902, 0.411765, 0.568627, 0.72549]


@pytest.mark.parametrize(("order", "want"), [("chw", CHW), ("hwc", HWC)])
def test_pixels_at_known_points(order: str, want: list[float]) -> None:
    patch = Given(np.arange(0, 240, 20, dtype=np.uint8)[None], "u8", "patches")
    agrees(exact("pixels", patch, [0.5] * 3, [0.5] * 3, order=order), [want])


def test_taps_at_known_points() -> None:
    positions = Given([[0, 0, 0], [0, 1, 2], [0, 2, 1]], "i32", "patches")
    ids, weights = exact("grid_taps", positions, Given([[1, 3, 4]], "i32", "images"), Given([0, 3], "i32", "images+1"), "bilinear", 3)
    assert ids.tolist() == [[0, 1, 3, 4], [4, 5, 7, 8], [6, 7, 6, 7]]
    agrees(weights, [[1, 0, 0, 0], [0.666667, 0.333333, 0, 0], [0.333333, 0.666667, 0, 0]])


def test_topk_at_known_points() -> None:
    values, columns = exact("topk", given([[1, 3, 3, np.nan]]), 2)
    assert (values.tolist(), columns.tolist()) == ([[3, 3]], [[1, 2]])
    values, columns = exact("topk", given([[np.nan, 2]]), 2)
    assert (values.tolist(), columns.tolist()) == ([[2, 0]], [[1, 0]])
    assert exact("topk", given([[-np.inf, np.inf]]), 2)[0].tolist() == [[np.inf, -np.inf]]


@pytest.mark.parametrize("name", ["u4g64", "nvfp4", "e4m3tile128", "e4m3tile128a8", "e4m3row"])
@pytest.mark.parametrize("op", ["embed", "embed_weighted", "embed_concat"])
def test_a_quantised_table_stands_for_its_decoded_values(op: str, name: str) -> None:
    rng = np.random.default_rng(2)
    table = Tensor.encode(rng.standard_normal((140, 128)).astype(np.float32), Dtype(name))
    ids = indices(rng, 6, 1 if op == "embed" else 3, -2, 150)
    more = (value(rng, 6, 3),) if op == "embed_weighted" else ()
    rows = looked_up(ids.rows, table.decode(dtype=np.float64), 140)
    want = (rows * cases.plain(more[0])[:, :, None]).sum(1) if more else rows.reshape(6, -1)
    cases.close(exact(op, ids, *more, table, 140), want, f"{op} {name}", 1e-12)
    if op == "embed":
        rounded = table.decode()[np.where((ids.rows >= 0) & (ids.rows < 140), ids.rows, 0)[:, 0]].astype(ml_dtypes.bfloat16)
        assert (evaluate("gather.embed", ids, table, 140) == rounded.astype(np.float32)).all()


# -- bad indices --------------------------------------------------------------------------------------------------------------
PATCH = Given([[0, 0, 0], [0, 0, 1]], "i32", "patches")
X = given([[1.0], [2], [3]])
SRC = Given([[1.0]], "f32", "images")


@pytest.mark.parametrize(
    ("op", "arguments", "says"),
    [
        ("gather_rows", (X, Given([0, 3], "i32", "readouts")), "row 1: rows is 3, but x has 3 rows"),
        ("gather_rows", (X, Given([-1], "i32", "readouts")), "row 0: rows is -1"),
        ("pack_rows", (X, given([0, -2, 1], "i32")), "row 1: perm is -2, but there are 3 rows"),
        ("unpack_rows", (X, given([0, 1, 3], "i32")), "row 2: perm is 3"),
        ("scatter_live_rows", (SRC, Given([3], "i32", "images"), X), "row 0: routes is 3, but y has 3 rows"),
        ("scatter_live_rows", (SRC, Given(np.zeros((0, 1)), "i32", "lanes"), X), "src has 1 rows, but there are 0 routes"),
        ("scatter_rows", (SRC, Given([-1], "i32", "images"), X), "row 0: routes is -1"),
        ("group_rows", (Given([[1.0]] * 3, "f32", "patches"), 2), "x has 3 rows, no multiple of 4"),
        ("pool_rows", (Given([[1.0]] * 3, "f32", "patches"), 2), "x has 3 rows, no multiple of 4"),
        (
            "grid_taps", (PATCH, Given([[1, 1, 1]], "i32", "images"), Given([0, 1], "i32", "images+1"), "bilinear", 3),
            "row 1: the patch lies in no image",
        ),
    ],
)  # fmt: skip
def test_a_bad_index_is_named_with_its_row(op: str, arguments: tuple[Any, ...], says: str) -> None:
    with pytest.raises(PoemError) as caught:
        exact(op, *arguments)
    assert caught.value.code == "run.index"
    assert f"ops.gather.{op}: {says}" in str(caught.value)
