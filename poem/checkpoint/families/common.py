"""What the families share: names of companions, and weights whose planes lie in the checkpoint as they are."""

from collections.abc import Callable, Iterable, Mapping

import numpy as np

from poem.checkpoint.scales import bad_scale
from poem.checkpoint.stored import RawTensor, Stored, Table
from poem.dtypes import Dtype, Plane
from poem.dtypes.slicing import select
from poem.dtypes.tensor import STORAGE, Tensor
from poem.errors import CheckpointError

ACTIVATION_SCALES = ("input_scale", "activation_scale", "input_global_scale")
# Tensors that hold a part of a weight `P.weight`: P.weight<ending>, and P.<sibling>.
ENDINGS = (
    "_scale", "_scale_inv", "_scale_2", "_global_scale", "_zero_point", "_g_idx", "_shape", "_packed", "_blocks", "_scales"
)  # fmt: skip
SIBLINGS = ("scales", "biases", "qweight", "qzeros", "g_idx", "pre_quant_scale")
Codes = Callable[[int, int], np.ndarray]  # rows of the first axis as a plane of packed codes
FactorsOfRows = Callable[[int, int], Mapping[str, np.ndarray]]  # rows of all other planes, by path


def module_of(name: str) -> str:
    """A name without its ending `.weight`."""
    return name.removesuffix(".weight")


def companions(table: Table, name: str, *found: RawTensor | None) -> tuple[str, ...]:
    """The names of all tensors that count as read with a weight: those given, and static scales of its activations.

    Poem leaves activations alone or quantises them as they come, so their static scales are read and dropped.
    """
    module = module_of(name)
    joint = "." if name.endswith(".weight") else "_"
    dropped = [f"{module}{joint}{scale}" for scale in ACTIVATION_SCALES]
    return (*(tensor.name for tensor in found if tensor is not None), *(scale for scale in dropped if scale in table))


def unexplained(table: Table, stored: Stored) -> list[str]:
    """Tensors that by their names are parts of the same weight, and that its scheme does not read."""
    if not stored.name.endswith(".weight"):  # other names may end in `_scale` and be weights of their own
        return []
    module = module_of(stored.name)
    parts = (stored.name, *(stored.name + ending for ending in ENDINGS), *(f"{module}.{sibling}" for sibling in SIBLINGS))
    return [part for part in parts if part in table and part not in stored.tensors]


def from_planes(
    name: str, word: str, dtype: Dtype, shape: tuple[int, ...], tensors: tuple[str, ...], codes: RawTensor | Codes,
    factors: Mapping[str, RawTensor | np.ndarray] | FactorsOfRows, *, zeros: bool = False, check: Callable[[], Iterable[str]] = tuple,
) -> Stored:  # fmt: skip
    """A stored weight whose planes are tensors of the checkpoint.

    codes: a tensor that holds them, viewed with the shape that the term gives; or what rearranges rows of them. factors:
    all other planes by path, as tensors or arrays, or what computes rows of them. zeros: whether a scale may be zero. check:
    what else is to be checked in the data; gives notes.
    """
    given = dict(factors) if isinstance(factors, Mapping) else {}
    segments = {path: plane.nbytes // 8 for path, plane in given.items() if path.rpartition(".")[2] == "rows"}
    try:
        wanted = {plane.path: plane for plane in dtype.planes(shape, segments)}
    except ValueError as fault:
        return unreadable(name, word, shape, tensors, str(fault))
    for path, plane in (given | ({"code": codes} if isinstance(codes, RawTensor) else {})).items():
        problem = _misfit(path, plane, wanted[path], shape, word)
        if problem:
            return unreadable(name, word, shape, tensors, problem)

    def arrays() -> dict[str, np.ndarray]:
        if not isinstance(factors, Mapping):
            return dict(factors(0, shape[0]))
        return {path: viewed(plane, wanted[path]) for path, plane in factors.items()}

    def read(start: int, stop: int) -> Tensor:
        if isinstance(codes, RawTensor):
            whole = Tensor(dtype, shape, {"code": viewed(codes, wanted["code"]), **arrays()})
            return whole if (start, stop) == (0, shape[0]) else select(whole, 0, range(start, stop))
        assert not isinstance(factors, Mapping)  # rearranged codes come with rearranged factors
        return Tensor(dtype, (stop - start, *shape[1:]), {"code": codes(start, stop), **factors(start, stop)})

    def checked() -> tuple[str, ...]:
        wrong = bad_scale(dtype.term, arrays(), zeros=zeros)
        if wrong is not None:
            path, index, reason = wrong
            held = given.get(path)
            where = f"`{held.name}` at {list(index)}" if isinstance(held, RawTensor) else f"the {path} of `{tensors[0]}` at {list(index)}"
            raise CheckpointError(
                "import.bad-scale", f"a scale of `{name}` is {reason}", phase="import",
                file=str(held.file.path) if isinstance(held, RawTensor) else "", found=where,
                hint="the checkpoint is damaged, or was quantised wrongly",
            )  # fmt: skip
        return tuple(check())

    return Stored(name, word, shape, dtype, tensors, read, factors=arrays, check=checked)


def _misfit(path: str, plane: RawTensor | np.ndarray, wanted: Plane, shape: tuple[int, ...], word: str) -> str:
    """Why a tensor is not the plane that the term wants, or "". Axes of extent 1 may be more or fewer."""
    held, needed = ([extent for extent in extents if extent != 1] for extents in (plane.shape, wanted.shape))
    if plane.nbytes == wanted.nbytes and (path == "code" or held == needed):
        return ""
    named = f"`{plane.name}` " if isinstance(plane, RawTensor) else ""
    return (
        f"the {path} of {list(shape)} {word} is {list(wanted.shape)} {wanted.leaf} in {wanted.nbytes} bytes, "
        f"found {named}{list(plane.shape)} in {plane.nbytes}"
    )


def viewed(plane: RawTensor | np.ndarray, wanted: Plane) -> np.ndarray:
    """A tensor's bytes as a plane of the term: a view of the file where its address allows."""
    if isinstance(plane, np.ndarray):
        return plane
    storage = STORAGE[wanted.leaf]
    raw = plane.raw()
    return (raw.copy() if plane.offset % storage.itemsize else raw).view(storage).reshape(wanted.packed_shape)


def unreadable(name: str, word: str, shape: Iterable[int], tensors: tuple[str, ...], problem: str) -> Stored:
    """A stored weight that was recognised and cannot be read; `problem` says why."""

    def read(start: int, stop: int) -> Tensor:
        raise ValueError(problem)

    return Stored(name, word, tuple(shape), Dtype("u8"), tensors, read, problem=problem)


def illegible(name: str, tensor: RawTensor, problem: str, found: str) -> CheckpointError:
    """An `import.illegible` for something that only the data shows."""
    return CheckpointError(
        "import.illegible", f"cannot read `{name}`: {problem}", phase="import", file=str(tensor.file.path),
        found=f"`{tensor.name}` {found}", hint="look for the same model in safetensors with bf16, f16 or f32 weights",
    )  # fmt: skip
