"""`check`: everything `poem check` does, from its options to a `Report`."""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.golden import Golden, open_golden, shipped_golden
from conformance.options import Options
from conformance.report import Comparison, Report, Trace
from conformance.traces import beside, trace_beside, traced
from poem.checkpoint import Checkpoint, open_checkpoint
from poem.dataclass import dataclass
from poem.dtypes import FLOATS
from poem.errors import PoemError, UsageError
from poem.package import load_package
from poem.suggest import did_you_mean

if TYPE_CHECKING:
    from conformance.compare import Subject
    from poem.language.declarations import Deployment
    from poem.package import Package


def check(options: Options, progress: Callable[[str], None] = lambda text: None) -> Report:
    """Load, trace, compare. progress: told what takes long.

    Raises PoemError for whatever cannot be loaded, traced, read or run.
    """
    start = time.perf_counter()
    _refuse_contradictions(options)
    package = load_package(options.package)
    report = Report(package.name, str(package.path), [], [], [], options.seed, _command(options))
    if options.checkpoint or options.golden:
        from conformance.given import compare_given

        compare_given(package, options, report, progress)
    else:
        _check_shipped(package, _chosen(package, options), options, report)
    report.notes += list(package.notes)
    report.seconds = time.perf_counter() - start
    return report


def _refuse_contradictions(options: Options) -> None:
    if options.save_golden and not options.against:
        raise UsageError(
            "check.usage", "--save-golden keeps what an original gave, and nothing else", phase="check",
            expected="--against transformers", hint="poem-check MODEL.poem --checkpoint DIR --against transformers --save-golden DIR",
        )  # fmt: skip
    if options.against and not options.checkpoint:
        raise UsageError(
            "check.usage", "--against runs the original class from a checkpoint's config", phase="check", expected="--checkpoint DIR"
        )


def _chosen(package: "Package", options: Options) -> "list[Deployment]":
    """The deployments asked for, in listed order. DeploymentNameError or UsageError for a name that is none."""
    if options.deployment is not None:
        return [package.deployment(options.deployment)]
    if options.model is None:
        return list(package.deployments.values())
    if options.model not in package.models:
        raise UsageError(
            "check.model", f"{package.name} has no model `{options.model}`", phase="check", file=str(package.path),
            expected=", ".join(package.models), hint=did_you_mean(options.model, package.models),
        )  # fmt: skip
    return [deployment for deployment in package.deployments.values() if deployment.model.id == options.model]


def _check_shipped(package: "Package", chosen: "Sequence[Deployment]", options: Options, report: Report) -> None:
    """Trace every chosen deployment, and compare those of models whose golden lies beside the package."""
    names = {name for deployment in chosen for name in (deployment.name, deployment.model.id)}
    folders = {name: shipped_golden(package.path, package.name, name) for name in names} if package.path is not None else {}
    plain = [deployment for deployment in chosen if folders.get(deployment.model.id) is None]
    outcome = trace_beside(package, plain)
    compared = [deployment for deployment in chosen if folders.get(deployment.model.id) is not None]
    own = _compare_models(package, compared, folders, options, report)
    by_name = {trace.deployment: trace for trace in [*outcome(), *own]}
    report.traces = [by_name[deployment.name] for deployment in chosen]
    if not compared:
        minis = ", ".join(dict.fromkeys(deployment.model.id for deployment in chosen if deployment.model.mini))
        report.notes.append(
            (f"no golden beside the package for {minis}" if minis else "no mini model is declared here")
            + f": nothing was compared. To make one: poem-check {options.package} --checkpoint DIR --against transformers "
            + f"--save-golden {Path(options.package).parent / 'goldens' / package.name / 'MODEL-ID'}"
        )


def _compare_models(
    package: "Package", chosen: "Sequence[Deployment]", folders: Mapping[str, Path | None], options: Options, report: Report
) -> list[Trace]:
    """Compare deployments with the goldens beside the package: the first model's here, the others' in processes beside this one."""
    by_model: dict[str, list[Deployment]] = {}
    for deployment in chosen:
        by_model.setdefault(deployment.model.id, []).append(deployment)
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


def _compare_shipped(package: "Package", chosen: "Sequence[Deployment]", folders: Mapping[str, Path | None], options: Options) -> _Compared:
    """Compare deployments with the goldens beside the package."""
    # The interpreter, the importer and the bounds are loaded while the other process traces.
    from conformance.planned import inexact, subject_of
    from poem.importer import plan_import

    found = _Compared([], [], [], [])
    goldens: dict[str, tuple[Golden, Checkpoint]] = {}
    twins: dict[str, Subject] = {}
    for deployment in chosen:
        graph = package.trace(deployment)
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


def _on_backend(package: "Package", subject: "Subject", options: Options) -> "list[Comparison]":
    """The comparison with a backend, if one is asked for. A deployment that was not named and has no kernels is a note."""
    if options.backend is None:
        return []
    from conformance.backend import compare_on_backend

    try:
        return [compare_on_backend(subject, options.backend)]
    except PoemError as refusal:
        if options.deployment is not None or refusal.code != "kernel.unsupported":
            raise
        package.note(f"{subject.graph.deployment} is not compared on {options.backend}: {refusal.message}, {refusal.found}")
        return []


def _command(options: Options) -> list[str]:
    """The command that repeats the check; a deployment, a mode and a tensor may follow."""
    words = ["poem-check", options.package]
    for name in ("checkpoint", "golden", "against"):
        value = getattr(options, name)
        words += [f"--{name}", value] if value else []
    return [*words, "--seed", str(options.seed)] if options.seed else words
