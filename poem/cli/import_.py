"""`poem import`: turn a checkpoint into a .zt file."""

import argparse
import json
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from poem.cli.inspect_ import as_bytes
from poem.cli.progress import progress_bar
from poem.errors import PoemError, UsageError

if TYPE_CHECKING:
    from poem.importer import ImportPlan
    from poem.package import Package


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem import`."""
    parser.add_argument("source", metavar="SOURCE", help="a folder, a .safetensors or .gguf file, or ORG/NAME of the Hugging Face hub")
    which = parser.add_argument_group("which deployment", "the first that fits by default")
    which.add_argument("--deployment", metavar="NAME", help="this one, e.g. llama31-8b-bf16-kv-bf16")
    which.add_argument("--model", metavar="ID", help="one of this model's")
    which.add_argument("--package", metavar="FILE", action="append", help="of this package (path or name); repeat for several")
    which.add_argument("--requantise", action="store_true", help="with --deployment: quantise again what is stored quantised otherwise")
    parser.add_argument("--head", metavar="SOURCE", help="a draft head published apart; its tensors are read under the prefix aux.")
    parser.add_argument("-o", "--output", metavar="FILE.zt", help="where to write (the deployment's name by default)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Plans, checks and writes; prints the outcome. Raises PoemError, and then nothing has been written."""
    if arguments.requantise and arguments.deployment is None:
        raise UsageError("usage.requantise", "--requantise needs --deployment", hint="name the deployment to quantise for")
    if arguments.output is not None:
        _check_destination(Path(arguments.output))
    from poem.artifact import write_artifact
    from poem.checkpoint import Joined, open_checkpoint
    from poem.importer import plan_import

    started = time.monotonic()
    checkpoint = open_checkpoint(arguments.source)
    if arguments.head is not None:
        checkpoint = Joined(checkpoint, open_checkpoint(arguments.head))
    packages = packages_of(arguments.package)
    with progress_bar("looking for the deployment", in_bytes=False) as progress:
        plan = plan_import(
            checkpoint, packages, deployment=arguments.deployment, model=arguments.model, requantise=arguments.requantise, progress=progress
        )
    output = Path(arguments.output or f"{plan.deployment.name}.zt")
    _check_destination(output)
    before = signal.signal(signal.SIGTERM, _interrupted)
    try:
        with progress_bar(f"importing {plan.deployment.name}") as progress:
            size = write_artifact(output, plan, progress)
    finally:
        signal.signal(signal.SIGTERM, before)
    outcome = {**plan.report, "file": str(output), "file_bytes": size, "seconds": round(time.monotonic() - started, 3)}
    print(json.dumps(outcome, indent=2, ensure_ascii=False) if arguments.json else as_text(plan, outcome))
    return 0


def packages_of(named: list[str] | None) -> "list[Package]":
    """The packages to look in: those named, else all that are found; one that does not load is left out with a note."""
    from poem.language.search_path import default_roots, list_packages
    from poem.package import load_package

    if named:
        return [load_package(name) for name in named]
    found = []
    for path in list_packages(default_roots()):
        try:
            found.append(load_package(path))
        except PoemError as fault:
            print(f"note: the package {path} is left out: {fault.message} [{fault.code}]", file=sys.stderr)
    return found


def as_text(plan: "ImportPlan", outcome: dict[str, Any]) -> str:
    """The outcome for a terminal."""
    actions = ", ".join(f"{count} {action}" for action, count in plan.actions.items() if count)
    lines = [
        f"{outcome['file']}: {plan.deployment.name}, {as_bytes(outcome['file_bytes'])} in {outcome['seconds']:.1f} s",
        f"  {outcome['weights']} weights read by format {plan.format} of package {plan.package.name}: {actions}",
    ]
    lines += [f"  not read, {entry}" for entry in plan.not_read]
    lines += [f"  note: {note}" for note in plan.notes]
    return "\n".join(lines)


def _check_destination(path: Path) -> None:
    """Only a .zt file is ever replaced."""
    if path.suffix != ".zt":
        raise UsageError("usage.output", "an import writes a .zt file", expected="-o NAME.zt", found=str(path))


def _interrupted(signum: int, frame: FrameType | None) -> None:
    """A polite kill ends an import as Ctrl-C does, so that nothing is left half-written."""
    sys.stderr.write("terminated\n")
    raise KeyboardInterrupt
