"""Deployment names: `{id}[-{part}...][-{drafter}]-{weights...}-kv-{kv}[-tp{n}]`."""

import re
from collections.abc import Iterable, Mapping

from poem.dtypes import KV_DTYPES, RESERVED, WEIGHT_DTYPES, Dtype
from poem.errors import DeploymentNameError
from poem.language.declarations import Deployment, Model
from poem.suggest import nearest

MAXIMUM_WEIGHT_DTYPES = 8
_TP = re.compile(r"tp(\d{1,9})")


def parse_deployment_name(name: str, models: Mapping[str, Model]) -> Deployment:
    """The deployment that a name spells; it need not be a listed one. The longest model id that leaves a right rest is meant.

    Raises DeploymentNameError: `name.unknown-model`, or `name.bad` with the part understood and the first word that is not.
    """
    faults = []
    for id in sorted((id for id in models if f"{name}-".startswith(f"{id}-")), key=len, reverse=True):
        rest = name[len(id) + 1 :]
        try:
            return _parse_words(models[id], rest.split("-") if rest else [])
        except DeploymentNameError as fault:
            faults.append(fault)
    if faults:
        raise faults[0]
    near = nearest(name.split("-kv-")[0], models) or _longest_shared(name, models)
    raise DeploymentNameError(
        "name.unknown-model", f"no known model begins the deployment name `{name}`",
        expected="MODEL-WEIGHTS-kv-KV, e.g. llama31-8b-bf16-kv-bf16", found=name, hint=f"did you mean `{near}`?" if near else "",
    )  # fmt: skip


def _longest_shared(name: str, models: Mapping[str, Model]) -> str | None:
    """The id that the beginning of the name is nearest to."""
    words = name.split("-")
    for count in range(len(words), 0, -1):
        near = nearest("-".join(words[:count]), models)
        if near:
            return near
    return None


def _parse_words(model: Model, words: list[str]) -> Deployment:
    understood = [model.id]

    def take() -> str:
        understood.append(words.pop(0))
        return understood[-1]

    def bad(expected: str, choices: Iterable[str] = ()) -> DeploymentNameError:
        so_far = "-".join(understood)
        found = f"`{words[0]}`" if words else "the end of the name"
        reserved = RESERVED.get(words[0]) if words else None
        return DeploymentNameError(
            "name.bad", f"the deployment name is understood up to `{so_far}`; {expected} is expected after `{understood[-1]}`",
            expected=" ".join(choices) or expected, found=found,
            hint=f"`{words[0]}` is reserved for GGUF's {reserved} and not implemented" if reserved else "",
        )  # fmt: skip

    parts: list[str] = []
    for part in model.parts:
        if words and words[0] == part:
            parts.append(take())
    drafter = take() if words and words[0] in model.drafters else None
    weights: list[Dtype] = []
    while words and words[0] in WEIGHT_DTYPES and len(weights) < MAXIMUM_WEIGHT_DTYPES:
        weights.append(Dtype(take()))
    if not weights:
        raise bad("a weight dtype", WEIGHT_DTYPES)
    if not words or words[0] != "kv":
        raise bad("kv")
    take()
    if not words or words[0] not in KV_DTYPES:
        raise bad("a kv dtype", KV_DTYPES)
    kv = Dtype(take())
    tp = 1
    if words:
        match = _TP.fullmatch(words[0])
        if match is None:
            raise bad("`tpN` or the end of the name")
        tp = int(match[1])
        if tp < 2 or match[1].startswith("0"):
            raise bad("tp2 or more (tp starts at 2; leave it out for one device)")
        take()
    if words:
        raise bad("the end of the name")
    return Deployment(model, tuple(weights), kv, tuple(parts), drafter, tp)
