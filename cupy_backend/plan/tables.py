"""Arrays that follow from attributes and are put into device memory at load: rotary frequencies."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np


def rotary_frequencies(theta: float, rotary: int, scaling: Mapping[str, Any] | None) -> np.ndarray:
    """The angle per position of each pair of `rotary` channels, computed in float64: float32 `[rotary / 2]`.

    theta^(-2i/R), changed by a scaling (formulas: `poem.ops.scaling`). ValueError for a scaling that depends on the length of a sequence.
    """
    plain = float(theta) ** -(np.arange(rotary // 2) * 2 / rotary)
    return (plain if scaling is None else _scaled(plain, float(theta), rotary, scaling)).astype(np.float32)


def _scaled(plain: np.ndarray, theta: float, rotary: int, scaling: Mapping[str, Any]) -> np.ndarray:
    kind = scaling["kind"]
    if kind == "linear":
        return plain / scaling["factor"]
    if kind == "longrope":
        if scaling["use"] == "auto":
            raise ValueError("longrope with use auto depends on the length of a sequence")
        return plain / np.array(scaling[scaling["use"]], np.float64)
    original, factor = scaling["original_max_position"], scaling["factor"]
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        turns = original * plain / (2 * math.pi)  # of a pair over the original context
        blend = (turns - low) / (high - low)
        blended = (1 - blend) * plain / factor + blend * plain
        return np.where(blend > 1, plain, np.where(blend < 0, plain / factor, blended))
    assert kind == "yarn"
    edges = [rotary * math.log(original / (2 * math.pi * scaling[beta])) / (2 * math.log(theta)) for beta in ("beta_fast", "beta_slow")]
    if scaling["truncate"]:
        edges = [math.floor(edges[0]), math.ceil(edges[1])]
    low, high = max(edges[0], 0), min(edges[1], rotary - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / ((high - low) or 0.001), 0, 1)
    return plain * (1 - ramp) + plain / factor * ramp
