"""`plan_import`: which deployment and which format a checkpoint is."""

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

from poem.checkpoint import Checkpoint, Stored
from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.errors import CheckpointError, PoemError
from poem.faults import MAXIMUM_LISTED, one_line, raise_all
from poem.formats.declared import Format
from poem.formats.judge import Elsewhere
from poem.formats.states import disagreement
from poem.importer.plan import Formatted, ImportPlan, plan_format
from poem.importer.reexpress import can_reexpress, inexact
from poem.importer.vocabulary import broken_contract
from poem.language.declarations import Deployment, Layout, Published


@dataclass(slots=True)
class _Attempt:
    """One candidate on its way; `stage` tells how far it got, for ordering the misses."""

    checkpoint: Checkpoint
    package: Any
    deployment: Deployment
    requantise: bool
    elsewhere: Elsewhere
    stage: int = 0
    notes: list[str] = field(default_factory=list)


def plan_import(
    checkpoint: Checkpoint,
    packages: Sequence[Any],
    *,
    deployment: str | None = None,
    model: str | None = None,
    requantise: bool = False,
    progress: Callable[[int, int, str], None] | None = None,
) -> ImportPlan:
    """The plan for the first deployment that fits a checkpoint.

    packages: where to look. deployment: a deployment name, then only that one is tried and its own error is raised.
    model: a model id, then its deployments are tried; with a deployment, whose it has to be.
    requantise: with a deployment named, weights stored in one quantised dtype may be decoded and quantised again.
    progress: called with candidates done, candidates in all and a name.
    Raises CheckpointError (`import.*`), PackageError (`formats.*`, `layout.*`), DeploymentNameError, or PoemErrors for several.
    """
    problem = checkpoint.quantisation.problem
    if problem:
        raise CheckpointError(
            "import.illegible", problem, phase="import", file=checkpoint.place, hint="look for the same model in bf16, FP8 or NVFP4"
        )
    elsewhere = Elsewhere()
    if deployment is not None:
        package, named = _named(packages, deployment)
        if model not in (None, named.model.id):
            said = "the deployment named is of another model"
            raise CheckpointError("import.no-deployment", said, phase="import", expected=f"a deployment of {model}", found=deployment)
        return _checked(_plan(_Attempt(checkpoint, package, named, requantise, elsewhere)))
    tried: list[tuple[_Attempt, PoemError]] = []
    ordered = _candidates(packages, model)
    for position, (package, candidate) in enumerate(ordered):
        if progress is not None:
            progress(position, len(ordered), candidate.name)
        attempt = _Attempt(checkpoint, package, candidate, False, elsewhere)
        try:
            plan = _plan(attempt)
        except PoemError as miss:
            tried.append((attempt, miss))
            continue
        return _checked(_with_heads_told(_with_better_kept(plan, ordered[position + 1 :])))
    raise _no_deployment(checkpoint, tried, model)


def _named(packages: Sequence[Any], name: str) -> tuple[Any, Deployment]:
    """The package and deployment of a name. Raises the package's DeploymentNameError if no package knows the model."""
    faults: list[PoemError] = []
    for package in packages:
        try:
            return package, package.deployment(name)
        except PoemError as fault:
            faults.append(fault)
    if not faults:
        raise CheckpointError("import.no-deployment", "no package was found", phase="import", expected=name)
    # A package that knows the model says what is wrong with the rest; else one that has a model of a similar name.
    raise max(faults, key=lambda fault: (fault.code != "name.unknown-model", bool(fault.hint)))


def _candidates(packages: Sequence[Any], model: str | None) -> list[tuple[Any, Deployment]]:
    """Whole models before minis, then more parts and drafters before fewer, then as listed; packages by name."""
    found = [
        (package, deployment)
        for package in sorted(packages, key=lambda package: package.name)
        for deployment in package.deployments.values()
        if model is None or deployment.model.id == model
    ]
    return sorted(found, key=lambda pair: (pair[1].model.mini, -len(pair[1].parts) - (pair[1].drafter is not None)))


def _no_deployment(checkpoint: Checkpoint, tried: Sequence[tuple[_Attempt, PoemError]], model: str | None) -> CheckpointError:
    ordered = sorted(tried, key=lambda miss: (-miss[0].stage, len(getattr(miss[1], "errors", (miss[1],)))))
    said = [f"{attempt.deployment.name}: {one_line(fault)}" for attempt, fault in ordered]
    more = f"\n            and {len(said) - MAXIMUM_LISTED} more" if len(said) > MAXIMUM_LISTED else ""
    return CheckpointError(
        "import.no-deployment", "no deployment fits this checkpoint", phase="import", file=checkpoint.place,
        expected=f"a deployment of {model}" if model else "a deployment of the packages found",
        found=("\n            ".join(said[:MAXIMUM_LISTED]) + more) or "no deployments at all",
        hint="name one with --deployment to see its error in full",
    )  # fmt: skip


def _with_better_kept(plan: ImportPlan, later: Sequence[tuple[Any, Deployment]]) -> ImportPlan:
    """A note when weights are decoded that a deployment further down would keep as they are stored."""
    names = {use.name for landing in plan.landings.values() if landing.action == "decoded" for use in landing.stored.uses}
    found = [stored for stored in map(plan.checkpoint.find, names) if stored is not None and stored.dtype.is_quantised]
    for package, deployment in later:
        same = package is plan.package and deployment.model.id == plan.deployment.model.id
        if same and any(_keeps(stored, wanted) for stored in found for wanted in deployment.weights):
            words = " and ".join(sorted({stored.word for stored in found}))
            note = f"weights stored as {words} are decoded; {deployment.name} would keep them as they are"
            return replace(plan, notes=(*plan.notes, note))
    return plan


