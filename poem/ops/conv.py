"""ops.conv: convolutions, resampling and attention over the voxels of clips.

A value `[X, C]` has one row per voxel of a clip in (t, h, w) order, w fastest, clip after clip. A grid is i32 [clips, 4]:
(t, h, w, first row). Geometry values (`conv(...)`, `upsample_rule(...)`, `segment(...)`) are made in geometry.py.
Ops that change the box return the value and its grid; a result has exactly the rows of its grid, whose first rows are running
sums. Rows that no clip claims are ignored; values and grids that do not belong together are a run-time error.
"""

from collections.abc import Sequence

from poem.dtypes import FLOATS
from poem.graph import ValueType
from poem.ops.checks import has_shape, has_width, holds, like, on_axis, refuse, width_divides
from poem.ops.operands import CacheHandle, Value
from poem.ops.record import (
    Activation,
    AnyValue,
    BoxRule,
    ConvGeometry,
    Count,
    Counts,
    Flag,
    FloatWeight,
    Ids,
    Index,
    Number,
    SegmentRule,
    State,
    op,
    result,
)


def _clips(x: Value, grid: Value, rule: int) -> None:
    """x is on voxels and grid tells its clips."""
    on_axis(x, "voxels", rule, "x")
    _grid(grid, rule, "grid")


def _grid(grid: Value, rule: int, name: str) -> None:
    on_axis(grid, "clips", rule, name)
    has_width(grid, 4, rule, name)


def _three(listed: Sequence[int], rule: int, name: str) -> int:
    """The product of three factors (t, h, w)."""
    holds(len(listed) == 3, rule, name, "three counts (t, h, w)", list(listed))
    return listed[0] * listed[1] * listed[2]


@op("conv")
def cells(grid: Ids, rule: BoxRule) -> ValueType:
    """The grid after an op that changes the box.

    Shapes: grid i32 [clips, 4] -> grid' i32 [clips, 4], its first rows being running sums
    Formula: per clip (t, h, w), by rule:
        conv(...):            per axis (n + front + back - k) // stride + 1; time uses the causal pads
        upsample_rule(f, keep_first):  t*f0, or 1 + (t-1)*f0 with keep_first; h*f1, w*f2
        shuffle_rule(r, trim_t):       t*r0 - trim_t, h*r1, w*r2
        unshuffle_rule(r):             t/r0, h/r1, w/r2
        avg_rule(f):                   ceil(t/f0), h/f1, w/f2
    Rounding: none
    Rules:
        1. grid is on clips, 4 wide.
    Edge: a box smaller than its kernel, or one that does not divide, is a run-time error that names the clip
    For: wherever a grid is needed without its value
    """
    _grid(grid, 1, "grid")
    return result(grid)


@op("conv", "state")
def conv3d(
    x: Activation, grid: Ids, w: FloatWeight, bias: FloatWeight | None, conv: ConvGeometry, cache: State | None = None
) -> list[ValueType]:
    """Convolution (cross-correlation) over the voxels of each clip; two-dimensional where the kernel is 1 along time.

    Shapes: x [X, Cin] on voxels, grid i32 [clips, 4], w [Cout, Cin*kt*kh*kw] in checkpoint order (Cin slowest, then t, h, w),
        bias [Cout] or None; cache a state with a slab [pt*h*w, Cin], pt the time front pad -> y [X', Cout], x's dtype; y_grid
    Formula: with k, strides s and front pads p of conv
        y[to,ho,wo,n] = bias[n] + sum_{i,j,l,c} x[to*st - pt + i, ho*sh - ph + j, wo*sw - pw + l, c] * w[n,c,i,j,l]
        Space outside the box is 0. Time outside is 0 ("zero"), or the first frame in front and the last behind ("replicate").
        cache: the pt frames before the clip come from the clip's slab, which then holds its last pt input frames (older ones
        slide when the clip is shorter). A fresh slab is zero, also with "replicate". A clip cut over several passes gives the
        result of one pass if every pass but the last brings a multiple of the time stride.
    Rounding: once, after the bias; the slab once, when stored
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. w is [Cout, x.width * kt * kh * kw].
        3. bias is [Cout].
        4. cache goes with a causal conv whose time front pad is at least 1.
        5. cache has a float slab [pt*h*w, x.width]: a multiple of pt rows.
    Edge: a box smaller than its kernel, a slab that is not the clip's, or more than one clip a lane with a cache is a run-time
        error
    For: the autoencoders of flux_2 and z_image (2-D), wan_2 (causal zero, cache), ltx_2 (time_pad replicate), hunyuan
    Public: `nn.Conv2d`, `nn.Conv3d`; diffusers' `WanCausalConv3d`, `LTX2VideoCausalConv3d`. diffusers' stride-2 downsampling is
        pad 0, pad_back [0, 1, 1]; Wan's along time is k [3, 1, 1], stride [2, 1, 1], time_front 1.
    """
    _clips(x, grid, 1)
    geometry = conv.settings
    kt, kh, kw = geometry["k"]
    has_shape(w, (None, x.width * kt * kh * kw), 2, "w")
    if bias is not None:
        has_shape(bias, (w.shape[0],), 3, "bias")
    if cache is not None:
        front = geometry["pad"][0]
        holds(geometry["causal"] and front > 0, 4, "conv", "causal, with a time front pad of at least 1, beside a cache", geometry)
        _frames(cache, front, x.width, 5)
    return [result(x, width=w.shape[0]), result(grid)]


