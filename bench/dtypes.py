"""How fast weights decode and encode, beside what ml_dtypes does. Run: python -m bench.dtypes [--json]

Million elements a second on one core, best of several runs, over a weight `[4096, 4096]` taken in strips of 128 rows, as
a product with it takes it. `ml_dtypes` is the cast of its own array of the same element format (codes already one a byte, no gains).
"""

import argparse
import json
import time
from collections.abc import Callable

import ml_dtypes
import numpy as np

from poem.dtypes import NICKNAMES, Dtype
from poem.dtypes.tensor import Tensor

SHAPE = (4096, 4096)
ROWS = 128
ELEMENTS = {
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def speed(work: Callable[[], object], elements: int, repeats: int = 9) -> float:
    """Million elements a second of the best run."""
    best = min(_seconds(work) for _ in range(repeats))
    return elements / best / 1e6


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def strips(work: Callable[[slice], object]) -> Callable[[], None]:
    def every() -> None:
        for start in range(0, SHAPE[0], ROWS):
            work(slice(start, start + ROWS))

    return every


def measure(name: str) -> dict[str, object]:
    """The speeds of one dtype."""
    weight = np.random.default_rng(0).standard_normal(SHAPE, dtype=np.float32)
    dtype = Dtype(name)
    tensor = Tensor.encode(weight, dtype)
    element = name if dtype.is_leaf else dtype.term.code
    found: dict[str, object] = {
        "dtype": name,
        "decode": speed(strips(lambda rows: tensor.decode(rows)), weight.size),
        "encode": speed(lambda: Tensor.encode(weight, dtype), weight.size, 2),
    }
    if element in ELEMENTS:
        theirs = np.clip(weight * 4, 0, 6).astype(ELEMENTS[element])
        found["ml_dtypes decode"] = speed(strips(lambda rows: theirs[rows].astype(np.float32)), weight.size, 2)
        found["ml_dtypes encode"] = speed(strips(lambda rows: weight[rows].astype(ELEMENTS[element])), weight.size, 2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the speeds as JSON")
    arguments = parser.parse_args()
    columns = ("dtype", "decode", "ml_dtypes decode", "encode", "ml_dtypes encode")
    if not arguments.json:
        print("million elements a second, one core")
        print("  ".join(column.rjust(16) for column in columns))
    found = []
    for name in ("bf16", "e4m3", "e5m2", *NICKNAMES):
        found.append(measure(name))
        if not arguments.json:
            cells = [found[-1].get(column, "") for column in columns]
            print("  ".join((cell if isinstance(cell, str) else f"{cell:.0f}").rjust(16) for cell in cells), flush=True)
    if arguments.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
