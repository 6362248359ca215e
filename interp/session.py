"""`Session`: a graph, its weights and the memory of its sequences; `run` computes one pass."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from interp.kv import KvRow, StateSlab
from interp.numeric import Mode, Numeric, Setting
from interp.steps import Observer, Steps, find_op
from interp.weights import WeightStore
from poem.batch import Batch, Geometry, PageTable, geometry
from poem.dtypes import FLOATS
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError, PoemErrors
from poem.graph import Graph, Input

# Bytes of decoded weights kept between passes.
WEIGHT_MEMORY = {"reference": 1 << 30, "fast": 6 << 30}


class Session:
    """Runs a graph.

    graph: any Graph. weights: `Tensor`s by weight name; those the graph uses are fetched here, and decoded when used.
    mode: "native" rounds each result to its dtype, "exact" computes in float64. setting: "reference" gives each row the same
    bits in any batch, "fast" gives that up for speed. page_size: cells of a cache page. casts: in exact mode, keep the casts
    that belong to the meaning of a dtype (activation codes, cache cells, slabs). weight_memory: bytes of decoded weights to
    keep; None takes the setting's default.
    Raises PoemError (`run.unsupported`) for ops that the interpreter lacks.
    """

    def __init__(
        self,
        graph: Graph,
        weights: Mapping[str, Tensor],
        *,
        mode: Mode = "native",
        setting: Setting = "reference",
        page_size: int = 16,
        casts: bool = False,
        weight_memory: int | None = None,
    ) -> None:
        check_supported(graph)
        if page_size < 1:
            raise PoemError("run.page-size", "a page holds at least one cell", phase="run", found=str(page_size))
        self.graph = graph
        self.numeric = Numeric(mode, setting, casts)
        memory = WEIGHT_MEMORY[setting] if weight_memory is None else weight_memory
        self._store = WeightStore(graph.params, weights, self.numeric, memory)
        self._tables = [PageTable(page_size, space.window) for space in graph.spaces]
        self._caches: list[KvRow | StateSlab] = [self._memory(cache, page_size) for cache in graph.caches]
        self._lengths: dict[int, int] = {}
        self._next = 0
        self._steps = Steps(graph, self.numeric, self._store, self._caches)

    # -- sequences -----------------------------------------------------------------------------
    def add_sequence(self) -> int:
        """A sequence joins, empty. Returns its id."""
        sequence, self._next = self._next, self._next + 1
        self._lengths[sequence] = 0
        for table in self._tables:
            table.add(sequence)
        return sequence

    def drop_sequence(self, sequence: int) -> None:
        """A sequence leaves; its pages and slabs are given back. KeyError for an unknown one."""
        del self._lengths[sequence]
        for table in self._tables:
            table.remove(sequence)
        for cache in self._caches:
            if isinstance(cache, StateSlab):
                cache.remove(sequence)

    def length(self, sequence: int) -> int:
        """How many tokens a sequence holds. KeyError for an unknown one."""
        return self._lengths[sequence]

    # -- one pass ------------------------------------------------------------------------------
    def run(self, batch: Batch, observe: Observer | None = None, inputs: Mapping[str, np.ndarray] | None = None) -> dict[str, np.ndarray]:
        """One pass over the new tokens of `batch`. Returns the outputs by name: float32 (native) or float64 (exact), ints int32.

        observe: called after each node with its results; a tuple that it returns takes their place.
        inputs: values of graph inputs that a batch does not hold, by input method (of a port: `method(argument, ...)`).
        A pass that fails leaves the sequences as they were.
        Raises PoemError: `run.batch` for a bad batch, other `run.*` codes at the .poem line of the op that failed.
        """
        lengths = self._lengths
        for chunk in batch:
            if chunk.sequence in lengths:
                self._reserve(chunk.sequence, lengths[chunk.sequence] + len(chunk.tokens))
        committed = False
        try:
            pass_ = geometry(batch, lengths, self._tables)
            with np.errstate(all="ignore"):  # NaN and infinity are results, not accidents
                values = {input_.value: self._input(input_, pass_, inputs or {}) for input_ in self.graph.inputs}
                outputs = self._steps.run(pass_, values, observe)
            for chunk, commit in zip(batch, pass_.commit_len.tolist(), strict=True):
                lengths[chunk.sequence] += commit
            committed = True
        finally:
            for chunk in batch:
                if chunk.sequence in lengths:
                    for table in self._tables:
                        table.settle(chunk.sequence, lengths[chunk.sequence])
            for cache in self._caches:
                if isinstance(cache, StateSlab):
                    cache.settle(committed)
        return outputs

    # -- inside --------------------------------------------------------------------------------
    def _reserve(self, sequence: int, length: int) -> None:
        """Pages for `length` cells of a sequence, in every space."""
        for space, table in enumerate(self._tables):
            taken = table.grow(sequence, length)
            if taken:
                for row in self._caches:
                    if isinstance(row, KvRow) and row.cache.space == space:
                        row.reserve(table.page_count)
                        row.clear(taken)

    def _memory(self, cache: Any, page_size: int) -> KvRow | StateSlab:
        if cache.kind == "state":
            return StateSlab(cache, self.numeric)
        scales = None
        if cache.scales is not None:
            scales = [float(self._store.tensor(self.graph.params[id]).decode().reshape(-1)[0]) for id in cache.scales]
        return KvRow(cache, self.graph.spaces[cache.space].dtype, page_size, self.numeric, scales)

    def _input(self, input_: Input, pass_: Geometry, given: Mapping[str, np.ndarray]) -> Any:
        """The value of a graph input in one pass."""
        method = input_.method
        if input_.key in given:
            return self._given(input_, given[input_.key])
        space = input_.arguments.get("space") or 0
        match method:
            case "tokens" | "positions" | "readout_rows" | "adapter_routes" | "mrope_positions":
                return getattr(pass_, method)
            case "request_of_token":
                return pass_.lane_of_row
            case "row_valid":
                return np.ones(pass_.rows, np.uint8)
            case "mask":
                return pass_.masks
            case "write_page" | "write_offset" | "last_page_len":
                return getattr(pass_.pages[space], method)
            case "kv_len":
                return pass_.kv_len
            case "kv_indptr":
                return pass_.pages[space].indptr
            case "lane_indptr":
                return pass_.qo_indptr
        raise PoemError("run.input", f"the pass needs values for the input `{input_.key}`", phase="run", hint="give them in inputs=")

    def _given(self, input_: Input, array: np.ndarray) -> np.ndarray:
        type = self.graph.values[input_.value].type
        assert type is not None
        array = np.asarray(array)
        shape = array.shape
        listed = type.width == 1 and type.dtype not in FLOATS
        if not (len(shape) == 2 and shape[1] == type.width) and not (listed and len(shape) == 1):
            raise PoemError(
                "run.input", f"the value given for `{input_.method}` does not fit", phase="run",
                expected=f"[rows, {type.width}] {type.dtype}", found=str(list(shape)),
            )  # fmt: skip
        if type.dtype in FLOATS:
            return self.numeric.round(np.ascontiguousarray(array), type.dtype)
        array = np.ascontiguousarray(array, np.uint8 if type.dtype == "u8" else np.int32)
        return array.reshape(-1) if listed else array


def check_supported(graph: Graph) -> None:
    """Raises PoemError (`run.unsupported`) for each op of the graph that the interpreter lacks, at its .poem line."""
    missing: dict[str, PoemError] = {}
    for node in graph.nodes:
        if node.op not in missing and find_op(node.op) is None:
            file, line = (node.where[-1].file, node.where[-1].line) if node.where else ("", 0)
            missing[node.op] = PoemError(
                "run.unsupported", f"the interpreter has no ops.{node.op} yet", phase="run", file=file, line=line, stack=node.where
            )
    if len(missing) == 1:
        raise next(iter(missing.values()))
    if missing:
        raise PoemErrors(list(missing.values()))
