"""How the next token is chosen from logits: temperature, then top-k, then top-p, then min-p, then one draw."""

import math
from collections.abc import Iterable

import numpy as np

from poem.dataclass import dataclass
from poem.errors import PoemError, UsageError


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. The defaults choose the likeliest token.

    temperature: divides the logits; 0 takes the largest logit, the lowest id among equals, and ignores the rest.
    top_k: keep the k likeliest tokens, lower ids first among equals; 0 keeps all.
    top_p: of those, keep the fewest likeliest whose probabilities, renormalised, add up to at least p; 1 keeps all.
    min_p: of those, keep the ones at least min_p times as likely as the likeliest; 0 keeps all.
    seed: of the draws. Sequence i of a batch draws from its own stream, so its tokens do not depend on the others.

    Raises:
        UsageError: `generate.sampling` for a value outside these ranges.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, good, expected in (
            ("temperature", self.temperature, math.isfinite(self.temperature) and self.temperature >= 0, "0 or more"),
            ("top_k", self.top_k, self.top_k >= 0, "0 or more"),
            ("top_p", self.top_p, 0 < self.top_p <= 1, "above 0, at most 1"),
            ("min_p", self.min_p, 0 <= self.min_p <= 1, "0 to 1"),
            ("seed", self.seed, self.seed >= 0, "0 or more"),
        ):
            if not good:
                raise UsageError("generate.sampling", f"{name} is out of range", expected=expected, found=str(value))

    def random(self, sequence: int) -> np.random.Generator:
        """The stream of draws of one sequence of a batch."""
        return np.random.default_rng([self.seed, sequence])


def probabilities(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The distribution that a token is drawn from: float64 [vocabulary], 0 for tokens that are cut off.

    Raises:
        PoemError: `generate.not-finite` for logits [vocabulary] with NaN or +inf, or without any finite value.
    """
    logits = check_logits(logits)
    if sampling.temperature == 0:
        chosen = np.zeros(len(logits))
        chosen[np.argmax(logits)] = 1.0
        return chosen
    with np.errstate(under="ignore", over="ignore"):
        weights = np.exp((logits - logits.max()) / sampling.temperature)
    order = np.argsort(-logits, kind="stable")  # rounded, weights of different logits may be equal
    kept = order[: sampling.top_k or None]
    if sampling.top_p < 1:
        mass = np.cumsum(weights[kept])
        kept = kept[: np.searchsorted(mass, sampling.top_p * mass[-1]) + 1]
    if sampling.min_p > 0:
        kept = kept[weights[kept] >= sampling.min_p * weights[kept[0]]]
    result = np.zeros(len(logits))
    result[kept] = weights[kept] / weights[kept].sum()
    return result


def choose(logits: np.ndarray, sampling: Sampling, random: np.random.Generator) -> int:
    """One token id. At a temperature it spends exactly one uniform draw u: the first id whose cumulated probability exceeds u.

    Raises:
        PoemError: `generate.not-finite`, as `probabilities`.
    """
    distribution = probabilities(logits, sampling)
    if sampling.temperature == 0:
        return int(distribution.argmax())
    cumulated = np.cumsum(distribution)
    return int(np.searchsorted(cumulated, random.random() * cumulated[-1], side="right"))


def log_probability(logits: np.ndarray, token: int) -> float:
    """The natural logarithm of a token's probability under the logits themselves, before temperature and cuts."""
    logits = check_logits(logits)
    shifted = logits - logits.max()
    return float(shifted[token] - np.log(np.exp(shifted).sum()))


def check_logits(logits: np.ndarray) -> np.ndarray:
    """The logits of one row, `[vocabulary]`, as float64.

    Raises:
        PoemError: `generate.not-finite` if they are no distribution: with NaN or +inf, or without any finite value.
    """
    logits = logits.astype(np.float64)
    wrong = np.isnan(logits) | (logits == np.inf)
    if wrong.any() or np.isneginf(logits).all():
        index, others = int(wrong.argmax()), max(0, int(wrong.sum()) - 1)
        raise PoemError(
            "generate.not-finite", "the model's logits are no distribution", phase="run", expected="finite logits, or -inf in places",
            found=f"{logits[index]} at token {index}" + (f" and {others} more" if others else ""),
            hint="poem check compares the model with its original and names the first op that goes wrong",
        )  # fmt: skip
    return logits


def no_logits(outputs: Iterable[str]) -> PoemError:
    """The refusal of a model that has no logits to choose tokens from. outputs: the names of what it has."""
    return PoemError(
        "generate.no-logits", "the model has no output `logits` to choose tokens from", phase="run", expected='output("logits", ...)',
        found=", ".join(outputs) or "no outputs",
    )  # fmt: skip
