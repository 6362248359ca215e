"""Tokenizers out of GGUF metadata, against transformers' own conversion and against SentencePiece's merging written down here."""

import random
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from poem.errors import CheckpointError
from poem.tokenizer import Tokenizer
from poem.tokenizer.gguf import BYTE, CONTROL, NORMAL, SPACE, UNKNOWN, USER_DEFINED, tokenizer_json
from poem.tokenizer.splits import SPLITS

TEXTS = [
    "",
    " ",
    "\n",
    "Hello world! I'm here, you've 12345 apples; they'LL cost $3.50.",
    "  two  spaces\n\n\tTabs\r\n   \n",
    "日本語テキスト 한국어 العربية עברית ไทย हिन्दी",
    "🤷🏽‍♂️ café e\u0301 ﬁ ² \u200b \ufeff",
    "def f(x: int) -> float:\n    return x ** 2 + 3.14e-5  # ünïcode\n",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<|endoftext|><repo_name>a/b<file_sep>",
    "a" * 300 + " " * 50 + "\x00\x01\x7f",
    "CamelCaseIdentifiers and snake_case_ones, 1,000,000.00",
]


def byte_level_fields(**changes: Any) -> dict[str, Any]:
    """A GGUF vocabulary of all bytes and three merges."""
    from tokenizers.pre_tokenizers import ByteLevel

    tokens = [*sorted(ByteLevel.alphabet()), "he", "hel", "Ġh", "<|end|>", "<tool>"]
    fields = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * (len(tokens) - 2) + [CONTROL, USER_DEFINED],
        "tokenizer.ggml.merges": ["h e", "he l", "Ġ h"],
        "tokenizer.ggml.bos_token_id": len(tokens) - 2,
        **changes,
    }
    return {key: value for key, value in fields.items() if value is not None}


def tokenizer(fields: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_side_files(tokenizer_json(fields))


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Tokenizer:
    from poem.checkpoint import open_checkpoint

    return Tokenizer.from_side_files(open_checkpoint(smollm2_path).side_files)


@pytest.mark.original
@pytest.mark.slow
def test_smollm2_texts_have_the_ids_that_transformers_gives_them(smollm2: Tokenizer, smollm2_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    from tokenizers import pre_tokenizers

    original = transformers.AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    # Its conversion leaves out the digits' own step of SmolLM's published tokenizer.json; this is that file's pre-tokenizer.
    original.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    rng = random.Random(0)
    pieces = [*TEXTS, *"abc .,\n\t'0é日🤷"]
    texts = TEXTS + ["".join(rng.choices(pieces, k=rng.randrange(1, 8))) for _ in range(300)]
    for text in texts:
        got, want = smollm2.encode_prompt(text), original(text)["input_ids"]
        assert got == want, f"{text!r}: got {got}, want {want}"
        assert smollm2.decode(got) == text


def test_every_named_split_is_a_regular_expression_that_keeps_all_text() -> None:
    from tokenizers import Regex, pre_tokenizers

    text = "".join(TEXTS) + "١٢٣ 中文1234567 don't DON'T a/b\r\n\r\nx"
    for name, split in SPLITS.items():
        steps = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in split.patterns])
        words = [word for word, _ in steps.pre_tokenize_str(text)]
        assert "".join(words) == text, name
        assert len(words) > 20, name


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("gpt-2", "I'm 123  x", ["I", "'m", " 123", " ", " x"]),
        ("smollm", "a 123", ["a", " ", "1", "2", "3"]),
        ("llama-bpe", "I'M 12345 x\n\n y", ["I", "'M", " ", "123", "45", " x", "\n\n", " y"]),
        ("qwen2", "a12 (b)", ["a", "1", "2", " (", "b", ")"]),
        ("qwen35", "e\u0301a", ["e\u0301a"]),
        ("gpt-4o", "helloWorld's", ["hello", "World's"]),
        ("tekken", "helloWorld12", ["hello", "World", "1", "2"]),
        ("deepseek-v3", "abc1234中文", ["abc", "123", "4", "中文"]),
        ("kimi-k2", "abc中文def", ["abc", "中文", "def"]),
        ("falcon", "a+b 12345", ["a", "+", "b", " ", "123", "45"]),
    ],
)  # fmt: skip
def test_words_are_split_as_the_original_does(name: str, text: str, words: list[str]) -> None:
    from tokenizers import Regex, pre_tokenizers

    steps = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in SPLITS[name].patterns])
    assert [word for word, _ in steps.pre_tokenize_str(text)] == words


