"""`open_checkpoint`: a folder, a file or a hub name as one `Checkpoint`."""

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

from poem.checkpoint import hub
from poem.checkpoint.checkpoint import Checkpoint
from poem.checkpoint.files import read_json_object, read_small
from poem.checkpoint.folder import PICKLES, check_links, pickle_refused, read_shards, weight_files
from poem.checkpoint.gguf import read_gguf
from poem.errors import CheckpointError

# Files that a model needs at run time besides its weights; carried in the artifact under their own names.
SIDE_FILES = (
    "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt", "chat_template.jinja", "chat_template.json", "processor_config.json", "preprocessor_config.json",
    "video_preprocessor_config.json",
)  # fmt: skip
CONFIGS = ("config.json", "generation_config.json", "hf_quant_config.json")


def open_checkpoint(source: str | Path) -> Checkpoint:
    """Open a folder, a `.safetensors` or `.gguf` file, or `<org>/<name>` of the hub; nothing but headers is read.

    A hub name is looked up in the local cache and, unless HF_HUB_OFFLINE is set, downloaded there (safetensors, JSON and
    tokenizer files only). A path that exists wins over a hub name.
    Raises CheckpointError: `import.not-found`, `import.pickle`, `import.bad-index`, `import.corrupt`.
    """
    path = Path(source).expanduser()
    if path.is_dir():
        return _open_files(str(source), weight_files(path), path)
    if path.suffix in PICKLES:
        raise pickle_refused(path)
    if path.suffix in (".safetensors", ".gguf"):
        return _open_files(str(source), [path], path.parent if path.suffix == ".safetensors" else None)
    if path.exists():
        raise CheckpointError(
            "import.not-found", "this is no checkpoint", phase="import", file=str(source),
            expected="a folder, a .safetensors or a .gguf file", found=path.suffix or "no ending",
            hint="a .zt file is imported already: run it" if path.suffix == ".zt" else "",
        )  # fmt: skip
    if hub.is_hub_name(str(source)):
        return _open_hub(str(source))
    raise CheckpointError(
        "import.not-found", "there is no such checkpoint", phase="import", file=str(source),
        expected="a folder, a .safetensors or .gguf file, or <org>/<name>",
    )  # fmt: skip


def _open_hub(name: str) -> Checkpoint:
    snapshot = hub.cached_snapshot(name)
    files: list[Path] = []
    if snapshot is not None:
        try:
            files = weight_files(snapshot)
        except CheckpointError:
            if hub.is_offline():
                raise
    if snapshot is None or not files:
        snapshot = hub.download(name)
        files = weight_files(snapshot)
    check_links(sorted(snapshot.iterdir()), hub.repository_of(snapshot))
    return _open_files(name, files, snapshot, source={"repo": name, "revision": snapshot.name})


def _open_files(place: str, files: list[Path], folder: Path | None, source: dict[str, str] | None = None) -> Checkpoint:
    """files: what holds the weights. folder: where configuration and side files are looked for; None for none."""
    side_files: dict[str, Callable[[], bytes]] = {}
    config: dict[str, Any] = {}
    if folder is not None:
        side_files = {name: partial(read_small, folder / name) for name in (*SIDE_FILES, *CONFIGS) if (folder / name).is_file()}
        config = read_json_object(folder / "config.json", "the configuration") if "config.json" in side_files else {}
    source = source or {"repo": (folder or files[0]).resolve().name}
    if files[0].suffix != ".gguf":
        tensors, metadata = read_shards(files)
        return Checkpoint(place, "safetensors", tensors, config=config, metadata=metadata, side_files=side_files, source=source)
    blocks, fields = read_gguf(files[0])
    if type(fields.get("split.count")) is int and fields["split.count"] > 1:
        raise CheckpointError(
            "import.illegible", "this GGUF is one piece of a split file", phase="import", file=str(files[0]),
            found=f"{fields['split.count']} pieces", hint="join them with `llama-gguf-split --merge`",
        )  # fmt: skip
    if "tokenizer.json" not in side_files:  # one beside the file is the original
        side_files |= _tokenizer_files(fields)
    return Checkpoint(place, "gguf", blocks, config=config, metadata=fields, side_files=side_files, source=source)


def _tokenizer_files(fields: dict[str, Any]) -> dict[str, Callable[[], bytes]]:
    """The tokenizer's side files, built from GGUF metadata when they are asked for."""
    if "tokenizer.ggml.tokens" not in fields:
        return {}

    @cache
    def built() -> dict[str, bytes]:
        from poem.tokenizer.gguf import tokenizer_json

        return tokenizer_json(fields)

    return {name: lambda name=name: built()[name] for name in ("tokenizer.json", "tokenizer_config.json")}  # type: ignore[misc]
