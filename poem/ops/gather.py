"""ops.gather: moving rows and columns. Copies keep bits and take any dtype. Embeddings are in embeddings.py."""

import math
from typing import Literal

from poem import axes
from poem.dtypes import Dtype
from poem.graph import ValueType
from poem.ops.checks import divided, has_width, holds, of_dtype, on_axis, refuse, width_divides
from poem.ops.operands import Value
from poem.ops.record import Activation, AnyValue, Bytes, Count, Ids, Index, Numbers, Values, op, result

BF16 = Dtype("bf16")


@op("gather")
def gather_rows(x: AnyValue, rows: Ids) -> ValueType:
    """Rows of x by index; any dtype.

    Shapes: x [A, W] on any axis, rows i32 [B] on any axis -> y [B, W], on the axis of rows
    Formula: y[i] = x[rows[i]]
    Rounding: none
    Rules:
        1. rows is one column.
    Edge: an index outside x's rows is a run-time error
    For: readout rows; spreading one row per lane over the tokens
    """
    has_width(rows, 1, 1, "rows")
    return result(x, rows=rows.rows)


@op("gather")
def split_rows(x: AnyValue, width: Count) -> list[ValueType]:
    """Cut the columns of every row in two; any dtype.

    Shapes: x [N, W] on any axis -> left [N, width], right [N, W - width]
    Formula: left = x[:, :width], right = x[:, width:]
    Rounding: none
    Rules:
        1. width < x.width.
    For: fused projections; it cuts columns, of each row
    """
    holds(width < x.width, 1, "width", f"less than {x.width}", width)
    return [result(x, width=width), result(x, width=x.width - width)]


@op("gather")
def split_qkv(x: AnyValue, q_width: Count, kv_width: Count) -> list[ValueType]:
    """Cut a fused projection into queries, keys and values; any dtype.

    Shapes: x [N, q_width + 2*kv_width] on any axis -> q [N, q_width], k [N, kv_width], v [N, kv_width]
    Formula: the three column blocks, in this order
    Rounding: none
    Rules:
        1. x is q_width + 2 * kv_width wide.
    For: families with a fused qkv projection
    """
    has_width(x, q_width + 2 * kv_width, 1, "x")
    return [result(x, width=q_width), result(x, width=kv_width), result(x, width=kv_width)]


@op("gather")
def split_q_gate(x: AnyValue, head_dim: Count) -> list[ValueType]:
    """Cut a projection that holds, per head, query channels and then gate channels; any dtype.

    Shapes: x [N, 2*H*D] on any axis, D = head_dim -> q [N, H*D], gate [N, H*D]
    Formula: q[h*D + i] = x[2*h*D + i], gate[h*D + i] = x[2*h*D + D + i]
    Rounding: none
    Rules:
        1. x is whole pairs of head_dim.
    For: qwen_3.5, qwen_4
    Public: `chunk` on `view(..., 2 * head_dim)` in transformers
    """
    heads = width_divides(x, 2 * head_dim, 1, "x")
    return [result(x, width=heads * head_dim), result(x, width=heads * head_dim)]


@op("gather")
def concat_cols(values: Values) -> ValueType:
    """Columns side by side; any dtype.

    Shapes: values a list of [N, W_i] of one dtype on any one axis -> [N, sum of W_i]
    Formula: the columns of the values, in order
    Rounding: none
    Rules:
        1. The list is not empty.
        2. All values have the axis and dtype of the first.
    For: the inverse of split_rows; draft heads; with select it re-orders position columns
    """
    if not values:
        refuse(1, "values", "is an empty list", expected="at least one value", found="[]")
    for value in values:
        on_axis(value, values[0].rows, 2, "values")
        of_dtype(value, values[0].dtype, 2, "values")
    return result(values[0], width=sum(value.width for value in values))


@op("gather", extension=True)
def select(x: AnyValue, index: Index, width: Count) -> ValueType:
    """One block of columns; any dtype.

    Shapes: x [N, W] on any axis -> [N, width]
    Formula: columns index*width .. index*width + width - 1
    Rounding: none
    Rules:
        1. (index + 1) * width <= x.width.
    For: gemma_4's per-layer embeddings; position columns
    """
    holds((index + 1) * width <= x.width, 1, "index", f"below {x.width // width}, the blocks of {width} in {x.width} columns", index)
    return result(x, width=width)


