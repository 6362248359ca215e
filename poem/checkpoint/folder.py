"""Which files of a folder are the checkpoint.

`model.safetensors`; else the shards of `model.safetensors.index.json`; else every `*.safetensors`; else exactly one `*.gguf`.
"""

from collections.abc import Iterable
from pathlib import Path

from poem.checkpoint.files import corrupt, read_json_object
from poem.checkpoint.safetensors import read_safetensors
from poem.checkpoint.stored import RawTensor
from poem.errors import CheckpointError

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
INDEX = "model.safetensors.index.json"


def pickle_refused(path: Path) -> CheckpointError:
    """A pickled checkpoint can run any program when it is opened."""
    return CheckpointError(
        "import.pickle", "pickled checkpoints are never opened: they can run any program", phase="import", file=str(path),
        expected="safetensors or GGUF", hint="convert it to safetensors, or look for a repository that holds safetensors",
    )  # fmt: skip


def weight_files(folder: Path) -> list[Path]:
    """The files that hold the weights of a folder: safetensors, or one GGUF.

    Raises CheckpointError: `import.bad-index`, `import.pickle`, or `import.not-found` when there is nothing to read.
    """
    if (folder / "model.safetensors").exists():
        return [folder / "model.safetensors"]
    if (folder / INDEX).exists():
        return [folder / name for name in dict.fromkeys(read_index(folder).values())]
    entries = sorted(folder.iterdir())
    shards = [path for path in entries if path.suffix == ".safetensors"]
    if shards:
        return shards
    blocks = [path for path in entries if path.suffix == ".gguf"]
    if len(blocks) == 1:
        return blocks
    if blocks:
        raise CheckpointError(
            "import.not-found", "the folder holds several GGUF files", phase="import", file=str(folder),
            found=_listed(path.name for path in blocks), hint="name the one to import",
        )  # fmt: skip
    pickles = [path for path in entries if path.suffix in PICKLES]
    if pickles:
        raise pickle_refused(pickles[0])
    raise CheckpointError(
        "import.not-found", "the folder holds no checkpoint", phase="import", file=str(folder),
        expected="model.safetensors, a sharded set with its index, or a .gguf file",
        found=_listed(path.name for path in entries) or "an empty folder",
    )  # fmt: skip


def read_index(folder: Path) -> dict[str, str]:
    """The `weight_map` of a sharded set: tensor name to file name. Raises `import.bad-index`."""
    path = folder / INDEX
    try:
        weight_map = read_json_object(path, "the index", strict=True).get("weight_map")
    except CheckpointError as fault:
        raise _bad_index(path, fault.message, found=fault.found) from None
    if not isinstance(weight_map, dict) or not weight_map:
        raise _bad_index(path, "`weight_map` should be a map of tensor names to files", found=type(weight_map).__name__)
    for name, file in weight_map.items():
        if not isinstance(file, str) or not _is_plain(file):
            raise _bad_index(path, f"the file of tensor `{name}` is no plain file name in this folder", found=repr(file))
        if not file.endswith(".safetensors"):
            raise _bad_index(path, f"the file of tensor `{name}` is no safetensors file", found=repr(file))
    missing = sorted({file for file in weight_map.values() if not (folder / file).exists()})
    if missing:
        hint = "the download is incomplete: fetch the repository again"
        raise _bad_index(path, "shards are missing", expected=_listed(missing), hint=hint)
    return weight_map


def read_shards(files: list[Path]) -> tuple[dict[str, RawTensor], dict[str, str]]:
    """The tensors of several safetensors files together, checked against the folder's index if there is one."""
    tensors: dict[str, RawTensor] = {}
    metadata: dict[str, str] = {}
    for file in files:
        found, stated = read_safetensors(file)
        for name in found:
            if name in tensors:
                raise _bad_index(file, f"tensor `{name}` is in two shards", found=f"{tensors[name].file.path.name} and {file.name}")
        tensors |= found
        metadata |= stated
    index = files[0].parent / INDEX
    if files[0].name != "model.safetensors" and index.exists():
        for name, file_name in read_index(index.parent).items():
            if name not in tensors:
                raise _bad_index(index, f"tensor `{name}` is not in the shards", expected=f"in {file_name}")
            if tensors[name].file.path.name != file_name:
                raise _bad_index(index, f"tensor `{name}` is in another shard", expected=file_name, found=tensors[name].file.path.name)
    return tensors, metadata


def check_links(files: Iterable[Path], root: Path) -> None:
    """A link of a cached repository must not leave the repository's folder."""
    inside = root.resolve()
    for file in files:
        if not file.resolve().is_relative_to(inside):
            raise corrupt(file, "the link leaves the repository's folder", expected=f"a file in {inside}", found=str(file.resolve()))


def _is_plain(name: str) -> bool:
    return bool(name) and name not in (".", "..") and ".." not in name and not any(mark in name for mark in "/\\\0") and ":" not in name


def _bad_index(file: Path, message: str, *, expected: str = "", found: str = "", hint: str = "") -> CheckpointError:
    return CheckpointError("import.bad-index", message, phase="import", file=str(file), expected=expected, found=found, hint=hint)


def _listed(names: Iterable[str], limit: int = 8) -> str:
    listed = list(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
