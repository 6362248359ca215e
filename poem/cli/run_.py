"""`poem run`: generate text with a model, one prompt, several at once, or a conversation."""

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from poem.dataclass import dataclass
from poem.errors import UsageError
from poem.generate import Finish, Session, Token, generate_batch
from poem.sampling import Sampling
from poem.templates import render_chat, stop_ids
from poem.tokenizer import TextStream, Tokenizer

if TYPE_CHECKING:
    from poem.cli.open_model import OpenModel


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `poem run`."""
    parser.add_argument("model", help="a .zt file, or a package (NAME.poem or NAME) with --checkpoint")
    parser.add_argument("--checkpoint", help="weights for a package: a folder, a .safetensors or .gguf file, or ORG/NAME")
    parser.add_argument("--deployment", help="which deployment of the package; the first that fits the checkpoint by default")
    text = parser.add_argument_group("text")
    text.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="what to answer; - reads stdin; repeat for a batch")
    text.add_argument("--chat", action="store_true", help="hold a conversation; a --prompt opens it")
    text.add_argument("--system", metavar="TEXT", help="the system message")
    text.add_argument("--raw", action="store_true", help="continue the prompt as it stands, without the model's chat template")
    text.add_argument("--no-thinking", action="store_true", help="ask a model that thinks to answer at once")
    choice = parser.add_argument_group("choice of tokens", "temperature comes first, then top-k, then top-p, then min-p")
    choice.add_argument("--max-tokens", type=int, default=512, metavar="N", help="at most this many tokens a reply (%(default)s)")
    choice.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 takes the likeliest token (%(default)s)")
    choice.add_argument("--top-k", type=int, default=0, metavar="K", help="keep the K likeliest tokens; 0 keeps all")
    choice.add_argument("--top-p", type=float, default=1.0, metavar="P", help="keep the fewest tokens that are likely P together")
    choice.add_argument("--min-p", type=float, default=0.0, metavar="P", help="keep tokens at least P times as likely as the likeliest")
    choice.add_argument("--seed", type=int, default=0, metavar="N", help="of the draws (%(default)s)")
    choice.add_argument("--context", type=int, metavar="N", help="tokens a sequence may hold; what the model was made for by default")
    how = parser.add_argument_group("how")
    how.add_argument("--backend", choices=("interp", "emu", "cuda"), default="interp", help="what computes: NumPy, or CUDA kernels on "
                     "the CPU or on a GPU (%(default)s)")  # fmt: skip
    how.add_argument("--mode", choices=("native", "exact"), default="native", help="the dtypes' own arithmetic, or float64 (%(default)s)")
    how.add_argument("--setting", choices=("fast", "reference"), default="fast", help="reference: same bits in any batch (%(default)s)")
    how.add_argument("--warpgroups", action="store_true", help="let products of 128 rows and more use TMA and wgmma on sm_90a")
    how.add_argument("--json", action="store_true", help="print ids, text, log-probabilities and timings as JSON")
    how.add_argument("--stats", action="store_true", help="print tokens per second to stderr")


@dataclass(slots=True)
class Reply:
    """A prompt and what became of it."""

    prompt: str
    prompt_ids: list[int]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)
    finish: Finish | None = None


def run(arguments: argparse.Namespace) -> int:
    """Prints the reply to stdout. Raises PoemError for what cannot be opened, rendered or run."""
    _check(arguments)
    sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, arguments.min_p, arguments.seed)
    prompts = [sys.stdin.read() if prompt == "-" else prompt for prompt in arguments.prompt]
    started = time.perf_counter()
    model, tokenizer, session = _open(arguments)
    context = model.context if arguments.context is None else arguments.context
    template = model.deployment.model.template
    if arguments.chat:
        from poem.cli.chat import Conversation, chat

        conversation = Conversation(
            session, template, tokenizer, system=arguments.system, thinking=not arguments.no_thinking, maximum=arguments.max_tokens,
            sampling=sampling, context=context,
        )  # fmt: skip
        chat(conversation, tokenizer, prompts[0] if prompts else None)
        return 0
    replies = [Reply(prompt, _encode(arguments, template, tokenizer, prompt)) for prompt in prompts]
    timings = _Timings(time.perf_counter() - started)
    tokens = generate_batch(
        session, [reply.prompt_ids for reply in replies], maximum=arguments.max_tokens, sampling=sampling,
        stop_ids=_stops(arguments, template, tokenizer), context=context,
    )  # fmt: skip
    pieces = _collect(timings.watch(tokens), replies, tokenizer)
    if arguments.json:
        for _ in pieces:
            pass
        print(json.dumps(_report(arguments, model, sampling, replies, timings), indent=2, ensure_ascii=False))
    else:
        _print(pieces, replies)
    if arguments.stats:
        print(timings.summary(replies), file=sys.stderr)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    count = len(arguments.prompt)
    for wrong, message, hint in (
        (not count and not arguments.chat, "there is nothing to answer", "give --prompt TEXT, --prompt - to read stdin, or --chat"),
        (arguments.chat and count > 1, "a conversation opens with one prompt", "leave out --chat to answer several prompts at once"),
        (arguments.chat and arguments.json, "a conversation is not printed as JSON", "leave out --chat or --json"),
        (arguments.chat and arguments.raw, "a conversation needs the model's chat template", "leave out --chat or --raw"),
        (arguments.raw and arguments.system is not None, "a raw prompt has no system message", "write it into --prompt"),
        (arguments.prompt.count("-") > 1, "stdin can be one prompt only", "give the others as text"),
        (arguments.max_tokens < 1, "--max-tokens is below 1", "give the longest reply you want"),
        (arguments.backend != "interp" and arguments.mode != "native", "kernels compute in the dtypes' own arithmetic", "leave out --mode"),
        (arguments.backend == "interp" and arguments.warpgroups, "--warpgroups chooses kernels", "add --backend cuda or emu"),
        (arguments.setting == "reference" and arguments.warpgroups, "--warpgroups makes sums depend on the batch", "leave out --setting"),
        (arguments.context is not None and arguments.context < 1, "--context is below 1", "leave it out to use the model's own"),
    ):
        if wrong:
            raise UsageError("run.arguments", message, phase="run", hint=hint)


def _open(arguments: argparse.Namespace) -> tuple["OpenModel", Tokenizer, Session]:
    from poem.cli.open_model import open_model

    with _working(f"opening {arguments.model}"):
        model = open_model(arguments.model, arguments.checkpoint, arguments.deployment)
        tokenizer = Tokenizer.from_side_files(model.side_files)
        session = _session(arguments, model)
    for note in model.notes:
        print(f"poem run: {note}", file=sys.stderr)
    return model, tokenizer, session


def _session(arguments: argparse.Namespace, model: "OpenModel") -> Session:
    if arguments.backend == "interp":
        from interp import Session as Interpreter

        return Interpreter(model.graph, model.weights, mode=arguments.mode, setting=arguments.setting)
    from cupy_backend.devices import open_device
    from cupy_backend.plan import Options, nearest_arch
    from cupy_backend.session import Session as Planned

    device = open_device("emu-fast" if arguments.backend == "emu" else arguments.backend)
    arch = nearest_arch(getattr(device, "arch", Options().arch))
    options = Options(arch, batch_invariant=arguments.setting == "reference", warpgroups=arguments.warpgroups)
    return Planned(model.graph, model.weights, device, options=options)


def _working(what: str) -> AbstractContextManager[Any]:
    """Shows on a terminal that something takes its time."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)


