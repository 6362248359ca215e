"""`poem bench`: measure a model. `poem bench quality` tells what a precision costs."""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from poem.cli.inspect_ import as_bytes
from poem.errors import UsageError

if TYPE_CHECKING:
    from conformance.quality import Quality

TOKENS = 2048
HEADINGS = ("file", "size", "bits a weight", "perplexity", "top-1", "KL, nats", "tokens/s")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem bench`."""
    what = parser.add_subparsers(dest="what", required=True, metavar="WHAT")
    summary = "read a text to one model in several precisions: size, perplexity, agreement, speed"
    quality = what.add_parser("quality", help=summary, description=summary)
    quality.add_argument("files", nargs="+", metavar="FILE.zt", help="imported models with one tokenizer")
    quality.add_argument("--text", metavar="FILE", help="what to read, UTF-8 (by default a story of some 500 words)")
    quality.add_argument("--against", metavar="FILE.zt", help="the reference for agreement (the first file by default)")
    quality.add_argument("--tokens", type=int, default=TOKENS, metavar="N", help="read at most this many tokens (%(default)s)")
    quality.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints a line for each file. Raises PoemError for what cannot be read or run."""
    from conformance.quality import TEXT, compare_files

    reference = arguments.against or arguments.files[0]
    for file in (*arguments.files, reference):
        if Path(file).suffix != ".zt":
            raise UsageError("bench.file", f"{file} is no .zt file", phase="bench", hint="poem import SOURCE -o NAME.zt makes one")
    text = _text(Path(arguments.text or TEXT))
    found = compare_files(arguments.files, text, reference, limit=arguments.tokens, progress=_progress)
    if arguments.json:
        print(json.dumps({"reference": reference, "files": [asdict(quality) for quality in found]}, indent=2))
    else:
        print(as_table(found, reference))
    return 0


def as_table(found: "list[Quality]", reference: str) -> str:
    """The outcome for a terminal."""
    rows = [HEADINGS, *(_row(quality) for quality in found)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths, strict=True)))
             for row in rows]  # fmt: skip
    return "\n".join([*lines, f"{found[0].tokens} tokens predicted; top-1 and KL against {reference}"])


def _row(quality: "Quality") -> tuple[str, ...]:
    apart = ("reference", "")
    if quality.agreement is not None and quality.divergence is not None:
        apart = f"{100 * quality.agreement:.1f} %", f"{quality.divergence:.4f}"
    return (
        quality.file, as_bytes(quality.bytes), f"{quality.bits:.2f}", f"{quality.perplexity:.3f}", *apart,
        f"{quality.tokens_per_second:.1f}",
    )  # fmt: skip


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is not UTF-8"
        raise UsageError("bench.text", f"the text cannot be read: {reason}", phase="bench", file=str(file)) from None


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"{text} ...", file=sys.stderr)