@op("gather")
def pack_rows(x: AnyValue, perm: Ids) -> ValueType:
    """Re-order rows; any dtype.

    Shapes: x [N, W] on any axis, perm i32 [N] with distinct entries -> [N, W]
    Formula: y[i] = x[perm[i]], a zero row where perm[i] = -1
    Rounding: none
    Rules:
        1. perm is one column on x's axis.
    Edge: an entry outside -1 .. rows-1 is a run-time error
    For: bringing the rows of one group together before dense
    """
    _permutation(x, perm)
    return result(x)


@op("gather")
def unpack_rows(x: AnyValue, perm: Ids) -> ValueType:
    """Undo pack_rows; any dtype.

    Shapes: x [N, W] on any axis, perm i32 [N] with distinct entries -> [N, W]
    Formula: y[perm[i]] = x[i] for perm[i] >= 0; rows that are not named are 0
    Rounding: none
    Rules:
        1. perm is one column on x's axis.
    Edge: an entry outside -1 .. rows-1 is a run-time error
    For: the way back from dense
    """
    _permutation(x, perm)
    return result(x)


def _permutation(x: Value, perm: Value) -> None:
    on_axis(perm, x.rows, 1, "perm")
    has_width(perm, 1, 1, "perm")


@op("gather")
def group_rows(x: AnyValue, side: Count) -> ValueType:
    """Lay each run of side^2 rows end to end; any dtype.

    Shapes: x [A, W] on any axis -> y [A/side^2, side^2 * W]
    Formula: y[j] = rows j*side^2 .. j*side^2 + side^2 - 1 of x, one after another
    Rounding: none
    Rules:
        1. x's axis can be divided by side^2.
    Edge: a row count that is no multiple of side^2 is a run-time error
    For: the mergers of Qwen and GLM towers (side 2)
    """
    return result(x, rows=divided(x, side * side, 1, "x"), width=side * side * x.width)


@op("gather", extension=True)
def pool_rows(x: Activation, side: Count) -> ValueType:
    """The mean of each run of side^2 rows.

    Shapes: x [A, W] on any axis -> y [A/side^2, W], x's dtype
    Formula: y[j] = mean of rows j*side^2 .. j*side^2 + side^2 - 1
    Rounding: once
    Rules:
        1. x's axis can be divided by side^2.
    Edge: a row count that is no multiple of side^2 is a run-time error
    For: gemma_4's vision tower (side 3), whose `Gemma4VisionPooler` averages by position: feed rows in block order
    """
    return result(x, rows=divided(x, side * side, 1, "x"))


@op("gather")
def scatter_live_rows(src: AnyValue, routes: Ids, y: AnyValue) -> ValueType:
    """Put rows into a copy of y where a route names one; any dtype.

    Shapes: src [B, W] on any axis, routes i32 [at least B] on any axis, y [N, W] on any axis, of src's dtype -> y' [N, W]
    Formula: a copy of y with y[routes[i]] = src[i] for i < rows of src and routes[i] >= 0; of duplicates the last wins
    Rounding: none
    Rules:
        1. src has y's width and dtype.
        2. routes is one column.
    Edge: fewer routes than rows of src, or a route past y's rows, is a run-time error
    For: image rows into the text
    """
    _scattered(src, routes, y)
    return result(y)


@op("gather", extension=True)
def scatter_rows(src: AnyValue, routes: Ids, y: AnyValue) -> ValueType:
    """scatter_live_rows where every route must name a row; any dtype.

    Shapes: src [B, W] on any axis, routes i32 [at least B] on any axis, y [N, W] on any axis, of src's dtype -> y' [N, W]
    Formula: a copy of y with y[routes[i]] = src[i] for i < rows of src; of duplicates the last wins
    Rounding: none
    Rules:
        1. src has y's width and dtype.
        2. routes is one column.
    Edge: a route outside y's rows, -1 included, is a run-time error
    For: rows whose places are all known
    """
    _scattered(src, routes, y)
    return result(y)


