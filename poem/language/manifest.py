"""The manifest of a package: MODELS, DEPLOYMENTS and PUBLISHED, checked against each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from poem.dataclass import dataclass
from poem.dtypes import Dtype
from poem.errors import Frame, PackageError
from poem.language.declarations import Deployment, Model, Published
from poem.language.values import kind_of
from poem.suggest import did_you_mean, nearest

Where = tuple[Frame, ...]


@dataclass(frozen=True)
class DeclaredDeployment:
    """What `deployment(...)` was told; the model is an id until MODELS is known."""

    model: str
    weights: tuple[Dtype, ...]
    kv: Dtype
    parts: tuple[str, ...]
    drafter: str | None
    where: Where


Refuse = Callable[..., PackageError]


def _line(where: Where) -> str:
    return f"{where[-1].file}:{where[-1].line}" if where else "?"


def elements(name: str, given: Any, of: type, where: Where, refuse: Refuse) -> list[Any]:
    """The elements of a global that must be a list of one kind."""
    word = {"Model": "model", "DeclaredDeployment": "deployment", "Published": "published"}[of.__name__]
    if not isinstance(given, list):
        hint = f"wrap it in [ ]: {name} = [{word}(...)]" if isinstance(given, of) else ""
        message = f"{name} must be a list, found {kind_of(given)}"
        raise refuse("manifest.not-a-list", message, where, expected=f"a list of {word}(...)", found=kind_of(given), hint=hint)
    for index, item in enumerate(given):
        if not isinstance(item, of):
            message = f"{name}[{index}] must be a {word}, found {kind_of(item)}"
            raise refuse("manifest.wrong-element", message, where, expected=f"{word}(...)", found=f"{kind_of(item)} at index {index}")
    return given


def check_models(models: Sequence[Model], where: Where, refuse: Refuse) -> dict[str, Model]:
    """The models by id. Raises `manifest.duplicate-model`, `manifest.missing`, `manifest.unknown-part`."""
    if not models:
        raise refuse("manifest.missing", "MODELS lists no model", where, expected="at least one model(...)")
    by_id: dict[str, Model] = {}
    for model in models:
        first = by_id.get(model.id)
        if first is not None:
            raise refuse(
                "manifest.duplicate-model", f"model `{model.id}` is declared twice", model.where,
                found=f"at {_line(first.where)} and at {_line(model.where)}",
            )  # fmt: skip
        by_id[model.id] = model
    parts = {part for model in models for part in model.parts}
    for model in models:
        for part in model.tokenizer.parts:
            if part not in parts:
                raise refuse(
                    "manifest.unknown-part", f"tokenizer(parts): no model of this file has a part `{part}`", model.tokenizer.where,
                    expected=" ".join(sorted(parts)) or "no model here has parts", hint=did_you_mean(part, parts),
                )  # fmt: skip
    return by_id


def resolve(declared: DeclaredDeployment, models: Mapping[str, Model], refuse: Refuse) -> Deployment:
    """The deployment with its model, parts in the model's order."""
    model = models.get(declared.model)
    if model is None:
        raise refuse(
            "manifest.unknown-model", f"there is no model `{declared.model}` in MODELS", declared.where,
            found=repr(declared.model), hint=did_you_mean(declared.model, models),
        )  # fmt: skip
    for part in declared.parts:
        if part not in model.parts:
            raise refuse(
                "manifest.unknown-part", f"model `{model.id}` has no part `{part}`", declared.where,
                expected=" ".join(model.parts) or "this model has no parts", found=repr(part), hint=did_you_mean(part, model.parts),
            )  # fmt: skip
    if declared.drafter is not None and declared.drafter not in model.drafters:
        has = f"drafters: {' '.join(model.drafters)}" if model.drafters else "this model has no drafters"
        raise refuse(
            "manifest.unknown-drafter", f"model `{model.id}` has no drafter `{declared.drafter}`", declared.where,
            expected=has, found=repr(declared.drafter), hint=did_you_mean(declared.drafter, model.drafters),
        )  # fmt: skip
    parts = tuple(part for part in model.parts if part in declared.parts)
    return Deployment(model, declared.weights, declared.kv, parts, declared.drafter, 1, declared.where)


def check_deployments(
    declared: Sequence[DeclaredDeployment], models: Mapping[str, Model], where: Where, refuse: Refuse
) -> dict[str, Deployment]:
    """The deployments by name. Raises `manifest.duplicate-deployment`, `manifest.no-deployment` and what `resolve` does."""
    by_name: dict[str, Deployment] = {}
    for item in declared:
        deployment = resolve(item, models, refuse)
        name = deployment.name
        first = by_name.get(name)
        if first is not None:
            raise refuse(
                "manifest.duplicate-deployment", f"deployment `{name}` is declared twice", deployment.where,
                found=f"at {_line(first.where)} and at {_line(deployment.where)}",
            )  # fmt: skip
        by_name[name] = deployment
    served = {deployment.model.id for deployment in by_name.values()}
    for model in models.values():
        if model.id not in served:
            raise refuse(
                "manifest.no-deployment", f"model `{model.id}` has no deployment", model.where,
                expected=f'a deployment("{model.id}", weights = ..., kv = ...) in DEPLOYMENTS',
            )  # fmt: skip
    return by_name


def check_published(published: Sequence[Published], deployments: Mapping[str, Deployment], refuse: Refuse) -> None:
    """Each published head names a listed deployment that drafts with it (`manifest.published`)."""
    for item in published:
        deployment = deployments.get(item.deployment)
        if deployment is None:
            near = nearest(item.deployment, deployments)
            raise refuse(
                "manifest.published", f"published(): there is no deployment `{item.deployment}` in DEPLOYMENTS", item.where,
                found=repr(item.deployment), hint=f"did you mean `{near}`?" if near else "",
            )  # fmt: skip
        if deployment.drafter != item.drafter:
            drafting = [name for name, other in deployments.items() if other.drafter == item.drafter]
            near = nearest(item.deployment, drafting) or (drafting[0] if drafting else None)
            raise refuse(
                "manifest.published", f"published(): the deployment `{item.deployment}` does not draft with `{item.drafter}`", item.where,
                expected=f"a deployment with drafter = {item.drafter!r}", found=f"drafter = {deployment.drafter!r}",
                hint=f"did you mean `{near}`?" if near else "",
            )  # fmt: skip
