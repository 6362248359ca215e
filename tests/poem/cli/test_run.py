"""`poem run` in front of a model that repeats what it is told."""

import argparse
import io
import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from poem.batch import Batch
from poem.cli import run_
from poem.cli.main import main
from poem.cli.open_model import OpenModel
from poem.language.declarations import Template
from poem.tokenizer import Tokenizer

Run = Callable[..., tuple[int, str, str]]


class Parrot:
    """Answers `You said: X` to a user's turn X in ChatML, and goes on with `!` where nobody asks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.held: dict[int, list[int]] = {}
        self.joined = 0
        self.rows: list[int] = []
        self.interrupt_after: int | None = None

    def add_sequence(self) -> int:
        self.joined += 1
        self.held[self.joined] = []
        return self.joined

    def drop_sequence(self, sequence: int) -> None:
        del self.held[sequence]

    def length(self, sequence: int) -> int:
        return len(self.held[sequence])

    def answer(self, held: list[int]) -> int:
        text = self.tokenizer.decode(held)
        if "<|im_start|>" not in text:
            return self.tokenizer.encode("!")[0]
        user = text.split("<|im_start|>user\n")[-1].split("<|im_end|>")[0]
        reply = self.tokenizer.encode_prompt(f"You said: {user}<|im_end|>")
        cue = self.tokenizer.encode_prompt("<|im_start|>assistant\n")
        start = max(i for i in range(len(held)) if held[i : i + len(cue)] == cue) + len(cue)
        return reply[len(held) - start]

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        self.rows.append(sum(len(chunk.tokens) for chunk in batch))
        if self.interrupt_after is not None and len(self.rows) > self.interrupt_after:
            self.interrupt_after = None
            raise KeyboardInterrupt
        answers = []
        for chunk in batch:
            self.held[chunk.sequence] += chunk.tokens
            answers += [self.answer(self.held[chunk.sequence])] * len(chunk.readout_indices())
        return {"logits": np.eye(self.tokenizer.size, dtype=np.float32)[answers] * 40}


@pytest.fixture
def parrot(byte_vocabulary: Callable[..., Tokenizer], monkeypatch: pytest.MonkeyPatch) -> Parrot:
    tokenizer = byte_vocabulary(["<|im_start|>", "<|im_end|>"])
    session = Parrot(tokenizer)
    model = SimpleNamespace(template=Template("chatml", stop=("<|im_end|>",)))
    opened = OpenModel(SimpleNamespace(model=model, name="parrot-f32-kv-f32"), None, {}, {}, 200, ())

    def open_(arguments: argparse.Namespace) -> tuple[OpenModel, Tokenizer, Parrot]:
        return opened, tokenizer, session

    monkeypatch.setattr(run_, "_open", open_)
    return session


@pytest.fixture
def run(parrot: Parrot, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def call(*arguments: str, stdin: str = "") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        code = main(["run", "parrot.zt", *arguments])
        return code, *capsys.readouterr()

    return call


def test_the_reply_and_nothing_else_goes_to_stdout(run: Run) -> None:
    assert run("--prompt", "Zürich 🤷🏽‍♂️") == (0, "You said: Zürich 🤷🏽‍♂️\n", "")


def test_a_prompt_can_come_from_stdin(run: Run) -> None:
    assert run("--prompt", "-", stdin="piped")[1] == "You said: piped\n"


def test_several_prompts_run_as_one_batch_and_print_in_order(run: Run, parrot: Parrot) -> None:
    code, out, _ = run("--prompt", "a rather long one", "--prompt", "b")
    assert (code, out) == (0, "==> a rather long one <==\nYou said: a rather long one\n==> b <==\nYou said: b\n")
    assert parrot.rows[1] == 2, "after the prompts, a pass holds a row of each"


def test_the_system_message_is_rendered_before_the_prompt(run: Run, parrot: Parrot) -> None:
    _, out, _ = run("--prompt", "x", "--system", "Be brief.", "--json")
    prompt = parrot.tokenizer.decode(json.loads(out)["results"][0]["prompt_ids"])
    assert prompt == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n"


def test_a_raw_prompt_is_continued_as_it_stands(run: Run) -> None:
    assert run("--prompt", "go on", "--raw", "--max-tokens", "4")[1] == "!!!!\n"


def test_special_tokens_written_into_a_raw_prompt_are_special_tokens(run: Run) -> None:
    assert run("--prompt", "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n", "--raw")[1] == "You said: hi\n"


def test_json_holds_ids_text_logprobs_finish_and_timings(run: Run, parrot: Parrot) -> None:
    code, out, _ = run("--prompt", "é", "--prompt", "xyz", "--max-tokens", "13", "--json", "--temperature", "0.5", "--seed", "3")
    report = json.loads(out)
    assert code == 0
    assert set(report) == {"model", "deployment", "backend", "mode", "setting", "sampling", "results", "timings"}
    assert report["deployment"] == "parrot-f32-kv-f32"
    assert report["sampling"] == {"temperature": 0.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}
    first, second = report["results"]
    assert (first["text"], first["finish"]) == ("You said: é", "stop")
    assert (second["text"], second["finish"]) == ("You said: xyz", "length")
    assert first["ids"] == parrot.tokenizer.encode("You said: é")
    assert len(first["logprobs"]) == len(first["ids"])
    assert all(-1e-9 < logprob <= 0 for logprob in first["logprobs"])
    assert set(report["timings"]) == {"load", "prefill", "decode"}
    assert parrot.tokenizer.decode(first["prompt_ids"]) == "<|im_start|>user\né<|im_end|>\n<|im_start|>assistant\n"


def test_stats_go_to_stderr(run: Run) -> None:
    _, out, err = run("--prompt", "x", "--stats")
    assert out == "You said: x\n"
    assert "tokens/s" in err


def test_a_reply_ends_with_the_context(run: Run) -> None:
    _, out, _ = run("--prompt", "x", "--context", "28", "--json")
    result = json.loads(out)["results"][0]
    assert result["finish"] == "context"
    assert len(result["prompt_ids"]) + len(result["ids"]) == 29, "the last token needs no place"


def test_ctrl_c_ends_with_exit_code_2(run: Run, parrot: Parrot) -> None:
    parrot.interrupt_after = 5
    code, out, err = run("--prompt", "x")
    assert (code, out) == (2, "You s")
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ([], "nothing to answer"),
        (["--chat", "--prompt", "a", "--prompt", "b"], "one prompt"),
        (["--chat", "--raw"], "template"),
        (["--raw", "--prompt", "a", "--system", "s"], "system"),
        (["--prompt", "-", "--prompt", "-"], "stdin"),
        (["--prompt", "a", "--max-tokens", "0"], "--max-tokens"),
        (["--prompt", "a", "--context", "0"], "--context"),
        (["--prompt", "a", "--warpgroups"], "--backend"),
        (["--prompt", "a", "--warpgroups", "--backend", "emu", "--setting", "reference"], "--setting"),
        (["--prompt", "a", "--temperature", "-1"], "temperature"),
        (["--prompt", "a", "--top-p", "0"], "top_p"),
        (["--prompt", "a" * 300], "does not fit"),
        (["--prompt", "", "--raw"], "empty"),
    ],
)
def test_what_cannot_be_run_is_said_and_exits_with_2(arguments: list[str], word: str, run: Run) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert word in err
    assert "Traceback" not in err


def test_with_json_an_error_is_json_too(run: Run) -> None:
    for arguments, code in ((("--prompt", "a", "--top-k", "-2"), "generate.sampling"), (("--chat",), "run.arguments")):
        exit_code, out, _ = run(*arguments, "--json")
        assert exit_code == 2
        assert json.loads(out)["error"]["code"] == code


# -- conversations ---------------------------------------------------------------------------------


def test_a_conversation_answers_line_by_line_until_the_input_ends(run: Run) -> None:
    assert run("--chat", stdin="one\n\ntwo\n") == (0, "You said: one\nYou said: two\n", "")


def test_a_conversation_computes_only_what_is_new(run: Run, parrot: Parrot) -> None:
    run("--chat", "--prompt", "one", stdin="two\n")
    turn = len(parrot.tokenizer.encode_prompt("<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\n"))
    assert [rows for rows in parrot.rows if rows > 1][1] == turn
    assert len(parrot.held) == 1


def test_a_new_conversation_forgets_the_old_one_but_keeps_the_system_message(run: Run, parrot: Parrot) -> None:
    run("--chat", "--system", "S", stdin="one\n/new\ntwo\n")
    (held,) = parrot.held.values()
    text = parrot.tokenizer.decode(held)
    assert text == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n<|im_start|>assistant\nYou said: two"


def test_ctrl_c_ends_the_turn_and_the_conversation_goes_on(run: Run, parrot: Parrot) -> None:
    parrot.interrupt_after = 4
    code, out, _ = run("--chat", stdin="one\ntwo\n")
    assert (code, out) == (0, "You \nYou said: two\n")
    assert "assistant\nYou <|im_end|>" in parrot.tokenizer.decode(*parrot.held.values()), "the reply counts as far as it got"


def test_a_full_context_is_said_and_a_new_conversation_helps(run: Run) -> None:
    code, out, err = run("--chat", "--context", "70", stdin=f"{'x' * 30}\ny\n/new\nz\n")
    assert code == 0
    assert out.splitlines()[-1] == "You said: z"
    assert "context" in err


def test_turns_draw_with_seeds_of_their_own(run: Run, parrot: Parrot, monkeypatch: pytest.MonkeyPatch) -> None:
    def flat(batch: Batch) -> dict[str, Any]:
        outputs = Parrot.run(parrot, batch)
        return {"logits": outputs["logits"] * 0}

    parrot.answer = lambda held: 0  # type: ignore[method-assign]
    monkeypatch.setattr(parrot, "run", flat)
    options = ("--chat", "--temperature", "1", "--max-tokens", "8")
    first, again = (run(*options, stdin="x\n/new\nx\n")[1] for _ in range(2))
    assert first == again
    one, two = first.encode("utf-8", "surrogateescape").rstrip(b"\n").split(b"\n", 1)
    assert one != two


@pytest.mark.parametrize(("model", "code"), [("llama_3", "run.checkpoint"), ("no_such_model", "load.missing-package")])
def test_a_package_without_weights_is_told_from_one_that_is_not_there(
    model: str, code: str, capsys: pytest.CaptureFixture[str], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POEM_HOME", str(tmp_path))
    assert main(["run", model, "--prompt", "hello"]) == 2
    assert f"[{code}]" in capsys.readouterr().err