def _frames(cache: CacheHandle, frames: int, width: int, rule: int) -> None:
    """The slab holds `frames` frames of some number of voxels."""
    slab, dtype = cache.cache.slab, cache.cache.dtype
    if len(slab) != 2 or slab[0] % frames or slab[1] != width:
        refuse(rule, "cache", f"has a slab {list(slab)}", expected=f"[{frames} * voxels of a frame, {width}]", found=cache)
    if dtype not in FLOATS:
        refuse(rule, "cache", f"holds {dtype}", code="forward.dtype", expected="bf16, f16 or f32", found=dtype)


@op("conv", "state", extension=True)
def store_frames(x: Activation, grid: Ids, cache: State, frames: Count) -> ValueType:
    """Keep a clip's last frames in its slab and pass the value on.

    Shapes: x [X, C] on voxels, grid i32 [clips, 4]; cache a state with a slab [frames*h*w, C] -> x
    Formula: the slab becomes the clip's last `frames` frames; older ones slide when the clip is shorter
    Rounding: none, x; the slab once, when stored
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. cache has a float slab [frames*h*w, x.width]: a multiple of frames rows.
    For: wan_2's first chunk
    """
    _clips(x, grid, 1)
    _frames(cache, frames, x.width, 2)
    return result(x)


@op("conv")
def patchify(x: AnyValue, grid: Ids, p: Counts, tgrid: Ids) -> ValueType:
    """Cut clips into patches, one token row each; any dtype.

    Shapes: x [X, C] on voxels, grid and tgrid i32 [clips, 4], tgrid the patch grid (the box divided by p) with token rows,
        p = [pt, ph, pw] -> rows [N, C*pt*ph*pw] on tokens
    Formula: the row of patch (T, H, W): column c*(pt*ph*pw) + (i*ph + j)*pw + l = voxel (T*pt+i, H*ph+j, W*pw+l), channel c
    Rounding: none
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. p is three counts.
        3. tgrid is on clips, 4 wide.
    Edge: token rows that tgrid does not claim are 0; a box that p does not divide is a run-time error
    For: wan_2, z_image, hunyuan
    Public: the patch embedding of diffusers' `WanTransformer3DModel`, flattened. Where a model has channels fastest (Wan's
        output, Z-Image), permute the projection's columns or rows at import.
    """
    _clips(x, grid, 1)
    size = _three(p, 2, "p")
    _grid(tgrid, 3, "tgrid")
    return result(x, rows="tokens", width=x.width * size)


