"""Packing of everything that lives within a pass into one buffer."""

from collections.abc import Iterable
from typing import NamedTuple

ALIGNMENT = 256  # bytes; of every array in device memory


class Life(NamedTuple):
    """An array that must keep its bytes from step `first` to step `last`, both included."""

    name: str
    nbytes: int
    first: int
    last: int


def pack(lives: Iterable[Life]) -> tuple[dict[str, int], int]:
    """Offsets by name, and the bytes of the arena. Arrays that live at the same time never overlap.

    The largest array is placed first, each in the smallest gap that takes it among those it lives beside ("greedy by size", Pisarchyk
    and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020).
    """
    placed: list[tuple[int, int, Life]] = []
    for life in sorted(lives, key=lambda life: (-life.nbytes, life.first, life.name)):
        size = aligned(life.nbytes)
        beside = sorted((start, stop) for start, stop, other in placed if other.first <= life.last and life.first <= other.last)
        best, best_gap, free = None, 0, 0
        for start, stop in beside:
            gap = start - free
            if gap >= size and (best is None or gap < best_gap):
                best, best_gap = free, gap
            free = max(free, stop)
        at = free if best is None else best
        placed.append((at, at + size, life))
    return {life.name: start for start, _, life in placed}, max((stop for _, stop, _ in placed), default=0)


def aligned(nbytes: int) -> int:
    """The next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
