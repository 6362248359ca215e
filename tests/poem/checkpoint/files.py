"""Checkpoint files made byte by byte, so that wrong ones can be made too."""

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

TAGS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip
Tagged = tuple[str, np.ndarray]  # a safetensors tag and the bytes it stands for


def safetensors_bytes(header: Mapping[str, Any] | bytes, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file from its header and data. length: what the file says about the header instead of the truth."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def safetensors_of(tensors: Mapping[str, np.ndarray | Tagged], metadata: Mapping[str, str] | None = None) -> bytes:
    """A right file of arrays; a pair (tag, array) states the tag."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, held in tensors.items():
        tag, array = held if isinstance(held, tuple) else (TAGS[str(held.dtype)], held)
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8).tobytes()
        header[name] = {"dtype": tag, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    written = json.dumps(header).encode()
    return safetensors_bytes(written + b" " * (-len(written) % 8), data)


def write_checkpoint(
    folder: Path, tensors: Mapping[str, np.ndarray | Tagged], config: Mapping[str, Any] | None = None, **side_files: Any
) -> Path:
    """A folder with model.safetensors, and config.json and other JSON files where given."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors_of(tensors))
    for name, value in (({"config": config} if config is not None else {}) | side_files).items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    return folder


def write_shards(folder: Path, shards: Sequence[Mapping[str, np.ndarray | Tagged]], weight_map: Mapping[str, str] | None = None) -> Path:
    """A sharded set with its index; weight_map instead of the true one."""
    folder.mkdir(parents=True, exist_ok=True)
    true_map = {}
    for position, tensors in enumerate(shards, 1):
        name = f"model-{position:05}-of-{len(shards):05}.safetensors"
        (folder / name).write_bytes(safetensors_of(tensors))
        true_map |= dict.fromkeys(tensors, name)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": true_map if weight_map is None else weight_map})
    )
    return folder


def bf16(*shape: int, seed: int = 0) -> np.ndarray:
    """Normal values of a seed."""
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


# -- GGUF ----------------------------------------------------------------------------------------
def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def field(key: str, kind: int, payload: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + payload


def entry(name: str, extents: Sequence[int], kind: int, offset: int) -> bytes:
    """extents: innermost first, as in the file."""
    return text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, offset)


def gguf_bytes(
    fields: Sequence[bytes] = (), entries: Sequence[bytes] = (), data: bytes = b"", *, magic: bytes = b"GGUF", version: int = 3,
    tensor_count: int | None = None, field_count: int | None = None, alignment: int = 32,
) -> bytes:  # fmt: skip
    head = magic + struct.pack(
        "<IQQ", version, len(entries) if tensor_count is None else tensor_count, len(fields) if field_count is None else field_count
    )
    head += b"".join(fields) + b"".join(entries)
    return head + b"\0" * (-len(head) % alignment) + data
