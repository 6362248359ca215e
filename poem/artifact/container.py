"""The container: objects of named parts in a `.zt` file, by the wheel `ztensor`. The one module that knows the wheel.

An object is a weight under its name, or a side file under `poem.file/<name>`. A plain number format is layout `dense` with the
part `data`; a quantised one is layout `poem.<dtype>/1` whose parts are the planes of its term. Every part carries a digest.
"""

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ztensor

from poem.dtypes import Dtype, Plane
from poem.dtypes.tensor import STORAGE, Tensor, check_segments
from poem.errors import CheckpointError, PoemError

DENSE = "dense"
SIDE_FILE = "poem.file/"
NAME = re.compile(r"[A-Za-z0-9_.\-]+")
SIDE_FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]*")
CHUNK = 16 << 20

# How a leaf lies in a part: the container's dtype, and the tag that tells other readers what the bytes are.
_TAGGED = {"bool": ("u8", "bool"), "e4m3": ("u8", "f8_e4m3fn"), "e5m2": ("u8", "f8_e5m2"), "e8m0": ("u8", "f8_e8m0")}
_PACKED = ("e2m1", "u4", "u2")

Progress = Callable[[int, int, str], None]


class Object(NamedTuple):
    """One object to write. parts: dtype, tag and size of each, by name. chunks: the bytes, in order of part names."""

    shape: tuple[int, ...]
    layout: str
    parts: Mapping[str, tuple[str, str | None, int]]
    chunks: Iterable[np.ndarray]


def corrupt(path: object, message: str, *, expected: str = "", found: str = "") -> CheckpointError:
    """An `artifact.corrupt` at a file."""
    hint = "copy the file again, or import again"
    return CheckpointError("artifact.corrupt", message, phase="artifact", file=str(path), expected=expected, found=found, hint=hint)


def layout_name(dtype: Dtype) -> str:
    """The layout under which a weight of that dtype is stored."""
    return DENSE if dtype.is_leaf else f"poem.{dtype.name}/1"


def part_type(leaf: str) -> tuple[str, str | None]:
    """The container's dtype for a plane of that leaf, and its tag."""
    return ("u8", None) if leaf in _PACKED else _TAGGED.get(leaf, (leaf, None))


def object_of(dtype: Dtype, shape: tuple[int, ...], planes: Iterable[Plane], chunks: Iterable[np.ndarray]) -> Object:
    """A weight to write. chunks: its bytes, plane after plane in order of the planes' paths."""
    return Object(shape, layout_name(dtype), {plane.path: (*part_type(plane.leaf), plane.nbytes) for plane in planes}, chunks)


def side_file_object(content: bytes) -> Object:
    """A side file to write."""
    return Object((len(content),), DENSE, {"data": ("u8", None, len(content))}, [np.frombuffer(content, np.uint8)])


# -- writing -------------------------------------------------------------------------------------
def publish(
    path: str | Path,
    objects: Mapping[str, Callable[[], Object]],
    attributes: Mapping[str, str],
    *,
    total: int = 0,
    progress: Progress | None = None,
) -> int:
    """Write a file that appears whole or not at all; returns its size.

    objects: by name, each made when its turn comes, in order of the names' UTF-8. total: bytes to come, for progress.
    One writer at a time: a lock beside the target. What a dead writer left there is removed.
    Raises CheckpointError (`import.disk-full`, `import.destination`, `import.busy`), and whatever an object's making raises;
    then nothing is left.
    """
    path = Path(os.path.abspath(os.fspath(path)))
    if path.is_dir() or not path.parent.is_dir():
        found = "a folder of that name" if path.is_dir() else f"no folder {path.parent}"
        raise CheckpointError("import.destination", "the file cannot be written there", phase="import", file=str(path), found=found)
    with _locked(path):
        for left in path.parent.glob(f".{_literal(path.name)}.*.partial"):
            left.unlink(missing_ok=True)
        partial = path.parent / f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.partial"
        try:
            with _disk(path):
                size = _write(partial, objects, attributes, total, progress)
                verify(partial)
                os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        _sync(path.parent)
    return size


