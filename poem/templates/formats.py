"""The sixteen chat formats: which settings of `template(format, ...)` each reads, and which it cannot do without.

`Template` is what a package's `template(...)` declares; `FORMATS` is what a declaration is checked against. This
module imports nothing: declarations are checked when a package is loaded, long before anything is rendered.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Template:
    """A declared chat template: the format's name and its settings, each at its default unless declared.

    thinking: the model writes its thoughts between `<think>` and `</think>` before it answers.
    preserve_thinking: thoughts of earlier turns stay in the prompt.
    tools: tool declarations, calls and results can be rendered.
    generation_suffix: text after the cue of the assistant's turn.
    stop: tokens that end a reply. bos, eos: tokens that open a conversation and close an assistant turn.
    """

    format: str
    thinking: bool = False
    preserve_thinking: bool = False
    tools: bool = False
    generation_suffix: str = ""
    stop: tuple[str, ...] = ()
    bos: str | None = None
    eos: str | None = None


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
