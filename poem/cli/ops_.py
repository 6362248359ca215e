"""`poem ops`: list the ops by namespace, or explain one."""

import argparse
import importlib
import json

from poem.errors import UsageError
from poem.ops import NAMESPACES, REGISTRY, Op
from poem.ops.documentation import ATTRIBUTE_VALUES, as_data, as_text, ops_of, summary, value_as_data, value_as_text
from poem.ops.spellings import spelled_today
from poem.suggest import did_you_mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem ops`."""
    parser.add_argument("name", nargs="?", help="an op (matmul or linear.matmul), a namespace (attn), or a value such as llama3")
    parser.add_argument("--json", action="store_true", help="print the registry's records as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the list or the explanations. UsageError for a name that is none."""
    name = (arguments.name or "").removeprefix("ops.")
    namespaces = NAMESPACES if not name else (name,) if name in NAMESPACES else ()
    if namespaces:
        listed = [op for namespace in namespaces for op in ops_of(namespace)]
        if arguments.json:
            print(json.dumps([{**as_data(op), "interpreter": in_interpreter(op)} for op in listed], indent=2))
        else:
            print("\n\n".join(_list(namespace) for namespace in namespaces))
        return 0
    if name in ATTRIBUTE_VALUES:
        print(json.dumps(value_as_data(name), indent=2) if arguments.json else value_as_text(name))
        return 0
    found = [op for op in REGISTRY.values() if name in (op.name, op.full_name)]
    if not found:
        raise _unknown(name)
    if arguments.json:
        records = [{**as_data(op), "interpreter": in_interpreter(op)} for op in found]
        print(json.dumps(records[0] if len(records) == 1 else records, indent=2))
    else:
        print("\n\n".join(as_text(op) for op in found))
    return 0


def in_interpreter(op: Op) -> bool:
    """Whether the interpreter has a function of that name on the shelf of its namespace."""
    try:
        shelf = importlib.import_module(f"interp.ops.{op.namespace}")
    except ModuleNotFoundError:
        return False
    return callable(getattr(shelf, op.name, None))


def _list(namespace: str) -> str:
    ops = ops_of(namespace)
    width = max(len(op.name) for op in ops)
    lines = [f"ops.{namespace}"]
    for op in ops:
        remarks = (["extension"] if op.extension else []) + ([] if in_interpreter(op) else ["not in the interpreter"])
        lines.append(f"  {op.name.ljust(width)}  {summary(op)}" + (f" [{', '.join(remarks)}]" if remarks else ""))
    return "\n".join(lines)


def _unknown(name: str) -> UsageError:
    today = spelled_today(name) or next((spelled_today(f"{n}.{name}") for n in NAMESPACES if spelled_today(f"{n}.{name}")), "")
    known = [*NAMESPACES, *ATTRIBUTE_VALUES, *(op.name for op in REGISTRY.values()), *REGISTRY]
    hint = f"use {today}" if today else did_you_mean(name, known) or "`poem ops` lists them all"
    return UsageError("ops.unknown", f"there is no op `{name}`", hint=hint)
