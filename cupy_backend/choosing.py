"""The next tokens, chosen on the device: what the kernel is given of a pass, and what it gives back."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cupy_backend.kernels import sampling
from cupy_backend.launch import Array, Launch
from poem.sampling import Sampling

SETTINGS, CHOSEN = "sampling.settings", "sampling.chosen"  # buffers


def settings(rules: Sequence[Sampling], draws: Sequence[float]) -> np.ndarray:
    """The bytes of `SETTINGS`, a list behind the other with an entry for each row: temperatures, top_p, min_p and draws f64, top_k i32."""
    doubles = [[rule.temperature for rule in rules], [rule.top_p for rule in rules], [rule.min_p for rule in rules], draws]
    top_k = [min(rule.top_k, np.iinfo(np.int32).max) for rule in rules]
    return np.concatenate([np.array(doubles, np.float64).reshape(-1).view(np.uint8), np.array(top_k, np.int32).view(np.uint8)])


def launches(logits: Array, count: int) -> list[Launch]:
    """Chooses a token for each of the first `count` rows of logits. KernelError for more tokens than the kernel serves."""
    temperature, top_p, min_p, uniform = (Array(SETTINGS, "read", (count,), "f64", 8 * count * i) for i in range(4))
    top_k = Array(SETTINGS, "read", (count,), "i32", 32 * count)
    log_probabilities, ids = Array(CHOSEN, "write", (count,), "f64"), Array(CHOSEN, "write", (count,), "i32", 8 * count)
    return sampling.sample(
        replace(logits, shape=(count, logits.shape[1])), ids, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        uniform=uniform, log_probabilities=log_probabilities,
    )  # fmt: skip


def chosen(held: np.ndarray, count: int) -> list[tuple[int, float]]:
    """Tokens and their log-probabilities from the bytes of `CHOSEN`; a token of -1 for a row that is no distribution."""
    log_probabilities, ids = held[: 8 * count].view(np.float64), held[8 * count : 12 * count].view(np.int32)
    return list(zip(ids.tolist(), log_probabilities.tolist(), strict=True))
