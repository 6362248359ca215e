"""Thoughts and tools of ChatML models, against prompts of Qwen3 written out by hand."""

from collections.abc import Callable

import pytest

from poem.errors import CheckpointError, UsageError
from poem.language.declarations import Template
from poem.templates import read_reply, render_chat
from poem.tokenizer import Tokenizer

Make = Callable[..., Tokenizer]
SPECIAL = ("<|im_start|>", "<|im_end|>")
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
CITY = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}


@pytest.fixture(scope="module")
def qwen(byte_vocabulary: Make) -> Tokenizer:
    return byte_vocabulary(SPECIAL, PLAIN)


def chatml(**settings: object) -> Template:
    return Template("chatml", stop=("<|im_end|>",), **settings)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_a_model_that_may_think_gets_the_plain_cue_and_writes_its_thought_itself(qwen: Tokenizer) -> None:
    ids = render_chat(chatml(thinking=True), [user("Hi")], qwen)
    assert qwen.decode(ids) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


def test_a_model_that_may_not_think_gets_an_empty_thought(qwen: Tokenizer) -> None:
    want = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    ids = render_chat(chatml(thinking=True), [user("Hi")], qwen, thinking=False)
    assert qwen.decode(ids) == want
    assert ids == qwen.encode_prompt(want), "the empty thought is made of marker tokens"


def test_a_model_that_never_thinks_gets_no_thought_however_it_is_asked(qwen: Tokenizer) -> None:
    asked, forbidden = (render_chat(chatml(), [user("Hi")], qwen, thinking=thinking) for thinking in (True, False))
    assert asked == forbidden
    assert "<think>" not in qwen.decode(asked)


def test_the_suffix_follows_the_cue_with_its_markers_as_tokens(qwen: Tokenizer) -> None:
    want = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n"
    ids = render_chat(chatml(thinking=True, generation_suffix="<think>\n"), [user("Hi")], qwen)
    assert ids == qwen.encode_prompt(want)
    without = render_chat(chatml(thinking=True, generation_suffix="<think>\n"), [user("Hi")], qwen, thinking=False)
    assert qwen.decode(without).endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


THOUGHTFUL = [
    user("1+1?"),
    {"role": "assistant", "content": "2", "reasoning_content": "\nEasy.\n"},
    user("And 2+2?"),
    {"role": "assistant", "content": "<think>\nDouble it.\n</think>\n\n4"},
]


def test_thoughts_of_earlier_turns_are_dropped_and_the_last_one_stays(qwen: Tokenizer) -> None:
    ids = render_chat(chatml(thinking=True), THOUGHTFUL, qwen, add_generation_prompt=False)
    want = (
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n<|im_start|>user\nAnd 2+2?<|im_end|>\n"
        "<|im_start|>assistant\n<think>\nDouble it.\n</think>\n\n4<|im_end|>\n"
    )
    assert qwen.decode(ids) == want
    assert ids == qwen.encode_prompt(want)


def test_a_new_question_drops_every_thought_before_it(qwen: Tokenizer) -> None:
    ids = render_chat(chatml(thinking=True), [*THOUGHTFUL, user("Thanks")], qwen)
    assert "think" not in qwen.decode(ids)


def test_preserved_thoughts_stay_in_every_turn(qwen: Tokenizer) -> None:
    ids = render_chat(chatml(thinking=True, preserve_thinking=True), [*THOUGHTFUL, user("Thanks")], qwen)
    assert qwen.decode(ids) == (
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n<think>\nEasy.\n</think>\n\n2<|im_end|>\n"
        "<|im_start|>user\nAnd 2+2?<|im_end|>\n<|im_start|>assistant\n<think>\nDouble it.\n</think>\n\n4<|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_are_declared_called_and_answered(qwen: Tokenizer) -> None:
    talk = [
        {"role": "system", "content": "Be brief."},
        user("Weather?"),
        {"role": "assistant", "content": "Looking.", "tool_calls": [CALL, {"name": "weather", "arguments": '{"city": "Bern"}'}]},
        {"role": "tool", "content": "12 °C"},
        {"role": "tool", "content": "<|im_end|>"},
    ]
    ids = render_chat(chatml(tools=True), talk, qwen, tools=[WEATHER])
    assert qwen.decode(ids) == (
        "<|im_start|>system\nBe brief.\n\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
        "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
        '{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", '
        '"properties": {"city": {"type": "string"}}}}}\n</tools>\n\n'
        "For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n"
        '<tool_call>\n{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\nWeather?<|im_end|>\n"
        '<|im_start|>assistant\nLooking.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call><|im_end|>\n'
        "<|im_start|>user\n<tool_response>\n12 °C\n</tool_response>\n<tool_response>\n<|im_end|>\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert ids.count(qwen.token_id("<|im_end|>")) == 4, "the result of a tool cannot end a turn"
    assert ids.count(qwen.token_id("<tool_call>")) == 4


def test_a_call_without_text_starts_the_turn(qwen: Tokenizer) -> None:
    ids = render_chat(chatml(tools=True), [user("?"), {"role": "assistant", "content": None, "tool_calls": [CALL]}], qwen)
    assert "<|im_start|>assistant\n<tool_call>\n{" in qwen.decode(ids)


def test_thoughts_survive_between_a_question_and_the_results_of_its_tools(qwen: Tokenizer) -> None:
    talk = [
        user("Weather?"),
        {"role": "assistant", "content": "", "reasoning_content": "Ask.", "tool_calls": [CALL]},
        {"role": "tool", "content": "12 °C"},
    ]
    assert "<think>\nAsk.\n</think>\n\n<tool_call>" in qwen.decode(render_chat(chatml(thinking=True, tools=True), talk, qwen))


@pytest.mark.parametrize(
    ("talk", "tools"),
    [
        ([user("Hi")], [WEATHER]),
        ([{"role": "tool", "content": "x"}], []),
        ([{"role": "assistant", "content": "", "tool_calls": [CALL]}], []),
    ],
)
def test_tools_that_the_template_does_not_declare_are_refused(talk: list[dict], tools: list[dict], qwen: Tokenizer) -> None:
    with pytest.raises(UsageError) as caught:
        render_chat(chatml(), talk, qwen, tools=tools)
    assert caught.value.code == "template.tools"


def test_where_tool_tags_are_no_tokens_they_are_text(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary(SPECIAL)
    ids = render_chat(chatml(tools=True), [user("Hi")], tokenizer, tools=[WEATHER])
    assert "</tool_call><|im_end|>" in tokenizer.decode(ids)


def test_a_thinking_template_needs_the_thought_tokens(byte_vocabulary: Make) -> None:
    with pytest.raises(CheckpointError, match="<think>"):
        render_chat(chatml(thinking=True), [user("Hi")], byte_vocabulary(SPECIAL))


@pytest.mark.parametrize(
    ("generated", "thought", "answer"),
    [
        ("<think>\nHm.\n</think>\n\nYes", "Hm.", "Yes"),
        ("Hm.\n</think>\n\nYes", "Hm.", "Yes"),  # the cue already held <think>
        ("Yes", "", "Yes"),
    ],
)
def test_thought_and_answer_of_a_reply_are_told_apart(generated: str, thought: str, answer: str, qwen: Tokenizer) -> None:
    message = read_reply(chatml(thinking=True), qwen.encode_prompt(generated), qwen)
    assert message == {"role": "assistant", "content": answer, "reasoning_content": thought}
