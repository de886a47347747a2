"""Read the header of a GGUF file: metadata and tensor table, never a weight.

The format is GGUF 2 and 3, little endian, as `ggml/src/gguf.cpp` of llama.cpp b11434 reads it. The file is
not trusted: counts and lengths have limits far above any public model, so that a hostile header costs bounded
time and memory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.gguf_cursor import Cursor, GgufError
from kvwatch.cost.gguf_types import SCALAR_FORMATS, TENSOR_TYPES, ValueType
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import BinaryIO

__all__ = ["GgufError", "GgufHeader", "GgufTensor", "GgufValue", "read_gguf_header"]


GgufValue = int | float | bool | str | tuple[int | float | bool, ...]

MAX_HEADER_BYTES = 256 << 20
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_KEY_BYTES = 65_535
MAX_NAME_BYTES = 63
MAX_DIMENSIONS = 4
MAX_ARRAY_ELEMENTS = 1 << 22
"""Longest array passed over, and most strings in all; the vocabularies of today stay below 600,000."""
KEPT_ELEMENTS = 4_096
"""Longest array kept: one value a layer, and llama.cpp knows at most 512 layers."""
KEPT_TEXT_BYTES = 65_536
KEPT_BYTES = 16 << 20
"""Most metadata kept in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """A row of the tensor table: `shape` in elements, fastest dimension first; bytes without padding."""

    shape: tuple[int, ...]
    type_name: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """What one GGUF file says of itself before its weights."""

    version: int
    metadata: Mapping[str, GgufValue]
    """Without the tokenizer's keys, strings over 64 KiB, string arrays and arrays over 4,096 elements."""
    skipped: Mapping[str, int]
    """Keys left out of `metadata`, with the bytes or elements they hold."""
    tensors: Mapping[str, GgufTensor]
    data_offset: int
    """Byte where the weights start."""

    @property
    def architecture(self) -> str | None:
        """The architecture's name, which prefixes its keys; None where the file does not say."""
        name = self.metadata.get("general.architecture")
        return name if isinstance(name, str) else None

    @property
    def split_count(self) -> int:
        """Files the model is divided into; the first holds all metadata, each its own tensors."""
        return self._whole("split.count", 1) or 1

    @property
    def split_no(self) -> int:
        """Number of this file among them, from 0."""
        return self._whole("split.no", 0)

    @property
    def split_tensors(self) -> int | None:
        """Tensors of the whole model; None where it is one file."""
        value = self.metadata.get("split.tensors.count")
        return value if isinstance(value, int) else None

    def _whole(self, key: str, absent: int) -> int:
        value = self.metadata.get(key, absent)
        return value if isinstance(value, int) else absent