def _with_heads_told(plan: ImportPlan) -> ImportPlan:
    """A note for each draft head that is published for this checkpoint and that the plan leaves out."""
    heads = [item for item in _published(plan.package, plan.checkpoint) if item.deployment != plan.deployment.name]
    notes = [f"{item.deployment} would draft with {item.head}: name it with --deployment, and the head with --head" for item in heads]
    return replace(plan, notes=(*plan.notes, *notes))


def _published(package: Any, checkpoint: Checkpoint) -> Sequence[Published]:
    """The draft heads that others publish for a checkpoint."""
    return package.published_for(checkpoint.source.get("repo", ""))


def _keeps(stored: Stored, wanted: Dtype) -> bool:
    return can_reexpress(stored.dtype, wanted) and not inexact(stored.dtype, wanted, stored.factors())


def _checked(plan: ImportPlan) -> ImportPlan:
    """A plan whose scales and zero points have been looked at. Raises CheckpointError (`import.bad-scale`, `import.illegible`)."""
    notes = []
    for stored in plan.stored():
        notes += [stored.note] if stored.note else []
        notes += stored.check()
    plan.checkpoint.evict()
    kept = notes[:MAXIMUM_LISTED] + ([f"and {len(notes) - MAXIMUM_LISTED} more notes like these"] if len(notes) > MAXIMUM_LISTED else [])
    return replace(plan, notes=(*plan.notes, *kept))


# -- one candidate -------------------------------------------------------------------------------
def _plan(attempt: _Attempt) -> ImportPlan:
    """Everything about one candidate that can be known without reading tensor data."""
    deployment, checkpoint = attempt.deployment, attempt.checkpoint
    head = next((item.head for item in _published(attempt.package, checkpoint) if item.deployment == deployment.name), None)
    if head is not None and not checkpoint.has_prefix("aux."):
        raise CheckpointError(
            "import.head", f"the draft head of {deployment.name} is published in a repository of its own", phase="import",
            file=checkpoint.place, expected=f"--head {head}", found="the trunk alone",
        )  # fmt: skip
    if deployment.tp != 1:
        raise CheckpointError(
            "import.tp", "an import writes whole weights", phase="import", file=checkpoint.place, expected="a deployment without -tp",
            found=deployment.name, hint="ranks cut their share when they load the file",
        )  # fmt: skip
    formats = attempt.package.read_formats(deployment, checkpoint)
    layout = attempt.package.lay_out(deployment)  # kept from the evaluation that read the formats
    attempt.stage = 1
    chosen, plan = _choose(attempt, layout, formats)
    if plan is None:
        raise_all([fault for state in chosen.states if (fault := disagreement(state, checkpoint))])
        attempt.stage = 3
        plan = _planned(attempt, layout, chosen)
    attempt.stage = 4
    vocabulary = checkpoint.vocabulary()
    if vocabulary is None:
        attempt.notes.append("the checkpoint has no tokenizer files: its vocabulary was not checked")
    else:
        raise_all(broken_contract(deployment, vocabulary, checkpoint.place))
    return ImportPlan(
        checkpoint, attempt.package, deployment, layout, chosen.name, plan.landings, tuple(plan.not_read), (*attempt.notes, *plan.notes)
    )


def _planned(attempt: _Attempt, layout: Layout, format: Format) -> Formatted:
    return plan_format(
        attempt.checkpoint, layout, format, lambda: attempt.elsewhere.paths(attempt.package, attempt.notes),
        mini=attempt.deployment.model.mini, requantise=attempt.requantise,
    )  # fmt: skip


def _choose(attempt: _Attempt, layout: Layout, formats: Sequence[Format]) -> "tuple[Format, Formatted | None]":
    """The one format that recognises the checkpoint, with its plan if a dry run was needed to tell."""
    if len(formats) == 1 and formats[0].recognizes is None:  # nothing to choose: its own faults say more than that it did not fit
        attempt.stage = 2
        return formats[0], None
    recognised: list[tuple[Format, Formatted | None]] = []
    reasons: list[str] = []
    for format in formats:
        plan = None
        if format.recognizes is not None:
            said = format.recognizes()
            if not said.answer:
                reasons.append(f"{format.name}: {said.reason or 'its recognizes says no'}")
                continue
        else:
            try:
                raise_all([fault for state in format.states if (fault := disagreement(state, attempt.checkpoint))])
                plan = _planned(attempt, layout, format)
            except PoemError as fault:
                if fault.code.startswith("formats."):  # a fault of the package, not of the checkpoint
                    raise
                reasons.append(f"{format.name}: {one_line(fault)}")
                continue
        recognised.append((format, plan))
    if len(recognised) == 1:
        attempt.stage = 2
        return recognised[0]
    if recognised:
        attempt.stage = 2
        raise CheckpointError(
            "import.ambiguous-format", "several formats recognise this checkpoint", phase="import", file=attempt.checkpoint.place,
            expected="one format", found=" and ".join(format.name for format, _ in recognised), hint="let `recognizes` tell them apart",
        )  # fmt: skip
    raise CheckpointError(
        "import.no-format", f"no format of {attempt.deployment.name} recognises this checkpoint", phase="import",
        file=attempt.checkpoint.place, expected=" or ".join(format.name for format in formats), found="; ".join(reasons),
    )  # fmt: skip
