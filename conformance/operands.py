"""What each node of a run was given: the operands that a bound needs."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from conformance.arithmetic import FUNCTION_ULPS, SOURCES, Arithmetic, half_spacing
from conformance.bounds import BOUNDS, Cells, local_bound
from conformance.bounds.record import as_running
from conformance.running import Running, joined
from poem.batch import Chunk, Geometry, geometry
from poem.dtypes import FLOATS, Dtype, activation, leaves
from poem.dtypes.cache import load, store
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.graph import Graph, Input, Node, Operand, Ref

APPENDS = {"attn.kv_append": ("k", "v"), "attn.kv_append_shared": ("kv",)}


class Weights:
    """Decoded weights of a graph, each decoded once."""

    def __init__(self, graph: Graph, tensors: Mapping[str, Tensor]) -> None:
        self._graph, self._tensors = graph, tensors
        self._decoded: dict[int, np.ndarray] = {}

    def __getitem__(self, param: int) -> np.ndarray:
        found = self._decoded.get(param)
        if found is None:
            found = self._decoded[param] = self._tensors[self._graph.params[param].name].decode()
        return found


Planes = tuple[Any, ...]  # of the cells of one sequence, arrays or `Running`: [cells, width] each


def one_lane(tokens: Sequence[int]) -> Geometry:
    """The pass of a prompt alone."""
    return geometry([Chunk(0, list(tokens), readouts="all")], {0: 0}, [])


class Operands:
    """Follows a run that starts without cells, pass by pass and node by node.

    A value is an array where it is known exactly (the original's own), or a `Running` with how far the arithmetic may be.
    casts: the activations of a8 products and the cells of caches are rounded on both sides, so that rounding is part of the
    operands and no error.
    """

    def __init__(
        self, graph: Graph, weights: Weights, pass_: Geometry, arithmetic: Arithmetic, casts: bool = False,
        given: Mapping[str, np.ndarray] | None = None,
    ) -> None:  # fmt: skip
        self.graph, self.arithmetic, self.casts = graph, arithmetic, casts
        self._weights = weights
        self._cells: dict[int, dict[int, Planes]] = {}  # by cache and sequence
        self._last_use = {ref.id: node.id for node in graph.nodes for ref in references(node) if ref.kind == "value"}
        self.start(pass_, given or {})

    def start(self, pass_: Geometry, given: Mapping[str, np.ndarray]) -> None:
        """A pass begins. Cells stay; values are gone. given: values of inputs that no batch holds, by their `key`."""
        self.geometry = pass_
        self._before = {cache: dict(cells) for cache, cells in self._cells.items()}
        self.values: dict[int, Any] = {item.value: self._input(item, given) for item in self.graph.inputs}

    def _input(self, input_: Input, given: Mapping[str, np.ndarray]) -> Any:
        """The graph inputs that bounds read; others are None."""
        if input_.key in given:
            return given[input_.key]
        if input_.method in ("tokens", "positions", "readout_rows", "mrope_positions", "kv_len", "adapter_routes"):
            return getattr(self.geometry, input_.method)
        if input_.method == "request_of_token":
            return self.geometry.lane_of_row
        return self.geometry.masks if input_.method == "mask" else None

    def of(self, node: Node) -> dict[str, Any]:
        """Operands and attributes of a node by parameter name."""
        found = {**node.attributes, **{name: self._operand(operand) for name, operand in node.operands.items()}}
        if self.casts and node.op.startswith("linear.") and self._rounds_activations(node):
            found["x"] = rounded_activations(found["x"])
        return found

    def _operand(self, operand: Operand) -> Any:
        if operand is None:
            return None
        if isinstance(operand, list):
            return [self._operand(ref) for ref in operand]
        if operand.kind == "value":
            value = self.graph.values[operand.id]
            return self.geometry if value.kind == "plan" else self.values[operand.id]
        if operand.kind == "param":
            return self._weights[operand.id]
        if operand.kind == "inputs":
            return self.geometry
        cells = self._cells.get(operand.id)
        if cells is None:
            return None
        cache = self.graph.caches[operand.id]
        scales = None if cache.scales is None else tuple(float(self._weights[id].reshape(-1)[0]) for id in cache.scales)
        lanes = [cells.get(sequence) or _no_cells(cache.planes) for sequence in self.geometry.sequences]
        return Cells(lanes, self.graph.spaces[cache.space].dtype, scales)

    def bounds(self, node: Node, results: Sequence[np.ndarray], *, rounded: bool = True) -> tuple[Running, ...]:
        """Bounds of a node's results under the errors of its operands; appended cells are remembered.

        results: what the node gave, taken as exact. rounded: with the last rounding, to a result's dtype.
        PoemError (`check.no-bound`) for an op without a bound.
        """
        if node.op not in BOUNDS:
            file, line = (node.where[-1].file, node.where[-1].line) if node.where else ("", 0)
            raise PoemError(
                "check.no-bound", f"there is no error bound for ops.{node.op} yet", phase="check", file=file, line=line, stack=node.where
            )
        arguments = self.of(node)
        if node.op in APPENDS:
            cache = node.operands["cache"]
            assert isinstance(cache, Ref)
            planes = tuple(arguments[name] for name in APPENDS[node.op])
            self.store(cache.id, [self._cast(plane, self._cell(cache)) for plane in planes] if self.casts else planes)
            return ()
        dtypes = self._dtypes(node)
        if not any(dtype in FLOATS for dtype in dtypes):
            return tuple(Running(self.arithmetic, 0.0) for _ in dtypes)
        return local_bound(node.op, arguments, results, dtypes, self.arithmetic, self.geometry, rounded=rounded)

    def _rounds_activations(self, node: Node) -> bool:
        weight = node.operands.get("w", node.operands.get("bank"))
        return isinstance(weight, Ref) and Dtype(self.graph.params[weight.id].dtype).act == "a8"

    def _cell(self, cache: Ref) -> Callable[[np.ndarray], np.ndarray]:
        """What a cache makes of a plane."""
        dtype = Dtype(self.graph.spaces[self.graph.caches[cache.id].space].dtype)
        scale = np.float32(1.0)
        return lambda plane: load(store(plane.astype(np.float32), dtype, scale), dtype, scale).astype(np.float64)

    def _cast(self, given: Any, cast: Callable[[np.ndarray], np.ndarray]) -> Any:
        """An operand after a cast, which goes through float32: what float32 tells apart may come out as another code."""
        if not isinstance(given, Running):
            return cast(given)
        value = cast(given.value)
        low, high = cast(given.value - given.error), cast(given.value + given.error)
        same = np.broadcast_to(given.error, value.shape) <= half_spacing(np.abs(given.value), "f32")
        return Running(given.arithmetic, value, np.where(same, 0.0, np.maximum(np.abs(high - value), np.abs(value - low))))

    def _dtypes(self, node: Node) -> list[str]:
        types = [self.graph.values[id].type for id in node.results]
        return [type.dtype if type is not None else "" for type in types]

    def store(self, cache: int, planes: Sequence[Any]) -> None:
        """What the pass appends to a cache, a row each: `[tokens, width]` for each plane. In place of what it appended before."""
        cells, before = self._cells.setdefault(cache, {}), self._before.get(cache, {})
        for lane, first, end in self.geometry.lanes_with_rows:
            sequence = self.geometry.sequences[lane]
            rows = tuple(plane[first:end] for plane in planes)
            held = before.get(sequence)
            cells[sequence] = rows if held is None else tuple(map(_joined, held, rows))

    def reason(self, node: Node, results: Sequence[np.ndarray], which: int, index: tuple[int, ...]) -> str:
        """What most of the bound at one element comes from. To be asked before `keep`."""
        record = BOUNDS[node.op]
        arguments = self.of(node)
        dtypes = self._dtypes(node)
        parts: dict[str, float] = {}
        for source in ("", *SOURCES):
            arithmetic = self.arithmetic.only(source)
            error = local_bound(node.op, arguments, results, dtypes, arithmetic, self.geometry)[which].error
            parts[source] = float(np.broadcast_to(error, results[which].shape)[index]) - parts.get("", 0.0)
        source = max(parts, key=lambda name: parts[name])
        length = record.length(arguments) if record.length is not None else 0
        stored = dtypes[which] if self.arithmetic.results is None else self.arithmetic.results
        cells = next((given.dtype for given in arguments.values() if isinstance(given, Cells)), "")
        return {
            "": "errors carried over from the ops before it",
            "steps": f"f32 {record.reduces.format(length)}" if record.reduces else "f32 rounding of each step",
            "functions": f"f32 functions (exp, sin, ...) within {FUNCTION_ULPS} ulp",
            "results": f"rounding the result to {stored}",
            "cells": f"kv cells stored in {cells}",
        }[source]

    def keep(self, node: Node, results: Sequence[Any]) -> None:
        """Remember a node's results, and forget what no later node reads."""
        for id, result in zip(node.results, results, strict=True):
            self.values[id] = result
        for ref in references(node):
            if ref.kind == "value" and self._last_use[ref.id] <= node.id:
                self.values.pop(ref.id, None)


def _joined(held: Any, more: Any) -> Any:
    """The rows of two planes."""
    if not isinstance(held, Running) and not isinstance(more, Running):
        return np.concatenate([held, more])
    arithmetic = next(part.arithmetic for part in (held, more) if isinstance(part, Running))
    return joined([as_running(arithmetic, part) for part in (held, more)], 0)


def rounded_activations(given: Any) -> Any:
    """Activations by the rule a8, x = scale * code. Where x is inexact its run's scale is too: with sizes |x| in low .. high and scales in
    least .. most, scale * code lies between least * code(low / most) and most * code(high / least), as rounding keeps the order.
    """
    if not isinstance(given, Running):
        return activation.dequantise(*activation.quantise(given), np.float64)
    value, size = rounded_activations(given.value), np.abs(given.value)
    error = np.broadcast_to(given.error, value.shape)
    error = np.where(error <= half_spacing(size, "f32"), 0.0, error)  # what float32 does not tell apart has one code
    low, high = np.maximum(size - error, 0.0), size + error
    least, most = (np.repeat(activation.quantise(end)[1], activation.RUN, axis=1)[:, : size.shape[1]] for end in (low, high))
    least = np.where(least > most, 0.0, least)  # a run that may be 0 throughout, whose scale is 1 then
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.where(least > 0, most * _codes(high / least), activation.LARGEST * most)
        bottom = np.where(error > size, -top, least * _codes(low / most))
    return Running(given.arithmetic, value, np.maximum(top - np.abs(value), np.abs(value) - bottom) if error.any() else 0.0)


def _codes(quotients: np.ndarray) -> np.ndarray:
    """The values of the e4m3 codes that numbers are rounded to."""
    return leaves.decode(leaves.encode_codes(quotients.astype(np.float32), "e4m3"), "e4m3", np.float64)


def _no_cells(widths: Sequence[int]) -> Planes:
    return tuple(np.zeros((0, width)) for width in widths)


def references(node: Node) -> list[Ref]:
    """All references of a node, lists included."""
    return [ref for operand in node.operands.values() for ref in (operand if isinstance(operand, list) else [operand]) if ref is not None]