def _scattered(src: Value, routes: Value, y: Value) -> None:
    has_width(src, y.width, 1, "src")
    of_dtype(src, y.dtype, 1, "src")
    has_width(routes, 1, 2, "routes")


@op("gather", extension=True)
def topk(x: Activation, k: Count) -> list[ValueType]:
    """The largest entries of each row and where they are.

    Shapes: x [N, W] on any axis -> values f32 [N, k], indices i32 [N, k]
    Formula: the k largest entries in descending order, and their columns
    Rounding: none
    Rules:
        1. k <= x.width.
    Edge: ties go to the lower column; NaN is never chosen; a slot without a candidate gets value 0 and index 0
    For: drafter candidates
    Public: `torch.topk`, which leaves ties open
    """
    holds(k <= x.width, 1, "k", f"at most {x.width} columns", k)
    return [result(x, width=k, dtype="f32"), result(x, width=k, dtype="i32")]


@op("gather", extension=True)
def grid_taps(positions: Ids, grids: Ids, segments: Ids, kind: Literal["bilinear", "axes"], side: Count) -> list[ValueType]:
    """Where each patch reads a learned position table of side x side, and with which weights; for embed_weighted.

    Shapes: positions i32 [P, 3] (t, row, col) on any axis, grids i32 [I, 3] (t, h, w) on any axis, segments i32 [I+1], the
        patches of each image -> ids i32 and weights f32, [P, 4] (bilinear) or [P, 2] (axes)
    Formula: by kind. bilinear: per axis, with the patch's index and its image's size along it, u = index * (side-1) / max(size-1, 1); the
        lower tap is floor(u) with weight 1 - frac(u), the upper floor(u) + 1 with weight frac(u), both clipped to side - 1;
        id = row_tap * side + col_tap in the order (r0,c0), (r0,c1), (r1,c0), (r1,c1), weight = the product
        axes: ids min(col, side-1) and side + min(row, side-1), weights 1: a table of two stacked axes, columns first
    Rounding: none beyond f32
    Rules:
        1. positions is 3 wide.
        2. grids is 3 wide.
        3. segments is one column of bounds over the rows of grids.
    For: Qwen towers (bilinear), gemma_4's tower (axes)
    Public: Qwen3-VL's position interpolation (align_corners); transformers' `Gemma4VisionPatchEmbedder`
    """
    has_width(positions, 3, 1, "positions")
    has_width(grids, 3, 2, "grids")
    on_axis(segments, axes.bounds(grids.rows), 3, "segments")
    has_width(segments, 1, 3, "segments")
    taps = 4 if kind == "bilinear" else 2
    return [result(positions, width=taps), result(positions, width=taps, dtype="f32")]


@op("gather")
def pixels(x: Bytes, mean: Numbers, std: Numbers, order: Literal["chw", "hwc"] = "chw", temporal: Count = 1) -> ValueType:
    """Normalise the raw bytes of image patches and lay them out for the patch projection.

    Shapes: x u8 [P, 3*p*p] on patches, one p x p patch a row, bytes in (row, column, channel) order; mean, std lists of 3
        -> y bf16 [P, temporal*3*p*p]
    Formula: v = (byte / 255 - mean[c]) / std[c]; the frame is repeated temporal times, f = 0 .. temporal-1
        chw: column c*(temporal*p*p) + f*p*p + py*p + px;  hwc: column f*3*p*p + (py*p + px)*3 + c
    Rounding: once
    Rules:
        1. x is on patches, 3 times a square wide.
        2. mean and std are three numbers each, those of std greater than 0.
    For: qwen_3, qwen_4 (chw, temporal 2, mean = std = 0.5), glm_5_next (chw, CLIP's constants), gemma_4 (hwc, values in -1 .. 1)
    """
    on_axis(x, "patches", 1, "x")
    side = math.isqrt(x.width // 3)
    if 3 * side * side != x.width:
        refuse(1, "x", f"is {x.width} wide", expected="3 times a square", found=x)
    for name, listed in (("mean", mean), ("std", std)):
        holds(len(listed) == 3, 2, name, "three numbers", list(listed))
    holds(min(std) > 0, 2, "std", "greater than 0", list(std))
    return result(x, width=temporal * x.width, dtype=BF16)
