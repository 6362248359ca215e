"""Calls of ops.conv."""

# ruff: noqa: C408  (arguments by name read like the calls that they describe)

from typing import Any

from poem.ops import geometry
from tests.poem.ops.calls import calls, ids, slab, v, w

VOXELS = "voxels"
X = v(8, rows=VOXELS)
GRID = ids(4, "clips")
TYPED = "[voxels, {}] bf16; [clips, 4] i32"
NOT_CLIPS: list[tuple[int, str, dict[str, Any]]] = [
    (1, "axis", dict(x=v(8))),
    (1, "axis", dict(grid=ids(4, "images"))),
    (1, "shape", dict(grid=ids(3, "clips"))),
]
NOT_THREE: Any = [1, 2]

calls(
    "conv.cells",
    dict(grid=GRID, rule=geometry.conv([3, 3], stride=2, pad_back=1)),
    "[clips, 4] i32",
    (1, "axis", dict(grid=ids(4))),
    (1, "shape", dict(grid=ids(3, "clips"))),
)
for rule in (
    geometry.upsample_rule([2, 2, 2], keep_first=True),
    geometry.shuffle_rule([2, 2, 2], 1),
    geometry.unshuffle_rule([1, 2, 2]),
    geometry.avg_rule([2, 2, 2]),
):
    calls("conv.cells", dict(grid=GRID, rule=rule), "[clips, 4] i32")

CAUSAL = geometry.conv([3, 3, 3], pad=1, causal="zero")
calls(
    "conv.conv3d",
    dict(x=X, grid=GRID, w=w(16, 8 * 27), bias=w(16), conv=CAUSAL, cache=slab(2 * 12, 8, dtype="bf16")),
    TYPED.format(16),
    *NOT_CLIPS,
    (2, "shape", dict(w=w(16, 8 * 9))),
    (2, "shape", dict(w=w(16, 8, 27))),
    (3, "shape", dict(bias=w(8))),
    (4, "bad-attribute", dict(conv=geometry.conv(3, pad=1))),
    (4, "bad-attribute", dict(conv=geometry.conv([3, 3, 3], causal="zero", time_front=0))),
    (5, "shape", dict(cache=slab(23, 8))),
    (5, "shape", dict(cache=slab(24, 9))),
    (5, "shape", dict(cache=slab(2, 12, 8))),
    (5, "dtype", dict(cache=slab(24, 8, dtype="i32"))),
)
calls("conv.conv3d", dict(x=X, grid=GRID, w=w(16, 8 * 9), bias=None, conv=geometry.conv([3, 3], pad=1)), TYPED.format(16))
calls(
    "conv.store_frames",
    dict(x=X, grid=GRID, cache=slab(24, 8), frames=2),
    "[voxels, 8] bf16",
    *NOT_CLIPS,
    (2, "shape", dict(frames=5)),
    (2, "shape", dict(cache=slab(24, 9))),
    (2, "dtype", dict(cache=slab(24, 8, dtype="i32"))),
)
calls(
    "conv.patchify",
    dict(x=X, grid=GRID, p=[1, 2, 2], tgrid=GRID),
    "[tokens, 32] bf16",
    *NOT_CLIPS,
    (2, "bad-attribute", dict(p=NOT_THREE)),
    (3, "axis", dict(tgrid=ids(4))),
    (3, "shape", dict(tgrid=ids(3, "clips"))),
)
calls(
    "conv.unpatchify",
    dict(x=v(32), tgrid=GRID, p=[1, 2, 2], grid=GRID),
    "[voxels, 8] bf16",
    (1, "axis", dict(x=v(32, rows=VOXELS))),
    (2, "bad-attribute", dict(p=NOT_THREE)),
    (2, "shape", dict(x=v(33))),
    (3, "axis", dict(tgrid=ids(4))),
    (3, "shape", dict(grid=ids(3, "clips"))),
)
calls(
    "conv.pixel_shuffle",
    dict(x=X, grid=GRID, r=[1, 2, 2]),
    TYPED.format(2),
    *NOT_CLIPS,
    (2, "bad-attribute", dict(r=NOT_THREE)),
    (2, "shape", dict(r=[1, 3, 1])),
)
calls(
    "conv.pixel_shuffle_trimming",
    dict(x=X, grid=GRID, r=[2, 2, 2], trim_t=1),
    TYPED.format(1),
    *NOT_CLIPS,
    (2, "bad-attribute", dict(r=NOT_THREE)),
    (2, "shape", dict(r=[3, 1, 1])),
    (3, "bad-attribute", dict(trim_t=2)),
)
calls(
    "conv.pixel_unshuffle",
    dict(x=X, grid=GRID, r=[1, 2, 2]),
    TYPED.format(32),
    *NOT_CLIPS,
    (2, "bad-attribute", dict(r=NOT_THREE)),
)
calls(
    "conv.upsample_nearest",
    dict(x=X, grid=GRID, factor=[2, 1, 1], keep_first_frame=True),
    TYPED.format(8),
    *NOT_CLIPS,
    (2, "bad-attribute", dict(factor=NOT_THREE)),
)
calls(
    "conv.avg_down",
    dict(x=X, grid=GRID, factor=[2, 2, 2], group=4),
    TYPED.format(16),
    *NOT_CLIPS,
    (2, "bad-attribute", dict(factor=NOT_THREE)),
    (3, "bad-attribute", dict(group=5)),
)
calls(
    "conv.group_norm",
    dict(x=X, grid=GRID, groups=4, w=w(8), b=w(8), eps=1e-6, silu=True),
    "[voxels, 8] bf16",
    *NOT_CLIPS,
    (2, "shape", dict(groups=3)),
    (3, "shape", dict(w=w(4))),
    (3, "shape", dict(b=w(4))),
    (4, "bad-attribute", dict(eps=-1.0)),
)
for name, more in (("attention", {}), ("attention_over", {"segment": geometry.segment(frames=2)})):
    calls(
        f"conv.{name}",
        dict(q=X, k=X, v=X, grid=GRID, sm_scale=0.5, **more),
        "[voxels, 8] bf16",
        (1, "axis", dict(q=v(8))),
        (1, "axis", dict(grid=ids(4))),
        (1, "shape", dict(grid=ids(3, "clips"))),
        (2, "axis", dict(k=v(8))),
        (2, "shape", dict(v=v(9, rows=VOXELS))),
        (2, "dtype", dict(k=v(8, "f32", VOXELS))),
    )
