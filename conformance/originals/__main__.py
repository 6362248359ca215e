"""python -m conformance.originals SOURCE GOLDEN: run the original class of a checkpoint and write a golden."""

import argparse
from pathlib import Path

from conformance.originals.golden import make_golden


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m conformance.originals", description="Run the original class and write a golden.")
    parser.add_argument("source", type=Path, help="folder with config.json, model.safetensors, inputs.safetensors")
    parser.add_argument("golden", type=Path, help="folder to write, e.g. models/goldens/llama_3/llama31-mini")
    args = parser.parse_args()
    recorded = make_golden(args.source, args.golden)
    print(f"{args.golden}: {len(recorded)} arrays, {sum(value.nbytes for value in recorded.values())} bytes")


if __name__ == "__main__":
    main()
