"""`Tokenizer`: a checkpoint's tokenizer.json, with markers that text cannot spell.

A chat prompt is made of markers, which are single tokens, and of text, which must never turn into one. So the
vocabulary's special tokens are respelled with a word drawn at random for each `Tokenizer`: text cannot hold what it
does not know, and a whole prompt is still encoded as one string, exactly as the original's tokenizer would.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from poem.errors import CheckpointError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Backend


class Marker(str):
    """The name of a token that stands in a prompt as that one token, whatever its text looks like."""

    __slots__ = ()


class Tokenizer:
    """Encodes and decodes with the `tokenizers` library. Made by `from_side_files`."""

    def __init__(self, text: str) -> None:
        import secrets  # loads OpenSSL, which reading a package does without

        self._text = text
        self._backend = _load(text)
        self._secret = f"\U0010fffe{secrets.token_hex(8)}\U0010fffe"
        self._text_backends: dict[frozenset[str], Backend] = {}

    @classmethod
    def from_side_files(cls, side_files: Mapping[str, bytes | Path]) -> "Tokenizer":
        """The tokenizer of a checkpoint or artifact, from its `tokenizer.json`.

        Raises:
            CheckpointError: `import.tokenizer` without that file, `import.illegible` when it cannot be read.
        """
        content = side_files.get("tokenizer.json")
        if content is None:
            raise CheckpointError(
                "import.tokenizer", "the model comes without tokenizer.json", expected="tokenizer.json among its files",
                found=", ".join(sorted(side_files)) or "no tokenizer files",
                hint="copy tokenizer.json from the original checkpoint beside its weights and import again",
            )  # fmt: skip
        try:
            return cls((content if isinstance(content, bytes) else content.read_bytes()).decode())
        except (ValueError, OSError) as error:
            raise CheckpointError("import.illegible", "tokenizer.json cannot be read", found=str(error)) from error

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling, or None when the vocabulary lacks it."""
        return self._backend.token_to_id(token)

    def token(self, index: int) -> str | None:
        """The spelling of a token by its id, or None outside the vocabulary."""
        return self._backend.id_to_token(index)

    @property
    def size(self) -> int:
        """How many tokens the vocabulary holds, added ones included."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    def encode(self, text: str) -> list[int]:
        """The ids of a text. No special token is recognised in it, none is added around it."""
        return self.encode_pieces([text])

    def encode_prompt(self, text: str) -> list[int]:
        """The ids of a prompt as the original's tokenizer gives them: special tokens recognised, bos or eos added."""
        return self._backend.encode(text).ids

    @cached_property
    def opening(self) -> list[int]:
        """What the original's tokenizer puts before a text that is no chat, such as a bos token."""
        framed = self._backend.encode("a")
        text = framed.special_tokens_mask.index(0) if 0 in framed.special_tokens_mask else 0
        return framed.ids[:text]

    def encode_pieces(self, pieces: Sequence[str], markers: Iterable[str] = ()) -> list[int]:
        """The ids of texts and `Marker`s one after another, encoded together.

        A `Marker` becomes its own token. No other piece can become a special token, one of the `Marker`s, or one of
        the further tokens `markers`.

        Raises:
            CheckpointError: `import.tokenizer` for a marker that the vocabulary lacks.
        """
        markers = {*markers, *(str(piece) for piece in pieces if isinstance(piece, Marker))}
        missing = sorted(marker for marker in markers if self.token_id(marker) is None)
        if missing:
            raise CheckpointError("import.tokenizer", "the vocabulary lacks a marker", expected=f"a token `{missing[0]}`", found="none")
        text = "".join(self._respelled(piece) if isinstance(piece, Marker) else piece for piece in pieces)
        text = text.encode("utf-8", "replace").decode()  # a lone surrogate is no character
        return self._text_backend(markers).encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of ids, special tokens as they are spelled.

        Bytes that are no UTF-8 become U+FFFD, ids outside the vocabulary nothing.
        """
        return self._backend.decode(list(ids), skip_special_tokens=False)

    @cached_property
    def _document(self) -> dict[str, Any]:
        return json.loads(self._text)

    def _text_backend(self, markers: Iterable[str]) -> "Backend":
        """A backend that knows special tokens and `markers` by their respelling only."""
        special = {token["content"] for token in self._document.get("added_tokens", ()) if token.get("special")}
        key = frozenset(special.union(markers))
        if key not in self._text_backends:
            self._text_backends[key] = _load(json.dumps(self._respell(key), ensure_ascii=False))
        return self._text_backends[key]

    def _respelled(self, token: str) -> str:
        return f"{self._secret}{self.token_id(token)}{self._secret}"

    def _respell(self, tokens: frozenset[str]) -> dict[str, Any]:
        model = dict(self._document["model"])
        spelling = {token: self._respelled(token) for token in tokens}
        vocabulary = model.get("vocab")
        if isinstance(vocabulary, dict):
            model["vocab"] = {spelling.get(token, token): index for token, index in vocabulary.items()}
        elif vocabulary is not None:  # Unigram: [token, score] in id order
            model["vocab"] = [[spelling.get(token, token), score] for token, score in vocabulary]
        if model.get("unk_token") in spelling:
            model["unk_token"] = spelling[model["unk_token"]]
        added = [{**token, "content": spelling.get(token["content"], token["content"])} for token in self._document.get("added_tokens", ())]
        known = {token["content"] for token in added}
        flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        added += [
            {"id": self.token_id(token), "content": respelled, **flags}
            for token, respelled in sorted(spelling.items())
            if respelled not in known
        ]
        return {**self._document, "model": model, "added_tokens": added, "post_processor": None}


def _load(text: str) -> "Backend":
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(text)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(str(error)) from error
    backend.no_truncation()
    backend.no_padding()
    return backend
