"""`Build`: a small graph under construction with random operands, which is what a strategy is handed.

Sizes are picked from short lists, simplest first; numbers follow from a seed and a flavour. So an example is told by its picks and its
seed, and a failing one shrinks to the first picks that still fail.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from conformance.chosen import Choice
from cupy_backend.kernels.attn import SHORTEST_PIECE
from poem import axes
from poem.batch import Chunk
from poem.dtypes import FLOATS, LEAF_BITS, Dtype
from poem.dtypes.leaves import STORAGE, encode, pack, unpack
from poem.dtypes.tensor import Tensor
from poem.errors import Frame
from poem.graph import Graph, ValueType
from poem.ops.operands import CacheHandle, Value, Weight
from poem.sampling import Sampling
from poem.tracer import Tracer

T = TypeVar("T")
# Gives the index of one of so many options.
Pick = Callable[[int], int]

# normal: of mean 0 and deviation 1. integers: small enough that sums of products are exact in float32. huge, tiny: squares stay finite,
# and products of four reach the ends of float32; tiny ones meet weights that are tiny beside their gains and offsets.
# cancelling: neighbours that are each other's opposite, against equal weights.
# sparse: nine of ten are 0, and so are whole runs of columns. uneven: each run of columns of a row, of weights too, has a size of its own.
# special: NaN, infinities, zeros of both signs and huge numbers among normal ones, also in weights; in quantised ones NaN among the codes
# and gains.
FLAVOURS = ("normal", "integers", "huge", "tiny", "cancelling", "sparse", "uneven", "special")
HUGE, TINY = 2.0**40, 2.0**-60
INTEGERS = 4  # the largest of that flavour
RUN = 32  # columns of a run that is 0, or of one size: the smallest group of quantised weights
UNEVEN = 8  # binary orders of magnitude up and down
TILE = 128  # rows and columns of the weights that are quantised by tiles
E8M0_ONE = 127  # the code of 2**0
NAN_CODES = {"e4m3": 0x7F, "e8m0": 0xFF}
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, HUGE)
NEARLY, TRIES = 2.0**-8, 16  # of a step between codes, so far is what cancels from 0; or less, after so many tries
# New rows of each sequence, pass by pass: one token, a prompt, decoding after it, several sequences that come, rest and go on.
BATCHES: tuple[tuple[tuple[int, ...], ...], ...] = (
    ((1,),), ((3,),), ((7,), (1,)), ((2, 5, 1),), ((4, 1), (1, 3)), ((17,), (1,), (1,)), ((9, 0, 2), (0, 4, 1)), ((33, 6),),
)  # fmt: skip
LONG_BATCHES = (((200, 3), (1, 2)), ((1, 150), (2, 1), (1, 0)), ((330,), (1,)), ((2060,), (1,)), ((30, 9), (12, 70)))
PAGE_SIZES = (16, 1, 5)
# How tokens are chosen.
TEMPERATURES, TOP_K, TOP_P, MIN_P = (1.0, 0.0, 0.3, 2.5), (0, 1, 2, 5, 40, 10**6), (1.0, 0.9, 0.5, 0.1), (0.0, 0.05, 0.5, 1.0)


class Build:
    """Makes operands and calls ops.

    dtype: of float values, and of weights where nothing else is asked for. weights: dtype word of the big weights. flavour: of the
    numbers. batch: new rows of each sequence, pass by pass. Options of the backend are picked with the sizes: page_size, fuse,
    batch_invariant, padded; warpgroups where `many_rows` are; shortest_piece where `many_cells` are; arch, where the kernels of one are
    others.
    """

    def __init__(self, pick: Pick, seed: int, dtype: str, weights: str, flavour: str) -> None:
        self._pick = pick
        self.dtype, self.weights, self.flavour = dtype, weights, flavour
        self.random = np.random.default_rng(seed)
        self.trace = Tracer("conformance", "conformance", "conformance")
        self.tensors: dict[str, Tensor] = {}
        self.inputs: list[dict[str, np.ndarray]] = []
        self.choices: list[list[Choice]] = []
        self._line = 0
        self._read: set[int] = set()
        self._made: list[Value] = []
        self.batch = self.pick(*BATCHES)
        self.inputs = [{} for _ in self.batch]
        self.page_size = self.pick(*PAGE_SIZES)
        self.fuse = self.pick(True, False)
        self.batch_invariant = self.pick(False, True)
        self.padded = self.pick(False, True)
        self.warpgroups = False
        self.arch: str | None = None
        self.shortest_piece = SHORTEST_PIECE
        self._masked = False

    def pick(self, *options: T) -> T:
        """One of the options, of which the first is the simplest."""
        return options[self._pick(len(options))]

    def many_rows(self) -> bool:
        """Now and then, before any operand is made: a pass of more rows than a tile has, or than eight tiles, which other kernels take."""
        rows = self.pick(0, 0, 0, 0, 0, 156, 0, 1537)
        if rows:
            self.batch = ((rows,),)
            self.inputs = [{}]
            self.warpgroups = self.pick(False, True)
        return rows > 0

    def many_cells(self) -> int:
        """Now and then, before any operand is made: sequences of several tiles of cells, and of several pieces of few tiles. Returns the
        cells of the longest one, or 0."""
        batch = self.pick(None, None, *LONG_BATCHES)
        if batch is None:
            return 0
        self.batch, self.inputs = batch, [{} for _ in batch]
        self.shortest_piece = self.pick(SHORTEST_PIECE, 64)
        return max(map(sum, zip(*batch, strict=True)))

    # -- operands --------------------------------------------------------------------------------
    def value(self, width: int, axis: str | int = "tokens", dtype: str | None = None, scale: float = 1.0) -> Value:
        """Float values of the flavour, times `scale`."""
        dtype = dtype or self.dtype
        return self._input(ValueType(axis, width, dtype), lambda rows: _stored(self.numbers(rows, width) * scale, dtype))

    def floats(self, make: Callable[[int], np.ndarray], width: int, axis: str | int = "tokens", dtype: str | None = None) -> Value:
        """Float values `[rows, width]` that `make(rows)` gives for each pass, whatever the flavour."""
        dtype = dtype or self.dtype
        return self._input(ValueType(axis, width, dtype), lambda rows: _stored(make(rows).reshape(rows, width), dtype))

    def ids(self, stop: int, width: int = 1, low: int = 0, axis: str | int = "tokens") -> Value:
        """Integers `low .. stop - 1`."""
        return self._input(ValueType(axis, width, "i32"), lambda rows: self.random.integers(low, stop, (rows, width)))

    def integers(self, make: Callable[[int], np.ndarray], width: int = 1, axis: str | int = "tokens") -> Value:
        """Integers `[rows, width]` that `make(rows)` gives for each pass."""
        return self._input(ValueType(axis, width, "i32"), make)

    def listed(self, parts: Sequence[Any], width: int, axis: str | int) -> Value:
        """Integers that are listed pass by pass."""
        ready = iter(parts)
        return self._input(ValueType(axis, width, "i32"), lambda _: np.asarray(next(ready)).reshape(-1, width))

    def bytes(self, width: int, axis: str | int = "tokens") -> Value:
        """Bytes 0 .. 255, as pixels are."""
        return self._input(ValueType(axis, width, "u8"), lambda rows: self.random.integers(0, 256, (rows, width)))

    def positions(self) -> Value:
        """The positions of the rows, which the batch holds."""
        return self.trace.input("positions", ValueType("tokens", 1, "i32"))

    def mask(self) -> Value:
        """Which cells rows may attend: at random, in every second sequence."""
        self._masked = True
        return self.trace.input("mask", None, kind="mask")

    def weight(self, *shape: int, dtype: str | None = None, name: str = "") -> Weight:
        """A weight of the flavour, in `weights` where nothing else is asked for. Quantised ones of integers have gains of one."""
        word = dtype or self.weights
        made = Weight(shape, Dtype(word))
        name = self.trace.add_param(made, name or f"w{len(self.tensors)}").name
        self.tensors[name] = self._tensor(shape, made.dtype)
        return made

    def gain(self, *shape: int) -> Weight:
        """A small weight near one, of the values' dtype: norm gains, biases."""
        made = Weight(shape, Dtype(self.dtype))
        name = self.trace.add_param(made, f"w{len(self.tensors)}").name
        numbers = self._small(shape) if self.flavour == "integers" else 1.0 + 0.25 * self.random.standard_normal(shape)
        self.tensors[name] = Tensor.encode(_stored(numbers, self.dtype), Dtype(self.dtype))
        return made

    def given_weight(self, values: np.ndarray, dtype: str) -> Weight:
        """A weight of these values."""
        made = Weight(values.shape, Dtype(dtype))
        name = self.trace.add_param(made, f"w{len(self.tensors)}").name
        with np.errstate(over="ignore"):
            self.tensors[name] = Tensor.of(np.ascontiguousarray(values, STORAGE[dtype]))
        return made

    def kv(self, widths: Sequence[int], head_dim: int, dtype: str, window: int | None = None, scales: Sequence[float] = ()) -> CacheHandle:
        """A row of a kv space. scales: one for each plane, as weights."""
        ids = None
        if scales:
            listed = [self.given_weight(np.array([scale], np.float32), "f32") for scale in scales]
            ids = tuple(self.trace.param_of[id(weight)].id for weight in listed)
        space = self.trace.add_space(dtype, window)
        return self.trace.cache_handle(self.trace.add_kv(space, "kv", widths, head_dim, scales=ids))

    def call(self, op: str, *arguments: Any, **named: Any) -> Any:
        """One op, at a line of its own. Results that no later op reads become outputs."""
        self._line += 1
        found = self.trace.call(op, arguments, named, (Frame("conformance.poem", self._line, "forward"),))
        for item in (*arguments, *named.values()):
            self._read.update(part.id for part in (item if isinstance(item, list) else [item]) if isinstance(part, Value))
        self._made += [value for value in (found if isinstance(found, tuple) else (found,)) if isinstance(value, Value)]
        return found

    def choose(self, logits: Value) -> None:
        """Tokens are chosen from logits, which no op reads: for each row by a rule and a draw of its own."""
        self.trace.output("logits", logits, ())
        self._read.add(logits.id)
        self.choices = [[Choice(self._rule(), self._draw()) for _ in range(sum(counts))] for counts in self.batch]

    def _rule(self) -> Sampling:
        temperature, top_k, top_p, min_p = (options[self.random.integers(len(options))] for options in (TEMPERATURES, TOP_K, TOP_P, MIN_P))
        return Sampling(temperature, int(top_k), top_p, min_p)

    def _draw(self) -> float:
        """Now and then the least one."""
        return self.random.random() if self.random.random() < 0.8 else 0.0

    # -- the outcome -----------------------------------------------------------------------------
    def graph(self) -> Graph:
        """The graph, with every result that no op reads as an output."""
        for number, value in enumerate(value for value in self._made if value.id not in self._read and value.kind == "tensor"):
            self.trace.output(f"y{number}", value, ())
        return self.trace.graph()

    def chunks(self) -> list[tuple[Chunk, ...]]:
        """The batch of each pass."""
        lengths, found = dict[int, int](), []
        for counts in self.batch:
            chunks = []
            for sequence, rows in enumerate(counts):
                lengths[sequence] = lengths.get(sequence, 0) + rows
                mask = self.random.random((rows, lengths[sequence])) < 0.5 if self._masked and sequence % 2 == 0 else None
                chunks.append(Chunk(sequence, [0] * rows, readouts="all", mask=mask))
            found.append(tuple(chunks))
        return found

    # -- numbers ---------------------------------------------------------------------------------
    def numbers(self, *shape: int) -> np.ndarray:
        """Random numbers of the flavour: float64."""
        if self.flavour == "integers":
            return self._small(shape)
        found = self.random.standard_normal(shape)
        if self.flavour == "cancelling" and shape[-1] > 1:
            pairs = found[..., : shape[-1] // 2 * 2]
            keep = self.random.random(pairs[..., ::2].shape) < 0.9
            pairs[..., 1::2] = np.where(keep, -pairs[..., ::2], pairs[..., 1::2])
        if self.flavour == "sparse":
            found *= (self.random.random(shape) < 0.1) & (self._by_run(shape, self.random.random) < 0.5)
        if self.flavour == "uneven":
            found *= self._sizes(shape)
        if self.flavour == "special":
            found = self._with_special(found)
        return found * {"huge": HUGE, "tiny": TINY}.get(self.flavour, 1.0)

    def _by_run(self, shape: Sequence[int], draw: Callable[[tuple[int, ...]], np.ndarray]) -> np.ndarray:
        """What is drawn for each run of columns, for each column."""
        *rows, width = shape
        return np.repeat(draw((*rows, -(-width // RUN))), RUN, axis=-1)[..., :width]

    def _sizes(self, shape: Sequence[int]) -> np.ndarray:
        return self._by_run(shape, lambda runs: np.exp2(self.random.integers(-UNEVEN, UNEVEN + 1, runs)))

    def _sizes_of_tiles(self, shape: Sequence[int], dtype: Dtype) -> np.ndarray | float:
        """One for each tile of rows and columns that share a gain, whose largest numbers would all be alike without it."""
        if not dtype.name.startswith("e4m3tile"):
            return 1.0
        *lead, rows, width = shape
        sizes = np.exp2(self.random.integers(-UNEVEN, UNEVEN + 1, (*lead, -(-rows // TILE), -(-width // TILE))))
        return sizes.repeat(TILE, axis=-2)[..., :rows, :].repeat(TILE, axis=-1)[..., :width]

    def _with_special(self, numbers: np.ndarray) -> np.ndarray:
        """Some four of them replaced."""
        return np.where(self._few(numbers.shape), self.random.choice(SPECIAL, numbers.shape), numbers)

    def _few(self, shape: tuple[int, ...]) -> np.ndarray:
        """Some four places, fewer in small arrays."""
        return self.random.random(shape) < min(0.05, 4.0 / max(math.prod(shape), 1))

    def _small(self, shape: tuple[int, ...]) -> np.ndarray:
        return self.random.integers(-INTEGERS, INTEGERS + 1, shape).astype(np.float64)

    def _tensor(self, shape: tuple[int, ...], dtype: Dtype) -> Tensor:
        if self.flavour == "integers" and not dtype.is_leaf:
            return self._of_small_codes(shape, dtype)
        numbers = self._small(shape) if self.flavour == "integers" else self.random.standard_normal(shape)
        if self.flavour == "cancelling" and shape[-1] > 1:
            numbers[..., 1 : shape[-1] // 2 * 2 : 2] = numbers[..., : shape[-1] // 2 * 2 : 2]
        if self.flavour == "uneven":
            numbers *= self._sizes(shape) * self._sizes_of_tiles(shape, dtype)
        if self.flavour == "special" and dtype.is_leaf:
            numbers = self._with_special(numbers)
        made = Tensor.encode(numbers.astype(np.float32), dtype)
        if self.flavour == "tiny" and "offset" in made.planes:
            return self._with_tiny(made)
        return self._with_nan(made) if self.flavour == "special" and not dtype.is_leaf else made

    def _with_tiny(self, weight: Tensor) -> Tensor:
        """In half of the groups one code throughout, whose product with the gain all but cancels against the offset: of some gains and
        offsets those that leave least, but more than nothing."""
        bits, groups = LEAF_BITS[weight.dtype.planes(weight.shape)[0].leaf], weight.planes["gain"].shape
        chosen, steps = self.random.random(groups) < 0.5, self.random.integers(0, 1 << bits, groups)
        gains, beyond = self.random.standard_normal((2, TRIES, *groups))
        gains = _stored(gains, "bf16").astype(np.float64)
        offsets = _stored(-gains * (steps + NEARLY * beyond), "bf16").astype(np.float64)
        left = np.abs(gains * steps + offsets) / np.abs(gains)
        least = np.where(left > 0, left, np.inf).argmin(0, keepdims=True)
        factors = {"gain": gains, "offset": offsets}
        planes = {name: np.where(chosen, np.take_along_axis(made, least, 0)[0], weight.planes[name]) for name, made in factors.items()}
        codes = unpack(weight.planes["code"], bits)
        size = codes.shape[-1] // groups[-1]
        codes = np.where(chosen.repeat(size, -1), steps.repeat(size, -1), codes)
        stored = {name: encode(plane, "bf16") for name, plane in planes.items()}
        return Tensor(weight.dtype, weight.shape, {"code": pack(codes.astype(np.uint8), bits), **stored})

    def _with_nan(self, made: Tensor) -> Tensor:
        """A quantised weight, some of whose codes and gains are NaN, as far as they are of a dtype that has one."""
        planes = dict(made.planes)
        for plane in made.dtype.planes(made.shape):
            if plane.leaf in FLOATS or plane.leaf in NAN_CODES:
                nan = np.array(NAN_CODES.get(plane.leaf, np.nan), STORAGE[plane.leaf])
                planes[plane.path] = np.where(self._few(plane.shape), nan, planes[plane.path])
        return Tensor(made.dtype, made.shape, planes)

    def _of_small_codes(self, shape: tuple[int, ...], dtype: Dtype) -> Tensor:
        """A quantised weight whose every factor is one: its values are those of its codes."""
        planes = {}
        for plane in dtype.planes(shape):
            if plane.path == "code" and plane.leaf == "e4m3":
                planes[plane.path] = encode(self._small(plane.shape).astype(np.float32), plane.leaf)
            elif plane.path == "code":
                planes[plane.path] = self.random.integers(0, 256, plane.packed_shape).astype(np.uint8).view(STORAGE[plane.leaf])
            elif plane.leaf == "e8m0":
                planes[plane.path] = np.full(plane.shape, E8M0_ONE, STORAGE["u8"]).view(STORAGE["e8m0"])
            else:
                value = -float(INTEGERS) if plane.path == "offset" else 1.0
                planes[plane.path] = encode(np.full(plane.shape, value, np.float32), plane.leaf)
        return Tensor(dtype, shape, planes)

    def _input(self, type: ValueType, make: Callable[[int], np.ndarray]) -> Value:
        name = f"x{len(self.trace.inputs_asked)}"
        for counts, given in zip(self.batch, self.inputs, strict=True):
            array = np.asarray(make(_rows(type.rows, counts)))
            if type.dtype not in FLOATS:
                array = array.astype(STORAGE[type.dtype])
            given[name] = array.reshape(-1) if type.width == 1 and type.dtype not in FLOATS else array
        return self.trace.input(name, type)


def _rows(axis: str | int, counts: Sequence[int]) -> int:
    """Rows of an axis in a pass: there is an image for each lane, a patch and a readout for each token."""
    by_lane = dict.fromkeys(("lanes", "images"), len(counts))
    found = axes.count(axis, dict.fromkeys(axes.AXES, sum(counts)) | by_lane)
    assert found is not None
    return found


def _stored(numbers: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers rounded to a dtype, as float32."""
    with np.errstate(over="ignore", invalid="ignore"):
        return numbers.astype(np.float32).astype(STORAGE[dtype]).astype(np.float32)
