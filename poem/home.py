"""POEM_HOME: where a user's own packages live, and where the shipped ones are copied."""

import json
import os
from pathlib import Path
from typing import Any

RECORD = ".shipped.json"  # what was copied: digest, size and time of each file


def poem_home() -> Path:
    """$POEM_HOME, by default ~/.poem."""
    given = os.environ.get("POEM_HOME")
    return Path(given).expanduser() if given else Path.home() / ".poem"


def shipped_models() -> Path:
    """The folder of the models that come with Poem: inside the installed package, or beside it in a source checkout."""
    here = Path(__file__).parent
    inside = here / "shipped" / "models"
    return inside if inside.is_dir() else here.parent / "models"


def copy_shipped(shipped: Path | None = None, models: Path | None = None) -> list[str]:
    """Copy shipped files that are missing into $POEM_HOME/models, and replace older copies that nobody edited.

    Returns warnings, one line each: files that were edited and have a newer shipped version, a folder that cannot be written.
    """
    shipped = shipped_models() if shipped is None else shipped
    models = poem_home() / "models" if models is None else models
    try:
        models.mkdir(parents=True, exist_ok=True)
        return _copy(shipped, models)
    except OSError as fault:
        return [f"{models} cannot be written ({fault.strerror}); the shipped models are used where they are, in {shipped}"]


def _copy(shipped: Path, models: Path) -> list[str]:
    record = _read_record(models)
    before = dict(record)
    warnings = []
    for source in sorted(path for path in shipped.rglob("*") if path.is_file() and path.name != RECORD):
        name = source.relative_to(shipped).as_posix()
        target = models / name
        known = record.get(name)
        stamp = _stamp(source)
        if known is not None and known["source"] == stamp and target.is_file():
            continue
        content = source.read_bytes()
        digest = _digest(content)
        if target.exists():
            present = _digest(target.read_bytes())
            if present != digest and (known is None or present != known["digest"]):
                warnings.append(f"{target} was edited and is left alone; the shipped {name} is newer")
                continue
            if present == digest:
                record[name] = {"digest": digest, "source": stamp}
                continue
        _write(target, content)
        record[name] = {"digest": digest, "source": stamp}
    if record != before:
        _write(models / RECORD, json.dumps(record, indent=1, sort_keys=True).encode())
    return warnings


def _digest(content: bytes) -> str:
    import hashlib  # loads OpenSSL; at most starts nothing has to be hashed

    return hashlib.sha256(content).hexdigest()


def _stamp(path: Path) -> list[int]:
    """Tells whether a shipped file changed without reading it."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


def _read_record(models: Path) -> dict[str, Any]:
    try:
        record = json.loads((models / RECORD).read_text(encoding="utf-8"))
        return {name: entry for name, entry in record.items() if {"digest", "source"} <= entry.keys()}
    except (OSError, ValueError, AttributeError):
        return {}


def _write(target: Path, content: bytes) -> None:
    """Write a file as a whole or not at all."""
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
