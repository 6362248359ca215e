"""A GGUF file's tokenizer as the side files that every other checkpoint brings: tokenizer.json and tokenizer_config.json.

GGUF keeps the vocabulary as metadata under `tokenizer.ggml.*` (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md):
`gpt2` is byte-level BPE with the merges of the original and the name of its pre-tokenizer; `llama` and `gemma4` are
SentencePiece BPE over characters, where a missing merge list follows from the order of the scores.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from poem.errors import CheckpointError
from poem.suggest import did_you_mean
from poem.tokenizer.splits import SPLITS, Split

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # tokenizer.ggml.token_type
SPACE = "\u2581"  # how SentencePiece spells a space
ROLES = {"bos_token": "bos_token_id", "eos_token": "eos_token_id", "unk_token": "unknown_token_id", "pad_token": "padding_token_id"}
TEXTS, INTEGERS, NUMBERS, INTEGER, ANSWER = "a list of texts", "a list of integers", "a list of numbers", "an integer", "true or false"
HOLDS = {  # what the metadata of these keys must be
    **dict.fromkeys(("tokens", "merges"), TEXTS),
    "token_type": INTEGERS,
    "scores": NUMBERS,
    **dict.fromkeys(ROLES.values(), INTEGER),
    **dict.fromkeys(("add_bos_token", "add_eos_token", "add_space_prefix"), ANSWER),
}
KINDS: dict[str, set[type]] = {TEXTS: {str}, INTEGERS: {int}, NUMBERS: {int, float}, INTEGER: {int}, ANSWER: {bool, int}}


def tokenizer_json(fields: Mapping[str, Any]) -> dict[str, bytes]:
    """The side files `tokenizer.json` and `tokenizer_config.json` of a GGUF file, as bytes by name.

    Args:
        fields: the file's metadata by key, values as plain Python (str, int, float, bool, lists of those).

    Raises:
        CheckpointError: `import.illegible` for a tokenizer that has no faithful form as tokenizer.json, or whose
            metadata contradict themselves.
    """
    model = fields.get("tokenizer.ggml.model")
    build = {"gpt2": _byte_level, "llama": _sentencepiece, "gemma4": _sentencepiece}.get(str(model))
    if build is None:
        raise _illegible(f"the tokenizer `{model}` of a GGUF file has no form as tokenizer.json", "gpt2, llama or gemma4", str(model))
    _check_kinds(fields)
    tokens = _tokens(fields)
    kinds = list(fields.get("tokenizer.ggml.token_type") or [NORMAL] * len(tokens))
    if len(kinds) != len(tokens):
        raise _illegible("the GGUF file gives a kind for some of its tokens only", f"{len(tokens)} kinds", str(len(kinds)))
    roles = {name: _token_of_role(fields, tokens, key) for name, key in ROLES.items()}
    document = build(fields, tokens, kinds, roles)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: token for name, token in roles.items() if token is not None},
        "clean_up_tokenization_spaces": False,
    }
    context = fields.get(f"{fields.get('general.architecture')}.context_length")
    if type(context) is int:
        config["model_max_length"] = context
    if isinstance(fields.get("tokenizer.chat_template"), str):
        config["chat_template"] = fields["tokenizer.chat_template"]
    return {name: json.dumps(content, ensure_ascii=False).encode() for name, content in (
        ("tokenizer.json", document), ("tokenizer_config.json", config),
    )}  # fmt: skip


def _check_kinds(fields: Mapping[str, Any]) -> None:
    """Whoever wrote the file may have put anything anywhere."""
    for key, wanted in HOLDS.items():
        value = fields.get(f"tokenizer.ggml.{key}")
        if value is not None and not _is(value, wanted):
            raise _illegible(f"tokenizer.ggml.{key} of the GGUF file is of the wrong kind", wanted, repr(value)[:80])


def _is(value: Any, wanted: str) -> bool:
    if wanted in (TEXTS, INTEGERS, NUMBERS):
        return isinstance(value, list) and {type(item) for item in value} <= KINDS[wanted]
    return type(value) in KINDS[wanted]


def _byte_level(fields: Mapping[str, Any], tokens: list[str], kinds: list[int], roles: Mapping[str, str | None]) -> dict[str, Any]:
    name = str(fields.get("tokenizer.ggml.pre", "default"))
    split = SPLITS.get(name)
    if split is None:
        raise _illegible(
            f"the GGUF file's pre-tokenizer `{name}` is not known, so its text cannot be split as the original does",
            "a pre-tokenizer of llama.cpp's list", name,
            did_you_mean(name, SPLITS) or "take tokenizer.json from the original checkpoint and put it beside the file",
        )  # fmt: skip
    if fields.get("tokenizer.ggml.merges") is None:
        raise _illegible("a byte-level vocabulary needs its merges", "tokenizer.ggml.merges", "none")
    prefix_space = bool(fields.get("tokenizer.ggml.add_space_prefix", False))
    byte_level = {"type": "ByteLevel", "add_prefix_space": prefix_space, "trim_offsets": True, "use_regex": False}
    return _document(
        _added_tokens(tokens, kinds),
        normalizer={"type": "NFC"} if split.nfc else None,
        pre_tokenizer={"type": "Sequence", "pretokenizers": [*_splits(split), byte_level]},
        post_processor=_post_processor(fields, tokens, roles, add_bos=split.add_bos),
        decoder={**byte_level, "use_regex": True},
        model=_bpe(tokens, _merges(fields["tokenizer.ggml.merges"]), ignore_merges=split.ignore_merges),
    )


def _sentencepiece(fields: Mapping[str, Any], tokens: list[str], kinds: list[int], roles: Mapping[str, str | None]) -> dict[str, Any]:
    gemma = str(fields.get("general.architecture", "")).startswith("gemma")
    if gemma:  # runs of spaces are stored as themselves but met as their SentencePiece spelling
        spaces = [index for index, token in enumerate(tokens) if len(token) > 1 and not token.strip(" ")]
        for index in spaces:
            tokens[index], kinds[index] = SPACE * len(tokens[index]), NORMAL
        if len(set(tokens)) < len(tokens):
            raise _illegible("a run of spaces stands twice in the GGUF file's vocabulary", "one token a run", f"tokens {spaces[:4]} ...")
    if fields.get("tokenizer.ggml.merges") is not None:
        merges = _merges(fields["tokenizer.ggml.merges"])
    elif gemma:  # its scores do not follow the order in which it merges, its ids do
        merges = _merges_by_score(tokens, kinds, [-float(index) for index in range(len(tokens))])
    else:
        scores = [float(score) for score in fields.get("tokenizer.ggml.scores", ())]
        if len(scores) != len(tokens):
            raise _illegible("a SentencePiece vocabulary needs a score for each token", f"{len(tokens)} scores", str(len(scores)))
        merges = _merges_by_score(tokens, kinds, scores)
    prefix_space = not gemma and bool(fields.get("tokenizer.ggml.add_space_prefix", True))
    respell = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepend = [{"type": "Prepend", "prepend": SPACE}] if prefix_space else []
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if prefix_space else []
    byte_fallback = BYTE in kinds
    return _document(
        _added_tokens(tokens, kinds),
        normalizer={"type": "Sequence", "normalizers": [*prepend, respell]},
        pre_tokenizer=None,
        post_processor=_post_processor(fields, tokens, roles, add_bos=fields.get("tokenizer.ggml.model") == "llama"),
        decoder={"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, *strip,
        ]},
        model=_bpe(tokens, merges, unk_token=roles["unk_token"], fuse_unk=True, byte_fallback=byte_fallback),
    )  # fmt: skip


def _merges_by_score(tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to make a token of two others, best token first.

    SentencePiece merges the neighbours whose joined piece scores best, the leftmost of equals; BPE merges those that
    stand first in its list. Pieces of equal score, such as runs of spaces, therefore go by the longest left part: the
    leftmost piece grows first.
    """
    pieces = {token for token, kind in zip(tokens, kinds, strict=True) if kind in (NORMAL, UNUSED, USER_DEFINED)}
    merges = [
        (-score, cut, token)
        for token, score in zip(tokens, scores, strict=True)
        if token in pieces
        for cut in range(1, len(token))
        if token[:cut] in pieces and token[cut:] in pieces
    ]
    merges.sort(key=lambda merge: (merge[0], -merge[1], -len(merge[2])))
    return [(token[:cut], token[cut:]) for _, cut, token in merges]


