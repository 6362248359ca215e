"""Examples of ops.sampling, and of tokens that a session chooses on its device."""

import numpy as np

from conformance.strategies.build import Build
from conformance.strategies.record import strategy


@strategy("sampling.argmax", exact=True)
def argmax(b: Build) -> None:
    """Up to as many columns as a warp looks through twice, piece by piece. Below 0 there are zeros of both signs, which are equal."""
    width, axis, count = b.pick(8, 1, 100, 1001, 5000, 17000, 270000), b.pick("tokens", "readouts"), b.pick(1, 3)
    signed = b.pick(True, False)

    def made(rows: int) -> np.ndarray:
        found = b.numbers(rows, width)
        return found if signed else np.where(b.random.random(found.shape) < 0.5, -np.abs(found), 0.0)

    values = [b.floats(made, width, axis) for _ in range(count)]
    b.call("sampling.argmax", values if len(values) > 1 else values[0])


POSITIONS = 64  # at least so many as a sequence of an example has
KINDS = (0.45, 0.4, 0.05, 0.05, 0.05)  # of special rows: as they come, half of it -inf, all of it, with NaN, with infinity


@strategy("choose", dtypes=("bf16", "f32", "f16"))
def choose(b: Build) -> None:
    """The logits of a row are those of its position."""
    width = b.pick(8, 1, 100, 1001, 2000)
    table = b.given_weight(_logits(b, width), b.dtype)
    b.choose(b.call("gather.embed", b.positions(), table, POSITIONS))


def _logits(b: Build, width: int) -> np.ndarray:
    """Of special rows many have tokens that must not be chosen, and a few are no distribution."""
    found, kind = 2.0 * b.numbers(POSITIONS, width), b.pick("plain", "ties", "steep")
    if kind == "ties":
        found = np.stack([b.random.choice(row[: b.random.integers(1, 6)], width) for row in found])
    if kind == "steep":  # against the largest, weights of less than a step, and of less than half of one, which count for nothing
        found = b.random.choice((-31.5, -31.9), (POSITIONS, width))
        found[np.arange(POSITIONS), b.random.integers(0, width, POSITIONS)] = 0.0
    if b.flavour == "special":
        for row in found:
            places, value = ((0, 0.0), (width // 2, -np.inf), (width, -np.inf), (1, np.nan), (1, np.inf))[b.random.choice(5, p=KINDS)]
            row[b.random.permutation(width)[:places]] = value
    return found
