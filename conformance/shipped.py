"""Deployments against the goldens beside their package."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import interp.ops.attn
import interp.ops.elemwise
import interp.ops.gather
import interp.ops.linear  # noqa: F401
from conformance.compare import Subject
from conformance.golden import Golden, open_golden
from conformance.options import Options
from conformance.perturbed import pool
from conformance.planned import inexact, subject_of
from conformance.report import Comparison, Report, Trace
from conformance.shared import shared
from conformance.traces import noted, told, traced
from poem.checkpoint import Checkpoint, open_checkpoint
from poem.dataclass import dataclass
from poem.dtypes import FLOATS
from poem.errors import PoemError
from poem.importer import plan_import
from poem.language.declarations import Deployment
from poem.package import Package


def compare_models(
    package: Package, chosen: Sequence[Deployment], folders: Mapping[str, Path | None], options: Options, report: Report
) -> list[Trace]:
    """Compare deployments with the goldens beside the package, in processes beside this one where there are cores for them."""
    pool(options.seed)  # made here, as the modules above are loaded here: each of the processes would do it for itself
    originals = {}
    for model in dict.fromkeys(deployment.model.id for deployment in chosen):
        folder = folders[model]
        assert folder is not None
        originals[model] = open_golden(folder), open_checkpoint(folder)
    works = [
        partial(noted, package, partial(_compare, package, together, folders, originals, options))
        for together in _together(chosen, folders)
    ]  # fmt: skip
    processes = 0 if options.backend is not None else min(os.cpu_count() or 1, len(works)) - 1  # a device stays in one process
    outcomes = told(package, shared(works, processes)())
    order = {deployment.name: place for place, deployment in enumerate(chosen)}
    report.comparisons += sorted((item for found in outcomes for item in found.comparisons), key=lambda item: order[item.deployment])
    apart = sorted((name for found in outcomes for name in found.apart), key=order.__getitem__)
    if apart:
        what = "traced only" if options.backend is None else f"compared on {options.backend} only"
        report.notes.append(f"{what}, since an import changes their weights: {', '.join(apart)}")
    return [trace for found in outcomes for trace in found.traces]


def _together(chosen: Sequence[Deployment], folders: Mapping[str, Path | None]) -> list[list[Deployment]]:
    """What is compared by itself: each deployment with a golden of its own; and those of a model that share the model's, for they share
    exact runs too."""
    groups: dict[str, list[Deployment]] = {}
    for deployment in chosen:
        own = folders.get(deployment.name) is not None
        groups.setdefault(deployment.name if own else deployment.model.id, []).append(deployment)
    return sorted(groups.values(), key=len, reverse=True)  # the longest work first


@dataclass(slots=True)
class _Compared:
    """What comparing some deployments found. apart: those whose weights an import changes."""

    traces: list[Trace]
    comparisons: list[Comparison]
    apart: list[str]


def _compare(
    package: Package, chosen: Sequence[Deployment], folders: Mapping[str, Path | None],
    originals: Mapping[str, tuple[Golden, Checkpoint]], options: Options,
) -> _Compared:  # fmt: skip
    """Compare deployments of one model. originals: its golden and its weights, by model."""
    found = _Compared([], [], [])
    twin: Subject | None = None
    for deployment in chosen:
        graph = package.check(deployment)
        found.traces.append(traced(graph))
        golden, checkpoint = originals[deployment.model.id]
        stated = folders.get(deployment.name)
        if stated is not None:
            plan = plan_import(checkpoint, [package], deployment=deployment.name)
            subject = subject_of(plan, graph, open_golden(stated), options, plain=golden)
            found.comparisons += [subject.compared(mode) for mode in options.modes]
            found.comparisons += _on_backend(package, subject, options)
            continue
        if any(dtype.is_quantised for dtype in deployment.weights) and all(raw.leaf in FLOATS for raw in checkpoint.tensors.values()):
            found.apart.append(deployment.name)
            if options.backend is None:
                continue
        plan = plan_import(checkpoint, [package], deployment=deployment.name)
        subject = subject_of(plan, graph, golden, options, twin)
        found.comparisons += _on_backend(package, subject, options)
        if inexact(plan):
            found.apart += [deployment.name] if deployment.name not in found.apart else []
            continue
        twin = twin or subject
        found.comparisons += [subject.compared(mode) for mode in options.modes]
    return found


def _on_backend(package: Package, subject: Subject, options: Options) -> list[Comparison]:
    """The comparison with a backend, if one is asked for. A deployment that was not named and has no kernels is a note."""
    if options.backend is None:
        return []
    from conformance.backend import compare_on_backend  # loads a device's room

    try:
        return [compare_on_backend(subject, options.backend)]
    except PoemError as refusal:
        if options.deployment is not None or refusal.code != "kernel.unsupported":
            raise
        package.note(f"{subject.graph.deployment} is not compared on {options.backend}: {refusal.message}, {refusal.found}")
        return []
