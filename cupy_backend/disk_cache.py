"""Built things on disk, named by what they were built from, shared by all processes."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from cupy_backend.errors import KernelError
from poem.home import poem_home

try:
    import fcntl
except ImportError:  # no file locks on this system: two processes may then build the same thing, which only costs time
    fcntl = None  # type: ignore[assignment]


def folder() -> Path:
    """`$POEM_HOME/kernels`. KernelError if it cannot be written."""
    path = poem_home() / "kernels"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as fault:
        raise KernelError(
            "cuda.cache", f"the kernel cache {path} cannot be written ({fault.strerror})", hint="set POEM_HOME to a folder that can"
        ) from fault
    return path


def get(name: str, build: Callable[[Path], None]) -> Path:
    """The file `name`, built if it is missing. `build(path)` writes it to a path of the same suffix in the same folder.

    A file appears whole or not at all, and only one process at a time builds it.
    """
    target = folder() / name
    if target.exists():
        return target
    with _locked(target.with_name(name + ".lock")):
        if not target.exists():
            handle, temporary = tempfile.mkstemp(prefix=".building-", suffix=target.suffix, dir=target.parent)
            os.close(handle)
            try:
                build(Path(temporary))
                os.replace(temporary, target)
            finally:
                Path(temporary).unlink(missing_ok=True)
    return target


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(path, "w") as handle:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    path.unlink(missing_ok=True)
