"""Deployments against the goldens beside their package."""

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
from conformance.traces import beside, traced
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
    """Compare deployments with the goldens beside the package: the first model's here, the others' in processes beside this one."""
    by_model: dict[str, list[Deployment]] = {}
    for deployment in chosen:
        by_model.setdefault(deployment.model.id, []).append(deployment)
    pool(options.seed)  # made here, as the modules above are loaded here: each of the processes would do it for itself
    works = [partial(_compare_shipped, package, deployments, folders, options) for deployments in by_model.values()]
    outcomes = [beside(work) for work in works[1:]] if options.backend is None else works[1:]  # a device stays in one process
    traces = []
    apart: list[str] = []
    for found in (work() for work in [*works[:1], *outcomes]):
        traces += found.traces
        report.comparisons += found.comparisons
        apart += found.apart
        for note in found.notes:
            package.note(note)
    if apart:
        what = "traced only" if options.backend is None else f"compared on {options.backend} only"
        report.notes.append(f"{what}, since an import changes their weights: {', '.join(apart)}")
    return traces


@dataclass(slots=True)
class _Compared:
    """What comparing some deployments found. apart: those whose weights an import changes. notes: of the package."""

    traces: list[Trace]
    comparisons: list[Comparison]
    apart: list[str]
    notes: list[str]


def _compare_shipped(package: Package, chosen: Sequence[Deployment], folders: Mapping[str, Path | None], options: Options) -> _Compared:
    """Compare deployments with the goldens beside the package."""
    found = _Compared([], [], [], [])
    goldens: dict[str, tuple[Golden, Checkpoint]] = {}
    twins: dict[str, Subject] = {}
    for deployment in chosen:
        graph = package.check(deployment)
        found.traces.append(traced(graph))
        model = deployment.model.id
        folder = folders[model]
        assert folder is not None
        if model not in goldens:
            goldens[model] = open_golden(folder), open_checkpoint(folder)
        golden, checkpoint = goldens[model]
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
        subject = subject_of(plan, graph, golden, options, twins.get(model))
        found.comparisons += _on_backend(package, subject, options)
        if inexact(plan):
            found.apart += [deployment.name] if deployment.name not in found.apart else []
            continue
        twins.setdefault(model, subject)
        found.comparisons += [subject.compared(mode) for mode in options.modes]
    found.notes = list(package.notes)
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
