"""`check`: everything `poem check` does, from its options to a `Report`."""

import fnmatch
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from poem.package import load_package

from conformance.align import Landing
from conformance.compare import Subject
from conformance.golden import INPUTS, Golden, open_golden, save_golden, shipped_golden
from conformance.report import Comparison, Report, Trace
from poem.checkpoint import Checkpoint, open_checkpoint
from poem.errors import UsageError
from poem.importer import ImportPlan, plan_import
from poem.suggest import did_you_mean

if TYPE_CHECKING:
    from poem.package import Package

    from poem.language.declarations import Deployment

GREEDY = 8  # tokens the original decodes for --against
PROMPT = 24  # tokens of a prompt drawn at random
SAMPLED_ROWS = 3  # rows that tell whether a weight is its checkpoint's tensor unchanged


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for.

    package: path or name. model, deployment: only these. checkpoint: weights. golden: a folder. against: "transformers" runs
    the original class. save_golden: where to keep what it gave. only: a pattern of tensors, files or lines.
    """

    package: str
    model: str | None = None
    deployment: str | None = None
    checkpoint: str | None = None
    golden: str | None = None
    against: Literal["transformers"] | None = None
    save_golden: str | None = None
    mode: Literal["exact", "native", "both"] = "both"
    only: str | None = None
    seed: int = 0

    @property
    def modes(self) -> tuple[str, ...]:
        return ("exact", "native") if self.mode == "both" else (self.mode,)


def check(options: Options, progress: Callable[[str], None] = lambda text: None) -> Report:
    """Load, trace, compare. progress: told what takes long.

    Raises PoemError for whatever cannot be loaded, traced, read or run.
    """
    start = time.perf_counter()
    _refuse_contradictions(options)
    package = load_package(options.package)
    chosen = _chosen(package, options)
    report = Report(package.name, str(package.path), [], [], [], options.seed, _command(options))
    if options.checkpoint or options.golden:
        _given(package, options, report, progress)
    else:
        report.traces = [_traced(package, deployment) for deployment in chosen]
        _shipped(package, chosen, options, report)
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
        return list(package.deployments)
    ids = [model.id for model in package.models]
    if options.model not in ids:
        raise UsageError(
            "check.model", f"{package.name} has no model `{options.model}`", phase="check", file=str(package.path),
            expected=", ".join(ids), hint=did_you_mean(options.model, ids),
        )  # fmt: skip
    return [deployment for deployment in package.deployments if deployment.model.id == options.model]


def _traced(package: "Package", deployment: "Deployment") -> Trace:
    graph = package.trace(deployment)
    return Trace(deployment.name, deployment.model.id, len(graph.nodes), len(graph.params), graph.digest())


# -- goldens beside the package ------------------------------------------------------------------
def _shipped(package: "Package", chosen: "Sequence[Deployment]", options: Options, report: Report) -> None:
    """Compare every chosen deployment of a model whose golden lies beside the package."""
    goldens: dict[str, tuple[Golden, Checkpoint] | None] = {}
    twins: dict[str, Subject] = {}
    for deployment in chosen:
        model = deployment.model.id
        if model not in goldens:
            folder = shipped_golden(Path(package.path), package.name, model)
            goldens[model] = None if folder is None else (open_golden(folder), open_checkpoint(folder))
        found = goldens[model]
        if found is None:
            continue
        golden, checkpoint = found
        plan = plan_import(checkpoint, [package], deployment=deployment.name)
        if _inexact(plan):
            report.notes.append(f"{deployment.name}: traced only, since its weights are not the original's ({_inexact(plan)})")
            continue
        subject = _subject(plan, golden, options, twins.get(model))
        twins.setdefault(model, subject)
        report.comparisons += _comparisons(subject, options)
    minis = [model.id for model in package.models if model.mini]
    if not any(goldens.values()):
        report.notes.append(
            (f"no golden beside the package for {', '.join(minis)}" if minis else "the package declares no mini model")
            + f": nothing was compared. To make one: poem-check {options.package} --checkpoint DIR --against transformers "
            + f"--save-golden {Path(package.path).parent / 'goldens' / package.name / 'MODEL-ID'}"
        )


def _inexact(plan: ImportPlan) -> str:
    """Why the weights of a plan are not the checkpoint's own numbers, or ""."""
    actions = plan.actions
    return "quantised on import" if actions["encoded"] else "decoded to bf16 on import" if actions["decoded"] else ""


def _subject(plan: ImportPlan, golden: Golden, options: Options, twin: Subject | None) -> Subject:
    graph = plan.package.trace(plan.deployment)
    return Subject(
        graph, _Kept(plan.weights), landings_of(plan), golden, plan.package.files, seed=options.seed, selected=_selection(options.only),
        twin=twin,
    )  # fmt: skip