@op("conv")
def unpatchify(x: AnyValue, tgrid: Ids, p: Counts, grid: Ids) -> ValueType:
    """Lay patches back into clips: the exact inverse of patchify; any dtype.

    Shapes: x [N, C*pt*ph*pw] on tokens, tgrid and grid i32 [clips, 4], p = [pt, ph, pw] -> voxels [X, C]
    Formula: voxel (T*pt+i, H*ph+j, W*pw+l), channel c = column c*(pt*ph*pw) + (i*ph + j)*pw + l of the row of patch (T, H, W)
    Rounding: none
    Rules:
        1. x is on tokens.
        2. p is three counts, whose product divides x.width.
        3. tgrid and grid are on clips, 4 wide.
    Edge: a box that is not the patch grid times p is a run-time error
    For: wan_2, z_image, hunyuan
    """
    on_axis(x, "tokens", 1, "x")
    channels = width_divides(x, _three(p, 2, "p"), 2, "x")
    _grid(tgrid, 3, "tgrid")
    _grid(grid, 3, "grid")
    return result(x, rows="voxels", width=channels)


@op("conv")
def pixel_shuffle(x: AnyValue, grid: Ids, r: Counts) -> list[ValueType]:
    """Turn channels into a finer box; any dtype.

    Shapes: x [X, C*r0*r1*r2] on voxels, grid i32 [clips, 4], r = [r0, r1, r2] -> y [X', C], y_grid
    Formula: y[t*r0+i, h*r1+j, w*r2+l, c] = x[t, h, w, c*(r0*r1*r2) + (i*r1 + j)*r2 + l]
    Rounding: none
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. r is three counts, whose product divides x.width.
    For: flux_2, wan_2, ltx_2
    Public: `F.pixel_shuffle` for r0 = 1. Wan's own patchify orders its columns (c, w, h), and its time upsampler holds the two
        frames as channel halves: permute the neighbouring conv's channels at import.
    """
    _clips(x, grid, 1)
    return [result(x, width=width_divides(x, _three(r, 2, "r"), 2, "x")), result(grid)]


@op("conv", extension=True)
def pixel_shuffle_trimming(x: AnyValue, grid: Ids, r: Counts, trim_t: Index) -> list[ValueType]:
    """pixel_shuffle without its first trim_t frames; any dtype.

    Shapes: x [X, C*r0*r1*r2] on voxels, grid i32 [clips, 4], r = [r0, r1, r2] -> y [X', C], y_grid
    Formula: z[t*r0+i, h*r1+j, w*r2+l, c] = x[t, h, w, c*(r0*r1*r2) + (i*r1 + j)*r2 + l]; y = z[trim_t:]
    Rounding: none
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. r is three counts, whose product divides x.width.
        3. trim_t < r0.
    For: ltx_2, wan_2's shortcuts
    """
    _clips(x, grid, 1)
    channels = width_divides(x, _three(r, 2, "r"), 2, "x")
    holds(trim_t < r[0], 3, "trim_t", f"less than r[0], {r[0]}", trim_t)
    return [result(x, width=channels), result(grid)]


@op("conv", extension=True)
def pixel_unshuffle(x: AnyValue, grid: Ids, r: Counts) -> list[ValueType]:
    """Turn a box into channels of a coarser one: the inverse of pixel_shuffle; any dtype.

    Shapes: x [X, C] on voxels, grid i32 [clips, 4], r = [r0, r1, r2] -> y [X', C*r0*r1*r2], y_grid
    Formula: y[t, h, w, c*(r0*r1*r2) + (i*r1 + j)*r2 + l] = x[t*r0+i, h*r1+j, w*r2+l, c]
    Rounding: none
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. r is three counts.
    Edge: a box that r does not divide is a run-time error
    For: wan_2, hunyuan
    """
    _clips(x, grid, 1)
    return [result(x, width=x.width * _three(r, 2, "r")), result(grid)]


@op("conv")
def upsample_nearest(x: AnyValue, grid: Ids, factor: Counts, keep_first_frame: Flag = False) -> list[ValueType]:
    """Repeat voxels; any dtype.

    Shapes: x [X, C] on voxels, grid i32 [clips, 4], factor = [f0, f1, f2] -> y [X', C], y_grid
    Formula: y[to, ho, wo] = x[ti, ho//f1, wo//f2], ti = to//f0; with keep_first_frame ti = 0 for to = 0, else (to-1)//f0 + 1
    Rounding: none
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. factor is three counts.
    For: flux_2, z_image, wan_2
    Public: `F.interpolate(mode="nearest")` for whole factors
    """
    _clips(x, grid, 1)
    _three(factor, 2, "factor")
    return [result(x), result(grid)]


