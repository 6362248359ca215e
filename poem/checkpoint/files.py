"""Reading files that nobody vouches for: mapped read-only, JSON with limits."""

import json
import math
import mmap
import os
import stat
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from poem.errors import CheckpointError

MAXIMUM_JSON_BYTES = 64 << 20


def corrupt(file: object, message: str, *, expected: str = "", found: str = "", hint: str = "") -> CheckpointError:
    """An `import.corrupt` at a file: its bytes are not what its format promises."""
    hint = hint or "copy or download the file again"
    return CheckpointError("import.corrupt", message, phase="import", file=str(file), expected=expected, found=found, hint=hint)


class MappedFile:
    """A regular file, mapped read-only. Bytes are read when they are used; arrays keep the mapping alive."""

    def __init__(self, path: Path) -> None:
        """Raises CheckpointError (`import.not-found`) for anything but a readable regular file."""
        self.path = path
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        except OSError as fault:
            raise CheckpointError("import.not-found", f"cannot open the file: {fault.strerror}", phase="import", file=str(path)) from None
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise CheckpointError("import.not-found", "this is no regular file", phase="import", file=str(path))
            self.size = status.st_size
            self._mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) if self.size else None
        finally:
            os.close(descriptor)
        self.bytes = np.frombuffer(self._mapping or b"", np.uint8)

    def __repr__(self) -> str:
        return f"MappedFile({str(self.path)!r})"

    def evict(self) -> None:
        """Give the pages read so far back to the system; they are read again when used again."""
        if self._mapping is not None and hasattr(self._mapping, "madvise"):
            self._mapping.madvise(mmap.MADV_DONTNEED)


def read_small(path: Path) -> bytes:
    """The bytes of a side file of at most 64 MiB."""
    file = MappedFile(path)
    if file.size > MAXIMUM_JSON_BYTES:
        raise corrupt(path, "the file is too large to be read whole", expected=f"at most {MAXIMUM_JSON_BYTES} bytes", found=f"{file.size}")
    return file.bytes.tobytes()


def parse_json(text: bytes, file: object, what: str, *, strict: bool) -> Any:
    """The value of a JSON text. Raises `import.corrupt` for anything malformed, naming `what`.

    strict: no duplicate keys, no NaN or infinity, and no negative integers (they come back as floats, so that a test
    for int refuses them, "-0" included): for headers and indexes. Configurations are taken as their writers wrote them.
    """

    def refuse(word: str) -> NoReturn:
        raise ValueError(f"{word} is no JSON number")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise ValueError(f"the key {twice!r} is there twice")
        return found

    def finite(word: str) -> float:
        number = float(word)
        return number if math.isfinite(number) else refuse(word)

    def natural(word: str) -> int | float:
        return float(word) if word.startswith("-") else int(word)

    hooks: dict[str, Any] = (
        {"object_pairs_hook": unique, "parse_constant": refuse, "parse_float": finite, "parse_int": natural} if strict else {}
    )
    try:
        value = json.loads(text.decode("utf-8"), **hooks)
        if strict and b"\\u" in text:
            json.dumps(value, ensure_ascii=False).encode("utf-8")  # half of a surrogate pair is no text
        return value
    except RecursionError:
        raise corrupt(file, f"{what} is nested too deeply") from None
    except (ValueError, OverflowError) as fault:
        raise corrupt(file, f"{what} is no valid JSON: {fault}") from None


def read_json_object(path: Path, what: str, *, strict: bool = False) -> dict[str, Any]:
    """The JSON object in a side file."""
    value = parse_json(read_small(path), path, what, strict=strict)
    if not isinstance(value, dict):
        raise corrupt(path, f"{what} should be a JSON object", found=type(value).__name__)
    return value
