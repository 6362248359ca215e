"""What ChatML models write besides plain turns: thoughts, tool declarations, tool calls and their results.

As published with Qwen3 (thoughts of earlier turns are dropped) and Qwen3.6 (`preserve_thinking`); tool calls are the
Hermes form, JSON between `<tool_call>` and `</tool_call>`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from poem.language.declarations import Template

Message = Mapping[str, Any]
Split = Callable[[str], list[str]]  # our own text into markers and plain pieces

THOUGHT_MARKERS = ("<think>", "</think>")
NO_THOUGHT = "<think>\n\n</think>\n\n"
TOOLS_HEAD = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>"
)
TOOLS_FOOT = (
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n"
    '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)


def turns(
    template: "Template", messages: Sequence[Message], tools: Sequence[Mapping[str, Any]], text: Callable[[Message], str], split: Split
) -> Iterable[tuple[str, list[str], Message]]:
    """Turns as (role, pieces, message): thoughts, calls and results written out, results of one round in one turn."""
    if tools:
        declared = "".join(f"\n{_json(tool)}" for tool in tools)
        system = [text(messages[0]), "\n\n"] if messages and messages[0]["role"] == "system" else []
        yield "system", [*system, *split(TOOLS_HEAD), declared, *split(TOOLS_FOOT)], {}
        messages = messages[1:] if system else messages
    last_question = max((i for i, message in enumerate(messages) if _is_question(message, text)), default=len(messages) - 1)
    results: list[str] = []
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            results += [*split("\n<tool_response>\n" if results else "<tool_response>\n"), text(message), *split("\n</tool_response>")]
            if index + 1 == len(messages) or messages[index + 1]["role"] != "tool":
                yield "user", results, message
                results = []
        elif role == "assistant":
            current = index > last_question
            yield role, _assistant(template, message, text(message), split, current, last=index + 1 == len(messages)), message
        else:
            yield role, [text(message)], message


def thought_and_answer(content: str) -> tuple[str, str]:
    """What stands between `<think>` and `</think>`, and what follows; ("", content) without them."""
    if "</think>" not in content:
        return "", content
    thought, answer = content.split("</think>")[0], content.split("</think>")[-1]
    return thought.rstrip("\n").split("<think>")[-1].lstrip("\n"), answer.lstrip("\n")


def _assistant(template: "Template", message: Message, content: str, split: Split, current: bool, last: bool) -> list[str]:
    pieces = []
    if template.thinking:
        thought = message.get("reasoning_content")
        if thought is None:
            thought, content = thought_and_answer(content)
        if template.preserve_thinking or (current and (thought or last)):
            pieces += [*split("<think>\n"), thought.strip("\n"), *split("\n</think>\n\n")]
            content = content.lstrip("\n")
    pieces.append(content)
    for index, call in enumerate(message.get("tool_calls") or ()):
        call = call.get("function", call)
        arguments = call["arguments"] if isinstance(call["arguments"], str) else _json(call["arguments"])
        pieces += split("\n<tool_call>\n" if content or index else "<tool_call>\n")
        pieces += ['{"name": "' + call["name"] + '", "arguments": ' + arguments + "}", *split("\n</tool_call>")]
    return pieces


def _is_question(message: Message, text: Callable[[Message], str]) -> bool:
    """A user's own message, not the result of a tool in a user's turn."""
    content = text(message)
    return message["role"] == "user" and not (content.startswith("<tool_response>") and content.endswith("</tool_response>"))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