def _merges(lines: Sequence[str]) -> list[tuple[str, str]]:
    """Merges are stored as `left right`; the left part may itself start with a space."""
    merges = []
    for line in lines:
        cut = line.find(" ", 1)
        if cut < 0:
            raise _illegible("a merge of the GGUF file is no pair", "`left right`", repr(line))
        merges.append((line[:cut], line[cut + 1 :]))
    return merges


def _tokens(fields: Mapping[str, Any]) -> list[str]:
    """The vocabulary in id order. An empty token is spelled `[EMPTY_id]`, as llama.cpp does."""
    tokens = [token or f"[EMPTY_{index}]" for index, token in enumerate(fields.get("tokenizer.ggml.tokens") or ())]
    if not tokens:
        raise _illegible("the GGUF file holds no vocabulary", "tokenizer.ggml.tokens", "none")
    first: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if first.setdefault(token, index) != index:
            twice = f"{token!r} at {first[token]} and {index}"
            raise _illegible("a token stands twice in the GGUF file's vocabulary", "every token once", twice)
    return tokens


def _token_of_role(fields: Mapping[str, Any], tokens: Sequence[str], key: str) -> str | None:
    index = fields.get(f"tokenizer.ggml.{key}")
    if index is None:
        return None
    if not 0 <= int(index) < len(tokens):
        raise _illegible(f"tokenizer.ggml.{key} points outside the vocabulary", f"below {len(tokens)}", str(index))
    return tokens[int(index)]


