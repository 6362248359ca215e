"""Builtins of the load phase: models, deployments, templates, tokenizer contracts, published heads."""

import re
from typing import Any

from poem.dtypes import KV_DTYPES, RESERVED, WEIGHT_DTYPES, WORDS, Dtype
from poem.language.builtins.record import asked, builtin, handle
from poem.language.declarations import Model, Published, Template, TokenizerContract
from poem.language.evaluation import Call, Evaluation
from poem.language.manifest import DeclaredDeployment
from poem.language.values import (
    AnyDtype,
    Count,
    Flag,
    Groups,
    GroupsByPart,
    Ids,
    OfDtypes,
    OfTemplate,
    OfTokenizer,
    Text,
    Texts,
)
from poem.suggest import did_you_mean
from poem.templates.formats import FORMATS

MODEL_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
WORD = re.compile(r"[a-z][a-z0-9_]*")
MAXIMUM_WEIGHT_DTYPES = 8


@builtin("load")
def model(
    call: Call,
    id: Text,
    /,
    *,
    template: OfTemplate,
    tokenizer: OfTokenizer,
    mini: Flag = False,
    parts: Texts = (),
    drafters: Texts = (),
    arch: Text = "",
    layers: Count = 0,
    vocab: Count = 0,
) -> dict[str, Any]:
    """A model variant."""
    if not MODEL_ID.fullmatch(id):
        raise call.error("manifest.bad-id", f"`{id}` is no model id", expected="letters, digits, `.`, `_` and `-`", found=repr(id))
    seen: set[str] = set()
    for word in (*parts, *drafters):
        fault = ""
        if not WORD.fullmatch(word):
            fault = "is not a word of small letters, digits and `_`"
        elif word in WORDS or word == "kv" or re.fullmatch(r"tp\d+", word):
            fault = "means something else in deployment names"
        elif word in seen:
            fault = "is listed twice"
        if fault:
            raise call.error(
                "manifest.bad-word", f"model `{id}`: the part or drafter `{word}` {fault}",
                expected="words such as `vision` or `mtp`, each once, no dtype, `kv` or `tp2`", found=repr(word),
            )  # fmt: skip
        seen.add(word)
    made = Model(id, template, tokenizer, mini, tuple(parts), tuple(drafters), arch, layers, vocab, call.where)
    return handle(made, "model", id=id, mini=mini, parts=list(parts), drafters=list(drafters), arch=arch, layers=layers, vocab=vocab)


@builtin("load")
def deployment(
    call: Call, model: Text, /, *, weights: OfDtypes, kv: AnyDtype, parts: Texts = (), drafter: Text | None = None
) -> dict[str, Any]:
    """A deployment of the model with that id."""
    if not 1 <= len(weights) <= MAXIMUM_WEIGHT_DTYPES:
        raise call.error(
            "call.bad-value", "deployment(): weights lists no dtype" if not weights else "deployment(): weights lists too many dtypes",
            expected=f"1 to {MAXIMUM_WEIGHT_DTYPES} dtypes", found=str(len(weights)),
        )  # fmt: skip
    for of in weights:
        if of.name not in WEIGHT_DTYPES:
            raise _bad_dtype(call, "weights", of, WEIGHT_DTYPES)
    if kv.name not in KV_DTYPES:
        raise _bad_dtype(call, "kv", kv, KV_DTYPES)
    made = DeclaredDeployment(model, tuple(weights), kv, tuple(parts), drafter, call.where)
    return handle(made, "deployment", model=model)


def _bad_dtype(call: Call, parameter: str, of: Any, allowed: tuple[str, ...]) -> Exception:
    what = f"no dtype for {parameter}" if isinstance(of, Dtype) else f"reserved for GGUF's {RESERVED[of.name]} and not implemented"
    return call.error("manifest.bad-dtype", f"deployment(): {of.name} is {what}", expected=" ".join(allowed), found=of.name)


@builtin("load")
def published(call: Call, *, target: Text, head: Text, drafter: Text, deployment: Text) -> dict[str, Any]:
    """A draft head that others publish."""
    return handle(Published(target, head, drafter, deployment, call.where), "published")


SETTINGS: dict[str, Any] = {
    "thinking": False, "preserve_thinking": False, "tools": False, "generation_suffix": "", "stop": (), "bos": None, "eos": None,
}  # fmt: skip


@builtin("load")
def template(
    call: Call,
    format: Text,
    /,
    *,
    thinking: Flag = False,
    preserve_thinking: Flag = False,
    tools: Flag = False,
    generation_suffix: Text = "",
    stop: Texts = (),
    bos: Text | None = None,
    eos: Text | None = None,
) -> dict[str, Any]:
    """A chat template of a known format, with the settings that this format reads."""
    known = FORMATS.get(format)
    if known is None:
        hint = did_you_mean(format, FORMATS)
        raise call.error("manifest.unknown-template", f"there is no template format `{format}`", expected=" ".join(FORMATS), hint=hint)
    given = {
        "thinking": thinking, "preserve_thinking": preserve_thinking, "tools": tools, "generation_suffix": generation_suffix,
        "stop": stop, "bos": bos, "eos": eos,
    }  # fmt: skip
    reads = ", ".join(known.settings) or "no settings"
    for name, value in given.items():
        if value != SETTINGS[name] and name not in known.settings:
            message = f"the template format `{format}` reads no `{name}`"
            raise call.error("manifest.template-setting", message, expected=reads, found=f"{name} = {_shown(value)}")
    missing = [name for name in known.required if given[name] == SETTINGS[name]]
    if missing:
        needs = " and ".join(f"`{name}`" for name in missing)
        raise call.error("manifest.template-setting", f"the template format `{format}` needs {needs}", expected=reads)
    made = Template(format, thinking, preserve_thinking, tools, generation_suffix, tuple(stop), bos, eos, call.where)
    return handle(made, "template", format=format)


def _shown(value: Any) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)


@builtin("load")
def tokenizer(call: Call, *, markers: Groups = (), pinned: Ids | None = None, parts: GroupsByPart | None = None) -> dict[str, Any]:
    """What a vocabulary must hold."""
    return handle(TokenizerContract(markers, dict(pinned or {}), dict(parts or {}), call.where), "tokenizer")


@asked
def deliver(evaluation: Evaluation, name: str, value: Any) -> None:
    """A global of the package crosses."""
    evaluation.delivered["globals"][name] = value
