"""From groups of nodes to launches on arrays that have a buffer each; `build` packs those into the arena afterwards."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from cupy_backend.errors import KernelError
from cupy_backend.kernels.arrays import unsupported
from cupy_backend.kernels.attn import Shape
from cupy_backend.launch import Array, Launch
from cupy_backend.plan import inputs
from cupy_backend.plan.patterns import Group, operand
from cupy_backend.plan.prepare import planes_of
from cupy_backend.plan.record import Bucket, Columns, Cost, Options, Stored, WorkList
from poem import axes
from poem.dtypes import FLOATS, Dtype
from poem.graph import Cache, Graph, Node, Param

VALUE = "value."  # buffers of values, by id
SCRATCH = "scratch."


@dataclass(frozen=True, slots=True)
class Lowered:
    """The launches of a group.

    flops: of all of them; they count for the first. touched: bytes read and written of buffers that a launch uses in part.
    """

    launches: list[Launch]
    flops: int = 0
    touched: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def costs(self) -> tuple[Cost, ...]:
        """One for each launch. An array counts once, however many arguments point into it."""
        return tuple(self._cost(launch, self.flops if number == 0 else 0) for number, launch in enumerate(self.launches))

    def _cost(self, launch: Launch, flops: int) -> Cost:
        read = written = 0
        counted = set()
        for array in launch.arrays().values():
            if array.buffer in self.touched:
                if array.buffer not in counted:
                    counted.add(array.buffer)
                    read += self.touched[array.buffer][0]
                    written += self.touched[array.buffer][1]
                continue
            read += array.nbytes if array.direction in ("constant", "read", "update") else 0
            written += array.nbytes if array.direction in ("write", "update", "scratch") else 0
        return Cost(read, written, flops)


class Lowering:
    """The arrays of one plan, made as rules ask for them."""

    def __init__(self, graph: Graph, bucket: Bucket, options: Options) -> None:
        self.graph, self.bucket, self.options = graph, bucket, options
        self.inputs = inputs.layout(bucket, len(graph.spaces))
        self.places: dict[int, Columns] = {}
        self.codes: dict[int, tuple[Array, Array]] = {}  # values that are stored as codes and scales of the rule a8, and not as themselves
        self.stored: dict[str, Stored] = {}
        self.tables: dict[str, np.ndarray] = {}
        self.lists: dict[str, WorkList] = {}
        self._scratch = 0
        for input_ in graph.inputs:
            array = self._graph_input(input_.method, input_.arguments) or self._given(input_.value)
            if array is not None:
                self.places[input_.value] = Columns(array, 0, 1 if len(array.shape) == 1 else array.shape[1])

    def _graph_input(self, method: str, arguments: Mapping[str, Any]) -> Array | None:
        if method == "request_of_token":
            return self.inputs["lane_of_row"]
        if method == "lane_indptr":
            return self.inputs["qo_indptr"]
        name = f"{method}.{arguments.get('space') or 0}" if method in inputs.OF_A_SPACE else method
        return self.inputs.get(name)

    def _given(self, value: int) -> Array | None:
        """The array of a graph input that a pass is given values for; None for what is no matrix on a known axis."""
        type = self.graph.values[value].type
        if type is None:
            return None
        try:
            shape = self.shape(value)
        except KernelError:
            return None
        is_list = type.width == 1 and type.dtype not in FLOATS
        return Array(given_name(value), "read", shape[:1] if is_list else shape, type.dtype)

    # -- values --------------------------------------------------------------------------------
    def shape(self, value: int) -> tuple[int, int]:
        """Rows of the bucket and width of a value."""
        type = self.graph.values[value].type
        assert type is not None
        return self.rows(type.rows), type.width

    def rows(self, axis: str | int) -> int:
        """How many rows an axis has in the bucket. KernelError for an axis that passes over text do not have."""
        sizes = {"tokens": self.bucket.rows, "readouts": self.bucket.readouts, "lanes": self.bucket.lanes}
        found = axes.count(axis, sizes)
        if found is None:
            raise unsupported("passes on a device have no such rows yet", expected=", ".join(sizes), found=f"rows on {axis}")
        return found

    def live(self, value: int) -> tuple[Array | None, int]:
        """What tells a launch how many rows of a value belong to the pass, i32 `[1]`, and the rows for each of those that it counts; None
        if all rows do. KernelError for rows that stand for several tokens, sequences or readouts of a padded pass."""
        type = self.graph.values[value].type
        assert type is not None
        word, _, up = str(type.rows).partition("*")
        counted = ("tokens", "lanes", "readouts")  # in the order of `counts`
        if not self.bucket.padded or word.partition("/")[0] not in counted:
            return None, 1
        if word not in counted or "/" in up:
            raise unsupported("no kernel knows how many of such rows belong to a padded pass", found=str(type.rows))
        counts = self.inputs["counts"]
        return replace(counts, shape=(1,), offset=counts.offset + 4 * counted.index(word)), int(up or 1)

    def columns(self, value: int) -> Columns:
        """Where a value lies. KernelError if it is an input that a pass does not hold."""
        if value not in self.places:
            raise unsupported("an operand is an input that passes on a device do not hold yet")
        return self.places[value]

    def value(self, node: Node, name: str) -> Array:
        """An operand as a whole array: `[rows, width]`, or `[rows]` for a list of integers."""
        return self.whole(operand(node, name).id)

    def whole(self, value: int) -> Array:
        """The array of a value that is all of its columns."""
        found = self.columns(value)
        assert found.whole or len(found.array.shape) == 1, "patterns leave columns to kernels that take them"
        return found.array

    def new(self, value: int) -> Array:
        """A value gets an array of its own."""
        type = self.graph.values[value].type
        assert type is not None
        array = Array(f"{VALUE}{value}", "write", self.shape(value), type.dtype)
        self.places[value] = Columns(array, 0, type.width)
        return array

    def scratch(self, nbytes: int, dtype: str = "u8") -> Array:
        """Memory for one step."""
        self._scratch += 1
        return Array(f"{SCRATCH}{self._scratch}", "scratch", (nbytes,), dtype)

    def work_list(self, group: int, shape: Shape, least: int, most: int | None, tiles: int) -> Array:
        """The rows of each block of an attention launch; one list for all layers that share it."""
        name = f"tiles.{group}.{shape.rows}.{least}.{most or ''}"
        if name not in self.lists:
            self.lists[name] = WorkList(name, group, shape, least, most, tiles)
            inputs.add(self.inputs, name, (tiles, 2))
        return self.inputs[name]

    def masks(self) -> tuple[Array, Array]:
        """The bits of the masks of all lanes, and bounds of each lane's bytes (`Geometry.packed_masks`)."""
        if "mask" not in self.inputs:
            bits = self.bucket.rows * self.bucket.cells + 8 * self.bucket.lanes
            inputs.add(self.inputs, "mask", (-(-bits // 32),))
            inputs.add(self.inputs, "mask_indptr", (self.bucket.lanes + 1,))
        return self.inputs["mask"], self.inputs["mask_indptr"]

    # -- what is there at load -----------------------------------------------------------------
    def param(self, node: Node, name: str) -> Param:
        return self.graph.params[operand(node, name).id]

    def weight(self, *params: Param, prepare: str = "") -> dict[str, Array]:
        """The planes of a weight, or of several joined along the first axis, by path. prepare: the layout, if not their own."""
        dtype = Dtype(params[0].dtype)
        name, layout = "+".join(param.name for param in params), "" if dtype.is_leaf else prepare
        found = {}
        for path, (shape, leaf) in planes_of(dtype, [param.shape[0] for param in params], params[0].shape[1:], layout).items():
            buffer = "/".join(filter(None, (name, layout, path)))
            self.stored.setdefault(buffer, Stored(buffer, tuple(param.id for param in params), path, shape, leaf, layout))
            found[path] = self.stored[buffer].array
        return found

    def table(self, name: str, dtype: str, make: Callable[[], np.ndarray]) -> Array:
        """An array that is there at load; one for each name."""
        if name not in self.tables:
            self.tables[name] = make()
        return Array(name, "constant", self.tables[name].shape, dtype)

    # -- caches --------------------------------------------------------------------------------
    def cache(self, node: Node, name: str = "cache") -> Cache:
        return self.graph.caches[operand(node, name).id]

    def cells(self, cache: Cache) -> tuple[Array, ...]:
        """The planes of a kv cache: `[pages, page_size, width]`."""
        dtype = self.graph.spaces[cache.space].dtype
        pages = self.bucket.pages[cache.space]
        return tuple(
            Array(cells_name(cache, plane), "update", (pages, self.bucket.page_size, width), dtype)
            for plane, width in enumerate(cache.planes)
        )


def given_name(value: int) -> str:
    """The buffer of a graph input that a pass is given values for."""
    return f"given.{value}"


def cells_name(cache: Cache, plane: int) -> str:
    """The buffer of one plane of a kv cache."""
    return f"cells.{cache.name}.{plane}"


def elements(array: Array) -> int:
    return math.prod(array.shape)


Rule = Callable[[Lowering, Group], Lowered]