def test_control_tokens_are_special_and_user_defined_ones_are_not() -> None:
    made = tokenizer(byte_level_fields())
    end, tool = made.token_id("<|end|>"), made.token_id("<tool>")
    assert made.encode_prompt("<|end|><tool>") == [end, tool]
    assert end not in made.encode("<|end|>")
    assert made.encode("<tool>") == [tool]


def test_merges_apply_in_their_order() -> None:
    made = tokenizer(byte_level_fields())
    assert [made.token(i) for i in made.encode("hello hel h")] == ["hel", "l", "o", "Ġ", "hel", "Ġh"]


@pytest.mark.parametrize(
    ("pre", "said", "opening"),
    [("gpt-2", None, False), ("gpt-2", True, True), ("llama-bpe", None, True), ("llama-bpe", False, False)],
)
def test_bos_opens_a_prompt_as_the_file_says_or_its_family_does(pre: str, said: bool | None, opening: bool) -> None:
    made = tokenizer(byte_level_fields(**{"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": said}))
    bos = made.token_id("<|end|>")
    assert made.opening == ([bos] if opening else [])
    assert made.encode_prompt("h") == made.opening + made.encode("h")


def test_a_word_that_is_a_token_is_taken_whole_only_by_families_that_ignore_merges() -> None:
    whole = {"tokenizer.ggml.merges": ["h e"]}  # no merge leads to `hel`
    for pre, length in (("llama-bpe", 1), ("gpt-2", 2)):
        assert len(tokenizer(byte_level_fields(**whole, **{"tokenizer.ggml.pre": pre})).encode("hel")) == length, pre


def test_the_side_files_keep_roles_context_and_chat_template() -> None:
    import json

    more = {"tokenizer.chat_template": "{{ x }}", "general.architecture": "llama", "llama.context_length": 8192}
    config = json.loads(tokenizer_json(byte_level_fields(**more))["tokenizer_config.json"])
    assert config["bos_token"] == "<|end|>"
    assert config["model_max_length"] == 8192
    assert config["chat_template"] == "{{ x }}"


# -- SentencePiece ---------------------------------------------------------------------------------


def sentencepiece_fields(pieces: dict[str, float], **changes: Any) -> dict[str, Any]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * 259 + list(pieces.values()),
        "tokenizer.ggml.token_type": [UNKNOWN, CONTROL, CONTROL] + [BYTE] * 256 + [NORMAL] * len(pieces),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changes,
    }


def sentencepiece(text: str, pieces: dict[str, float]) -> list[str]:
    """SentencePiece's BPE: join the neighbours whose joined piece scores best, the leftmost of equals; spell the rest in bytes."""
    symbols = list(SPACE + text.replace(" ", SPACE))
    while True:
        joins = [(-pieces[a + b], i) for i, (a, b) in enumerate(pairwise(symbols)) if a + b in pieces]
        if not joins:
            return [part for symbol in symbols for part in ([symbol] if symbol in pieces else [f"<0x{b:02X}>" for b in symbol.encode()])]
        _, i = min(joins)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


@pytest.mark.parametrize("seed", range(8))
def test_pieces_are_joined_as_sentencepiece_joins_them(seed: int) -> None:
    rng = random.Random(seed)
    letters = "abcd" + SPACE
    pieces = [*letters, *{"".join(rng.choices(letters, k=rng.randrange(2, 5))) for _ in range(120)}]
    pieces += [a + b for a, b in zip(rng.choices(pieces, k=80), rng.choices(pieces, k=80), strict=True)]
    scores = {piece: -float(rank) for rank, piece in enumerate(dict.fromkeys(rng.sample(pieces, len(pieces))))}
    made = tokenizer(sentencepiece_fields(scores))
    for _ in range(60):
        text = "".join(rng.choices("abcd  é日\n", k=rng.randrange(0, 30)))
        got, want = [made.token(i) for i in made.encode(text)], sentencepiece(text, scores) if text else []
        assert got == want, f"seed {seed}, {text!r}"
        assert made.decode(made.encode(text)) == text


