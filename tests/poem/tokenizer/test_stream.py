"""Streaming: the pieces add up to the whole text, and none holds half a character."""

import random
from collections.abc import Callable, Sequence

import pytest

from poem.tokenizer import TextStream, Tokenizer

Make = Callable[..., Tokenizer]
REPLACEMENT = "\ufffd"


def streamed(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    stream = TextStream(decode)
    return [*(stream.add(i) for i in ids), stream.finish()]


@pytest.mark.parametrize("text", ["plain", "é日🤷🏽‍♂️!", "a\u200db", REPLACEMENT, f"a{REPLACEMENT}b{REPLACEMENT * 5}c", " ", "", "x" * 500])
def test_pieces_add_up_to_the_text(text: str, byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary([])
    assert "".join(streamed(tokenizer.decode, tokenizer.encode(text))) == text


def test_a_character_comes_out_once_its_last_byte_is_there(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary([])
    assert streamed(tokenizer.decode, tokenizer.encode("a日b")) == ["a", "", "", "日", "b", ""]


def test_a_character_that_never_ends_is_a_replacement_at_the_end(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary([])
    assert streamed(tokenizer.decode, tokenizer.encode("a日")[:-1]) == ["a", "", "", REPLACEMENT]


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_stream_to_what_they_decode_to(seed: int, byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary([])
    rng = random.Random(seed)
    units = [list(tokenizer.encode(c)) for c in "aé日🤷"] + [[i] for i in range(256)]
    ids = [i for unit in rng.choices(units, k=60) for i in unit]
    assert "".join(streamed(tokenizer.decode, ids)) == tokenizer.decode(ids), f"seed {seed}"


def test_byte_tokens_and_dropped_first_spaces_stream_right() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models

    backend = Backend(models.BPE(vocab={"▁a": 0, "▁": 1, "<0xE6>": 2, "<0x97>": 3, "<0xA5>": 4}, merges=[], byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    tokenizer = Tokenizer.from_side_files({"tokenizer.json": backend.to_str().encode()})
    for ids in ([0, 0], [1, 0, 1, 1, 0], [0, 2, 3, 4, 2, 3, 4, 0], [2, 3, 4, 0]):
        assert "".join(streamed(tokenizer.decode, ids)) == tokenizer.decode(ids), ids
    assert streamed(tokenizer.decode, [0, 2, 3, 4, 2, 3, 4]) == ["a", "", "", "日", "", "", "日", ""]
    assert streamed(tokenizer.decode, [2, 3, 4, 3, 0]) == ["", "", "日", "", f"{REPLACEMENT} a", ""]
