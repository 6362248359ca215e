"""How long tracing takes: python bench/trace.py [MODEL.poem] [--repeat N]

Prints, for each deployment, milliseconds of a trace (layout, caches and forward included) and microseconds of a layer: the best of
N, so that a busy machine does no harm. Last come the load of the package and the sum over all deployments.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from poem.package import load_package

ROOT = Path(__file__).parent.parent
Result = TypeVar("Result")


def timed(repeat: int, run: Callable[[], Result]) -> tuple[float, Result]:
    """The least seconds that `run` took, and its last result."""
    best, result = float("inf"), None
    for _ in range(repeat):
        start = time.perf_counter()
        result = run()
        best = min(best, time.perf_counter() - start)
    assert result is not None
    return best, result


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("package", nargs="?", default=str(ROOT / "models" / "llama_3.poem"))
    parser.add_argument("--repeat", type=int, default=10)
    arguments = parser.parse_args()
    start = time.perf_counter()
    package = load_package(arguments.package)
    load = time.perf_counter() - start
    width = max(map(len, package.deployments))
    total, layers = 0.0, 0
    for name, deployment in package.deployments.items():
        seconds, graph = timed(arguments.repeat, lambda name=name: package.trace(name))  # type: ignore[misc]
        total += seconds
        layers += deployment.model.layers
        per_layer = f"{seconds / deployment.model.layers * 1e6:7.0f} us a layer" if deployment.model.layers else ""
        print(f"{name:<{width}}  {len(graph.nodes):5} nodes  {seconds * 1e3:7.2f} ms  {per_layer}")
    print(f"load {load * 1e3:.1f} ms; {len(package.deployments)} deployments, {layers} layers: {total * 1e3:.1f} ms", file=sys.stderr)


if __name__ == "__main__":
    main()
