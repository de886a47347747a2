"""GGUF files and headers for the tests of this folder: written by the `gguf` package, or built in memory."""

from __future__ import annotations

import io
import struct
from typing import TYPE_CHECKING, Any

import gguf

from kvwatch.cost.gguf import GgufHeader, read_gguf_header
from kvwatch.cost.llamacpp import LlamaModel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PLAIN: dict[str, Any] = {
    "context_length": 8192,
    "embedding_length": 512,
    "block_count": 8,
    "feed_forward_length": 1024,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
    "attention.key_length": 64,
    "attention.value_length": 64,
}
"""A small model with full attention in every layer."""


def full_key(architecture: str, key: str) -> str:
    """Prefix a key with its architecture; `!` and the format's own groups stand for themselves."""
    if key.startswith("!"):
        return key[1:]
    return key if key.startswith(("general.", "tokenizer.", "split.")) else f"{architecture}.{key}"


def write_gguf(path: Path, architecture: str, keys: Mapping[str, Any]) -> Path:
    """Write a GGUF file without tensors by the `gguf` package; keys of None are left out."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in keys.items():
        name = full_key(architecture, key)
        match value:
            case None:
                continue
            case bool():
                writer.add_bool(name, value)
            case int():
                writer.add_uint32(name, value)
            case float():
                writer.add_float32(name, value)
            case str():
                writer.add_string(name, value)
            case {"u64": numbers}:
                array, element = gguf.GGUFValueType.ARRAY, gguf.GGUFValueType.UINT64
                writer.add_key_value(name, numbers, array, sub_type=element)
            case _:
                writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def read(path: Path) -> GgufHeader:
    """Read a file's header."""
    with path.open("rb") as stream:
        return read_gguf_header(stream)


def header_of(architecture: str, keys: Mapping[str, Any], **fields: Any) -> GgufHeader:
    """Build a header in memory."""
    metadata: dict[str, Any] = {"general.architecture": architecture}
    for key, value in keys.items():
        if value is not None:
            metadata[full_key(architecture, key)] = tuple(value) if isinstance(value, list) else value
    empty: dict[str, Any] = {"version": 3, "skipped": {}, "tensors": {}, "data_offset": 0}
    return GgufHeader(metadata=metadata, **{**empty, **fields})


def model_of(architecture: str, /, **keys: Any) -> LlamaModel:
    """Build a model of the small plain one's keys and these; `__` in a name stands for a dot."""
    renamed = {name.replace("__", "."): value for name, value in keys.items()}
    return LlamaModel.from_header(header_of(architecture, {**PLAIN, **renamed}))


def text(value: str | bytes) -> bytes:
    """Encode a string as GGUF does: its length, then its bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def raw_gguf(*parts: bytes, keys: int = 0, tensors: int = 0, version: int = 3) -> io.BytesIO:
    """Assemble a header from raw parts."""
    return io.BytesIO(b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + b"".join(parts))