def _comparisons(subject: Subject, options: Options) -> list[Comparison]:
    return [subject.compare(mode) for mode in options.modes]


def _selection(pattern: str | None) -> Callable[[str], bool]:
    if pattern is None:
        return lambda name: True
    return lambda name: fnmatch.fnmatchcase(name, pattern) or fnmatch.fnmatchcase(name, f"*{pattern}*")


class _Kept(Mapping[str, Any]):
    """Weights of a plan, each made once."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self._weights = weights
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made:
            self._made[name] = self._weights[name]
        return self._made[name]

    def __iter__(self) -> Any:
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


# -- checkpoints and goldens that the user names -------------------------------------------------
def _given(package: "Package", options: Options, report: Report, progress: Callable[[str], None]) -> None:
    """Compare the deployment that a checkpoint fits with a golden, with the original class, or its two modes with each other."""
    source = options.checkpoint or options.golden
    assert source is not None
    checkpoint = open_checkpoint(source)
    plan = plan_import(checkpoint, [package], deployment=options.deployment, model=options.model)
    report.traces = [_traced(package, plan.deployment)]
    report.notes += list(plan.notes)
    golden: Golden | None = None
    if options.against:
        golden = _original(checkpoint, Path(source), options, progress)
    elif options.golden:
        golden = open_golden(options.golden)
    reason = _inexact(plan)
    if golden is not None and reason:
        raise UsageError(
            "check.inexact", f"the weights of {plan.deployment.name} are not the original's: {reason}", phase="check",
            hint="name a deployment with --deployment that keeps the checkpoint's weights as they are",
        )  # fmt: skip
    if golden is None:
        progress(f"running {plan.deployment.name} in exact and native mode")
        subject = _subject(plan, _prompt_alone(checkpoint, options), options, None)
        report.comparisons.append(subject.compare_modes())
        report.notes.append("no original was given: native mode was compared with exact mode. Add --against transformers or --golden DIR")
        return
    progress(f"comparing {plan.deployment.name}")
    report.comparisons += _comparisons(_subject(plan, golden, options, None), options)


def _original(checkpoint: Checkpoint, folder: Path, options: Options, progress: Callable[[str], None]) -> Golden:
    """Run the original class of a checkpoint."""
    tokens = open_golden_inputs(options.golden) if options.golden else _random_prompt(checkpoint, options.seed)
    progress("running the original class in transformers")
    try:
        import torch
        import transformers

        from conformance.originals import record_original
    except ModuleNotFoundError as missing:
        raise UsageError(
            "check.original", f"{missing.name} is not installed", phase="check", hint="pip install 'poem-models[oracles]'"
        ) from None
    if not folder.is_dir():
        raise UsageError(
            "check.original", "transformers loads a folder with config.json and weights", phase="check", file=str(folder),
            expected="--checkpoint DIR", found="a file or a name",
        )  # fmt: skip
    recorded = record_original(folder, np.array(tokens), greedy=GREEDY)
    architectures = checkpoint.config.get("architectures") or ["?"]
    meta = {
        "class": f"transformers.{architectures[0]}",
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "run": "float32, eager attention, on the CPU",
    }
    if options.save_golden:
        small = save_golden(Path(options.save_golden), folder, np.array(tokens), recorded, meta)
        progress(f"golden saved in {options.save_golden}{'' if small else ', without the weights, which are too large to commit'}")
    return Golden(f"{meta['class']} of {folder}", tokens, recorded, meta)


def open_golden_inputs(folder: str) -> tuple[int, ...]:
    """The prompt of a golden folder, which need not hold more."""
    inputs = open_checkpoint(Path(folder) / INPUTS)
    return tuple(int(token) for token in inputs.tensor("input_ids").planes["data"].reshape(-1))


def _random_prompt(checkpoint: Checkpoint, seed: int) -> tuple[int, ...]:
    """Token ids drawn evenly from the vocabulary, the first few left out: they are often special."""
    vocabulary = checkpoint.config.get("vocab_size") or (checkpoint.config.get("text_config") or {}).get("vocab_size") or 256
    return tuple(np.random.default_rng(seed).integers(min(3, vocabulary - 1), vocabulary, PROMPT).tolist())


def _prompt_alone(checkpoint: Checkpoint, options: Options) -> Golden:
    """A golden without an original: only a prompt."""
    return Golden("exact mode", _random_prompt(checkpoint, options.seed), {}, {})


def _command(options: Options) -> list[str]:
    """The command that repeats the check; a deployment, a mode and a tensor may follow."""
    words = ["poem-check", options.package]
    for name in ("checkpoint", "golden", "against"):
        value = getattr(options, name)
        words += [f"--{name}", value] if value else []
    return [*words, "--seed", str(options.seed)] if options.seed else words
