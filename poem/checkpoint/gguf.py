"""The GGUF container: metadata, tensor entries, padding, then data in which every tensor starts on the alignment.

    header    "GGUF", version u32, number of tensors u64, number of fields u64
    field     key, type u32, value
    entry     name, number of extents u32, extents u64 innermost first, ggml type u32, offset u64 into the data
    text      length u64, UTF-8 bytes; an array is its element type u32, count u64, elements

Everything is little-endian. Block sizes and decoding come from the package `gguf`; its reader spends about 70
microseconds on each text of a vocabulary and checks no bounds, so the header is read here.
Format: github.com/ggml-org/ggml, docs/gguf.md.
"""

import math
import struct
from pathlib import Path
from typing import Any

from poem.checkpoint.files import MappedFile, corrupt
from poem.checkpoint.stored import RawTensor
from poem.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAXIMUM_EXTENTS = 8
MAXIMUM_NESTING = 4
TEXT, ARRAY = 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
LEAVES = {
    "F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64",
    "I8": "i8", "I16": "i16", "I32": "i32", "I64": "i64",
}  # fmt: skip
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


def read_gguf(path: Path) -> tuple[dict[str, RawTensor], dict[str, Any]]:
    """The tensors of a file, in its order, and its metadata as numbers, bools, texts and lists of those.

    Raises CheckpointError (`import.corrupt`) for anything that breaks the format: another version, a key or name given
    twice, a text or array longer than the file, extents that do not fit the block type, tensors that overlap, leave a
    hole or end beyond the file. A tensor of a ggml type that is not known here has nbytes 0 and is refused when needed.
    """
    from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

    file = MappedFile(path)
    cursor = _Cursor(file)
    if file.size < 24 or cursor.take(4) != MAGIC:
        raise corrupt(path, "this is no GGUF file", expected="GGUF at byte 0 of a header of 24 bytes", found=f"{file.size} bytes")
    version = cursor.number(_U32)
    if version not in VERSIONS:
        big_endian = version in (2 << 24, 3 << 24)
        raise corrupt(
            path, "the GGUF version is not read here", expected=" or ".join(map(str, VERSIONS)),
            found="a big-endian file" if big_endian else str(version), hint="convert the model again with a current llama.cpp",
        )  # fmt: skip
    tensor_count, field_count = cursor.pair()
    fields: dict[str, Any] = {}
    for _ in range(cursor.count(field_count, 13, "metadata fields")):
        key = cursor.text()
        if key in fields:
            raise corrupt(path, f"the metadata key `{key}` is there twice")
        fields[key] = cursor.value(cursor.number(_U32), key, 0)
    alignment = fields.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise corrupt(path, "general.alignment is wrong", expected="a power of two", found=repr(alignment))
    entries: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(cursor.count(tensor_count, 32, "tensors")):
        name = cursor.text()
        if name in entries:
            raise corrupt(path, f"the tensor `{name}` is there twice")
        rank = cursor.number(_U32)
        if rank > MAXIMUM_EXTENTS:
            raise corrupt(path, f"tensor `{name}` has too many extents", expected=f"at most {MAXIMUM_EXTENTS}", found=str(rank))
        extents = tuple(cursor.number(_U64) for _ in range(rank))
        entries[name] = (extents[::-1], cursor.number(_U32), cursor.number(_U64))
    base = -(-cursor.at // alignment) * alignment
    tensors: dict[str, RawTensor] = {}
    for name, (shape, code, offset) in entries.items():
        try:
            kind = GGMLQuantizationType(code)
        except ValueError:
            tensors[name] = RawTensor(name, f"ggml type {code}", None, shape, file, base + offset, 0)
            continue
        block, block_bytes = GGML_QUANT_SIZES[kind]
        if (shape[-1] if shape else 1) % block:
            raise corrupt(
                path, f"tensor `{name}`: its rows are no whole number of {kind.name} blocks",
                expected=f"a multiple of {block}", found=str(shape[-1:]),
            )  # fmt: skip
        nbytes = math.prod(shape) // block * block_bytes
        tensors[name] = RawTensor(name, kind.name, LEAVES.get(kind.name), shape, file, base + offset, nbytes)
    _check_layout(file, base, alignment, tensors)
    return tensors, fields


def _check_layout(file: MappedFile, base: int, alignment: int, tensors: dict[str, RawTensor]) -> None:
    """Each tensor starts where the one before ends, rounded up to the alignment, and lies in the file."""
    expected: int | None = base
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if expected is not None and tensor.offset != expected:
            what = "overlaps" if tensor.offset < expected else "leaves a hole after"
            raise corrupt(
                file.path, f"tensor `{tensor.name}` {what} what is before it",
                expected=f"offset {expected - base}", found=f"offset {tensor.offset - base}",
            )  # fmt: skip
        end = tensor.offset + tensor.nbytes
        if end > file.size:
            raise corrupt(
                file.path, f"the file ends within tensor `{tensor.name}`", expected=f"{end} bytes or more", found=f"{file.size} bytes"
            )
        known = tensor.nbytes or 0 in tensor.shape
        expected = -(-end // alignment) * alignment if known else None


class _Cursor:
    """A position in the header that never leaves the file."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.buffer = file.bytes.data
        self.at = 0

    def ends(self, wanted: int) -> CheckpointError:
        return corrupt(
            self.file.path, f"the file ends within its header, at byte {self.at}",
            expected=f"{wanted} bytes more", found=f"{self.file.size - self.at} bytes",
        )  # fmt: skip

    def take(self, length: int) -> bytes:
        if length > self.file.size - self.at:
            raise self.ends(length)
        self.at += length
        return bytes(self.buffer[self.at - length : self.at])

    def number(self, form: struct.Struct) -> int:
        if form.size > self.file.size - self.at:
            raise self.ends(form.size)
        self.at += form.size
        return form.unpack_from(self.buffer, self.at - form.size)[0]

    def pair(self) -> tuple[int, int]:
        return self.number(_U64), self.number(_U64)

    def count(self, wanted: int, least: int, what: str) -> int:
        """A count that the rest of the file has room for, each item taking at least `least` bytes."""
        if wanted * least > self.file.size - self.at:
            raise corrupt(
                self.file.path, f"the header promises more {what} than the file has room for",
                expected=f"at most {(self.file.size - self.at) // least}", found=str(wanted),
            )  # fmt: skip
        return wanted

    def text(self) -> str:
        where = self.at
        raw = self.take(self.number(_U64))
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise corrupt(self.file.path, f"the text at byte {where} is not UTF-8") from None

    def texts(self, length: int, key: str) -> list[str]:
        """Many texts: a vocabulary has hundreds of thousands, so this loop calls nothing of ours."""
        unpack, buffer, at, size = _U64.unpack_from, self.buffer, self.at, self.file.size
        found: list[str] = []
        try:
            for _ in range(self.count(length, 8, f"elements of `{key}`")):
                begin = at + 8
                end = begin + unpack(buffer, at)[0]
                if end > size:
                    break
                found.append(str(buffer[begin:end], "utf-8"))
                at = end
        except UnicodeDecodeError:
            raise corrupt(self.file.path, f"the text at byte {at} is not UTF-8") from None
        except struct.error:
            pass
        self.at = at
        if len(found) < length:
            raise self.ends(8)
        return found

    def value(self, kind: int, key: str, depth: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind in SCALARS:
            return self.scalars(SCALARS[kind], 1)[0]
        if kind != ARRAY or depth > MAXIMUM_NESTING:
            raise corrupt(self.file.path, f"the metadata field `{key}` has a type that GGUF does not know", found=str(kind))
        inner, length = self.number(_U32), self.number(_U64)
        if inner in SCALARS:
            return list(self.scalars(SCALARS[inner], length))
        if inner == TEXT:
            return self.texts(length, key)
        return [self.value(inner, key, depth + 1) for _ in range(self.count(length, 8, f"elements of `{key}`"))]

    def scalars(self, letter: str, length: int) -> tuple[Any, ...]:
        self.count(length, struct.calcsize("<" + letter), "numbers")
        return struct.unpack(f"<{length}{letter}", self.take(length * struct.calcsize("<" + letter)))
