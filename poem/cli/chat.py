"""`poem run --chat`: a conversation on the terminal."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from poem.errors import PoemError
from poem.generate import Session, Token, generate_batch
from poem.sampling import Sampling
from poem.templates import read_reply, render_chat, stop_ids
from poem.tokenizer import TextStream, Tokenizer

if TYPE_CHECKING:
    from poem.language.declarations import Template

NEW = "/new"


class Conversation:
    """A conversation and the session's sequence that holds it.

    Each turn renders the whole conversation again; as long as it begins with what the sequence holds, only the rest
    is computed, otherwise (a template that drops earlier thoughts, say) the sequence starts anew. Turn n draws with
    the seed plus n, so that a conversation repeats but its turns do not draw alike.
    """

    def __init__(
        self, session: Session, template: "Template", tokenizer: Tokenizer, *, system: str | None, thinking: bool, maximum: int,
        sampling: Sampling, context: int | None,
    ) -> None:  # fmt: skip
        self._session, self._template, self._tokenizer = session, template, tokenizer
        self._system, self._thinking, self._maximum, self._sampling, self._context = system, thinking, maximum, sampling, context
        self._stops = stop_ids(template, tokenizer)
        self._sequence = session.add_sequence()
        self._held: list[int] = []
        self._turn = 0
        self.start_over()

    def start_over(self) -> None:
        """Forget everything but the system text."""
        self.messages: list[dict[str, Any]] = [] if self._system is None else [{"role": "system", "content": self._system}]

    def say(self, text: str) -> Iterator[Token]:
        """The tokens of the reply to `text`. Given up early, the reply counts as far as it got.

        Raises PoemError as `render_chat` and `generate_batch` do; then it is as if nothing had been said.
        """
        messages = [*self.messages, {"role": "user", "content": text}]
        prompt = render_chat(self._template, messages, self._tokenizer, thinking=self._thinking)
        if len(self._held) == len(prompt) or self._held != prompt[: len(self._held)]:
            self._session.drop_sequence(self._sequence)
            self._sequence, self._held = self._session.add_sequence(), []
        tokens = generate_batch(
            self._session, [prompt[len(self._held) :]], maximum=self._maximum, stop_ids=self._stops, context=self._context,
            sampling=replace(self._sampling, seed=self._sampling.seed + self._turn), sequences=[self._sequence],
        )  # fmt: skip
        made: list[int] = []
        refused = False
        try:
            for token in tokens:
                made += [token.id] if token.finish != "stop" else []
                yield token
        except PoemError:
            refused = True
            raise
        finally:
            self._held = [*prompt, *made][: self._session.length(self._sequence)]
            if not refused:
                self._turn += 1
                self.messages = [*messages, read_reply(self._template, made, self._tokenizer)]


def chat(conversation: Conversation, tokenizer: Tokenizer, first: str | None) -> None:
    """Read lines, answer each, until the input ends. Ctrl-C ends the turn; `first` is said before anything is read."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - gives input() editing and history

        print(f"{NEW} starts a new conversation, Ctrl-C ends a reply, Ctrl-D leaves", file=sys.stderr)
    for text in _lines(first):
        if text.strip() == NEW:
            conversation.start_over()
        elif text.strip():
            _answer(conversation, tokenizer, text)


def _lines(first: str | None) -> Iterator[str]:
    if first is not None:
        yield first
    while True:
        try:
            yield input("> " if sys.stdin.isatty() and sys.stdout.isatty() else "")
        except KeyboardInterrupt:
            print(file=sys.stderr)
        except EOFError:
            return


def _answer(conversation: Conversation, tokenizer: Tokenizer, text: str) -> None:
    stream = TextStream(tokenizer.decode)
    tokens = conversation.say(text)
    try:
        for token in tokens:
            if token.finish != "stop":
                print(stream.add(token.id), end="", flush=True)
            if token.finish == "context":
                print(f"\npoem run: the model's context is full; {NEW} starts a new conversation", file=sys.stderr)
    except KeyboardInterrupt:
        print(" ...", file=sys.stderr)
    except PoemError as error:
        print(error.render(), file=sys.stderr)
    finally:
        tokens.close()  # type: ignore[attr-defined]
    print(stream.finish(), flush=True)
