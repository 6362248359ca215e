"""`poem inspect`: what a checkpoint or a .zt file holds, without reading the tensors."""

import argparse
import json
import math
from pathlib import Path
from typing import Any


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem inspect`."""
    parser.add_argument("file", metavar="FILE", help="a .zt, .safetensors or .gguf file, a checkpoint folder, or ORG/NAME")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the description. Raises CheckpointError for a file that is none of these or is damaged."""
    described = describe(arguments.file)
    print(json.dumps(described, indent=2, ensure_ascii=False) if arguments.json else as_text(described))
    return 0


def describe(file: str) -> dict[str, Any]:
    """Plain data: `kind`, `file`, `tensors` (each with name, dtype, shape, bytes), `bytes`, `side_files`, `metadata`, and for
    a .zt file `deployment`, `package`, `package_files` and `source`."""
    if Path(file).suffix == ".zt":
        return _artifact(file)
    from poem.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(file)
    tensors = [
        {"name": raw.name, "dtype": raw.leaf or raw.tag.lower(), "shape": list(raw.shape), "bytes": raw.nbytes}
        for raw in sorted(checkpoint.tensors.values(), key=lambda raw: raw.name)
    ]
    return {
        "kind": checkpoint.kind,
        "file": file,
        "tensors": tensors,
        "bytes": sum(raw.nbytes for raw in checkpoint.tensors.values()),
        "files": [str(mapped.path) for mapped in checkpoint.files()],
        "side_files": list(checkpoint.side_files),
        "source": checkpoint.source,
        "metadata": {key: _short(value) for key, value in checkpoint.metadata.items()},
    }


def _artifact(file: str) -> dict[str, Any]:
    from poem.artifact import Container

    container = Container(file)
    tensors = [
        {"name": name, "dtype": container.stored_dtype(name), "shape": list(container.shape(name)), "bytes": container.nbytes(name)}
        for name in container.weights()
    ]
    attributes = container.attributes
    prefix, shown_apart = "poem.package/files/", ("poem.package/", "poem.source/", "poem.config/", "poem.deployment")
    return {
        "kind": "zt",
        "file": file,
        "tensors": tensors,
        "bytes": sum(container.nbytes(name) for name in container.weights()),
        "deployment": attributes.get("poem.deployment"),
        "package": attributes.get("poem.package/name"),
        "package_api": attributes.get("poem.package/api"),
        "package_files": [key.removeprefix(prefix) for key in attributes if key.startswith(prefix)],
        "source": {key.removeprefix("poem.source/"): value for key, value in attributes.items() if key.startswith("poem.source/")},
        "side_files": container.side_files(),
        "metadata": {key: value for key, value in attributes.items() if not key.startswith(shown_apart)},
    }


def as_text(described: dict[str, Any]) -> str:
    """The description for a terminal: what the file is, then its tensors by name."""
    label = "  {:<15}{}".format
    head = [f"{described['file']}: {described['kind']}, {len(described['tensors'])} tensors, {as_bytes(described['bytes'])}"]
    for key in ("deployment", "package"):
        if described.get(key):
            head.append(label(f"{key}:", described[key]))
    for key in ("package_files", "side_files"):
        if described.get(key):
            head.append(label(key.replace("_", " ") + ":", ", ".join(described[key])))
    head += [label(f"{key}:", value) for key, value in described["source"].items()]
    head += [f"  {key} = {value}" for key, value in described["metadata"].items()]
    rows = [(t["name"], t["dtype"], "[" + ", ".join(map(str, t["shape"])) + "]", as_bytes(t["bytes"])) for t in described["tensors"]]
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(4)]
    lines = [f"{name:<{widths[0]}}  {dtype:<{widths[1]}}  {shape:<{widths[2]}}  {size:>{widths[3]}}" for name, dtype, shape, size in rows]
    return "\n".join(_printable(line) for line in ([*head, "", *lines] if lines else head))


def as_bytes(count: int) -> str:
    """A size as a person reads it, in powers of 1000."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError


def _printable(line: str) -> str:
    """A line without control characters: names and texts come from files that nobody vouches for."""
    return "".join(letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in line)


def _short(value: Any) -> Any:
    """Long lists and texts (vocabularies, chat templates) by their size; NaN and infinity, which JSON has not, by their names."""
    if isinstance(value, list):
        return f"{len(value)} entries" if len(value) > 16 else [_short(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return f"{value[:60]}... ({len(value)} characters)" if isinstance(value, str) and len(value) > 200 else value
