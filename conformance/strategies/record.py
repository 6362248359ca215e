"""The record of strategies: how random examples of an op, or of nodes that a pattern puts into one launch, are made."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from conformance.strategies.build import FLAVOURS, Build

SHELVES = ("attn", "elemwise", "gather", "hyper_connections", "linear", "mixing", "norms", "rotary", "sampling")
QUANTISED = ("u4g64", "u8g64", "u4g32", "u2g64", "mxfp4", "nvfp4", "e4m3row", "e4m3tile128", "e4m3tile128a8")
EXACT_PRODUCTS = ("", *QUANTISED[:-1])  # weights whose products with small integers are exact: they do not round activations


@dataclass(frozen=True, slots=True)
class Strategy:
    """How examples of one op are made.

    name: the op, or the fusion pattern whose nodes it makes. build: makes operands and calls the op. dtypes: of values.
    weights: dtypes of the big weights, "" where there is none or it follows the values. exact: which of those give results on
    small integers that only the last rounding changes, so that they are compared bit by bit. flavours: of the numbers.
    """

    name: str
    build: Callable[[Build], object]
    dtypes: tuple[str, ...]
    weights: tuple[str, ...]
    exact: tuple[str, ...]
    flavours: tuple[str, ...]


STRATEGIES: dict[str, Strategy] = {}


def strategy(
    *names: str,
    dtypes: Sequence[str] = ("bf16", "f32"),
    weights: Sequence[str] = ("",),
    exact: bool | Sequence[str] = False,
    flavours: Sequence[str] = FLAVOURS,
) -> Callable[[Callable[[Build], object]], Callable[[Build], object]]:
    """Registers the decorated function as the strategy of these names. exact: True for all `weights`."""

    def register(build: Callable[[Build], object]) -> Callable[[Build], object]:
        listed = tuple(weights) if exact is True else tuple(exact or ())
        for name in names:
            STRATEGIES[name] = Strategy(name, build, tuple(dtypes), tuple(weights), listed, tuple(flavours))
        return build

    return register


def alike(*names: str, **settings: Any) -> Callable[[Callable[[Build, str], object]], Callable[[Build, str], object]]:
    """Registers the decorated function, which is also told the name, as the strategy of each of these names."""

    def register(build: Callable[[Build, str], object]) -> Callable[[Build, str], object]:
        for name in names:
            strategy(name, **settings)(lambda b, name=name: build(b, name))  # type: ignore[misc]
        return build

    return register


def strategies() -> Mapping[str, Strategy]:
    """All strategies by name. Modules of the shelves register theirs when this is first asked for."""
    for shelf in SHELVES:
        import_module(f"conformance.strategies.{shelf}")
    return STRATEGIES
