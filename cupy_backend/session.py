"""`Session`: a graph, its weights and the memory of its sequences on a device; `run` computes one pass, as `interp.Session` does."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from cupy_backend import choosing
from cupy_backend.devices import Device
from cupy_backend.errors import KernelError
from cupy_backend.launch import Array, Launch
from cupy_backend.plan import Bucket, Columns, Options, Plan, Step, Stored, nearest_arch, plan
from cupy_backend.plan import inputs as pass_inputs
from cupy_backend.plan.build import ARENA
from cupy_backend.plan.lowering import cells_name, given_name
from cupy_backend.plan.prepare import stored_planes
from poem import axes
from poem.batch import Batch, Geometry, PageTable, geometry
from poem.dtypes.cache import VOID
from poem.dtypes.leaves import STORAGE
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.graph import Graph, Node
from poem.sampling import Sampling, check_logits, no_logits

T = TypeVar("T")
Memory = Any  # what a device hands out: a NumPy array, or a CuPy array
Results = tuple[np.ndarray | None, ...]
Observer = Callable[[Node, Results], Results | None]
SMALLEST_LENGTH = 64  # cells; a longest lane below it shares a plan


class Session:
    """Runs a graph on a device.

    graph: any Graph. weights: `Tensor`s by weight name. device: where launches run. options: how plans are made. page_size: cells of a
    cache page. padded: serve passes by plans for the next power of two of rows and sequences, and capture those that decode: a
    CUDA graph for each bucket. planes: those of weights that are on the device already, by the names that plans give them (`Stored`);
    `weights` is not asked for them.
    Raises KernelError (`kernel.unsupported`) for what no kernel serves, at its .poem line, and PoemError (`run.weight`) for a weight
    that is missing or not what the graph wants.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        device: Device,
        *,
        options: Options | None = None,
        page_size: int = 16,
        padded: bool = False,
        planes: Mapping[str, Memory] | None = None,
    ) -> None:
        if page_size < 1:
            raise PoemError("run.page-size", "a page holds at least one cell", phase="run", found=str(page_size))
        self.graph, self.device = graph, device
        self.options = options or Options(nearest_arch(getattr(device, "arch", Options().arch)))
        self._weights, self._padded = weights, padded
        self.page_size = page_size
        self._tables = [PageTable(page_size, space.window) for space in graph.spaces]
        self._pages = [0] * len(graph.spaces)  # physical pages there is memory for
        self._memory: dict[str, Memory] = dict(planes or {})
        self._plans: dict[Bucket, Plan] = {}
        self._captured: dict[Bucket, tuple[Memory, Callable[[], None]]] = {}  # the inputs they read, and the launches
        self._lengths: dict[int, int] = {}
        self._next = 0
        self.plan = self.plan_for(Bucket(1, 1, 1, 1, 1, SMALLEST_LENGTH, (1,) * len(graph.spaces), page_size))  # of the latest pass
        self._load(self.plan)

    # -- sequences -----------------------------------------------------------------------------
    def add_sequence(self) -> int:
        """A sequence joins, empty. Returns its id."""
        sequence, self._next = self._next, self._next + 1
        self._lengths[sequence] = 0
        for table in self._tables:
            table.add(sequence)
        return sequence

    def drop_sequence(self, sequence: int) -> None:
        """A sequence leaves; its pages are given back. KeyError for an unknown one."""
        del self._lengths[sequence]
        for table in self._tables:
            table.remove(sequence)

    def length(self, sequence: int) -> int:
        """How many tokens a sequence holds. KeyError for an unknown one."""
        return self._lengths[sequence]

    # -- one pass ------------------------------------------------------------------------------
    def run(self, batch: Batch, observe: Observer | None = None, inputs: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """One pass over the new tokens of `batch`. Returns the outputs by name: float32, ints int32.

        observe: called after each node with its results, None for those inside a fused kernel; a tuple that it returns takes the place of
        the results that are there. inputs: values of graph inputs that a batch does not hold, by their `key`.
        A pass that fails leaves the sequences as they were.
        Raises PoemError: `run.batch` for a bad batch, `run.input` for a missing or misshapen input; KernelError for a launch that fails.
        """
        return self._pass(batch, observe, inputs or {}, self._outputs)

    def choose(self, batch: Batch, rules: Sequence[Sampling], draws: Sequence[float]) -> list[tuple[int, float]]:
        """One pass as `run`, and for each row read out a token with its log-probability, chosen on the device from the output `logits` as
        `poem.sampling.choose` does.

        rules, draws: one for each of those rows; a draw is a number in 0..1, of no account at temperature 0. Raises PoemError as
        `poem.sampling` and `run` do.
        """
        output = next((output for output in self.graph.outputs if output.name == "logits"), None)
        if output is None:
            raise no_logits([output.name for output in self.graph.outputs])
        return self._pass(batch, None, {}, lambda made, pass_: self._chosen(made, pass_, output.value, rules, draws))

    def _pass(self, batch: Batch, observe: Observer | None, inputs: Mapping[str, np.ndarray], read: Callable[[Plan, Geometry], T]) -> T:
        """One pass; `read` takes the results from the device."""
        lengths = dict(self._lengths)
        for chunk in batch:
            if chunk.sequence in lengths:
                for table in self._tables:
                    table.grow(chunk.sequence, lengths[chunk.sequence] + len(chunk.tokens))
        try:
            pass_ = geometry(batch, lengths, self._tables)
            self._refuse_beyond(pass_)
            results = read(self._run_plan(pass_, observe, inputs), pass_)
            counts = np.diff(pass_.qo_indptr).tolist()
            for sequence, length, commit, count in zip(
                pass_.sequences, pass_.kv_len.tolist(), pass_.commit_len.tolist(), counts, strict=True
            ):
                self._lengths[sequence] = length - count + commit
        finally:
            for chunk in batch:
                if chunk.sequence in lengths:
                    for table in self._tables:
                        table.settle(chunk.sequence, self._lengths[chunk.sequence])
        return results

    def plan_for(self, bucket: Bucket) -> Plan:
        """The plan of a bucket, made once."""
        if bucket not in self._plans:
            self._plans[bucket] = plan(self.graph, bucket, self.options)
        return self._plans[bucket]

    def slots(self, cache: int, sequence: int) -> np.ndarray:
        """Where the cells of a sequence lie in the planes of a cache, one after the other; negative for those that are given back."""
        pages = np.array(self._tables[self.graph.caches[cache].space].pages[sequence], np.intp)
        return (pages[:, None] * self.page_size + np.arange(self.page_size)).reshape(-1)

    def cells(self, cache: int) -> list[np.ndarray]:
        """All cells of a cache, `[slots, width]` for each plane, as they are stored."""
        return [self.device.download(self._plane(cache, plane)) for plane in range(len(self.graph.caches[cache].planes))]

    def store_cells(self, cache: int, planes: Sequence[np.ndarray]) -> None:
        """Overwrites all cells of a cache, of the dtype of the space."""
        for plane, values in enumerate(planes):
            self._plane(cache, plane)[...] = self.device.upload(values)

    # -- inside --------------------------------------------------------------------------------
    def _refuse_beyond(self, pass_: Geometry) -> None:
        if any(mask is not None for mask in pass_.masks) and not any(input_.method == "mask" for input_ in self.graph.inputs):
            raise PoemError("run.batch", "a chunk has a mask, and the graph reads none", phase="run")

    def _bucket(self, pass_: Geometry) -> Bucket:
        rows, lanes, readouts = pass_.rows, pass_.lanes, len(pass_.readout_rows)
        counts = [count for count in np.diff(pass_.qo_indptr).tolist() if count] or [0]
        if self._padded:
            rows, lanes, readouts = (_power(rows), _power(lanes), _power(readouts))
        cells = max(SMALLEST_LENGTH, _power(int(pass_.kv_len.max(initial=1))))
        return Bucket(rows, lanes, readouts, min(counts), max(counts), cells, tuple(self._pages), self.page_size, self._padded)

    def _run_plan(self, pass_: Geometry, observe: Observer | None, given: Mapping[str, np.ndarray]) -> Plan:
        self._grow_cells()
        bucket = self._bucket(pass_)
        made = self.plan = self.plan_for(bucket)
        self._load(made)
        is_given = self._take_inputs(made, given)
        filled = self.device.upload(pass_inputs.fill(made.inputs, made.lists, pass_))
        if self._padded and bucket.longest <= 1 and observe is None and not is_given:
            self._replay(made, filled)
        else:
            self._memory[pass_inputs.BUFFER] = filled
            for step in made.steps:
                for launch in step.launches:
                    self._launch(launch)
                if observe is not None:
                    self._observe(made, step, pass_, observe)
        self.device.synchronize()
        return made

    def _outputs(self, made: Plan, pass_: Geometry) -> dict[str, np.ndarray]:
        return {output.name: self._value(made, output.value, pass_) for output in self.graph.outputs}

    def _chosen(
        self, made: Plan, pass_: Geometry, logits: int, rules: Sequence[Sampling], draws: Sequence[float]
    ) -> list[tuple[int, float]]:
        where, count = made.places[logits], len(pass_.readout_rows)
        if not count:
            return []
        assert where.whole
        assert len(rules) == len(draws) == count
        self._memory[choosing.SETTINGS] = self.device.upload(choosing.settings(rules, draws))
        held = self._memory[choosing.CHOSEN] = self.device.empty((12 * count,), "u8")
        for launch in choosing.launches(where.array, count):
            self.device.run(launch, self._memory)
        self.device.synchronize()
        found = choosing.chosen(self.device.download(held), count)
        for row, (token, _) in enumerate(found):
            if token < 0:
                check_logits(self._value(made, logits, pass_)[row])
        return found

    def _take_inputs(self, made: Plan, given: Mapping[str, np.ndarray]) -> bool:
        """Puts the values of graph inputs that no batch holds into device memory. Whether there are any."""
        wanted = [(input_, made.places[input_.value].array) for input_ in self.graph.inputs if input_.value in made.places]
        wanted = [(input_, array) for input_, array in wanted if array.buffer == given_name(input_.value)]
        for input_, array in wanted:
            if input_.key not in given:
                message = f"the pass needs values for the input `{input_.key}`"
                raise PoemError("run.input", message, phase="run", hint="give them in inputs=")
            values = np.asarray(given[input_.key])
            values = values.reshape(-1) if len(array.shape) == 1 else values
            if values.shape[1:] != array.shape[1:] or len(values) > array.shape[0]:
                message, wanted_shape = f"the value given for `{input_.key}` does not fit", f"{list(array.shape)} {array.dtype}"
                raise PoemError("run.input", message, phase="run", expected=wanted_shape, found=str(list(values.shape)))
            padded: np.ndarray = np.zeros(array.shape, STORAGE[array.dtype])
            padded[: len(values)] = values
            self._memory[array.buffer] = self.device.upload(padded)
        return bool(wanted)

    def _replay(self, made: Plan, filled: Memory) -> None:
        """A decode pass by the captured launches of its bucket, which are captured anew when memory has moved."""
        captured = self._captured.get(made.bucket)
        if captured is None:
            own = {**self._memory, pass_inputs.BUFFER: filled}
            captured = self._captured[made.bucket] = filled, self.device.capture(made.launches, own)
        held, replay = captured
        held[...] = filled
        replay()

    def _launch(self, launch: Launch) -> None:
        try:
            self.device.run(launch, self._memory)
        except KernelError as fault:
            node = self.graph.nodes[launch.nodes[0]]
            place = f"{node.where[-1].file}:{node.where[-1].line}" if node.where else "no line"
            ops = ", ".join(f"ops.{self.graph.nodes[id].op}" for id in launch.nodes)
            raise KernelError(
                fault.code, fault.message, phase=fault.phase, file=fault.file, line=fault.line, expected=fault.expected, found=fault.found,
                hint=f"the launch stands for {ops}, from {place} on", stack=node.where,
            ) from None  # fmt: skip

    def _load(self, made: Plan) -> None:
        """Everything that a plan needs in device memory, as far as it is not there."""
        missing: dict[tuple[tuple[int, ...], str], list[Stored]] = {}
        for stored in made.stored:
            if stored.buffer not in self._memory:
                missing.setdefault((stored.params, stored.prepare), []).append(stored)
        for (params, _), wanted in missing.items():
            for buffer, plane in stored_planes(wanted, [self._tensor(param) for param in params]).items():
                self._memory[buffer] = self.device.upload(plane)
        for name, table in made.tables.items():
            if name not in self._memory:
                self._memory[name] = self.device.upload(table)
        if ARENA not in self._memory or self._memory[ARENA].nbytes < made.arena:
            self._memory[ARENA] = self.device.empty((made.arena,), "u8")
            self._captured.clear()
        self.device.prepare(made.launches)

    def _tensor(self, param_id: int) -> Tensor:
        param = self.graph.params[param_id]
        name = next((name for name in (param.name, *param.aliases) if name in self._weights), None)
        if name is None:
            raise PoemError("run.weight", f"there is no weight `{param.name}`", phase="run")
        found = self._weights[name]
        wanted, got = f"{list(param.shape)} {param.dtype}", f"{list(found.shape)} {found.dtype}"
        if wanted != got:
            raise PoemError("run.weight", f"weight `{name}` does not fit the graph", phase="run", expected=wanted, found=got)
        return found

    def _grow_cells(self) -> None:
        """Memory for every page that the tables have handed out; it doubles, so that plans are seldom made anew."""
        for space, table in enumerate(self._tables):
            if table.page_count <= self._pages[space]:
                continue
            pages = _power(table.page_count)
            for cache in self.graph.caches:
                if cache.kind == "kv" and cache.space == space:
                    for plane, width in enumerate(cache.planes):
                        name = cells_name(cache, plane)
                        grown = self.device.empty((pages, self.page_size, width), self.graph.spaces[space].dtype)
                        grown.reshape(-1).view(np.uint8)[...] = VOID
                        if name in self._memory:
                            grown[: self._pages[space]] = self._memory[name]
                        self._memory[name] = grown
            self._pages[space] = pages
            self._captured.clear()

    def _plane(self, cache: int, plane: int) -> Memory:
        memory = self._memory[cells_name(self.graph.caches[cache], plane)]
        return memory.reshape(-1, memory.shape[2])

    # -- values --------------------------------------------------------------------------------
    def _view(self, array: Array) -> Memory:
        """The device memory of an array in the arena or among the inputs."""
        data = self._memory[array.buffer][array.offset : array.offset + array.nbytes]
        return data.view(STORAGE[array.dtype]).reshape(array.shape)

    def _value(self, made: Plan, value: int, pass_: Geometry) -> np.ndarray:
        """A value as a session hands it out: rows of the pass only, floats as float32."""
        where = made.places[value]
        found = self.device.download(self._view(where.array))[: self._true_rows(value, pass_)]
        if found.ndim == 2:
            found = found[:, where.start : where.start + where.width]
        if found.dtype.kind == "i":
            return found.reshape(-1) if found.ndim == 2 and found.shape[1] == 1 else found
        return found.astype(np.float32)

    def _true_rows(self, value: int, pass_: Geometry) -> int | None:
        """Rows of a value in the pass; None for all, where its axis is none of the padded ones."""
        type = self.graph.values[value].type
        sizes = {"tokens": pass_.rows, "readouts": len(pass_.readout_rows), "lanes": pass_.lanes}
        return None if type is None else axes.count(type.rows, sizes)

    def _observe(self, made: Plan, step: Step, pass_: Geometry, observe: Observer) -> None:
        for id in step.nodes:
            node = self.graph.nodes[id]
            found = tuple(self._value(made, value, pass_) if value in made.places else None for value in node.results)
            given = observe(node, found)
            for value, result in zip(node.results, given or (), strict=bool(given)):
                if result is not None and value in made.places:
                    self._overwrite(made.places[value], result)

    def _overwrite(self, where: Columns, values: np.ndarray) -> None:
        view = self._view(where.array)
        whole = self.device.download(view)
        target = whole if whole.ndim == 1 else whole[:, where.start : where.start + where.width]
        target[: len(values)] = values.reshape(len(values), *target.shape[1:]).astype(whole.dtype)
        view[...] = self.device.upload(whole)


def _power(count: int) -> int:
    """The next power of two; 0 for 0."""
    return 1 << (count - 1).bit_length() if count else 0
