"""Random examples of ops, a module for each shelf."""

from conformance.strategies.build import FLAVOURS, Build
from conformance.strategies.record import STRATEGIES, Strategy, strategies, strategy

__all__ = ["FLAVOURS", "STRATEGIES", "Build", "Strategy", "strategies", "strategy"]
