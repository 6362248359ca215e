"""One weight on its way from the checkpoint to its dtype: what is done to it, and its rows on demand."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.dtypes.slicing import GroupSplit, TileBoundary
from poem.dtypes.tensor import STORAGE, Tensor
from poem.errors import CheckpointError
from poem.formats.declared import Where
from poem.formats.lazy import FLOAT_LEAVES, Lazy, Refusal, converted, decoded
from poem.graph import Param
from poem.importer.reexpress import can_reexpress, inexact, reexpress

Action = Literal["copied", "cast", "encoded", "decoded"]
STRIP_BYTES = 8 << 20  # of f32 values: what is held beside the mapped files while a weight streams


@dataclass(frozen=True, slots=True)
class Prepared:
    """A weight that has been checked and not been read.

    stored: as the checkpoint has it. array: in its own dtype, or the floats to encode. action: what is done to the
    stored values. copies: duplicates of a tied weight, which must hold the same bytes as `stored`.
    """

    param: Param
    stored: Lazy
    array: Lazy
    action: Action
    where: Where
    copies: tuple[Lazy, ...] = ()

    @property
    def dtype(self) -> Dtype:
        return Dtype(self.param.dtype)

    def strips(self) -> Iterator[tuple[int, int]]:
        """Ranges of rows of the first axis that together are the weight, each small enough to be held as f32."""
        rows, below = self.array.shape[0], math.prod(self.array.shape[1:]) * 4
        step = max(1, STRIP_BYTES // max(1, below))
        if len(self.array.shape) == 2 and self.dtype.is_quantised:
            step = -(-step // self.dtype.quantum[0]) * self.dtype.quantum[0]
        return ((start, min(start + step, rows)) for start in range(0, rows, step))

    def rows(self, start: int, stop: int) -> Tensor:
        """Rows of the first axis. Only for a weight whose dtype is a leaf."""
        return self._placed(lambda: self.array.read(start, stop))

    def whole(self) -> Tensor:
        """The weight: a view of the checkpoint where its bytes can be used as they are."""
        self.check_copies()
        if self.action == "encoded":
            return self._placed(self._encode)
        if self.action == "copied":
            return self._placed(self.array.whole)
        out = np.empty(self.array.shape, STORAGE[self.dtype.name])
        for start, stop in self.strips():
            out[start:stop] = self.rows(start, stop).planes["data"]
        return Tensor(self.dtype, self.array.shape, {"data": out})

    def _encode(self) -> Tensor:
        """Quantised as its term says. The floats are read twice, a strip at a time, and never held as a whole."""
        shape = self.array.shape
        strips = list(self.strips()) if len(shape) > 1 else [(0, shape[0])]
        return Tensor.encode_rows(_Rows(self.array, strips), shape, self.dtype)

    def check_copies(self) -> None:
        """Refuse (`import.tied-differs`) a checkpoint whose second tensor of a tied weight holds other bytes."""
        own, rows = self.stored, self.stored.shape[0]
        for copy in self.copies:
            same = (copy.shape, copy.dtype, copy.word) == (own.shape, own.dtype, own.word)
            for start, stop in (self.strips() if copy.dtype.is_leaf else [(0, rows)]) if same else ():
                one, other = (lazy.read(start, stop).planes for lazy in (copy, own))
                if not all(np.array_equal(_bytes(one[path]), _bytes(other[path])) for path in other):
                    same = False
                    break
            if not same:
                raise self._error(
                    Refusal(
                        "import.tied-differs",
                        f"{_names(copy)} differs from {_names(own)}, but this model ties them",
                        expected=f"the same bytes as {list(own.shape)} {own.word}",
                        found=f"{list(copy.shape)} {copy.word}",
                        hint="choose a model whose layout has both",
                    )
                )

    def _placed(self, produce: Callable[[], Tensor]) -> Tensor:
        try:
            return produce()
        except Refusal as refusal:
            raise self._error(refusal) from None
        except (GroupSplit, TileBoundary) as fault:
            code = "import.group-split" if isinstance(fault, GroupSplit) else "import.tile-boundary"
            raise self._error(Refusal(code, str(fault))) from None
        except ValueError as fault:  # the encoder's: a value that the dtype cannot hold
            raise self._error(Refusal("import.bad-value", f"it cannot be stored as {self.dtype}: {fault}")) from None

    def _error(self, refusal: Refusal) -> CheckpointError:
        return placed(refusal, self.param, self.where)


class _Rows:
    """Rows of the matrix `[..., K]` of a float weight, on call; the checkpoint is read a strip of the first axis at a time."""

    def __init__(self, array: Lazy, strips: list[tuple[int, int]]) -> None:
        self._array, self._strips = array, strips
        self._below = math.prod(array.shape[1:-1])
        self._start, self._held = 0, np.zeros((0, array.shape[-1]), np.float32)

    def __call__(self, rows: slice) -> np.ndarray:
        """Rows that lie in the strip held, or from its end on: whoever reads goes on in order, or starts anew."""
        parts = []
        at = rows.start
        while at < rows.stop:
            if not self._start <= at < self._start + len(self._held):
                start, stop = self._strips[at // self._below // self._strips[0][1]]  # all but the last are alike
                self._start = start * self._below
                self._held = self._array.read(start, stop).decode().reshape(-1, self._array.shape[-1])
            parts.append(self._held[at - self._start : rows.stop - self._start])
            at += len(parts[-1])
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


def prepare(param: Param, array: Lazy, where: Where, *, requantise: bool, rounded: Sequence[str] = ()) -> Prepared:
    """Decide how what a landing reads becomes its weight, without reading codes. Raises Refusal.

    rounded: why codes are not kept though their term could be (`keeping_codes`).
    """
    wanted = Dtype(param.dtype)
    if array.shape != param.shape:
        transposed = array.shape == param.shape[::-1]
        raise Refusal(
            "import.shape", f"the shape of {_names(array)} does not fit", expected=str(list(param.shape)), found=str(list(array.shape)),
            hint="transposed?" if transposed else "",
        )  # fmt: skip
    if array.dtype is wanted:
        return Prepared(param, array, array, "decoded" if array.quantised and wanted.is_leaf else "copied", where)
    if wanted.is_leaf:
        action: Action = "decoded" if array.quantised else "cast"
        return Prepared(param, array, converted(array, wanted), action, where)
    if array.quantised and not requantise:
        said = f" ({rounded[0]})" if rounded else ""
        raise Refusal(
            "import.requantise", f"{_names(array)} is stored as {array.word}, and would be decoded and quantised again" + said,
            expected=wanted.name, found=array.word, hint="name the deployment and ask for it: --deployment NAME --requantise",
        )  # fmt: skip
    floats = decoded(array)
    if floats.dtype.name not in FLOAT_LEAVES:
        raise Refusal("import.illegible", f"{_names(array)} holds integers", expected=wanted.name, found=array.word)
    return Prepared(param, array, floats, "encoded", where)


def keeping_codes(wanted: Dtype, rounded: list[str]) -> Callable[[Lazy], Lazy]:
    """What is done to a stored weight for a quantised target: codes that re-express exactly take the wanted term.

    rounded: gets a line for every weight whose factors would be rounded, so that its codes cannot be kept.
    """

    def apply(array: Lazy) -> Lazy:
        if array.dtype is wanted or not array.dtype.is_quantised or not can_reexpress(array.dtype, wanted):
            return array
        problem = inexact(array.dtype, wanted, array.factors())
        if problem:
            rounded.append(f"{_names(array)}: {problem}")
            return array

        def read(start: int, stop: int) -> Tensor:
            return reexpress(array.read(start, stop), wanted)

        return Lazy(array.shape, wanted, read, array.word, True, array.uses, array.direct)

    return apply


def placed(refusal: Refusal, param: Param, where: Where) -> CheckpointError:
    """A refusal as the user's error: at the line of the package that lands the weight."""
    frame = where[-1] if where else None
    return CheckpointError(
        refusal.code, f"{param.name}: {refusal.message}", phase="import", file=frame.file if frame else "", line=frame.line if frame else 0,
        expected=refusal.expected, found=refusal.found, hint=refusal.hint,
    )  # fmt: skip


def _names(array: Lazy) -> str:
    names = list(dict.fromkeys(use.name for use in array.uses))
    return f"`{names[0]}`" + (f" and {len(names) - 1} more" if len(names) > 1 else "") if names else "the expression"


def _bytes(plane: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(plane).reshape(-1).view(np.uint8)
