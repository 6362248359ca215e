"""The ops as documents: Markdown pages, and the text and data of `poem ops`, all from the registry.

python -m poem.ops.documentation docs/ops    writes the pages
"""

import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from poem.ops import NAMESPACES, REGISTRY, SPELLINGS, Op
from poem.ops.geometry import GEOMETRY
from poem.ops.record import REQUIRED
from poem.ops.scaling import SCALINGS

SECTIONS = ("Shapes", "Formula", "Rounding", "Rules", "Edge", "For", "Public")
TITLES = {"For": "Used by", "Public": "Public equivalents", "Edge": "Edge cases"}
SUBJECTS = {
    "linear": "matrix products, gated units, expert routing",
    "elemwise": "row-local arithmetic, activations, norms, rotary embeddings, hyper-connections",
    "attn": "attention over paged caches, latent, indexed and pooled attention, block drafting",
    "ssm": "short convolutions, linear attention and state-space recurrences",
    "gather": "embeddings, and moving rows and columns",
    "conv": "convolutions, resampling and attention over voxels",
    "sampling": "choosing tokens",
    "collective": "sums and gathers over the ranks of a sharded run",
}
EFFECTS = {"cache": "writes a cache row", "state": "reads and writes a state slab"}
# Attribute values: functions that packages call anywhere and pass to ops.
ATTRIBUTE_VALUES: dict[str, Callable[..., Any]] = {**SCALINGS, **GEOMETRY}
NOTE = "<!-- Written by `python -m poem.ops.documentation docs/ops` from the registry; change poem/ops instead. -->"


def ops_of(namespace: str) -> list[Op]:
    """The ops of a namespace, by name."""
    return sorted((op for op in REGISTRY.values() if op.namespace == namespace), key=lambda op: op.name)


def summary(op: Op) -> str:
    """What it computes, in a line."""
    if op.same_as:
        return f"The same function as {op.same_as}."
    return op.documentation[""].split("\n\n")[0].replace("\n", " ")


def as_data(op: Op) -> dict[str, Any]:
    """Everything the registry knows of an op, as plain data."""
    return {
        "name": op.full_name,
        "signature": op.signature(),
        "summary": summary(op),
        "extension": op.extension,
        "effect": op.effect,
        "same_as": op.same_as,
        "parameters": [
            {
                "name": p.name,
                "takes": str(p.kind),
                "required": p.default is REQUIRED,
                "default": None if p.default is REQUIRED else p.default,
                "none_allowed": p.optional,
            }
            for p in op.parameters
        ],
        "rules": {str(number): rule for number, rule in op.rules.items()},
        **{name.lower(): op.documentation.get(name, "") for name in SECTIONS if name != "Rules"},
    }


def as_text(op: Op) -> str:
    """The explanation of an op for a terminal."""
    lines = [op.signature(), "", f"  {summary(op)}{_remark(op)}", ""]
    width = max(len(p.name) for p in op.parameters)
    for p in op.parameters:
        lines.append(f"  {p.name.ljust(width)}  {_takes(p)}{'' if p.default is REQUIRED else f' (default {p.default})'}")
    for name in SECTIONS:
        text = op.documentation.get(name)
        if text:
            lines += ["", f"  {TITLES.get(name, name)}", *(f"    {line}".rstrip() for line in text.splitlines())]
    return "\n".join(lines)


def value_as_data(name: str) -> dict[str, Any]:
    """An attribute value such as `llama3` as plain data, for `--json`."""
    function = ATTRIBUTE_VALUES[name]
    return {"name": name, "signature": f"{name}{_arguments(function)}", "documentation": _doc(function)}


def value_as_text(name: str) -> str:
    """The explanation of an attribute value such as `llama3` for a terminal."""
    function = ATTRIBUTE_VALUES[name]
    return f"{name}{_arguments(function)}\n\n" + "\n".join(f"  {line}".rstrip() for line in _doc(function).splitlines())


