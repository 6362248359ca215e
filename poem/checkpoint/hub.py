"""Names of the Hugging Face hub, `<org>/<name>`, and where their files lie in the local cache.

Cache: HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub (under XDG_CACHE_HOME if that is set). A repository is the
folder `models--org--name`; `refs/<revision>` holds a commit, `snapshots/<commit>/` the files, as links into `blobs/`.
"""

import os
import re
from pathlib import Path

from poem.errors import CheckpointError

NAME = re.compile(r"[A-Za-z0-9._-]+/[A-Za-z0-9._-]+")
PATTERNS = ["*.safetensors", "*.json", "*.jinja", "merges.txt", "tokenizer.model"]
NOT_READ = ["*/*", "consolidated*"]  # other components, and second copies of the weights
_TRUE = {"1", "ON", "YES", "TRUE"}


def is_hub_name(source: str) -> bool:
    """Whether a source can be a repository of the hub."""
    return bool(NAME.fullmatch(source)) and ".." not in source and not source.startswith((".", "/"))


def cache_folder() -> Path:
    """The folder that huggingface_hub keeps its downloads in."""
    cache = os.environ.get("HF_HUB_CACHE")
    if cache:
        return Path(cache).expanduser()
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface")
    return Path(home).expanduser() / "hub"


def is_offline() -> bool:
    """Whether the user forbade the network: HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE."""
    return any(os.environ.get(name, "").upper() in _TRUE for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))


def cached_snapshot(name: str, revision: str = "main") -> Path | None:
    """The folder of the cached snapshot of a repository, or None. Nothing is downloaded."""
    repository = cache_folder() / f"models--{name.replace('/', '--')}"
    reference = repository / "refs" / revision
    try:
        commit = reference.read_text("utf-8").strip() if ".." not in revision and reference.is_file() else revision
    except (OSError, UnicodeDecodeError):
        return None
    snapshot = repository / "snapshots" / commit
    return snapshot if re.fullmatch(r"[A-Za-z0-9._-]+", commit) and ".." not in commit and snapshot.is_dir() else None


def repository_of(snapshot: Path) -> Path:
    """The repository folder that a snapshot's links must stay in."""
    return snapshot.parent.parent


def download(name: str) -> Path:
    """Fetch weights (safetensors), configuration and tokenizer of a repository into the cache; returns the snapshot.

    Raises CheckpointError (`import.not-found`), naming the cache folder searched, when offline or when the hub
    does not give it.
    """
    cache = cache_folder()
    if is_offline():
        raise _not_found(name, "it is not in the cache, and HF_HUB_OFFLINE forbids a download", "unset HF_HUB_OFFLINE, or give a folder")
    try:
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(name, cache_dir=cache, allow_patterns=PATTERNS, ignore_patterns=NOT_READ))
    except Exception as fault:  # huggingface_hub, its transport and the system each have their own
        said, *_ = str(fault).strip().splitlines() or [type(fault).__name__]
        why = f"it is not in the cache, and the download failed: {said}"
        raise _not_found(name, why, "check the name and the connection") from fault


def _not_found(name: str, why: str, hint: str) -> CheckpointError:
    return CheckpointError(
        "import.not-found", f"cannot find {name}: {why}", phase="import", file=name,
        expected=f"models--{name.replace('/', '--')} in {cache_folder()}", hint=hint,
    )  # fmt: skip
