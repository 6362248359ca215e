"""`poem check`, and `poem-check`: compare a model with its golden or with the original."""

import argparse
import json
import os
import sys
from pathlib import Path

from poem.collection import paused_collection
from poem.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem check`."""
    parser.add_argument("package", metavar="MODEL.poem", help="a package, by path or name")
    which = parser.add_argument_group("what to check", "by default every deployment is traced and every mini compared with its golden")
    which.add_argument("--model", metavar="ID", help="only the deployments of this model")
    which.add_argument("--deployment", metavar="NAME", help="only this deployment")
    which.add_argument("--mode", choices=["exact", "native", "both"], default="both", help="in float64, or rounded (default: both)")
    which.add_argument("--only", metavar="PATTERN", help="judge only tensors whose name has this in it, e.g. attention.0 or 'hidden.*'")
    original = parser.add_argument_group("what to compare with")
    original.add_argument("--checkpoint", metavar="DIR|FILE", help="a checkpoint for the weights, whole or mini")
    original.add_argument("--golden", metavar="DIR", help="inputs.safetensors and expected.safetensors; weights too unless --checkpoint")
    original.add_argument("--against", choices=["transformers"], help="run the original class on the checkpoint in this process")
    original.add_argument("--save-golden", metavar="DIR", help="keep what the original gave as a golden")
    backends = ["interp", "emu", "cuda"]
    which.add_argument("--backend", choices=backends, default="interp", help="a backend to compare with the interpreter besides")
    parser.add_argument("--seed", type=int, default=0, help="of the perturbed runs and of a random prompt (default: 0)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the report as one page")


def run(arguments: argparse.Namespace) -> int:
    """Checks and prints the report. Returns 0 if everything agrees, 1 if something differs. Raises PoemError if it cannot run."""
    if arguments.checkpoint:
        return _run(arguments)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # minis are so small that threads would mostly wait for each other
    with paused_collection():
        return _run(arguments)


def _run(arguments: argparse.Namespace) -> int:
    from conformance.check import check
    from conformance.options import Options
    from conformance.report_text import render

    names = ("package", "model", "deployment", "checkpoint", "golden", "against", "save_golden", "mode", "only", "seed")
    backend = None if arguments.backend == "interp" else arguments.backend
    options = Options(**{name: getattr(arguments, name) for name in names}, backend=backend)
    report = check(options, _progress)
    if arguments.html is not None:
        from conformance.report_html import page

        try:
            Path(arguments.html).write_text(page(report), encoding="utf-8")
        except OSError as fault:
            raise UsageError("check.html", f"the page cannot be written: {fault.strerror}", phase="check", file=arguments.html) from None
    print(json.dumps(report.as_json(), indent=2) if arguments.json else render(report))
    return report.exit_code


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"{text} ...", file=sys.stderr)
