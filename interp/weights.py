"""`WeightStore`: weights as ops read them, decoded as late and as little as the memory allows."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from interp.numeric import Numeric
from poem.dtypes import activation, products
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.graph import Param

# Products with a weight that is not kept decoded run over strips of rows of about this many decoded bytes.
STRIP_BYTES = 1 << 25
# In the fast setting up to this many rows are multiplied one by one: BLAS reads a matrix faster for a vector than for few rows.
VECTOR_ROWS = 4
# A product of the fast setting reads columns of at most this many weights: for longer ones BLAS jumps too far from each to the next.
COLUMN = 4096


class WeightStore:
    """The weights of one session.

    weights: stored tensors by name; each is fetched when first used. memory: bytes of decoded values that may be kept;
    past it, weights are decoded anew, strip by strip, on each use.
    """

    def __init__(self, params: tuple[Param, ...], weights: Mapping[str, Tensor], numeric: Numeric, memory: int) -> None:
        self.numeric = numeric
        self._params, self._weights = params, weights
        self._free = memory
        self._tensors: dict[int, Tensor] = {}
        self._decoded: dict[int, tuple[Tensor, np.ndarray]] = {}  # by id of the tensor, which is held so that the id stays its own
        # By id too: what a row is multiplied by in the fast setting, matrices [K, M_i] that give the columns of the product in turn.
        self._factors: dict[int, tuple[Any, list[np.ndarray] | None]] = {}
        self._runs: dict[int, tuple[Tensor, np.ndarray | None]] = {}  # the same for weights that take activation codes

    def tensor(self, param: Param) -> Tensor:
        """The stored tensor of a param. Raises PoemError (`run.weight`) if it is missing or not what the graph wants."""
        found = self._tensors.get(param.id)
        if found is None:
            name = next((name for name in (param.name, *param.aliases) if name in self._weights), None)
            if name is None:
                hint = "it is registered, so no checkpoint has it: give it with the others" if param.source == "registered" else ""
                raise PoemError("run.weight", f"there is no weight `{param.name}`", phase="run", hint=hint)
            found = self._weights[name]
            wanted, got = f"{list(param.shape)} {param.dtype}", f"{list(found.shape)} {found.dtype}"
            if wanted != got:
                raise PoemError("run.weight", f"weight `{name}` does not fit the graph", phase="run", expected=wanted, found=got)
            self._tensors[param.id] = found
        return found

    def decode(self, w: Tensor, rows: slice | None = None) -> np.ndarray:
        """The values of a weight, or of `rows` of its first axis, as `real`; kept if there is memory left for all of it."""
        kept = self._kept(w)
        if kept is None:
            return w.decode(rows, self.numeric.real)
        return kept if rows is None else kept[rows]

    def take(self, w: Tensor, ids: np.ndarray) -> np.ndarray:
        """`w[ids]` as `real`: ids [N] -> [N, ...]."""
        if w.dtype.is_float:
            return w.planes["data"][ids].astype(self.numeric.real)
        return w.decode(ids, self.numeric.real)

    def project(self, x: np.ndarray, w: Tensor, rows: slice | None = None) -> np.ndarray:
        """`x @ w[rows]^T` (see `Call.project`)."""
        numeric = self.numeric
        if numeric.fast and rows is None:
            factors = self._factors_of(w, (w,))
            if factors is not None:
                return _product(x, factors)
        if self._takes_codes(w):
            codes, scales = activation.quantise(x)
            if _tiled_like_activations(w) and not numeric.exact:
                return self._project_codes(codes, scales, w, rows)
            x = activation.dequantise(codes, scales, numeric.real)
        start, stop, _ = (rows or slice(None)).indices(w.shape[0])
        kept = self._kept(w)
        if kept is not None and (numeric.fast or numeric.exact):
            return numeric.matmul(x, kept[start:stop].reshape(-1, w.shape[-1]))
        # The reference setting cuts weights into the same strips whether they are kept or not: same shapes, same bits.
        step = max(1, STRIP_BYTES * w.shape[0] // (w.size * np.dtype(numeric.real).itemsize))
        strips = [slice(first, min(first + step, stop)) for first in range(start, stop, step)]
        if numeric.fast and not numeric.exact and len(x) <= VECTOR_ROWS:
            below = w.size // (w.shape[0] * w.shape[-1])  # rows of one entry of a bank
            parts = [products.project(x, w, slice(strip.start * below, strip.stop * below)) for strip in strips]
        else:
            parts = [numeric.matmul(x, self.decode(w, strip).reshape(-1, w.shape[-1])) for strip in strips]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def project_all(self, x: np.ndarray, weights: tuple[Tensor, ...]) -> np.ndarray:
        """The products of x with several matrices side by side: one product, if there is memory to keep them decoded side by side.

        `weights` is the same tuple in every pass.
        """
        factors = self._factors_of(weights, weights)
        return np.concatenate([self.project(x, w) for w in weights], axis=1) if factors is None else _product(x, factors)

    def _factors_of(self, owner: Any, weights: tuple[Tensor, ...]) -> list[np.ndarray] | None:
        """What a row is multiplied by for the products with `weights` side by side; None if there is no memory for it, or another rule."""
        found = self._factors.get(id(owner))
        if found is None:
            size = sum(w.size for w in weights) * np.dtype(self.numeric.real).itemsize
            fits = size <= self._free and not any(len(w.shape) != 2 or self._takes_codes(w) for w in weights)
            self._free -= size if fits else 0
            found = self._factors[id(owner)] = owner, factors(weights, self.numeric.real) if fits else None
        return found[1]

    def _runs_of(self, w: Tensor) -> np.ndarray | None:
        """The codes of an a8 weight as numbers, by runs; None if there is no memory for it."""
        found = self._runs.get(id(w))
        if found is None:
            size = w.size * 4
            fits = size <= self._free
            self._free -= size if fits else 0
            found = self._runs[id(w)] = w, activation.runs_of(w) if fits else None
        return found[1]

    def _kept(self, w: Tensor) -> np.ndarray | None:
        if id(w) not in self._decoded:
            size = w.size * np.dtype(self.numeric.real).itemsize
            if size > self._free:
                return None
            self._free -= size
            kept = w.decode(None, self.numeric.real)
            kept.flags.writeable = False
            self._decoded[id(w)] = w, kept
        return self._decoded[id(w)][1]

    def _takes_codes(self, w: Tensor) -> bool:
        """Whether the rule of the weight's dtype has activations quantised."""
        return w.dtype.act == "a8" and self.numeric.casts

    def _project_codes(self, codes: np.ndarray, scales: np.ndarray, w: Tensor, rows: slice | None) -> np.ndarray:
        """Products of activation codes with a matrix or a bank in tiles of 128 x 128 (see `activation.contract`)."""
        taken, matmul = rows or slice(None), self.numeric.matmul
        runs = self._runs_of(w) if self.numeric.fast and rows is None and len(w.shape) == 2 else None
        if runs is not None:
            return activation.contract_runs(codes, scales, runs, w.planes["gain"])
        if len(w.shape) == 2:
            return activation.contract(codes, scales, w, rows=taken, matmul=matmul)
        planes = [{path: plane[expert] for path, plane in w.planes.items()} for expert in range(w.shape[0])[taken]]
        parts = [activation.contract(codes, scales, Tensor(w.dtype, w.shape[1:], expert), matmul=matmul) for expert in planes]
        return np.concatenate([np.zeros((len(codes), 0), np.float32), *parts], axis=1)


