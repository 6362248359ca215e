"""`check`: everything `poem check` does, from its options to a `Report`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.folders import shipped_golden
from conformance.options import Options
from conformance.report import Report, Trace
from conformance.traces import start_tracing
from poem.errors import UsageError
from poem.package import load_package
from poem.suggest import did_you_mean

if TYPE_CHECKING:
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
    if options.only is not None and report.comparisons:
        _drop_unjudged(report, options.only)
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


def _drop_unjudged(report: Report, pattern: str) -> None:
    """Nothing agrees that was not looked at. UsageError where the pattern leaves nothing at all."""
    judged = [comparison for comparison in report.comparisons if comparison.rows or comparison.ops or comparison.greedy]
    if not judged:
        raise UsageError(
            "check.only", f"no tensor that is compared has `{pattern}` in its name", phase="check",
            expected="part of a name such as hidden.1, logits, greedy, attention.0.query or module.model.norm.output",
        )  # fmt: skip
    left = [f"{comparison.deployment} ({comparison.mode})" for comparison in report.comparisons if comparison not in judged]
    report.notes += [f"`{pattern}` names no tensor of {', '.join(left)}"] if left else []
    report.comparisons = judged


def _check_shipped(package: "Package", chosen: "Sequence[Deployment]", options: Options, report: Report) -> None:
    """Trace every chosen deployment, and compare those of models whose golden lies beside the package."""
    names = {name for deployment in chosen for name in (deployment.name, deployment.model.id)}
    folders = {name: shipped_golden(package.path, package.name, name) for name in names} if package.path is not None else {}
    plain = [deployment for deployment in chosen if folders.get(deployment.model.id) is None]
    outcome = start_tracing(package, plain)
    compared = [deployment for deployment in chosen if folders.get(deployment.model.id) is not None]
    own: list[Trace] = []
    if compared:
        from conformance.shipped import compare_models  # NumPy and the interpreter are loaded while others trace

        own = compare_models(package, compared, folders, options, report)
    by_name = {trace.deployment: trace for trace in [*outcome(), *own]}
    report.traces = [by_name[deployment.name] for deployment in chosen]
    if not compared:
        minis = ", ".join(dict.fromkeys(deployment.model.id for deployment in chosen if deployment.model.mini))
        report.notes.append(
            (f"no golden beside the package for {minis}" if minis else "no mini model is declared here")
            + f": nothing was compared. To make one: poem-check {options.package} --checkpoint DIR --against transformers "
            + f"--save-golden {Path(options.package).parent / 'goldens' / package.name / 'MODEL-ID'}"
        )


def _command(options: Options) -> list[str]:
    """The command that repeats the check; a deployment, a mode and a tensor may follow."""
    words = ["poem-check", options.package]
    for name in ("checkpoint", "golden", "against"):
        value = getattr(options, name)
        words += [f"--{name}", value] if value else []
    return [*words, "--seed", str(options.seed)] if options.seed else words
