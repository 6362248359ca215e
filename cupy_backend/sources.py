"""Where the CUDA sources are, and what identifies them."""

import hashlib
from functools import lru_cache
from pathlib import Path

import poem
from cupy_backend.errors import KernelError


@lru_cache
def folder() -> Path:
    """The folder `cuda_src`: inside an installed poem, or beside it in a checkout.

    KernelError where neither has it.
    """
    package = Path(poem.__file__).parent
    for candidate in (package / "shipped" / "cuda_src", package.parent / "cuda_src"):
        if (candidate / "prelude.cuh").is_file():
            return candidate
    raise KernelError(
        "kernel.no-sources", "the CUDA sources are missing", expected=f"prelude.cuh in {package / 'shipped' / 'cuda_src'}",
        hint="reinstall poem-models; in a checkout the folder cuda_src stands beside poem",
    )  # fmt: skip


def find(source: str, inside: Path | None = None) -> Path:
    """The file of a kernel: a path, or a name inside `cuda_src` or a copy of it. KernelError if there is none."""
    path = (inside or folder()) / source  # an absolute path stays itself
    if not path.is_file():
        names = sorted(known.name for known in (inside or folder()).glob("*.cu"))
        raise KernelError("kernel.no-sources", f"there is no kernel file {source}", expected=f"one of {', '.join(names)}", found=source)
    return path


def digest(*parts: str | bytes) -> str:
    """A name for what was built from these texts: 32 hexadecimal digits of SHA-256."""
    state = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(8, "little"))
        state.update(data)
    return state.hexdigest()[:32]


@lru_cache
def prelude_digest(inside: Path | None = None) -> str:
    """Identifies what every kernel includes on a device. inside: the folder of sources, if not `cuda_src`."""
    of = inside or folder()
    return _digest_of([of / "prelude.cuh", *sorted((of / "prelude").glob("*.cuh"))])


@lru_cache
def emulator_headers_digest(inside: Path | None = None) -> str:
    """Identifies what every kernel includes on the CPU."""
    return digest(prelude_digest(inside), _digest_of(sorted((folder() / "emu").glob("*.h"))))


@lru_cache
def emulator_digest() -> str:
    """Identifies the emulator with all that it is built from."""
    return digest(emulator_headers_digest(), _digest_of(sorted((folder() / "emu").glob("*.cpp"))))


def _digest_of(paths: list[Path]) -> str:
    return digest(*(part for path in paths for part in (path.name, path.read_bytes())))
