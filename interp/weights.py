"""`WeightStore`: weights as ops read them, decoded as late and as little as the memory allows."""

from collections.abc import Mapping

import numpy as np

from interp.numeric import Numeric
from poem.dtypes import activation
from poem.dtypes.tensor import Tensor
from poem.errors import PoemError
from poem.graph import Param

# Products with a weight that is not kept decoded run over strips of rows of about this many decoded bytes.
STRIP_BYTES = 1 << 25
# In the fast setting up to this many rows are multiplied one by one: BLAS reads a matrix faster for a vector than for few rows.
VECTOR_ROWS = 4


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
        self._factors: dict[int, np.ndarray] = {}  # [K, M], for products of the fast setting

    def tensor(self, param: Param) -> Tensor:
        """The stored tensor of a param. Raises PoemError (`run.weight`) if it is missing or not what the graph wants."""
        found = self._tensors.get(param.id)
        if found is None:
            name = next((name for name in (param.name, *param.aliases) if name in self._weights), None)
            if name is None:
                raise PoemError("run.weight", f"there is no weight `{param.name}`", phase="run")
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
        factor = self._factors.get(id(w))
        if factor is not None and rows is None:
            if 1 < len(x) <= VECTOR_ROWS:
                return np.stack([np.dot(row, factor) for row in x])
            return np.dot(x, factor)
        if w.dtype.act == "a8" and self.numeric.casts:
            codes, scales = activation.quantise(x)
            if _tiled_like_activations(w) and not self.numeric.exact:
                return self._project_codes(codes, scales, w, rows)
            x = activation.dequantise(codes, scales, self.numeric.real)
        start, stop, _ = (rows or slice(None)).indices(w.shape[0])
        kept = self._kept(w)
        if kept is not None and self.numeric.fast and kept.ndim == 2:
            self._factors[id(w)] = kept.T
        if kept is not None and (self.numeric.fast or self.numeric.exact):
            return self.numeric.matmul(x, kept[start:stop].reshape(-1, w.shape[-1]))
        # The reference setting cuts weights into the same strips whether they are kept or not: same shapes, same bits.
        step = max(1, STRIP_BYTES * w.shape[0] // (w.size * np.dtype(self.numeric.real).itemsize))
        strips = [slice(first, min(first + step, stop)) for first in range(start, stop, step)]
        parts = [self.numeric.matmul(x, self.decode(w, strip).reshape(-1, w.shape[-1])) for strip in strips]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)

    def _kept(self, w: Tensor) -> np.ndarray | None:
        if id(w) not in self._decoded:
            size = w.size * np.dtype(self.numeric.real).itemsize
            if size > self._free:
                return None
            self._free -= size
            kept = w.decode(None, self.numeric.real)
            if self.numeric.fast and kept.ndim == 2:
                # Column after column: a product with one row then runs over whole columns, which BLAS does fastest.
                kept = np.asfortranarray(kept)
            kept.flags.writeable = False
            self._decoded[id(w)] = w, kept
        return self._decoded[id(w)][1]

    def _project_codes(self, codes: np.ndarray, scales: np.ndarray, w: Tensor, rows: slice | None) -> np.ndarray:
        """Products of activation codes with a matrix or a bank in tiles of 128 x 128 (see `activation.contract`)."""
        start, stop, _ = (rows or slice(None)).indices(w.shape[0])
        if len(w.shape) == 3:
            planes = [{path: plane[expert] for path, plane in w.planes.items()} for expert in range(start, stop)]
            parts = [(Tensor(w.dtype, w.shape[1:], expert), slice(None)) for expert in planes]
        else:
            step = max(1, STRIP_BYTES // (4 * w.shape[-1]))
            parts = [(w, slice(first, min(first + step, stop))) for first in range(start, stop, step)]
        results = [activation.contract(codes, scales, matrix, rows=part, matmul=self.numeric.matmul) for matrix, part in parts]
        return np.concatenate([np.zeros((len(codes), 0), np.float32), *results], axis=1)


def _tiled_like_activations(w: Tensor) -> bool:
    return str(w.dtype.term) == f"g{activation.RUN}x{activation.RUN}_e4m3_f32_n"
