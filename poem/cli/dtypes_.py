"""`poem dtypes`: list the dtypes, or explain one."""

import argparse
import json
from typing import Any

from poem.dtypes import RESERVED, Dtype
from poem.dtypes.facts import LISTED, Facts, facts
from poem.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem dtypes`."""
    parser.add_argument("name", nargs="?", help="the dtype to explain: a name such as nvfp4, or a term such as g32_u4_f16_b_f16")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the list or one explanation. UsageError for a name that is no dtype."""
    if arguments.name is None:
        listed = [facts(Dtype(name)) for name in LISTED]
        print(json.dumps([_as_json(one) for one in listed], indent=2) if arguments.json else _list(listed))
        return 0
    one = facts(_dtype(arguments.name))
    print(json.dumps(_as_json(one), indent=2) if arguments.json else _explain(one))
    return 0


def _dtype(name: str) -> Dtype:
    if name in RESERVED:
        raise UsageError("dtypes.reserved", f"`{name}` is reserved for GGUF's {RESERVED[name]} and not implemented yet")
    try:
        return Dtype(name)
    except ValueError as fault:
        raise UsageError("dtypes.unknown", str(fault), hint="`poem dtypes` lists them all") from None


def _list(listed: list[Facts]) -> str:
    rows = [("dtype", "bits a weight", "a value is", "use")]
    rows += [(str(one.dtype), f"{one.bits:.5g}", one.formula, one.use) for one in listed]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    lines = ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows]
    reserved = ", ".join(f"{name} ({theirs})" for name, theirs in RESERVED.items())
    return "\n".join([*lines, f"reserved for GGUF, not implemented yet: {reserved}"])


def _explain(one: Facts) -> str:
    lines = [
        f"{one.dtype}: {one.use}",
        f"  term         {one.dtype.term}{f'+{one.dtype.act}' if one.dtype.act else ''}",
        f"  a value is   {one.formula}",
        f"  groups       {one.groups}",
        f"  range        {one.smallest:.5g} to {one.largest:.5g}",
        f"  worst error  {_error(one)}",
        f"  bits         {one.bits:.5g} a weight",
        f"  planes of {list(one.shape)}",
    ]
    for plane in one.planes:
        lines.append(f"    {plane.path:<10} {plane.leaf:<5} {list(plane.shape)!s:<12} {plane.nbytes} bytes")
    return "\n".join(lines)


def _error(one: Facts) -> str:
    if one.worst_error is None:
        return "not bounded by the format"
    return f"{100 * one.worst_error:.3g} % of {'the value' if one.dtype.is_leaf else 'the largest magnitude in the group'}"


def _as_json(one: Facts) -> dict[str, Any]:
    return {
        "name": one.dtype.name,
        "term": str(one.dtype.term),
        "activations": one.dtype.act,
        "bits": one.bits,
        "use": one.use,
        "formula": one.formula,
        "groups": one.groups,
        "smallest": one.smallest,
        "largest": one.largest,
        "worst_error": one.worst_error,
        "worst_error_relative_to": "value" if one.dtype.is_leaf else "group",
        "shape": list(one.shape),
        "planes": [{"path": p.path, "leaf": p.leaf, "shape": list(p.shape), "nbytes": p.nbytes} for p in one.planes],
    }