def read_gguf_header(stream: BinaryIO) -> GgufHeader:
    """Read a header from the start of a binary stream, which is left somewhere after it.

    Raises `GgufError` with the key and the byte offset: PARSE_ERROR for a truncated or malformed file,
    TOO_LARGE past a limit, NOT_SUPPORTED for GGUF 1, a big-endian file, a newer version or an unknown
    tensor type.
    """
    cursor = Cursor(stream, limit_bytes=MAX_HEADER_BYTES, limit_texts=MAX_ARRAY_ELEMENTS)
    version = _version(cursor)
    tensor_count = cursor.count("Q", "number of tensors", MAX_TENSORS)
    key_count = cursor.count("Q", "number of keys", MAX_KEYS)
    metadata: dict[str, GgufValue] = {}
    skipped: dict[str, int] = {}
    kept = 0
    for _ in range(key_count):
        cursor.key = None
        key = cursor.text("key", MAX_KEY_BYTES)
        cursor.key = key
        if not key or key in metadata or key in skipped:
            raise cursor.fail("key is empty or appears twice")
        value, held = _value(cursor, keep=not key.startswith("tokenizer."))
        if value is None:
            skipped[key] = held
            kept += len(key)
        else:
            metadata[key] = value
            kept += len(key) + held
        if kept > KEPT_BYTES:
            raise cursor.fail(f"metadata over {KEPT_BYTES} bytes", Reason.TOO_LARGE)
        if key == "general.architecture" and isinstance(value, str):
            cursor.architecture = value
    alignment = _alignment(cursor, metadata)
    tensors: dict[str, GgufTensor] = {}
    for _ in range(tensor_count):
        cursor.key = None
        name = cursor.text("tensor name", MAX_NAME_BYTES)
        cursor.key = name
        if name in tensors:
            raise cursor.fail("tensor appears twice")
        tensors[name] = _tensor(cursor)
    return GgufHeader(
        version=version,
        metadata=metadata,
        skipped=skipped,
        tensors=tensors,
        data_offset=-(-cursor.offset // alignment) * alignment,
    )


def _version(cursor: Cursor) -> int:
    """Check the magic and return the version."""
    magic = cursor.take(4)
    if magic != b"GGUF":
        raise cursor.fail(f"not a GGUF file: it starts with {magic!r}")
    raw = cursor.take(4)
    version = int.from_bytes(raw, "little")
    if version & 0xFFFF == 0 and version:
        raise cursor.fail("big-endian GGUF", Reason.NOT_SUPPORTED)
    if version not in {2, 3}:
        raise cursor.fail(f"GGUF version {version}, versions 2 and 3 are known", Reason.NOT_SUPPORTED)
    return version


def _value(cursor: Cursor, *, keep: bool) -> tuple[GgufValue | None, int]:
    """Read one typed value: it and its size in bytes, or None and what was passed over."""
    kind = _value_type(cursor)
    if kind is ValueType.STRING:
        length = cursor.count("Q", "string length", MAX_HEADER_BYTES)
        if not keep or length > KEPT_TEXT_BYTES:
            cursor.skip(length)
            return None, length
        return cursor.take(length).decode(errors="replace"), length
    if kind is ValueType.ARRAY:
        return _array(cursor, keep=keep)
    (value,) = cursor.unpack(SCALAR_FORMATS[kind])
    return (value if keep else None), 8


def _array(cursor: Cursor, *, keep: bool) -> tuple[GgufValue | None, int]:
    """Read or pass over an array; elements of strings are never kept."""
    kind = _value_type(cursor)
    count = cursor.count("Q", "array length", MAX_ARRAY_ELEMENTS)
    if kind is ValueType.ARRAY:
        raise cursor.fail("array of arrays")
    if kind is ValueType.STRING:
        cursor.skip_texts(count)
        return None, count
    if keep and count <= KEPT_ELEMENTS:
        return cursor.unpack(f"{count}{SCALAR_FORMATS[kind]}"), 32 * count
    width = {"B": 1, "b": 1, "?": 1, "H": 2, "h": 2, "I": 4, "i": 4, "f": 4}.get(SCALAR_FORMATS[kind], 8)
    cursor.skip(width * count)
    return None, count


def _value_type(cursor: Cursor) -> ValueType:
    """Read a type tag."""
    tag = int.from_bytes(cursor.take(4), "little")
    try:
        return ValueType(tag)
    except ValueError:
        raise cursor.fail(f"value type {tag} does not exist") from None


def _alignment(cursor: Cursor, metadata: Mapping[str, GgufValue]) -> int:
    """Return the alignment of the weights, 32 where the file does not say."""
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
        cursor.key = "general.alignment"
        raise cursor.fail(f"alignment {alignment!r} is no power of two")
    return alignment


def _tensor(cursor: Cursor) -> GgufTensor:
    """Read a row of the tensor table after its name."""
    dimensions = cursor.count("I", "number of dimensions", MAX_DIMENSIONS)
    shape = tuple(int(size) for size in cursor.unpack(f"{dimensions}Q"))
    tag = int.from_bytes(cursor.take(4), "little")
    kind = TENSOR_TYPES.get(tag)
    if kind is None:
        raise cursor.fail(f"tensor type {tag} is not known", Reason.NOT_SUPPORTED)
    cursor.take(8)
    elements = math.prod(shape)
    if elements >= 1 << 63:
        raise cursor.fail(f"shape {shape} has too many elements")
    width = shape[0] if shape else 1
    row = kind.row_bytes(width)
    if row is None:
        raise cursor.fail(f"rows of {width} do not divide into blocks of {kind.name}")
    return GgufTensor(shape=shape, type_name=kind.name, size_bytes=row * math.prod(shape[1:]))
