"""The sixteen chat formats: which settings of `template(format, ...)` each reads, and which it cannot do without.

A package's `template(...)` is checked against `FORMATS` when it is loaded, long before anything is rendered; this module
imports nothing of the project.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Format:
    """A chat format. settings: those it reads. required: those of them that a declaration must give."""

    settings: tuple[str, ...] = ()
    required: tuple[str, ...] = ()


FORMATS: dict[str, Format] = {
    "chatml": Format(("thinking", "preserve_thinking", "tools", "generation_suffix", "stop"), required=("stop",)),
    "llama": Format(),
    "harmony": Format(),
    "gemma": Format(),
    "deepseek": Format(),
    "dots": Format(),
    "glm": Format(),
    "kimi": Format(),
    "kimi3": Format(),
    "inkling": Format(),
    "minimax": Format(),
    "hy": Format(),
    "lines": Format(("stop", "bos", "eos"), required=("stop", "bos", "eos")),
    "raw": Format(("stop",), required=("stop",)),
    "mimo": Format(),
    "atem": Format(),
}