def _product(x: np.ndarray, factors: list[np.ndarray]) -> np.ndarray:
    """x [N, K] times matrices [K, M_i] side by side."""
    if 1 < len(x) <= VECTOR_ROWS:
        return np.concatenate([_product(row, factors) for row in x[:, None]])
    if len(factors) == 1:
        return x.dot(factors[0])
    return np.concatenate([x.dot(factor) for factor in factors], axis=1)


def factors(weights: tuple[Tensor, ...], real: type) -> list[np.ndarray]:
    """The transposes of matrices [M, K], one below the other, in the order in which BLAS reads them fastest for one row: runs as long as
    possible, that is columns, of at most `COLUMN` weights, or rows where a matrix is wider than high."""
    rows, columns = sum(w.shape[0] for w in weights), weights[0].shape[1]
    parts = 1 if rows < columns else -(-rows // COLUMN)
    bounds = [rows * part // parts for part in range(parts + 1)]
    matrices = (_rows(weights, start, stop, real) for start, stop in pairwise(bounds))
    return [matrix.T if rows < columns else np.asfortranarray(matrix).T for matrix in matrices]


def _rows(weights: tuple[Tensor, ...], start: int, stop: int, real: type) -> np.ndarray:
    """Rows start .. stop - 1 of matrices one below the other."""
    parts, first = [], 0
    for w in weights:
        own = slice(max(start - first, 0), min(stop - first, w.shape[0]))
        if own.start < own.stop:
            parts.append(w.decode(own, real))
        first += w.shape[0]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _tiled_like_activations(w: Tensor) -> bool:
    return str(w.dtype.term) == f"g{activation.RUN}x{activation.RUN}_e4m3_f32_n"
