"""What a precision costs: one text, read by the same model in several files."""

import math
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from interp import Session
from poem.batch import Chunk
from poem.dataclass import dataclass
from poem.errors import UsageError
from poem.tokenizer import Tokenizer

if TYPE_CHECKING:
    from poem.cli.open_model import OpenModel

TEXT = Path(__file__).parent / "data" / "quality.txt"
DECODED = 16  # the last tokens are read one at a time, to tell the speed of decoding
PASS = 128  # tokens of one pass; logits of a pass are what takes memory


@dataclass(frozen=True, slots=True)
class Quality:
    """How well one file predicts a text.

    bytes: of the file. bits: stored for each weight, scales included. tokens: how many were predicted. perplexity: e to the mean
    negative log-probability of those tokens. agreement: for how many of them the likeliest token is that of the reference, as a
    fraction; divergence: the mean Kullback-Leibler divergence from the reference's distribution, sum p ln(p / q), in nats; both
    None for the reference itself. tokens_per_second: decoding, one token a pass.
    """

    file: str
    deployment: str
    bytes: int
    bits: float
    tokens: int
    perplexity: float
    agreement: float | None
    divergence: float | None
    tokens_per_second: float


def compare_files(
    files: Sequence[str], text: str, against: str | None = None, *, limit: int, progress: Callable[[str], None] = lambda text: None
) -> list[Quality]:
    """Read `text` to every file, in native mode and the fast setting. against: the reference, by default the first file.

    limit: how many tokens of the text are read at most; fewer where a model was made for fewer.
    Raises UsageError `bench.text` for a text without two tokens, `bench.tokenizer` for files whose tokens are not the reference's,
    and whatever opening and running refuse.
    """
    from poem.cli.open_model import open_model

    reference = against or files[0]
    models = {file: open_model(file, None, None) for file in dict.fromkeys([reference, *files])}
    ids = {file: _ids(model, text) for file, model in models.items()}
    for file in files:
        if ids[file] != ids[reference] or models[file].deployment.model.vocab != models[reference].deployment.model.vocab:
            raise UsageError(
                "bench.tokenizer", f"{file} reads the text as other tokens than {reference}", phase="bench",
                expected="files of one model in several precisions",
            )  # fmt: skip
    count = min([limit, *(model.context for model in models.values() if model.context is not None)])
    tokens = ids[reference][:count]
    if len(tokens) < 2:
        raise UsageError(
            "bench.text", f"the text has {len(tokens)} tokens", phase="bench", expected="at least 2, of which the last is predicted"
        )
    found = {}
    wanted: list[np.ndarray] = []
    for file, model in models.items():
        progress(f"reading {len(tokens)} tokens to {file}")
        found[file] = _read(file, model, tokens, wanted, file == reference)
    return [found[file] for file in files]


def _ids(model: "OpenModel", text: str) -> list[int]:
    tokenizer = Tokenizer.from_side_files(model.side_files)
    return [*tokenizer.opening, *tokenizer.encode(text)]


def _read(file: str, model: "OpenModel", tokens: Sequence[int], wanted: list[np.ndarray], reference: bool) -> Quality:
    """Read tokens to a model. wanted: the reference's log-probabilities, a pass each; the reference itself fills it."""
    session = Session(model.graph, model.weights, setting="fast")
    sequence = session.add_sequence()
    read, following = tokens[:-1], np.array(tokens[1:])
    whole = max(len(read) - DECODED, 1)
    cuts = [*range(0, whole, PASS), *range(whole, len(read)), len(read)]
    surprise, agree, divergence, decoding = 0.0, 0, 0.0, 0.0
    for number, (start, stop) in enumerate(pairwise(cuts)):
        started = time.perf_counter()
        logits = session.run([Chunk(sequence, read[start:stop], readouts="all")])["logits"]
        decoding += time.perf_counter() - started if start >= whole else 0.0
        found = log_probabilities(logits)
        surprise -= float(found[np.arange(stop - start), following[start:stop]].sum())
        if reference:
            wanted.append(found.astype(np.float32))
        else:
            want = wanted[number].astype(np.float64)
            agree += int((found.argmax(-1) == want.argmax(-1)).sum())
            divergence += float((np.exp(want) * (want - found)).sum())
    stored, weights = sum(tensor.nbytes for tensor in model.weights.values()), sum(tensor.size for tensor in model.weights.values())
    return Quality(
        file, model.deployment.name, Path(file).stat().st_size, 8 * stored / weights, len(read), math.exp(surprise / len(read)),
        None if reference else agree / len(read), None if reference else divergence / len(read),
        (len(read) - whole) / decoding if decoding else 0.0,
    )  # fmt: skip


def log_probabilities(logits: np.ndarray) -> np.ndarray:
    """`x - max - ln(sum e^(x - max))` of each row, in float64."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
