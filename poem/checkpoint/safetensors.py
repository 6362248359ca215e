"""The safetensors container: a JSON header that says where each tensor's bytes lie.

    8 bytes   n, the header's length, little-endian
    n bytes   {"name": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
    the rest  data; offsets count from here

Every byte of the data belongs to exactly one tensor. Format: github.com/huggingface/safetensors, README.
"""

from pathlib import Path
from typing import Any

from poem.checkpoint.files import MappedFile, corrupt, parse_json
from poem.checkpoint.stored import RawTensor
from poem.errors import CheckpointError

MAXIMUM_HEADER_BYTES = 100_000_000
LARGEST_COUNT = 2**64 - 1

# Tag: bits of an element, and our leaf for it where there is one.
TAGS: dict[str, tuple[int, str | None]] = {
    "BOOL": (8, "bool"),
    "U8": (8, "u8"), "I8": (8, "i8"), "U16": (16, "u16"), "I16": (16, "i16"),
    "U32": (32, "u32"), "I32": (32, "i32"), "U64": (64, "u64"), "I64": (64, "i64"),
    "F16": (16, "f16"), "BF16": (16, "bf16"), "F32": (32, "f32"), "F64": (64, "f64"), "C64": (64, None),
    "F8_E4M3": (8, "e4m3"), "F8_E5M2": (8, "e5m2"), "F8_E8M0": (8, "e8m0"),
    "F8_E4M3FNUZ": (8, None), "F8_E5M2FNUZ": (8, None),
    "F6_E2M3": (6, None), "F6_E3M2": (6, None), "F4": (4, "e2m1"),
}  # fmt: skip


def read_safetensors(path: Path) -> tuple[dict[str, RawTensor], dict[str, str]]:
    """The tensors of a file, in header order, and its metadata. Nothing but the header is read.

    Raises CheckpointError (`import.corrupt`) with what the file should hold and does: a header that is too long, no
    JSON or has a key twice; a size that does not follow from dtype and shape; a hole, an overlap, missing or trailing
    bytes.
    """
    file = MappedFile(path)
    if file.size < 8:
        raise corrupt(path, "the file is too short for a safetensors header", expected="at least 8 bytes", found=f"{file.size} bytes")
    length = int.from_bytes(file.bytes[:8].tobytes(), "little")
    if not 2 <= length <= MAXIMUM_HEADER_BYTES:
        raise corrupt(
            path, "the header has an impossible length", expected=f"2 to {MAXIMUM_HEADER_BYTES} bytes", found=str(length),
            hint="this may be no safetensors file at all",
        )  # fmt: skip
    if 8 + length > file.size:
        raise corrupt(path, "the file ends within its header", expected=f"{8 + length} bytes or more", found=f"{file.size} bytes")
    text = file.bytes[8 : 8 + length].tobytes()
    if not text.startswith(b"{"):
        raise corrupt(path, "the header is no JSON object", expected="`{` at byte 8", found=repr(text[:8])[1:])
    header = parse_json(text, path, "the header", strict=True)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise corrupt(path, "`__metadata__` should be a map of strings")
    base = 8 + length
    tensors = {name: _entry(file, base, name, entry) for name, entry in header.items()}
    _check_layout(file, base, tensors)
    return tensors, metadata


def _entry(file: MappedFile, base: int, name: str, entry: Any) -> RawTensor:
    def wrong(message: str, expected: str, found: object) -> CheckpointError:
        return corrupt(file.path, f"tensor `{name}`: {message}", expected=expected, found=str(found))

    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        raise wrong("its entry is incomplete", "dtype, shape and data_offsets", entry)
    tag, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(tag, str) or tag not in TAGS:
        raise wrong("its dtype is none of safetensors'", ", ".join(TAGS), repr(tag))
    if not _counts(shape):
        raise wrong("its shape is wrong", "a list of non-negative integers", shape)
    if not _counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise wrong("its data_offsets are wrong", "[begin, end]", offsets)
    bits, leaf = TAGS[tag]
    elements = 1
    for extent in shape:
        elements *= extent
        if elements > LARGEST_COUNT:
            raise wrong("it has more elements than can be counted", f"at most {LARGEST_COUNT}", shape)
    begin, end = offsets
    if elements * bits != 8 * (end - begin):
        raise wrong("its size does not follow from its shape", f"{elements * bits / 8:g} bytes for {shape} {tag}", f"{end - begin} bytes")
    if leaf == "e2m1" and (not shape or shape[-1] % 2):
        leaf = None  # rows that are no whole number of bytes
    return RawTensor(name, tag, leaf, tuple(shape), file, base + begin, end - begin)


def _counts(item: Any) -> bool:
    return isinstance(item, list) and all(type(entry) is int and entry <= LARGEST_COUNT for entry in item)


def _check_layout(file: MappedFile, base: int, tensors: dict[str, RawTensor]) -> None:
    """The tensors follow each other without hole or overlap, from the first byte of the data to the last."""
    expected, before = base, "the header"
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != expected:
            what = "overlap" if tensor.offset < expected else "leave a hole"
            raise corrupt(
                file.path, f"{before} and tensor `{tensor.name}` {what}",
                expected=f"data_offsets from {expected - base}", found=f"from {tensor.offset - base}",
            )  # fmt: skip
        expected, before = tensor.offset + tensor.nbytes, f"tensor `{tensor.name}`"
        if expected > file.size:
            raise corrupt(
                file.path, f"the file ends within tensor `{tensor.name}`", expected=f"{expected} bytes or more", found=f"{file.size} bytes"
            )
    if expected != file.size:
        raise corrupt(file.path, "bytes follow the last tensor", expected=f"{expected} bytes", found=f"{file.size} bytes")
