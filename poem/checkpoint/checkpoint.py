"""`Checkpoint`: one open checkpoint, and the questions that formats ask of it."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from poem.checkpoint.families import find_stored
from poem.checkpoint.families.config import quantisation_of
from poem.checkpoint.files import MappedFile, corrupt, parse_json
from poem.checkpoint.stored import RawTensor, Stored
from poem.dtypes.tensor import Tensor
from poem.errors import CheckpointError
from poem.suggest import did_you_mean


class SideFiles(Mapping[str, bytes]):
    """Files beside the weights (`tokenizer.json`, ...), each read when it is asked for."""

    def __init__(self, readers: Mapping[str, Callable[[], bytes]]) -> None:
        self._readers = dict(sorted(readers.items()))

    def __getitem__(self, name: str) -> bytes:
        return self._readers[name]()

    def __contains__(self, name: object) -> bool:
        return name in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


class Checkpoint:
    """An open checkpoint: tensors by name, mapped and not read, with its configuration and side files.

    place: what the user named. kind: `safetensors` or `gguf`. config: `config.json`, or {}. metadata: the container's
    own (GGUF fields, safetensors `__metadata__`). source: where it came from, for the artifact.
    """

    def __init__(
        self, place: str, kind: str, tensors: Mapping[str, RawTensor], *, config: dict[str, Any] | None = None,
        metadata: Mapping[str, Any] | None = None, side_files: Mapping[str, Callable[[], bytes]] | None = None,
        source: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.place, self.kind, self.tensors = place, kind, dict(tensors)
        self.config = config or {}
        self.metadata = dict(metadata or {})
        self.side_files = SideFiles(side_files or {})
        self.source = dict(source or {})
        self.quantisation = quantisation_of(self.config, self._modelopt())
        self._found: dict[str, Stored | None] = {}

    def __repr__(self) -> str:
        return f"Checkpoint({self.place!r}, {len(self.tensors)} tensors)"

    def _modelopt(self) -> dict[str, Any] | None:
        """What modelopt writes beside `config.json`."""
        name = "hf_quant_config.json"
        if name not in self.side_files:
            return None
        value = parse_json(self.side_files[name], f"{self.place}/{name}", "the configuration", strict=False)
        return value if isinstance(value, dict) else None

    # -- tensors ---------------------------------------------------------------------------------
    def names(self) -> list[str]:
        """The names of all tensors, sorted."""
        return sorted(self.tensors)

    def find(self, name: str) -> Stored | None:
        """The stored weight of that name, with its companions; None when there is none."""
        if name not in self._found:
            self._found[name] = find_stored(self.tensors, name, self.quantisation)
        return self._found[name]

    def tensor(self, name: str) -> Tensor:
        """The whole stored weight of that name; plain tensors are views of the file, GGUF blocks are decoded.

        KeyError for a name that is not there, CheckpointError (`import.illegible`) for one that cannot be read.
        """
        stored = self._stored(name)
        if stored.problem:
            raise illegible(self.place, stored)
        stored.check()
        return stored.read(0, stored.shape[0])

    def _stored(self, name: str) -> Stored:
        stored = self.find(name)
        if stored is None:
            raise KeyError(f"{self.place} has no tensor {name}; {did_you_mean(name, self.tensors)}".rstrip("; "))
        return stored

    def files(self) -> list[MappedFile]:
        """The files that hold the tensors, each once."""
        return list({id(tensor.file): tensor.file for tensor in self.tensors.values()}.values())

    def evict(self) -> None:
        """Give back the memory of all pages read so far."""
        for file in self.files():
            file.evict()

    # -- what formats ask ------------------------------------------------------------------------
    def has(self, name: str) -> bool:
        """Whether the checkpoint holds a stored weight of that name."""
        return self.find(name) is not None

    def has_prefix(self, prefix: str) -> bool:
        """Whether some tensor's name starts with `prefix`."""
        return any(name.startswith(prefix) for name in self.tensors)

    def shape(self, name: str) -> list[int]:
        """The extents of a stored weight; [] for a scalar. KeyError for a name that is not there."""
        raw = self.tensors.get(name)
        return [] if raw is not None and not raw.shape else list(self._stored(name).shape)

    def stored(self, name: str) -> str:
        """The storage word of a stored weight. KeyError for a name that is not there."""
        return self._stored(name).word

    def attribute_value(self, key: str) -> Any:
        """A value of the container's metadata (number, bool, text or list of those), or None. NaN and infinity are None."""
        return _finite(self.metadata.get(key))

    def text_attribute(self, key: str) -> str | None:
        """A text of the container's metadata, or None."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else None

    def config_value(self, path: str) -> Any:
        """The value at a dotted path of `config.json`, or None. List elements go by index."""
        value: Any = self.config
        for step in path.split("."):
            if isinstance(value, dict):
                value = value.get(step)
            elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
                value = value[int(step)]
            else:
                return None
        return _finite(value)

    # -- vocabulary ------------------------------------------------------------------------------
    def vocabulary(self) -> dict[str, int] | None:
        """Every token with its id, from the GGUF metadata or `tokenizer.json`; None when there is neither."""
        tokens = self.metadata.get("tokenizer.ggml.tokens") if self.kind == "gguf" else None
        if isinstance(tokens, list):
            return {token: id for id, token in enumerate(tokens) if isinstance(token, str)}
        if "tokenizer.json" in self.side_files:
            return vocabulary_of(self.side_files["tokenizer.json"], f"{self.place}/tokenizer.json")
        return None


def vocabulary_of(text: bytes, place: str) -> dict[str, int]:
    """Every token with its id of a `tokenizer.json`. Raises `import.corrupt` where it is none."""
    value = parse_json(text, place, "the tokenizer", strict=False)
    model = value.get("model") if isinstance(value, dict) else None
    words = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(words, dict):
        found = dict(words)
    elif isinstance(words, list):  # pieces with their scores, in the order of their ids
        found = {piece[0]: id for id, piece in enumerate(words) if isinstance(piece, list) and piece and isinstance(piece[0], str)}
    else:
        raise corrupt(place, "the tokenizer has no model.vocab")
    added = value.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and isinstance(token.get("content"), str):
            found[token["content"]] = token.get("id")
    return {token: id for token, id in found.items() if isinstance(token, str) and type(id) is int}


def illegible(place: str, stored: Stored) -> CheckpointError:
    """An `import.illegible` for a stored weight that was recognised and cannot be read."""
    return CheckpointError(
        "import.illegible", f"cannot read `{stored.name}`, stored as {stored.word}: {stored.problem}", phase="import", file=place,
        hint="look for the same model in safetensors with bf16, f16 or f32 weights",
    )  # fmt: skip


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return [_finite(item) for item in value] if isinstance(value, list) else value
