"""`Call`: what an op function is handed besides its arguments.

How an op function is written (one for each op, `interp/ops/<namespace>.py`, named as the op):

    def matmul(call: Call, x: np.ndarray, w: Tensor, out: str | None) -> np.ndarray:
        return call.project(x, w)

* Arguments arrive by the names of the op's parameters, all of them, defaults filled in.
* Float values are 2-D arrays `[rows, width]` of `call.numeric.real`: float32 in native mode, holding values already
  rounded to the value's dtype; float64 in exact mode. Ints are int32, `[rows]` where they are one wide; pixels are uint8.
  Never write into an argument.
* Weights are `Tensor`s: `call.weight(w)` decodes one, `call.rows(w, ids)` some of its rows, `call.project(x, w)` multiplies by
  one. All take arrays too, for parameters that are "value or weight".
* Caches and states are records of the graph: `call.cache(cache)` gives the `KvRow` or `StateSlab` behind one.
  `inputs` arrives as the pass's `Geometry`, also `call.batch`; a mask as a tuple of bool [rows, kv_len] or None for each lane.
* Attributes arrive as the graph holds them: a scaling as a dict with "kind", a dtype as its word, missing ones as None.
* The result is an array, a tuple of arrays, or None, UNROUNDED: the session rounds every float result once to its dtype.
  A module names ops that only copy in `COPIES`; their results are not rounded again.
* The result for a row may not depend on other rows, bitwise, in the reference setting. NumPy's elementwise functions and
  reductions over the last axis of a contiguous array keep this; matrix products do only through `call.project` and
  `call.numeric.matmul`.
* Faults of the data (an index out of range, a cell never written): `raise call.error("run.index", "rows has 7, past 3 rows", row=2)`.
"""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from interp.numeric import Numeric
from interp.weights import WeightStore
from poem.batch import Geometry
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.graph import Cache, Graph, Node, ValueType

if TYPE_CHECKING:
    from interp.kv import KvRow, StateSlab

T = TypeVar("T")


class Pass:
    """The pass that a session is in: its geometry, and what its nodes share."""

    __slots__ = ("batch", "memo")

    batch: Geometry
    memo: dict[Hashable, Any]


class Call:
    """One node of one session; the same object serves every pass."""

    __slots__ = ("_caches", "_pass", "_weights", "_words", "node", "numeric", "results")

    def __init__(
        self, graph: Graph, node: Node, numeric: Numeric, weights: WeightStore, caches: "list[KvRow | StateSlab]", pass_: Pass
    ) -> None:
        self.node, self.numeric = node, numeric
        self._weights, self._caches, self._pass = weights, caches, pass_
        self._words: dict[str, str] = {}
        for name, operand in node.operands.items():
            first = operand[0] if isinstance(operand, list) and operand else operand
            if isinstance(first, tuple) and first.kind in ("value", "param"):
                owner: Any = graph.values[first.id].type if first.kind == "value" else graph.params[first.id]
                if owner is not None:
                    self._words[name] = owner.dtype
        self.results: tuple[ValueType | None, ...] = tuple(graph.values[id].type for id in node.results)

    @property
    def batch(self) -> Geometry:
        """The geometry of the pass."""
        return self._pass.batch

    def dtype(self, name: str) -> str:
        """The dtype word of an operand (of the first one, if it is a list). KeyError if it was not given."""
        return self._words[name]

    def weight(self, w: Tensor | np.ndarray, rows: slice | None = None) -> np.ndarray:
        """The decoded values of a weight, or of `rows` of its first axis, as `real`. Read only. Arrays pass unchanged."""
        if isinstance(w, np.ndarray):
            return w if rows is None else w[rows]
        return self._weights.decode(w, rows)

    def rows(self, w: Tensor, ids: np.ndarray) -> np.ndarray:
        """`w[ids]`, decoding only those rows: ids [N] within the first axis -> [N, ...] of `real`."""
        return self._weights.take(w, ids)

    def project(self, x: np.ndarray, w: Tensor, rows: slice | None = None) -> np.ndarray:
        """`x @ w[rows]^T`, by the activation rule of w's dtype: x [N, K], w [M, K] or [E, M, K] -> [N, M * len(rows)].

        A bank's rows are its experts. Big weights are decoded strip by strip.
        """
        return self._weights.project(x, w, rows)

    def project_all(self, x: np.ndarray, weights: tuple[Tensor, ...]) -> np.ndarray:
        """The products of x with several matrices, side by side: x [N, K], w_i [M_i, K] -> [N, sum of M_i]."""
        return self._weights.project_all(x, weights)

    def cache(self, cache: Cache) -> Any:
        """The `KvRow` or `StateSlab` of a cache operand."""
        return self._caches[cache.id]

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()`, computed once in a pass for each key: rope tables, masks and the like, which layers share."""
        found = self._pass.memo.get(key)
        if found is None:
            found = self._pass.memo[key] = make()
        return found

    def error(self, code: str, message: str, *, row: int | None = None, expected: str = "", found: str = "", hint: str = "") -> PoemError:
        """A PoemError at the node's .poem line, naming op and row. `code` is `run.<kebab-words>`."""
        where = self.node.where
        file, line = (where[-1].file, where[-1].line) if where else ("", 0)
        at = "" if row is None else f" row {row}:"
        return PoemError(
            code, f"ops.{self.node.op}:{at} {message}", phase="run", file=file, line=line, stack=where,
            expected=expected, found=found, hint=hint,
        )  # fmt: skip
