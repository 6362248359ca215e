"""The plan: everything a session does in one pass, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cupy_backend.kernels.arrays import Columns as Columns
from cupy_backend.kernels.attn import SHORTEST_PIECE, Shape
from cupy_backend.launch import Array, Launch

ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def nearest_arch(arch: str) -> str:
    """The architecture whose choices serve a device: its own, or the newest of those before it (`sm_86` takes `sm_80`'s)."""

    def number(word: str) -> int:
        return int(word.removeprefix("sm_").rstrip("af"))

    return next((known for known in reversed(ARCHS) if number(known) <= number(arch)), arch)


@dataclass(frozen=True, slots=True)
class Options:
    """How a plan is made.

    arch: what kernels are compiled for. batch_invariant: take only kernels, tiles and splits whose order of summation for a row
    follows from K, N and the row's own kv length. fuse: let patterns put several nodes into one launch. warpgroups: let products of many
    rows use TMA and wgmma where the arch has them and batch_invariant does not forbid it; off until a device's self-test has shown
    that the emulator is right about them. shortest_piece: cells at least of the pieces that attention over a long sequence is cut into.
    """

    arch: str = "sm_90a"
    batch_invariant: bool = False
    fuse: bool = True
    warpgroups: bool = False
    shortest_piece: int = SHORTEST_PIECE


@dataclass(frozen=True, slots=True)
class Bucket:
    """The sizes that a plan serves.

    rows, lanes, readouts: of a pass. shortest, longest: new rows of the lanes that have any. cells: of its longest lane after the pass.
    pages: physical pages of each kv space. padded: a pass may have fewer rows and lanes.
    """

    rows: int
    lanes: int
    readouts: int
    shortest: int
    longest: int
    cells: int
    pages: tuple[int, ...]
    page_size: int = 16
    padded: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """What a launch has to move and compute at least: bytes read and written, and floating-point operations."""

    read: int = 0
    written: int = 0
    flops: int = 0

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(self.read + other.read, self.written + other.written, self.flops + other.flops)

    @property
    def nbytes(self) -> int:
        return self.read + self.written


@dataclass(frozen=True, slots=True)
class Step:
    """Launches that together stand for some nodes.

    pattern: how the nodes are covered: the name of a fusion pattern, or the op of a single node. results: ids of the values that can be
    read afterwards; those inside a fused kernel are not among them. costs: one for each launch. A step whose results have no rows
    has no launches.
    """

    pattern: str
    nodes: tuple[int, ...]
    results: tuple[int, ...]
    launches: tuple[Launch, ...]
    costs: tuple[Cost, ...]

    @property
    def cost(self) -> Cost:
        return sum(self.costs, Cost())


@dataclass(frozen=True, slots=True)
class Stored:
    """A weight plane in device memory.

    buffer: its name there. params: whose planes lie in it, joined along the first axis. plane: their path. prepare: the name of the
    change of layout that the kernel wants, made once at load, or "".
    """

    buffer: str
    params: tuple[int, ...]
    plane: str
    shape: tuple[int, ...]
    dtype: str
    prepare: str = ""

    @property
    def array(self) -> Array:
        return Array(self.buffer, "constant", self.shape, self.dtype)


@dataclass(frozen=True, slots=True)
class WorkList:
    """Which rows each block of an attention launch takes: i32 `[tiles, 2]`, made for each pass (`kernels.attn.row_tiles`).

    name: among the inputs. group: query heads of a key head. shape: of a block. least, most: new rows of the lanes that it lists.
    """

    name: str
    group: int
    shape: Shape
    least: int
    most: int | None
    tiles: int


@dataclass(frozen=True)
class Plan:
    """One pass over a bucket of sizes, for one graph.

    graph: its digest. steps: in order of execution. places: where the values lie that can be read, by id. inputs: the integers of the
    pass by name, in the buffer `inputs`; lists: those of them that are work lists. stored, tables: what is put into device memory at
    load: weight planes, and arrays made from attributes (rotary frequencies). cells: for each kv cache its planes
    `[pages, page_size, width]`. arena: bytes of the buffer `arena`, which holds everything that lives within a pass.
    """

    graph: str
    deployment: str
    bucket: Bucket
    options: Options
    steps: tuple[Step, ...]
    places: Mapping[int, Columns]
    inputs: Mapping[str, Array]
    lists: tuple[WorkList, ...]
    stored: tuple[Stored, ...]
    tables: Mapping[str, np.ndarray] = field(compare=False)
    cells: Mapping[int, tuple[Array, ...]]
    arena: int

    @property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(launch for step in self.steps for launch in step.launches)

    @property
    def cost(self) -> Cost:
        return sum((step.cost for step in self.steps), Cost())