def _added_tokens(tokens: Sequence[str], kinds: Sequence[int]) -> list[dict[str, Any]]:
    """Control tokens are special; user-defined ones are met whole wherever they stand in a text."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return [
        {"id": index, "content": token, **flags, "special": kind != USER_DEFINED}
        for index, (token, kind) in enumerate(zip(tokens, kinds, strict=True))
        if kind in (CONTROL, UNKNOWN, USER_DEFINED)
    ]


def _splits(split: Split) -> list[dict[str, Any]]:
    return [{"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False} for pattern in split.patterns]


def _bpe(tokens: Sequence[str], merges: Sequence[tuple[str, str]], **flags: Any) -> dict[str, Any]:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    for left, right in merges:
        missing = next((piece for piece in (left, right, left + right) if piece not in vocabulary), None)
        if missing is not None:
            raise _illegible("a merge of the GGUF file names a token that its vocabulary lacks", "pieces of the vocabulary", repr(missing))
    return {
        "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
        "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, **flags, "vocab": vocabulary, "merges": merges,
    }  # fmt: skip


def _post_processor(
    fields: Mapping[str, Any], tokens: Sequence[str], roles: Mapping[str, str | None], add_bos: bool
) -> dict[str, Any] | None:
    """What a text that is no chat starts and ends with."""
    added = {
        side: roles[f"{side}_token"]
        for side, default in (("bos", add_bos), ("eos", False))
        if fields.get(f"tokenizer.ggml.add_{side}_token", default) and roles[f"{side}_token"] is not None
    }
    if not added:
        return None
    ids = {token: tokens.index(token) for token in added.values() if token is not None}

    def around(name: str, type_id: int) -> list[dict[str, Any]]:
        sequence: list[dict[str, Any]] = [{"Sequence": {"id": name, "type_id": type_id}}]
        before = [{"SpecialToken": {"id": added["bos"], "type_id": type_id}}] if "bos" in added else []
        after = [{"SpecialToken": {"id": added["eos"], "type_id": type_id}}] if "eos" in added else []
        return before + sequence + after

    return {
        "type": "TemplateProcessing",
        "single": around("A", 0),
        "pair": around("A", 0) + around("B", 1),
        "special_tokens": {token: {"id": token, "ids": [index], "tokens": [token]} for token, index in ids.items()},
    }


def _document(added_tokens: list[dict[str, Any]], **parts: Any) -> dict[str, Any]:
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added_tokens, **parts}


def _illegible(message: str, expected: str, found: str, hint: str = "") -> CheckpointError:
    return CheckpointError("import.illegible", message, phase="import", expected=expected, found=found, hint=hint)
