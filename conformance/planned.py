"""From an import plan to a `Subject`: its weights, and which checkpoint tensor lands where."""

import fnmatch
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from conformance.align import Landing
from conformance.arithmetic import PRECISION
from conformance.compare import Subject
from conformance.golden import Golden
from conformance.options import Options
from poem.dtypes.tensor import Tensor
from poem.graph import Graph
from poem.importer import ImportPlan


def inexact(plan: ImportPlan) -> str:
    """Why the weights of a plan are not the checkpoint's own numbers, or ""."""
    for landing in plan.landings.values():
        if landing.action in ("encoded", "decoded"):
            return f"{landing.param.name} is {landing.action} on import"
        if landing.action == "cast" and PRECISION[landing.stored.dtype.name][0] > PRECISION[landing.dtype.name][0]:
            return f"{landing.param.name} is cast from {landing.stored.dtype} to {landing.dtype} on import"
    return ""


def subject_of(
    plan: ImportPlan, graph: Graph, golden: Golden, options: Options, twin: Subject | None = None, plain: Golden | None = None
) -> Subject:
    """What a plan gives, to be compared with a golden. twin: another deployment of the model, whose exact runs may serve.
    plain: what the class itself computes for the model, to tell what quantising costs."""
    weights, files, selected = _Kept(plan.weights), plan.package.files, _selection(options.only)
    return Subject(graph, weights, lambda: landings_of(plan), golden, files, seed=options.seed, selected=selected, twin=twin, plain=plain)


def _selection(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda name: True
    return lambda name: fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*{pattern}*")


class _Kept(Mapping[str, Tensor]):
    """Weights of a plan, each made once."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights = weights
        self._made: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._made:
            self._made[name] = self._weights[name]
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def landings_of(plan: ImportPlan) -> list[Landing]:
    """Which checkpoint tensor lands where in which weight."""
    found = []
    for name, prepared in plan.landings.items():
        uses = prepared.array.uses
        shapes = [tuple(plan.checkpoint.shape(use.name)) for use in uses]
        joined = all(use.axis is None for use in uses) and sum(shape[0] for shape in shapes if shape) == prepared.param.shape[0]
        start = 0
        for use, shape in zip(uses, shapes, strict=True):
            whole = joined and shape[1:] == prepared.param.shape[1:] and _unchanged(plan, name, use.name, start, shape)
            found.append(Landing(use.name, name, start if joined else 0, whole))
            start += shape[0] if shape else 0
    return found


def _unchanged(plan: ImportPlan, name: str, tensor: str, start: int, shape: tuple[int, ...]) -> bool:
    """Whether some rows of a weight are those of the tensor. Quantised ones are taken to be."""
    param = plan.landings[name].param
    stored = plan.checkpoint.tensor(tensor)
    if not stored.dtype.is_leaf or not plan.landings[name].dtype.is_leaf:
        return True
    landed = plan.landings[name]
    for row in {0, shape[0] // 2, shape[0] - 1} if param.shape else ():
        if not np.array_equal(landed.rows(start + row, start + row + 1).decode(), stored.decode(slice(row, row + 1))):
            return False
    return True
