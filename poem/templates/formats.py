"""The sixteen chat formats: which settings a declaration reads, which tokens are looked up, and how turns are written.

A package's `template(...)` is checked against `FORMATS` when it is loaded, long before anything is rendered; this module
imports nothing of the project.

Turns are patterns. `{text}` is the message's text and `{name}` its `name`; spellings listed under `markers` become
single tokens; everything else is text. `{bos}`, `{eos}` and `{stop}` are settings of the declaration. Shapes follow the
templates published with the models (Llama 3, gpt-oss, Gemma 3 and 4, DeepSeek, dots.llm1, GLM, Kimi K2 and K3, Inkling,
MiniMax M2, Hy3, Qwen).
"""

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from poem.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """How one format writes a conversation.

    markers: tokens that the vocabulary must hold.
    turns: the pattern of a turn by role; a role that is missing cannot be rendered.
    opening: what comes once, before the first turn. cue: what asks the model for its turn.
    stops: tokens that end a reply. optional_stops: those that do so if the vocabulary holds them.
    optional_markers: spellings inside our own text that are tokens only where the vocabulary holds them.
    system: where system texts go: into turns of their own, all together after the opening, or all together in front of
        the first user's text.
    joint: what joins system texts that go together, and follows them in a user's turn.
    trimmed: whether white space around a text is dropped.
    reply: what opens and closes the answer within what the model writes; "" is the very beginning or end.
    """

    markers: tuple[str, ...]
    turns: Mapping[str, str]
    cue: str = ""
    opening: str = ""
    stops: tuple[str, ...] = ()
    optional_stops: tuple[str, ...] = ()
    optional_markers: tuple[str, ...] = ()
    system: Literal["turn", "front", "first user"] = "turn"
    joint: str = "\n\n"
    trimmed: bool = False
    reply: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Format:
    """A chat format. Of several shapes the first whose markers the vocabulary holds is used.

    settings: those of `template(...)` that it reads. required: those of them that a declaration must give.
    shapes: empty for a format whose tokens nobody has published: it can be declared but not rendered.
    """

    settings: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    shapes: tuple[Shape, ...] = field(default=(), repr=False)


def _turns(pattern: str, **names: str) -> dict[str, str]:
    """One pattern for all roles, `{role}` being the name of each."""
    return {role: pattern.replace("{role}", name) for role, name in names.items()}


def _gemma(start: str, end: str, system: Literal["turn", "first user"]) -> Shape:
    names = {"user": "user", "assistant": "model"} | ({"system": "system"} if system == "turn" else {})
    return Shape(
        markers=("<bos>", start, end), opening="<bos>", turns=_turns(f"{start}{{role}}\n{{text}}{end}\n", **names),
        cue=f"{start}model\n", stops=(end, "<eos>"), system=system, trimmed=True,
    )  # fmt: skip


def _hy(suffix: str) -> Shape:
    begin, user, assistant, eos = (f"<｜hy_{name}{suffix}｜>" for name in ("begin_of_sentence", "User", "Assistant", "eos"))
    return Shape(
        markers=(begin, user, assistant, eos), opening=begin, system="front", joint="",
        turns={"user": f"{user}{{text}}", "assistant": f"{assistant}{{text}}{eos}"}, cue=assistant, stops=(eos,),
    )  # fmt: skip


_NAMES = {"system": "system", "user": "user", "assistant": "assistant"}
_KIMI3_TURN = '<|open|>message role="{role}"<|sep|>{text}<|close|>message<|sep|><|end_of_msg|>'
_KIMI3_CUE = '<|open|>message role="assistant"<|sep|><|open|>response<|sep|>'