def _write(
    path: Path, objects: Mapping[str, Callable[[], Object]], attributes: Mapping[str, str], total: int, progress: Progress | None
) -> int:
    writer = ztensor.Writer(str(path))
    try:
        writer.set_attributes(dict(attributes))
        done = 0
        for name in sorted(objects, key=str.encode):
            made = objects[name]()
            parts = {
                part: {"dtype": dtype, "nbytes": nbytes, **({"logical": tag} if tag else {})}
                for part, (dtype, tag, nbytes) in made.parts.items()
            }
            with writer.stream(name, list(made.shape), parts, layout=made.layout) as sink:
                for chunk in made.chunks:
                    flat = np.ascontiguousarray(chunk).reshape(-1).view(np.uint8)
                    for start in range(0, len(flat), CHUNK):
                        sink.write(flat[start : start + CHUNK])
                    done += len(flat)
                    if progress is not None:
                        progress(done, total, name)
        return writer.finish()
    except BaseException:
        with contextlib.suppress(Exception):
            writer.abandon()
        raise


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """An exclusive lock for one target, held by this process and gone with it."""
    import fcntl

    lock = path.parent / f".{path.name}.lock"
    with _disk(path):
        descriptor = os.open(lock, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = os.path.samestat(os.fstat(descriptor), os.stat(lock))  # who had it may have removed it before it was free
        except OSError:
            held = False
        if not held:
            raise CheckpointError(
                "import.busy", "another import writes this file", phase="import", file=str(path), hint="wait for it, or choose another -o"
            )
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def _disk(path: Path) -> Iterator[None]:
    """Turn what the system says about the destination into an error for the user."""
    try:
        yield
    except PoemError:
        raise
    except OSError as fault:
        stated = re.search(r"os error (\d+)", str(fault))  # the wheel's errors carry the number as text only
        full = (int(stated[1]) if stated else fault.errno) in _FULL
        raise CheckpointError(
            "import.disk-full" if full else "import.destination",
            "there is no room for the file; nothing was left behind" if full else "the file cannot be written there",
            phase="import", file=str(path), found=fault.strerror or str(fault),
            hint="free space, or write to another disk with -o" if full else "",
        ) from None  # fmt: skip


def _sync(folder: Path) -> None:
    """Make a rename in a folder last through a power failure."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# -- reading -------------------------------------------------------------------------------------
@contextlib.contextmanager
def _wheel(path: object, name: str = "") -> Iterator[None]:
    """Turn what the wheel raises into an `artifact.corrupt`."""
    try:
        yield
    except (PoemError, KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as fault:  # a panic of the wheel is no Exception
        if not isinstance(fault, Exception) and type(fault).__name__ != "PanicException":
            raise
        raise corrupt(path, f"{name + ': ' if name else ''}{fault}") from None


class Container:
    """An open file: attributes, objects and their parts, mapped and checked for what any `.zt` of Poem must be."""

    def __init__(self, path: str | Path) -> None:
        """Raises CheckpointError: `artifact.not-found`, `artifact.corrupt`."""
        self.path = os.path.abspath(os.fspath(path))
        if not os.path.isfile(self.path):
            raise CheckpointError("artifact.not-found", "there is no such file", phase="artifact", file=self.path)
        with _wheel(self.path):
            if ztensor.detect(self.path) != "zt":
                raise corrupt(self.path, "this is no .zt file")
            self._source = ztensor.open(self.path)
            if self._source.files != [self.path]:
                raise corrupt(self.path, "the file refers to other files", found=", ".join(self._source.files))
            attributes = self._source.attributes
            self.names: list[str] = list(self._source)
        if attributes is not None and not isinstance(attributes, dict):
            raise corrupt(self.path, "its attributes are no map")
        self.attributes: dict[str, str] = dict(attributes or {})
        if not all(isinstance(value, str) for value in self.attributes.values()):
            raise corrupt(self.path, "its attributes are not all text")
        for name in self.names:
            reserved = name.startswith(SIDE_FILE) and SIDE_FILE_NAME.fullmatch(name[len(SIDE_FILE) :])
            if not reserved and not NAME.fullmatch(name):
                raise corrupt(self.path, "an object has a name that no weight can have", found=repr(name[:80]))

    def weights(self) -> list[str]:
        """The names of all weights, sorted."""
        return [name for name in self.names if not name.startswith(SIDE_FILE)]

    def side_files(self) -> list[str]:
        """The names of all side files, sorted."""
        return [name[len(SIDE_FILE) :] for name in self.names if name.startswith(SIDE_FILE)]

    def side_file(self, name: str) -> bytes:
        """The bytes of a side file. KeyError for one that is not there."""
        found = SIDE_FILE + name
        if found not in self.names:
            raise KeyError(name)
        (size,) = self.shape(found) if len(self.shape(found)) == 1 else (-1,)
        self._check_parts(found, DENSE, {"data"})
        return self._plane(found, Plane("data", "u8", (size,))).tobytes()

    def shape(self, name: str) -> tuple[int, ...]:
        """The logical shape of an object."""
        with _wheel(self.path, name):
            return tuple(self._source[name].shape)

    def layout(self, name: str) -> str:
        """The layout of an object."""
        with _wheel(self.path, name):
            return self._source[name].layout

    def stored_dtype(self, name: str) -> str:
        """The dtype word of a weight as its layout and tags tell it."""
        layout = self.layout(name)
        if layout != DENSE:
            return layout.removeprefix("poem.").removesuffix("/1")
        with _wheel(self.path, name):
            part = self._source[name]["data"]
            kind = (part.dtype, part.logical)
        return next((leaf for leaf, tagged in _TAGGED.items() if tagged == kind), str(kind[0]))

    def nbytes(self, name: str) -> int:
        """Bytes of all parts of an object."""
        with _wheel(self.path, name):
            tensor = self._source[name]
            return sum(tensor[part].nbytes for part in tensor.parts)

    def tensor(self, name: str, dtype: Dtype, shape: tuple[int, ...]) -> Tensor:
        """A weight, as views of the file. Raises `artifact.corrupt` unless the object is exactly that dtype and shape."""
        self.check(name, dtype, shape)
        try:
            return Tensor(dtype, shape, {plane.path: self._plane(name, plane) for plane in dtype.planes(shape, self._segments(name))})
        except ValueError as fault:
            raise corrupt(self.path, f"{name}: {fault}") from None

    def check(self, name: str, dtype: Dtype, shape: tuple[int, ...]) -> None:
        """Refuse an object whose layout, shape, parts, their types, sizes or row counts are not those of a weight."""
        if self.shape(name) != shape:
            raise corrupt(self.path, f"{name} has another shape", expected=str(list(shape)), found=str(list(self.shape(name))))
        segments = self._segments(name)
        planes = dtype.planes(shape, segments)
        self._check_parts(name, layout_name(dtype), {plane.path for plane in planes})
        for plane in planes:
            self._check_part(name, plane)
        try:
            check_segments(dtype, shape, {plane.path: self._plane(name, plane) for plane in planes if plane.path in segments})
        except ValueError as fault:
            raise corrupt(self.path, f"{name}: {fault}") from None

    def _check_parts(self, name: str, layout: str, parts: set[str]) -> None:
        with _wheel(self.path, name):
            tensor = self._source[name]
            found = set(tensor.parts)
        if tensor.layout != layout:
            raise corrupt(self.path, f"{name} has another layout", expected=layout, found=tensor.layout)
        if found != parts:
            raise corrupt(self.path, f"{name} has other parts", expected=", ".join(sorted(parts)), found=", ".join(sorted(found)))

    def _check_part(self, name: str, plane: Plane) -> None:
        dtype, tag = part_type(plane.leaf)
        with _wheel(self.path, name):
            part = self._source[name][plane.path]
            held, kind, logical, mapped = part.nbytes, part.dtype, part.logical, part.caps.map
        if held != plane.nbytes or kind != dtype or (plane.path == "data" and logical != tag):
            raise corrupt(
                self.path, f"{name}/{plane.path} is of another type or size", expected=f"{plane.nbytes} bytes of {plane.leaf}",
                found=f"{held} bytes of {logical or kind}",
            )  # fmt: skip
        if not mapped:
            raise corrupt(self.path, f"{name}/{plane.path} is compressed, so it cannot be mapped")

    def _plane(self, name: str, plane: Plane) -> np.ndarray:
        self._check_part(name, plane)
        with _wheel(self.path, name):
            part: Any = self._source[name][plane.path]
            return np.frombuffer(part, np.uint8).view(STORAGE[plane.leaf]).reshape(plane.packed_shape)

    def _segments(self, name: str) -> dict[str, int]:
        """How many segments a whole-tensor factor has: the planes that count their rows, by path."""
        with _wheel(self.path, name):
            tensor = self._source[name]
            return {path: tensor[path].nbytes // 8 for path in tensor.parts if path.rpartition(".")[2] == "rows"}

    def verify(self, progress: Progress | None = None) -> int:
        """Compare every part with its digest, one object at a time; returns how many objects. Raises `artifact.corrupt`."""
        total = sum(self.nbytes(name) for name in self.names)
        done = 0
        for name in self.names:
            with _wheel(self.path, name):
                tensor = self._source[name]
                if not tensor.verify():
                    raise corrupt(self.path, f"{name} has a part without a digest")
                for part in tensor.parts:
                    if tensor[part].caps.evict:
                        tensor[part].evict()
            done += self.nbytes(name)
            if progress is not None:
                progress(done, total, name)
        return len(self.names)


def verify(path: str | Path, progress: Progress | None = None) -> int:
    """Compare every part of a file with its digest; returns the number of objects. Raises CheckpointError."""
    return Container(path).verify(progress)
