"""`poem plan`: what a GPU is asked to do in one pass."""

import argparse
import json
import sys

from poem.errors import UsageError

ARCHS = ("sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120a")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem plan`."""
    parser.add_argument("package", metavar="MODEL.poem", help="a package, by path or name")
    parser.add_argument("--deployment", metavar="NAME", help="which deployment (default: the first)")
    parser.add_argument("--arch", choices=ARCHS, default="sm_90a", help="what kernels are compiled for (%(default)s)")
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="sequences in the pass (%(default)s)")
    parser.add_argument("--tokens", type=int, default=1, metavar="N", help="new tokens of each; 1 decodes (%(default)s)")
    parser.add_argument("--length", type=int, default=1024, metavar="N", help="tokens that each holds after the pass (%(default)s)")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--batch-invariant", action="store_true", help="only kernels whose sums for a row do not depend on the batch")
    choice.add_argument("--warpgroups", action="store_true", help="let products of 128 rows and more use TMA and wgmma on sm_90a")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints the plan. Raises PackageError, and KernelError for what no kernel serves."""
    from cupy_backend.plan import Bucket, Options, plan
    from cupy_backend.plan.describe import as_json, as_lines
    from poem.package import load_package

    length = max(arguments.length, arguments.tokens)
    for name, value in (("batch", arguments.batch), ("tokens", arguments.tokens), ("length", arguments.length)):
        if value < 1:
            raise UsageError("plan.arguments", f"--{name} is below 1", phase="plan", found=str(value))
    package = load_package(arguments.package)
    graph = package.trace(arguments.deployment or next(iter(package.deployments)))
    page_size = 16
    pages = arguments.batch * -(-length // page_size)
    rows, lanes, spaces = arguments.batch * arguments.tokens, arguments.batch, len(graph.spaces)
    bucket = Bucket(rows, lanes, lanes, arguments.tokens, arguments.tokens, length, (pages,) * spaces, page_size)
    made = plan(graph, bucket, Options(arguments.arch, arguments.batch_invariant, warpgroups=arguments.warpgroups))
    print(json.dumps(as_json(graph, made), indent=2) if arguments.json else "\n".join(as_lines(graph, made)))
    for note in package.notes:
        print(f"note: {note}", file=sys.stderr)
    return 0
