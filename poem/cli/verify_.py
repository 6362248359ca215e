"""`poem verify`: whether a .zt file is whole: every digest, and every weight as its package lays it out."""

import argparse
import json
import sys


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem verify`."""
    parser.add_argument("file", metavar="FILE.zt", help="the file to check")
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints what was checked. Raises CheckpointError (`artifact.*`) with the place of the first fault."""
    from poem.artifact import open_artifact, verify
    from poem.cli.progress import progress_bar

    with progress_bar("verifying") as progress:
        objects = verify(arguments.file, progress)
    artifact = open_artifact(arguments.file)
    for note in artifact.notes:
        print(f"note: {note}", file=sys.stderr)
    if arguments.json:
        outcome = {"file": arguments.file, "objects": objects, "weights": len(artifact.weights), "deployment": artifact.deployment.name}
        print(json.dumps(outcome, indent=2))
    else:
        print(f"{arguments.file}: {objects} objects match their digests; {len(artifact.weights)} weights of {artifact.deployment.name}")
    return 0
