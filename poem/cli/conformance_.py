"""`poem conformance`: random examples of every op, on the interpreter and on devices, against exact results and their bounds."""

import argparse
import json

from poem.cli.progress import progress_bar
from poem.errors import UsageError

BUDGET = 60.0
DEVICES = ("interp", "emu", "emu-fast", "cuda")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem conformance`."""
    parser.add_argument("cases", nargs="*", metavar="CASE", help="examples as a report names them, or how names begin: linear.matmul:bf16")
    parser.add_argument("--op", metavar="PATTERN", help="only these ops: linear.*")
    parser.add_argument("--dtype", metavar="PATTERN", help="only values or weights of these dtypes: u4*")
    parser.add_argument("--device", action="append", choices=DEVICES, help="where to run (default: interp and emu); may be given twice")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the first example of each line (%(default)s)")
    parser.add_argument("--rounds", type=int, metavar="N", help="at most so many examples of each line")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help=f"stop after this time ({BUDGET:.0f}; mutants: when all are tried)")
    parser.add_argument(
        "--mutants", nargs="*", metavar="FILE", help="plant small mistakes in the CUDA sources, all or these, and see them found"
    )  # fmt: skip
    parser.add_argument("--sample", type=int, metavar="N", help="at most so many mutants of a kind in each function")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the support table. Exit code 0 if all agrees, 1 if an example is past its bound. Raises PoemError for what cannot be run."""
    from conformance.suite import Plan, run_suite
    from conformance.suite_text import as_text

    for name, value in (
        ("budget", arguments.budget),
        ("rounds", arguments.rounds),
        ("seed", arguments.seed + 1),
        ("sample", arguments.sample),
    ):
        if value is not None and value <= 0:
            raise UsageError("conformance.arguments", f"--{name} is too small", phase="conformance", found=str(getattr(arguments, name)))
    if arguments.mutants is not None:
        return _run_mutants(arguments)
    plan = Plan(
        tuple(dict.fromkeys(arguments.device or ("interp", "emu"))), tuple(arguments.cases), arguments.op, arguments.dtype, arguments.seed,
        arguments.rounds, arguments.budget or BUDGET,
    )  # fmt: skip
    with progress_bar("conformance, seconds", in_bytes=False) as progress:
        report = run_suite(plan, progress)
    print(json.dumps(report.as_json(), indent=2) if arguments.json else as_text(report))
    return int(bool(report.failures))


def _run_mutants(arguments: argparse.Namespace) -> int:
    """Exit code 1 if a mistake is not found. Raises UsageError for a file that is not mutated."""
    from conformance import mutants

    with progress_bar("mutants", in_bytes=False) as update:
        report = mutants.run(
            arguments.budget, arguments.mutants, arguments.sample, lambda what, done, of: update(done, of, what) if update else None
        )  # fmt: skip
    print(json.dumps(report.as_json(), indent=2) if arguments.json else mutants.as_text(report))
    return int(not report.passed)