FORMATS: dict[str, Format] = {
    "chatml": Format(
        ("thinking", "preserve_thinking", "tools", "generation_suffix", "stop"), required=("stop",),
        shapes=(Shape(
            markers=("<|im_start|>", "<|im_end|>"), turns=_turns("<|im_start|>{role}\n{text}<|im_end|>\n", **_NAMES),
            cue="<|im_start|>assistant\n", stops=("{stop}",),
            optional_markers=("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
        ),),
    ),
    "llama": Format(shapes=(Shape(
        markers=("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), opening="<|begin_of_text|>",
        turns=_turns("<|start_header_id|>{role}<|end_header_id|>\n\n{text}<|eot_id|>", **_NAMES, tool="ipython"),
        cue="<|start_header_id|>assistant<|end_header_id|>\n\n", stops=("<|eot_id|>",),
        optional_stops=("<|eom_id|>", "<|end_of_text|>"), trimmed=True,
    ),)),
    "harmony": Format(shapes=(Shape(
        markers=("<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|return|>", "<|call|>"),
        turns={
            **_turns("<|start|>{role}<|message|>{text}<|end|>", system="system", developer="developer", user="user"),
            "assistant": "<|start|>assistant<|channel|>final<|message|>{text}<|end|>",
        },
        cue="<|start|>assistant", stops=("<|return|>", "<|call|>"), reply=("<|channel|>final<|message|>", "<|end|>"),
    ),)),
    "gemma": Format(shapes=(_gemma("<|turn>", "<turn|>", "turn"), _gemma("<start_of_turn>", "<end_of_turn>", "first user"))),
    "deepseek": Format(shapes=(Shape(
        markers=("<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
        opening="<｜begin▁of▁sentence｜>", system="front",
        turns={"user": "<｜User｜>{text}", "assistant": "<｜Assistant｜>{text}<｜end▁of▁sentence｜>"},
        cue="<｜Assistant｜>", stops=("<｜end▁of▁sentence｜>",),
    ),)),
    "dots": Format(shapes=(Shape(
        markers=(
            "<|system|>", "<|endofsystem|>", "<|userprompt|>", "<|endofuserprompt|>", "<|response|>", "<|endofresponse|>",
        ),
        turns={
            "system": "<|system|>{text}<|endofsystem|>",
            "user": "<|userprompt|>{text}<|endofuserprompt|>",
            "assistant": "<|response|>{text}<|endofresponse|>",
        },
        cue="<|response|>", stops=("<|endofresponse|>",),
    ),)),
    "glm": Format(shapes=(Shape(
        markers=("[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
        opening="[gMASK]<sop>", turns=_turns("<|{role}|>{text}", **_NAMES, tool="observation"), cue="<|assistant|>",
        stops=("<|endoftext|>", "<|user|>", "<|observation|>"),
    ),)),
    "kimi": Format(shapes=(Shape(
        markers=("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
        turns={
            **_turns("<|im_{role}|>{role}<|im_middle|>{text}<|im_end|>", **_NAMES),
            "tool": "<|im_system|>tool<|im_middle|>{text}<|im_end|>",
        },
        cue="<|im_assistant|>assistant<|im_middle|>", stops=("<|im_end|>",),
    ),)),
    "kimi3": Format(shapes=(Shape(
        markers=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>", "[EOS]", "[EOT]"),
        turns={
            **_turns(_KIMI3_TURN, system="system", user="user"),
            "assistant": _KIMI3_CUE + "{text}<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>",
        },
        cue=_KIMI3_CUE, stops=("<|end_of_msg|>", "[EOS]", "[EOT]"), reply=("", "<|close|>"),
    ),)),
    "inkling": Format(shapes=(Shape(
        markers=(
            "<|message_system|>", "<|message_user|>", "<|message_model|>", "<|message_tool|>", "<|content_text|>",
            "<|end_message|>", "<|content_model_end_sampling|>",
        ),
        turns={
            **_turns("<|message_{role}|>{name}<|content_text|>{text}<|end_message|>", tool="tool"),
            **_turns("<|message_{role}|><|content_text|>{text}<|end_message|>", system="system", user="user"),
            "assistant": "<|message_model|><|content_text|>{text}<|end_message|><|content_model_end_sampling|>",
        },
        cue="<|message_model|>", stops=("<|content_model_end_sampling|>",), reply=("<|content_text|>", "<|end_message|>"),
    ),)),
    "minimax": Format(shapes=(Shape(
        markers=("]~!b[", "]~b]", "[e~["), opening="]~!b[",
        turns=_turns("]~b]{role}\n{text}[e~[\n", **(_NAMES | {"assistant": "ai"})), cue="]~b]ai\n", stops=("[e~[",),
    ),)),
    "hy": Format(shapes=(_hy(""), _hy(":opensource"))),
    "lines": Format(
        ("stop", "bos", "eos"), required=("stop", "bos", "eos"),
        shapes=(Shape(
            markers=("{bos}", "{eos}"), opening="{bos}",
            turns={"system": "System: {text}\n\n", "user": "User: {text}\n\n", "assistant": "Assistant: {text}{eos}"},
            cue="Assistant:", stops=("{stop}",),
        ),),
    ),
    "raw": Format(("stop",), required=("stop",), shapes=(Shape(
        markers=(), turns=_turns("{text}", **_NAMES), optional_stops=("{stop}",),
    ),)),
    "mimo": Format(),
    "atem": Format(),
}  # fmt: skip