@op("conv", extension=True)
def avg_down(x: Activation, grid: Ids, factor: Counts, group: Count) -> list[ValueType]:
    """Average a box, and groups of the channels that it becomes, down.

    Shapes: x [X, C] on voxels, grid i32 [clips, 4], factor = [f0, f1, f2] -> y [X', C*f0*f1*f2 / group], x's dtype; y_grid
    Formula: time is padded in front with zero frames to a multiple of f0; they count in the mean. u = pixel_unshuffle(factor):
        u[t, h, w, c*(f0*f1*f2) + (i*f1 + j)*f2 + l] = x[t*f0+i, h*f1+j, w*f2+l, c]; y[n] = mean(u[n*group .. n*group + group-1])
    Rounding: once
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. factor is three counts.
        3. group divides x.width * f0*f1*f2.
    Edge: an h or w that does not divide is a run-time error
    For: wan_2
    Public: Wan's `AvgDown3D` with group = Cin*f0*f1*f2 / Cout
    """
    _clips(x, grid, 1)
    wide = x.width * _three(factor, 2, "factor")
    holds(wide % group == 0, 3, "group", f"a divisor of {wide} channels", group)
    return [result(x, width=wide // group), result(grid)]


@op("conv", extension=True)
def group_norm(x: Activation, grid: Ids, groups: Count, w: FloatWeight, b: FloatWeight, eps: Number, silu: Flag = False) -> ValueType:
    """Group norm over each clip, time included.

    Shapes: x [X, C] on voxels, grid i32 [clips, 4], w, b [C] -> [X, C], x's dtype
    Formula: per clip and group of C/groups channels, m = mean and v = mean((x - m)^2) over all its voxels and those channels:
        y = (x - m) / sqrt(v + eps) * w[c] + b[c]; with silu then y / (1 + e^-y)
    Rounding: once
    Rules:
        1. x is on voxels; grid is on clips, 4 wide.
        2. groups divides x.width.
        3. w and b are [x.width].
        4. eps >= 0.
    For: flux_2, z_image, hunyuan
    Public: `nn.GroupNorm`
    """
    _clips(x, grid, 1)
    width_divides(x, groups, 2, "x")
    has_shape(w, (x.width,), 3, "w")
    has_shape(b, (x.width,), 3, "b")
    holds(eps >= 0, 4, "eps", "at least 0", eps)
    return result(x)


@op("conv", extension=True)
def attention(q: Activation, k: Activation, v: Activation, grid: Ids, sm_scale: Number) -> ValueType:
    """Attention of one head over all voxels of a clip.

    Shapes: q, k, v [X, C] of one dtype on voxels, grid i32 [clips, 4] -> o [X, C], q's dtype
    Formula: o_i = sum_j softmax_j(sm_scale * <q_i, k_j>) v_j over the voxels j of i's clip, the maximum subtracted first
    Rounding: once, o; scores, probabilities and sums stay f32
    Rules:
        1. q is on voxels; grid is on clips, 4 wide.
        2. k and v have q's axis, width and dtype.
    For: the middle blocks of the autoencoders
    Public: the single-head `Attention` of diffusers
    """
    _attention(q, k, v, grid)
    return result(q)


@op("conv", extension=True)
def attention_over(q: Activation, k: Activation, v: Activation, grid: Ids, segment: SegmentRule, sm_scale: Number) -> ValueType:
    """Attention of one head over runs of frames of a clip.

    Shapes: q, k, v [X, C] of one dtype on voxels, grid i32 [clips, 4], segment(frames = n) -> o [X, C], q's dtype
    Formula: o_i = sum_j softmax_j(sm_scale * <q_i, k_j>) v_j over the voxels j of i's run of n frames of its clip (the last run
        may be short; frames None: the clip), the maximum subtracted first
    Rounding: once, o; scores, probabilities and sums stay f32
    Rules:
        1. q is on voxels; grid is on clips, 4 wide.
        2. k and v have q's axis, width and dtype.
    For: the middle blocks of the autoencoders
    """
    _attention(q, k, v, grid)
    return result(q)


def _attention(q: Value, k: Value, v: Value, grid: Value) -> None:
    on_axis(q, "voxels", 1, "q")
    _grid(grid, 1, "grid")
    like(k, q, 2, "k")
    like(v, q, 2, "v")
