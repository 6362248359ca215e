"""From a conversation to token ids, and from the ids of a reply back to a message."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poem.errors import CheckpointError, UsageError
from poem.templates import chatml
from poem.templates.formats import FORMATS, Shape
from poem.tokenizer import Marker, Tokenizer

if TYPE_CHECKING:
    from poem.language.declarations import Template

Message = Mapping[str, Any]
Turn = tuple[str, list[str], Message]  # role, pieces of its text, the message


def render_chat(
    template: "Template",
    messages: Sequence[Message],
    tokenizer: Tokenizer,
    *,
    add_generation_prompt: bool = True,
    thinking: bool = True,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """The prompt of a conversation, as ids.

    Markers are inserted as ids and the text of messages is encoded without special tokens, so that no text can forge
    a turn.

    Args:
        template: the model's declared template.
        messages: mappings with `role` and `content`, for some formats also `reasoning_content`, `tool_calls`, `name`.
        add_generation_prompt: whether the model's turn is opened at the end.
        thinking: whether a model that thinks (`template(thinking = True)`) may do so in this reply.
        tools: declarations of functions that the model may call (`template(tools = True)`).

    Raises:
        CheckpointError: `import.tokenizer` for a token of the template that the vocabulary lacks.
        UsageError: `template.not-available` for a format without a published definition, `template.role` for a role
            that the format has no turn for, `template.tools` for tools that the template does not declare.
    """
    shape = _shape(template, tokenizer)
    _check_tools(template, messages, tools)

    def split(own_text: str) -> list[str]:
        return _split(own_text, shape.markers)

    def text(message: Message) -> str:
        return _text(message).strip() if shape.trimmed else _text(message)

    if template.format == "chatml":
        turns = list(chatml.turns(template, messages, tools, text, split))
    else:
        turns = [(message["role"], [text(message)], message) for message in messages]
    pieces = split(shape.opening)
    for role, content, message in _arranged(turns, shape, template.format):
        pieces += _turn(role, content, message, shape, template.format)
    if add_generation_prompt:
        pieces += split(shape.cue + (chatml.NO_THOUGHT if template.thinking and not thinking else template.generation_suffix))
    ids = tokenizer.encode_pieces(pieces, shape.markers)
    return [*tokenizer.opening, *ids] if template.format == "raw" else ids  # no chat: the tokenizer's own bos belongs before it


def stop_ids(template: "Template", tokenizer: Tokenizer) -> frozenset[int]:
    """The ids that end a reply.

    Raises:
        CheckpointError: `import.tokenizer` for a stop that the vocabulary lacks; not for those of `raw`, nor for ones
            that a format only stops at where they exist.
        UsageError: `template.not-available` for a format without a published definition.
    """
    shape = _shape(template, tokenizer)
    return frozenset(_id(stop, template, tokenizer) for stop in shape.stops).union(
        index for index in map(tokenizer.token_id, shape.optional_stops) if index is not None
    )


def read_reply(template: "Template", ids: Sequence[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """The assistant's message that generated ids, without the stop, stand for.

    It has `content`, and of a model that thinks also `reasoning_content`.
    """
    shape = _shape(template, tokenizer)
    opening, closing = (tokenizer.encode_pieces(_split(pattern, shape.markers), shape.markers) for pattern in shape.reply)
    ids = list(ids)
    opens = [i for i in range(len(ids)) if opening and ids[i : i + len(opening)] == opening]
    start = opens[-1] + len(opening) if opens else 0
    closes = [i for i in range(start, len(ids)) if closing and ids[i : i + len(closing)] == closing]
    message: dict[str, Any] = {"role": "assistant", "content": tokenizer.decode(ids[start : closes[0] if closes else None])}
    if template.thinking:
        message["reasoning_content"], message["content"] = chatml.thought_and_answer(message["content"])
    return message


def _shape(template: "Template", tokenizer: Tokenizer) -> Shape:
    """The shape whose markers the vocabulary holds, with the declaration's settings filled in."""
    shapes = [_filled(shape, template) for shape in FORMATS[template.format].shapes]
    if not shapes:
        raise UsageError(
            "template.not-available", f"the chat format `{template.format}` has no published definition yet, so it cannot be rendered",
            expected="a format whose tokens are known", found=f'template("{template.format}")',
            hint="give the model a plain text with --raw",
        )  # fmt: skip
    shape = next((shape for shape in shapes if all(tokenizer.token_id(marker) is not None for marker in shape.markers)), shapes[0])
    for marker in shape.markers:
        _id(marker, template, tokenizer)
    optional = tuple(marker for marker in shape.optional_markers if tokenizer.token_id(marker) is not None)
    return replace(shape, markers=tuple(dict.fromkeys(shape.markers + optional)))