def page(namespace: str) -> str:
    """The Markdown page of a namespace."""
    ops = ops_of(namespace)
    subject = SUBJECTS[namespace].capitalize()
    lines = [NOTE, "", f"# ops.{namespace}", "", f"{subject}. [Conventions](conventions.md) hold for every op.", ""]
    lines += ["| op | computes |", "|---|---|"]
    lines += [f"| [{op.name}](#{op.name}) | {_escape(summary(op))} |" for op in ops]
    for op in ops:
        lines += ["", f"## {op.name}", "", f"`{op.signature()}`", "", _escape(summary(op)) + _remark(op), ""]
        lines += ["| parameter | takes | default |", "|---|---|---|"]
        for p in op.parameters:
            default = "" if p.default is REQUIRED else f"`{p.default!r}`"
            lines.append(f"| `{p.name}` | {_escape(_takes(p))} | {default} |")
        for name in SECTIONS:
            text = op.documentation.get(name)
            if not text:
                continue
            lines += ["", f"**{TITLES.get(name, name)}**", ""]
            if name == "Rules":
                lines += [f"{number}. {_escape(rule)}" for number, rule in op.rules.items()]
            elif name in ("Shapes", "Formula"):
                lines += ["```text", text, "```"]
            else:
                lines.append(_escape(text))
    return "\n".join(lines) + "\n"


def index_page() -> str:
    """The page that lists all ops, and the older spellings."""
    lines = [NOTE, "", "# Ops", "", "What a `forward` may call. [Conventions](conventions.md) hold for all of them; rope scalings and"]
    lines += ["geometry are [values](values.md). An extension is an op beyond Poem's published list, as binding as the others."]
    for namespace in NAMESPACES:
        ops = ops_of(namespace)
        lines += ["", f"## [{namespace}]({namespace}.md): {SUBJECTS[namespace]}"]
        for title, chosen in (("Listed", [op for op in ops if not op.extension]), ("Extension", [op for op in ops if op.extension])):
            if chosen:
                lines += ["", f"{title}: " + ", ".join(f"[{op.name}]({namespace}.md#{op.name})" for op in chosen)]
    lines += ["", "## Older spellings", "", "Refused, with this hint.", "", "| spelling | write |", "|---|---|"]
    lines += [f"| `{old}` | {_escape(new) if ' ' in new.split(')')[-1] else f'`{new}`'} |" for old, new in SPELLINGS.items()]
    return "\n".join(lines) + "\n"


def values_page() -> str:
    """The page of attribute values."""
    lines = [NOTE, "", "# Attribute values", "", "Functions that may be called anywhere in a package; their results are passed to ops."]
    for title, functions, module in (("Rope scalings", SCALINGS, "scaling"), ("Geometry", GEOMETRY, "geometry")):
        about = inspect.getdoc(sys.modules[f"poem.ops.{module}"]) or ""
        lines += ["", f"## {title}", "", _escape(about)]
        for name, function in functions.items():
            lines += ["", f"### {name}", "", f"`{name}{_arguments(function)}`", "", "```text", _doc(function), "```"]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """All generated pages, by file name."""
    return {"README.md": index_page(), "values.md": values_page(), **{f"{namespace}.md": page(namespace) for namespace in NAMESPACES}}


def _takes(parameter: Any) -> str:
    return f"{parameter.kind}{', or None' if parameter.optional else ''}"


def _remark(op: Op) -> str:
    remarks = (["extension"] if op.extension else []) + ([EFFECTS[op.effect]] if op.effect else [])
    return f" ({'; '.join(remarks)})" if remarks else ""


def _doc(function: Callable[..., Any]) -> str:
    return inspect.getdoc(function) or ""


def _arguments(function: Callable[..., Any]) -> str:
    """The parameters without annotations: `(factor, original_max_position, truncate=True)`."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def _escape(text: str) -> str:
    """Prose as Markdown: marks outside backticks stand for themselves."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"([*<|\\])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


def main() -> None:
    """Write the pages into the folder named on the command line."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text)


if __name__ == "__main__":
    main()
