"""`poem conformance`: random examples of every op, on the interpreter and on devices, against exact results and their bounds."""

import argparse
import json

from poem.cli.progress import progress_bar
from poem.errors import UsageError

DEVICES = ("interp", "emu", "emu-fast", "cuda")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem conformance`."""
    parser.add_argument("cases", nargs="*", metavar="CASE", help="examples as a report names them, or how names begin: linear.matmul:bf16")
    parser.add_argument("--op", metavar="PATTERN", help="only these ops: linear.*")
    parser.add_argument("--dtype", metavar="PATTERN", help="only values or weights of these dtypes: u4*")
    parser.add_argument("--device", action="append", choices=DEVICES, help="where to run (default: interp and emu); may be given twice")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first example of each line (%(default)s)")
    parser.add_argument("--rounds", type=int, metavar="N", help="at most so many examples of each line")
    parser.add_argument("--budget", type=float, default=60.0, metavar="SECONDS", help="stop after this time (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the support table. Exit code 0 if all agrees, 1 if an example is past its bound. Raises PoemError for what cannot be run."""
    from conformance.suite import Plan, run_suite
    from conformance.suite_text import as_text

    for name, value in (("budget", arguments.budget), ("rounds", arguments.rounds), ("seed", arguments.seed + 1)):
        if value is not None and value <= 0:
            raise UsageError("conformance.arguments", f"--{name} is too small", phase="conformance", found=str(getattr(arguments, name)))
    plan = Plan(
        tuple(dict.fromkeys(arguments.device or ("interp", "emu"))), tuple(arguments.cases), arguments.op, arguments.dtype, arguments.seed,
        arguments.rounds, arguments.budget,
    )  # fmt: skip
    with progress_bar("conformance, seconds", in_bytes=False) as progress:
        report = run_suite(plan, progress)
    print(json.dumps(report.as_json(), indent=2) if arguments.json else as_text(report))
    return int(bool(report.failures))
