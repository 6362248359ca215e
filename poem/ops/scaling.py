"""Rope scaling values: how a long-context model changes its rotary frequencies.

Each function checks its arguments and returns a `Scaling`, which packages keep in their layout and pass to
`ops.elemwise.rope(scaling=)`. Below, `f_i = theta^(-2i/R)` for the pairs i = 0 .. R/2 - 1 of R rotated channels. Numbers
are rounded to f32 like every scalar of a trace; frequencies are computed in float64.
"""

from collections.abc import Sequence

from poem.ops.arguments import bad_value, count, flag, positive
from poem.ops.operands import Scaling


def linear(factor: float) -> Scaling:
    """Position interpolation: every frequency is divided.

    Formula: f_i / factor
    Rules: factor > 0
    Public: rope type `linear` of transformers; Chen et al., "Extending Context Window of LLMs via Positional Interpolation"
    """
    return Scaling("linear", {"factor": positive("factor", factor)})


def llama3(factor: float, low_freq_factor: float, high_freq_factor: float, original_max_position: int) -> Scaling:
    """Llama 3.1's scaling: short waves stay, long waves are divided, those between are blended.

    Formula: with the wavelength l = 2 pi / f_i and orig = original_max_position
        l < orig / high_freq_factor:  f_i
        l > orig / low_freq_factor:   f_i / factor
        else, t = (orig / l - low_freq_factor) / (high_freq_factor - low_freq_factor):  (1 - t) * f_i / factor + t * f_i
    Rules: all are > 0; low_freq_factor < high_freq_factor
    Public: rope type `llama3` of transformers
    """
    low, high = positive("low_freq_factor", low_freq_factor), positive("high_freq_factor", high_freq_factor)
    if low >= high:
        raise bad_value("high_freq_factor", f"more than low_freq_factor, {low}", high)
    return Scaling(
        "llama3",
        {
            "factor": positive("factor", factor),
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position": count("original_max_position", original_max_position),
        },
    )


def yarn(
    *,
    factor: float,
    original_max_position: int,
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    truncate: bool = True,
) -> Scaling:
    """YaRN: a ramp over the pairs between kept and divided frequencies. Arguments are given by name.

    Formula: with orig = original_max_position, d(r) = R * ln(orig / (2 pi r)) / (2 ln theta)
        lo = d(beta_fast), hi = d(beta_slow); with truncate: lo floored, hi ceiled
        lo = max(lo, 0), hi = min(hi, R - 1); if they are equal, hi = hi + 0.001
        g_i = clip((i - lo) / (hi - lo), 0, 1)
        f_i * (1 - g_i) + f_i / factor * g_i
        Rotated channels are multiplied by attention_factor; None means 1. A package that wants the paper's factor states it:
        0.1 * ln(factor) + 1.
    Rules: factor, beta_fast, beta_slow, attention_factor are > 0; theta > 1 where it is used
    Public: rope type `yarn` of transformers, whose default attention factor is 0.1 * ln(factor) + 1 instead;
        Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models"
    """
    return Scaling(
        "yarn",
        {
            "factor": positive("factor", factor),
            "original_max_position": count("original_max_position", original_max_position),
            "beta_fast": positive("beta_fast", beta_fast),
            "beta_slow": positive("beta_slow", beta_slow),
            "attention_factor": 1.0 if attention_factor is None else positive("attention_factor", attention_factor),
            "truncate": flag("truncate", truncate),
        },
    )


def longrope(
    short: Sequence[float], long: Sequence[float], original_max_position: int, attention_factor: float, use: str = "auto"
) -> Scaling:
    """LongRoPE: one divisor per pair, one list of them for short sequences and one for long ones.

    Formula: f_i / e_i, where e is `short` or `long`, R/2 numbers each; rotated channels are multiplied by attention_factor.
        use "auto" takes `long` for the rows of a lane whose kv_len > original_max_position, lane by lane (tokens axis only);
        "short" and "long" fix the list. With auto, keys cached before a lane's switch keep their old angles, so a prefix
        must not be shared across it.
    Rules: the lists are of one length and > 0; attention_factor > 0; use is auto, short or long
    Public: rope type `longrope` of transformers; Ding et al., "LongRoPE"
    """
    divisors = {}
    for name, given in (("short", short), ("long", long)):
        if not isinstance(given, (list, tuple)) or not given:
            raise bad_value(name, "a list of numbers, one per pair", given)
        divisors[name] = [positive(f"{name}[{i}]", number) for i, number in enumerate(given)]
    if len(divisors["short"]) != len(divisors["long"]):
        raise bad_value("long", f"as many numbers as short, {len(divisors['short'])}", f"{len(divisors['long'])} numbers")
    if use not in ("auto", "short", "long"):
        raise bad_value("use", "auto, short or long", use)
    return Scaling(
        "longrope",
        {
            **divisors,
            "original_max_position": count("original_max_position", original_max_position),
            "attention_factor": positive("attention_factor", attention_factor),
            "use": use,
        },
    )


SCALINGS = {function.__name__: function for function in (linear, llama3, yarn, longrope)}