def _filled(shape: Shape, template: "Template") -> Shape:
    values = {"bos": template.bos or "", "eos": template.eos or ""}

    def fill(pattern: str) -> str:
        return re.sub(r"\{(bos|eos)\}", lambda match: values[match.group(1)], pattern)

    def stops(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(stop for name in names for stop in (template.stop if name == "{stop}" else (name,)))

    thoughts = chatml.THOUGHT_MARKERS if template.thinking else ()
    return replace(
        shape, markers=(*map(fill, shape.markers), *thoughts), opening=fill(shape.opening),
        turns={role: fill(pattern) for role, pattern in shape.turns.items()},
        stops=stops(shape.stops), optional_stops=stops(shape.optional_stops),
    )  # fmt: skip


def _id(token: str, template: "Template", tokenizer: Tokenizer) -> int:
    index = tokenizer.token_id(token)
    if index is None:
        raise CheckpointError(
            "import.tokenizer", f"the vocabulary lacks `{token}`, which the template `{template.format}` needs",
            expected=f"a token `{token}`", found=f"{tokenizer.size} tokens, none of that spelling",
            hint="the model's template and the checkpoint's tokenizer do not belong together",
        )  # fmt: skip
    return index


def _arranged(turns: list[Turn], shape: Shape, name: str) -> list[Turn]:
    """Turns with system texts where the shape wants them; the role "front" stands for texts right after the opening."""
    if shape.system == "turn":
        return turns
    gathered: list[str] = []
    for content in (turn[1] for turn in turns if turn[0] == "system"):
        gathered += [shape.joint, *content] if gathered else content
    rest = [turn for turn in turns if turn[0] != "system"]
    if not gathered:
        return rest
    if shape.system == "front":
        return [("front", gathered, {}), *rest]
    first = next((index for index, turn in enumerate(rest) if turn[0] == "user"), None)
    if first is None:
        raise UsageError("template.role", f"the template `{name}` writes system text into the first user's turn, and there is none")
    role, content, message = rest[first]
    rest[first] = (role, [*gathered, shape.joint, *content], message)
    return rest


def _turn(role: str, content: Sequence[str], message: Message, shape: Shape, name: str) -> list[str]:
    pattern = "{text}" if role == "front" else shape.turns.get(role)
    if pattern is None:
        raise UsageError(
            "template.role", f"the template `{name}` has no turn for the role `{role}`", expected=", ".join(shape.turns), found=role
        )
    pieces: list[str] = []
    for part in re.split(r"(\{text\}|\{name\})", pattern):
        if part == "{text}":
            pieces += content
        elif part == "{name}":
            pieces.append(str(message.get("name", "")))
        else:
            pieces += _split(part, shape.markers)
    return pieces


def _split(own_text: str, markers: Sequence[str]) -> list[str]:
    """Our own text as markers and plain pieces; the longest marker wins where several start."""
    if not markers:
        return [own_text]
    alternatives = "|".join(re.escape(marker) for marker in sorted(markers, key=len, reverse=True))
    parts = re.split(f"({alternatives})", own_text)
    return [Marker(part) if index % 2 else part for index, part in enumerate(parts) if part]


def _text(message: Message) -> str:
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    raise UsageError("template.content", "the content of a message is no text", expected="a string", found=type(content).__name__)


def _check_tools(template: "Template", messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> None:
    if template.tools:
        return
    called = template.format == "chatml" and any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    if tools or called:
        raise UsageError(
            "template.tools", f"the template `{template.format}` declares no tools", expected='template("chatml", tools = True, ...)'
        )
