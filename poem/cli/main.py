"""The `poem` command: subcommands by name, errors as text, exit codes 0 (agree), 1 (differ), 2 (cannot run)."""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Sequence

from poem import __version__
from poem.cli.watch import watched
from poem.errors import PoemError
from poem.home import copy_shipped

# A subcommand is a module of this package with `add_arguments(parser)` and `run(arguments) -> exit code`.
SUBCOMMANDS = {
    "check": "compare a model with its golden or with the original",
    "trace": "print the graph of a deployment",
    "plan": "print what a GPU is asked to do in one pass",
    "conformance": "try random examples of every op on devices, against exact results",
    "import": "turn a checkpoint into a .zt file",
    "run": "generate text",
    "inspect": "list the tensors of a checkpoint or .zt file",
    "verify": "check the digests of a .zt file",
    "ops": "list the ops, or explain one",
    "dtypes": "list the dtypes, or explain one",
    "models": "list the packages and deployments found",
    "new": "write a package to start from",
    "bench": "measure speed or quality",
}
CANNOT_RUN = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code. A user's mistake is printed, never raised.

    Without `argv`, that of the process is run in a child that is watched over.
    """
    if argv is None:
        return _command_line(sys.argv[1:])
    argv = list(argv)
    name = next((word for word in argv if not word.startswith("-")), None)
    parser = argparse.ArgumentParser(prog="poem", description="Models as short files: check, import, run.")
    parser.add_argument("--version", action="version", version=f"poem {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", prog="poem")  # else the whole help is laid out
    module = None
    # Start-up time is part of the product: where a command comes first, the others are not made, and only its module is imported.
    for command in argv[:1] if argv[:1] == [name] and name in SUBCOMMANDS else SUBCOMMANDS:
        subparser = commands.add_parser(command, help=SUBCOMMANDS[command], description=SUBCOMMANDS[command])
        if command == name:
            module = importlib.import_module(f"poem.cli.{command}_")
            module.add_arguments(subparser)
    arguments = parser.parse_args(argv)
    assert module is not None
    try:
        return module.run(arguments)
    except PoemError as error:
        if getattr(arguments, "json", False):
            print(json.dumps({"error": error.as_json()}, indent=2))
        print(error.render(), file=sys.stderr)
        return CANNOT_RUN
    except KeyboardInterrupt:
        print(f"poem {name}: interrupted; nothing was left half-written", file=sys.stderr)
        return CANNOT_RUN
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CANNOT_RUN
    except OSError as fault:  # a disk that is full, a folder that is closed
        print(f"poem {name}: {fault}", file=sys.stderr)
        return CANNOT_RUN


def check() -> int:
    """`poem-check ...` is `poem check ...`."""
    return _command_line(["check", *sys.argv[1:]])


def _command_line(argv: Sequence[str]) -> int:
    def command(argv: Sequence[str]) -> int:
        for warning in copy_shipped():
            print(f"poem: {warning}", file=sys.stderr)
        return main(argv)

    return watched(command, argv)
