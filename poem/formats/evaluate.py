"""Expressions over an open checkpoint, as lazy arrays."""

from collections.abc import Callable, Mapping

import numpy as np

from poem.checkpoint import Checkpoint
from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.formats import declared
from poem.formats import lazy as arrays
from poem.formats.declared import Expression, Left, Rows
from poem.formats.expand import Landing
from poem.formats.lazy import Lazy, Refusal
from poem.formats.paths import fill
from poem.graph import Param

# What keeps codes and scales as they are; everything else decodes first.
KEEPING = (declared.Src, declared.Concat, declared.Stack, declared.Slice, declared.Stride, declared.Gather)


class Missing(Exception):
    """A stored weight that the checkpoint does not hold."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How to evaluate for one weight. prepare: what is done to a stored weight whose codes may be kept."""

    checkpoint: Checkpoint
    param: Param
    prepare: Callable[[Lazy], Lazy]

    def landing(self, landing: Landing) -> Lazy:
        """What a landing reads. Raises Refusal or Missing."""
        return self.left(landing.left, landing.values)

    def left(self, left: Left | Rows, values: Mapping[str, int]) -> Lazy:
        """A left side: a name, names to join on the cut axis, or an expression."""
        keep = Dtype(self.param.dtype).is_quantised
        if isinstance(left, str):
            return self.stored(fill(left, values), keep)
        if isinstance(left, tuple):
            return self.parts(left, values, keep, new_axes=0)
        if isinstance(left, Rows):
            return arrays.stack([self.parts(row, values, keep, new_axes=1) for row in left.rows])
        return self.expression(left, values, keep)

    def stored(self, name: str, keep: bool) -> Lazy:
        """One stored weight, decoded unless its codes may be kept."""
        found = self.checkpoint.find(name)
        if found is None:
            raise Missing(name)
        array = arrays.source(found)
        return self.prepare(array) if keep else arrays.decoded(array)

    def parts(self, names: tuple[str, ...], values: Mapping[str, int], keep: bool, *, new_axes: int) -> Lazy:
        """Names joined on the weight's cut axis, counted without `new_axes` axes that a stack puts before; axis 0 without a cut."""
        cut = self.param.cut
        axis = cut.axis - new_axes if cut is not None and cut.axis >= new_axes else 0
        arrays_of_parts = [self.stored(fill(name, values), keep) for name in names]
        if cut is not None and cut.segments and axis == cut.axis - new_axes:
            self.check_segments(names, values, arrays_of_parts, axis, cut.segments)
        return arrays.concat(axis, arrays_of_parts)

    def check_segments(
        self, names: tuple[str, ...], values: Mapping[str, int], parts: list[Lazy], axis: int, segments: tuple[int, ...]
    ) -> None:
        """A weight of segments wants one part for each, of its extent: this catches parts in the wrong order."""
        if len(parts) != len(segments):
            raise Refusal(
                "import.shape", "the list has another number of parts than the weight has segments",
                expected=f"{len(segments)} segments {list(segments)}", found=f"{len(parts)} parts",
            )  # fmt: skip
        for name, part, segment in zip(names, parts, segments, strict=True):
            if axis < len(part.shape) and part.shape[axis] != segment:
                extents = [part.shape[axis] for part in parts]
                raise Refusal(
                    "import.shape", f"`{fill(name, values)}` does not fill its segment", expected=f"segments {list(segments)}",
                    found=f"parts of {extents} on axis {axis}",
                    hint="the parts may be in another order" if sorted(extents) == sorted(segments) else "",
                )  # fmt: skip

    def expression(self, node: Expression, values: Mapping[str, int], keep: bool) -> Lazy:
        """An expression; codes are kept only through selections and joins."""
        keep = keep and isinstance(node, KEEPING)
        match node:
            case declared.Src(name):
                return self.stored(fill(name, values), keep)
            case declared.Constant(numbers, shape, dtype):
                return arrays.constant(numbers, shape, Dtype(dtype))
            case declared.Fill(value, shape, dtype):
                return arrays.fill(value, shape, Dtype(dtype))
            case declared.Concat(axis, parts):
                return arrays.concat(axis, [self.expression(part, values, keep) for part in parts])
            case declared.Stack():
                return self.stack(node, values, keep)
        of = self.expression(node.of, values, keep)
        match node:
            case declared.Slice(_, axis, start, length):
                return arrays.select(of, axis, range(start, start + length))
            case declared.Stride(_, axis, start, length, step):
                return arrays.select(of, axis, range(start, start + length * step, step))
            case declared.Gather(_, axis, indices):
                return arrays.select(of, axis, indices)
            case declared.Reshape(_, shape):
                return arrays.reshape(of, shape)
            case declared.Transpose(_, axes):
                return arrays.transpose(of, axes)
            case declared.Transmute(_, shape, dtype):
                return arrays.transmute(of, shape, Dtype(dtype))
            case declared.Cast(_, dtype):
                return arrays.converted(of, Dtype(dtype))
            case declared.Scale(_, factor):
                return arrays.in_f32(of, lambda x: x * np.float32(factor), f"scale({factor:g})")
            case declared.Bias(_, term):
                return arrays.in_f32(of, lambda x: x + np.float32(term), f"bias({term:g})")
            case declared.Unary(_, name):
                return arrays.in_f32(of, arrays.UNARY[name], f"unary({name!r})")

    def stack(self, node: declared.Stack, values: Mapping[str, int], keep: bool) -> Lazy:
        """One slice for each integer of the placeholder, on a new axis 0."""
        count = self.param.shape[0] if node.count is None else node.count
        slices = []
        for index in range(count):
            inner = {**values, node.over: index}
            if isinstance(node.part, str):
                slices.append(self.stored(fill(node.part, inner), keep))
            elif isinstance(node.part, tuple):
                slices.append(self.parts(node.part, inner, keep, new_axes=1))
            else:
                slices.append(self.expression(node.part, inner, keep))
        return arrays.stack(slices)