def _encode(arguments: argparse.Namespace, template: Any, tokenizer: Tokenizer, prompt: str) -> list[int]:
    if arguments.raw:
        return tokenizer.encode_prompt(prompt)
    system = [] if arguments.system is None else [{"role": "system", "content": arguments.system}]
    return render_chat(template, [*system, {"role": "user", "content": prompt}], tokenizer, thinking=not arguments.no_thinking)


def _stops(arguments: argparse.Namespace, template: Any, tokenizer: Tokenizer) -> frozenset[int]:
    from poem.templates import FORMATS

    if arguments.raw and not FORMATS[template.format].shapes:  # a format that cannot be rendered has no stops either
        return frozenset()
    return stop_ids(template, tokenizer)


def _collect(tokens: Iterable[Token], replies: Sequence[Reply], tokenizer: Tokenizer) -> Iterator[tuple[int, str]]:
    """Fill `replies` as tokens come; yields (prompt, text) for every piece of text."""
    streams = [TextStream(tokenizer.decode) for _ in replies]
    for token in tokens:
        reply, stream = replies[token.prompt], streams[token.prompt]
        text = ""
        if token.finish != "stop":
            reply.ids.append(token.id)
            reply.logprobs.append(token.log_probability)
            text = stream.add(token.id)
        if token.finish:
            reply.finish = token.finish
            text += stream.finish()
        reply.text += text
        yield token.prompt, text


def _print(pieces: Iterable[tuple[int, str]], replies: Sequence[Reply]) -> None:
    """Text as it comes: one reply after another, each of several under a line with its prompt."""

    def head(reply: Reply) -> None:
        if len(replies) > 1:
            print(f"==> {' '.join(reply.prompt.split())} <==", flush=True)

    current, shown = 0, 0
    head(replies[0])
    for _ in pieces:
        while current < len(replies):
            reply = replies[current]
            print(reply.text[shown:], end="", flush=True)
            shown = len(reply.text)
            if reply.finish is None:
                break
            print(flush=True)
            current, shown = current + 1, 0
            if current < len(replies):
                head(replies[current])


class _Timings:
    """Seconds of loading, of reading the prompts (until the first token), and of writing the rest of the replies."""

    def __init__(self, load: float) -> None:
        self.load, self.prefill, self.decode = load, 0.0, 0.0

    def watch(self, tokens: Iterable[Token]) -> Iterator[Token]:
        """The same tokens; the time in which they are made counts, not the time in which they are printed."""
        iterator = iter(tokens)
        while True:
            started = time.perf_counter()
            token = next(iterator, None)
            seconds = time.perf_counter() - started
            if self.prefill:
                self.decode += seconds
            else:
                self.prefill = seconds
            if token is None:
                return
            yield token

    def summary(self, replies: Sequence[Reply]) -> str:
        """One line for people."""
        read, written = sum(len(reply.prompt_ids) for reply in replies), sum(len(reply.ids) for reply in replies)
        later = max(0, written - 1)
        return (
            f"load {self.load:.1f} s; prompt {read} tokens in {self.prefill:.2f} s ({read / max(self.prefill, 1e-9):.1f} tokens/s); "
            f"reply {written} tokens, {later} of them in {self.decode:.2f} s ({later / max(self.decode, 1e-9):.1f} tokens/s)"
        )


def _report(
    arguments: argparse.Namespace, model: "OpenModel", sampling: Sampling, replies: Sequence[Reply], timings: _Timings
) -> dict[str, Any]:
    return {
        "model": arguments.model,
        "deployment": model.deployment.name,
        "backend": arguments.backend,
        "mode": arguments.mode,
        "setting": arguments.setting,
        "sampling": asdict(sampling),
        "results": [asdict(reply) for reply in replies],
        "timings": {"load": timings.load, "prefill": timings.prefill, "decode": timings.decode},
    }
