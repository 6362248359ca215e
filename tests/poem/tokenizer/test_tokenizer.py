"""`Tokenizer`: markers, texts that imitate them, and files that are no tokenizer."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from poem.errors import CheckpointError
from poem.tokenizer import Marker, Tokenizer

Make = Callable[..., Tokenizer]


def test_text_is_encoded_without_special_tokens(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary(["<end>"])
    end = tokenizer.token_id("<end>")
    assert tokenizer.encode_prompt("a<end>") == [*tokenizer.encode("a"), end]
    assert end not in tokenizer.encode("a<end>")
    assert tokenizer.decode(tokenizer.encode("a<end>")) == "a<end>"


def test_markers_and_text_are_encoded_together(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary(["<end>"], plain=["<b>"])
    ids = tokenizer.encode_pieces(["a", Marker("<end>"), "<end>", Marker("<b>"), "<b>"])
    assert [i for i in ids if i >= 256] == [tokenizer.token_id("<end>"), tokenizer.token_id("<b>")]
    assert tokenizer.decode(ids) == "a<end><end><b><b>"


def test_markers_that_are_ordinary_tokens_become_those(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary([])
    assert tokenizer.encode_pieces([Marker("a"), "b"]) == [tokenizer.token_id("a"), tokenizer.token_id("b")]


def test_ids_do_not_depend_on_which_tokens_are_markers(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary(["<x>", "<y>"], plain=["<b>", "<c>"])
    for markers in ((), ("<x>",), ("<c>",), ("<b>", "<c>", "<y>")):
        assert tokenizer.encode_pieces(["z<b>"], ["<c>"])[-1] == tokenizer.token_id("<b>"), markers
        assert tokenizer.encode_pieces([Marker(m) for m in markers]) == [tokenizer.token_id(m) for m in markers]


def test_a_vocabulary_of_unigrams_keeps_its_markers_too() -> None:
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    backend = Backend(models.Unigram([("<unk>", 0.0), ("<end>", -0.1), ("<", -1.0), ("end", -1.0), (">", -1.0), ("a", -1.0)], unk_id=0))
    backend.add_special_tokens(["<end>"])
    tokenizer = Tokenizer.from_side_files({"tokenizer.json": backend.to_str().encode()})
    assert tokenizer.encode_pieces(["a", Marker("<end>"), "<end>"]) == [5, 1, 2, 3, 4]


def test_a_lone_surrogate_is_no_character_and_no_crash(byte_vocabulary: Make) -> None:
    tokenizer = byte_vocabulary([])
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_a_marker_that_the_vocabulary_lacks_is_named(byte_vocabulary: Make) -> None:
    with pytest.raises(CheckpointError, match="<nope>") as caught:
        byte_vocabulary([]).encode_pieces([Marker("<nope>")])
    assert caught.value.code == "import.tokenizer"


def test_a_path_serves_as_well_as_bytes(byte_vocabulary: Make, tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text(byte_vocabulary(["<end>"])._text)
    assert Tokenizer.from_side_files({"tokenizer.json": file}).token_id("<end>") == 256


def test_truncation_and_padding_that_a_file_asks_for_are_not_for_prompts(byte_vocabulary: Make) -> None:
    document = json.loads(byte_vocabulary(["<end>"])._text)
    document["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    document["padding"] = {
        "strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    tokenizer = Tokenizer.from_side_files({"tokenizer.json": json.dumps(document).encode()})
    assert len(tokenizer.encode_prompt("abcde")) == len(tokenizer.encode("abcde")) == 5


def test_a_model_without_tokenizer_says_what_to_do() -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_side_files({"config.json": b"{}"})
    assert caught.value.code == "import.tokenizer"
    assert "tokenizer.json" in caught.value.hint


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"model": 1}', b'{"model": {"type": "Nope"}}', b"\xff\xfe", b"[" * 100_000])
def test_a_file_that_is_no_tokenizer_is_illegible(content: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_side_files({"tokenizer.json": content})
    assert caught.value.code == "import.illegible"