def test_runs_of_spaces_of_equal_score_grow_from_the_left() -> None:
    scores = {SPACE * length: -1e9 for length in (1, 2, 3, 4, 5, 6, 7, 8, 16)} | {"x": -2e9}
    made = tokenizer(sentencepiece_fields(scores))
    for spaces in range(30):
        text = " " * spaces + "x"
        assert [made.token(i) for i in made.encode(text)] == sentencepiece(text, scores), f"{spaces} spaces"


def test_a_sentencepiece_prompt_opens_with_bos_unless_the_file_says_otherwise() -> None:
    pieces = {SPACE: -1.0, "x": -2.0}
    assert tokenizer(sentencepiece_fields(pieces)).opening == [1]
    assert tokenizer(sentencepiece_fields(pieces, **{"tokenizer.ggml.add_bos_token": False})).opening == []


def test_without_a_prefix_space_none_is_added_or_removed() -> None:
    made = tokenizer(sentencepiece_fields({SPACE: -1.0, "x": -2.0}, **{"tokenizer.ggml.add_space_prefix": False}))
    assert [made.token(i) for i in made.encode("x x")] == ["x", SPACE, "x"]
    assert made.decode(made.encode(" x")) == " x"


def test_gemma_meets_runs_of_spaces_in_its_own_spelling() -> None:
    fields = sentencepiece_fields({SPACE: 0.0, "x": 0.0, "  ": 0.0, "   ": 0.0, f"{SPACE}x": 0.0}, **{"general.architecture": "gemma2"})
    fields["tokenizer.ggml.token_type"][261] = USER_DEFINED
    made = tokenizer(fields)
    assert [made.token(i) for i in made.encode("x  x")] == ["x", SPACE * 2, "x"]
    assert made.decode(made.encode("x   x")) == "x   x"


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"tokenizer.ggml.model": "bert"}, "bert"),
        ({"tokenizer.ggml.model": None}, "None"),
        ({"tokenizer.ggml.pre": "llama-bpee"}, "did you mean `llama-bpe`"),
        ({"tokenizer.ggml.tokens": None}, "no vocabulary"),
        ({"tokenizer.ggml.tokens": ["a", "b", "a"], "tokenizer.ggml.token_type": [1, 1, 1]}, "'a' at 0 and 2"),
        ({"tokenizer.ggml.merges": None}, "merges"),
        ({"tokenizer.ggml.merges": ["he"]}, "'he'"),
        ({"tokenizer.ggml.merges": ["x y"]}, "'xy'"),
        ({"tokenizer.ggml.token_type": [1, 1]}, "261 kinds"),
        ({"tokenizer.ggml.bos_token_id": 1_000_000}, "bos_token_id"),
        ({"tokenizer.ggml.model": "llama", "tokenizer.ggml.merges": None}, "score"),
        ({"tokenizer.ggml.tokens": 3}, "a list of texts"),
        ({"tokenizer.ggml.tokens": [["a"]]}, "a list of texts"),
        ({"tokenizer.ggml.merges": "x y"}, "a list of texts"),
        ({"tokenizer.ggml.token_type": [float("nan")]}, "a list of integers"),
        ({"tokenizer.ggml.scores": ["a"]}, "a list of numbers"),
        ({"tokenizer.ggml.eos_token_id": float("nan")}, "an integer"),
        ({"tokenizer.ggml.add_bos_token": "no"}, "true or false"),
    ],
)
def test_metadata_that_make_no_tokenizer_are_illegible_and_say_why(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        tokenizer_json(byte_level_fields(**changes))
    assert caught.value.code == "import.illegible"
    assert word in str(caught.value)
