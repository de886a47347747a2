"""Bytes of a model's weights, from what its files say: tensor tables, headers, indexes, sizes.

Never a number of parameters times a width: checkpoints mix types, and packed ones hide their elements.
Where the files do not settle a number, it is None.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.spec import ModelSpecError
from kvwatch.readings import Reason

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any, BinaryIO

    from kvwatch.cost.gguf import GgufHeader

MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
"""The format's own limit."""
SAFETENSORS_BITS = {
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
"""Bits of an element by the type's name; one that is not here is counted by its offsets alone."""
INPUT_TENSORS = ("token_embd.", "token_types.", "position_embd.", "per_layer_token_embd.")
"""Tensors that `llm_tensor_info` (`src/llama-arch.cpp` of llama.cpp b11434) puts into the input layer."""
ENGINE_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SafetensorsHeader:
    """The table of one safetensors file: bytes of its tensors, by name and by element type."""

    tensors: Mapping[str, int]
    by_dtype: Mapping[str, int]
    header_bytes: int
    """Bytes of the file before its tensors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBytes:
    """Bytes of a checkpoint; `by_dtype` is empty where only sizes were seen, `source` is the evidence."""

    total_bytes: int
    by_dtype: Mapping[str, int]
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufWeights:
    """Bytes of a GGUF model's tensors, by what llama.cpp places together.

    `input_bytes` (embeddings) stay in host memory; `block_bytes` go layer by layer; `output_bytes` is the
    rest.
    """

    total_bytes: int
    input_bytes: int
    block_bytes: tuple[int, ...]
    output_bytes: int
    tied_output: bool
    """There is no output matrix: the engine keeps a second copy of the embedding beside the output."""


def read_safetensors_header(stream: BinaryIO) -> SafetensorsHeader:
    """Read the table at the start of a safetensors file; raises `ModelSpecError` that names the tensor."""
    length = int.from_bytes(_take(stream, 8), "little")
    if length > MAX_SAFETENSORS_HEADER_BYTES:
        raise _bad(Reason.TOO_LARGE, detail=f"header of {length} bytes")
    try:
        table = json.loads(_take(stream, length))
    except (ValueError, RecursionError):
        raise _bad(Reason.PARSE_ERROR, detail="the header is no JSON") from None
    if not isinstance(table, dict):
        raise _bad(Reason.PARSE_ERROR, detail="the header is no table")
    table.pop("__metadata__", None)
    tensors: dict[str, int] = {}
    by_dtype: Counter[str] = Counter()
    for name, entry in table.items():
        dtype, size = _safetensor(name, entry)
        tensors[name] = size
        by_dtype[dtype] += size
    return SafetensorsHeader(tensors=tensors, by_dtype=dict(by_dtype), header_bytes=8 + length)


def _take(stream: BinaryIO, count: int) -> bytes:
    """Read exactly `count` bytes."""
    parts: list[bytes] = []
    missing = count
    while missing > 0 and (part := stream.read(missing)):
        parts.append(part)
        missing -= len(part)
    if missing:
        raise _bad(Reason.PARSE_ERROR, detail=f"the file ends {missing} bytes early")
    return b"".join(parts)


def _safetensor(name: str, entry: Any) -> tuple[str, int]:
    """Return the type and bytes of one tensor, checked against its shape."""
    try:
        dtype, shape = entry["dtype"], entry["shape"]
        first, last = entry["data_offsets"]
        numbers = [*shape, first, last]
    except (TypeError, KeyError, ValueError):
        raise _bad(Reason.PARSE_ERROR, field=name, detail="not a tensor") from None
    if not isinstance(dtype, str) or not all(type(number) is int and number >= 0 for number in numbers):
        raise _bad(Reason.PARSE_ERROR, field=name, detail="not a tensor")
    bits = SAFETENSORS_BITS.get(dtype)
    if last < first or (bits is not None and (last - first) * 8 != math.prod(shape) * bits):
        raise _bad(Reason.PARSE_ERROR, field=name, detail=f"{last - first} bytes for {shape} of {dtype}")
    return dtype, last - first


def _bad(reason: Reason, *, field: str | None = None, detail: str) -> ModelSpecError:
    return ModelSpecError(reason, field=field, detail=detail)


def checkpoint_bytes(
    *,
    headers: Mapping[str, SafetensorsHeader] | None = None,
    file_sizes: Mapping[str, int] | None = None,
    index: Mapping[str, Any] | None = None,
) -> WeightBytes | None:
    """Return a safetensors checkpoint's bytes from the best evidence, None where there is none.

    Headers of all its files are exact. The index's `total_size` counts tensors and is taken where the
    files' sizes do not contradict it; sizes alone count the headers too, a few kilobytes a file. `index`
    also says which files belong to the checkpoint, so that copies beside it are not counted twice; evidence
    that lacks one of them is left unused.
    """
    wanted = _indexed_files(index)
    seen = {} if headers is None else {name: headers[name] for name in wanted or headers if name in headers}
    if seen and len(seen) == len(wanted or seen):
        by_dtype: Counter[str] = Counter()
        for header in seen.values():
            by_dtype.update(header.by_dtype)
        return WeightBytes(total_bytes=by_dtype.total(), by_dtype=dict(by_dtype), source="headers")
    sizes: dict[str, int] = {}
    if file_sizes is not None:
        sizes = {name: file_sizes[name] for name in wanted or file_sizes if name in file_sizes}
    on_disk = sum(sizes.values()) if sizes and len(sizes) == len(wanted or sizes) else None
    stated = _total_size(index)
    if stated is not None and (on_disk is None or stated <= on_disk):
        return WeightBytes(total_bytes=stated, by_dtype={}, source="index")
    return None if on_disk is None else WeightBytes(total_bytes=on_disk, by_dtype={}, source="file sizes")


def _indexed_files(index: Mapping[str, Any] | None) -> frozenset[str]:
    """Return the files that an index names."""
    names = index.get("weight_map") if index else None
    if not isinstance(names, dict):
        return frozenset()
    return frozenset(name for name in names.values() if isinstance(name, str))


def _total_size(index: Mapping[str, Any] | None) -> int | None:
    """Return the index's own statement, None where it makes none."""
    metadata = index.get("metadata") if index else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    return size if type(size) is int and size > 0 else None


def rank_weight_bytes(
    weights: WeightBytes, *, tensor_parallel: int, pipeline_parallel: int, engine_dtype: str | None
) -> int | None:
    """Return what one rank holds of a checkpoint, None where the files do not settle it.

    Exact only for one rank that loads every tensor in the type it is stored in. With more ranks embeddings
    are padded, norms repeated and layers divided unevenly; another type or a conversion at load changes the
    sum.
    """
    if tensor_parallel != 1 or pipeline_parallel != 1 or engine_dtype is None:
        return None
    stored = ENGINE_DTYPES.get(engine_dtype)
    return weights.total_bytes if stored is not None and set(weights.by_dtype) == {stored} else None


def gguf_weights(headers: Sequence[GgufHeader]) -> GgufWeights | None:
    """Return the bytes of a GGUF model's tensors, None where a shard is missing.

    `headers` are those of all its files in order. The total is what llama-server states as `meta.size`.
    """
    if not headers or len(headers) != headers[0].split_count:
        return None
    if any(header.split_no != number for number, header in enumerate(headers)):
        return None
    tensors = {name: tensor.size_bytes for header in headers for name, tensor in header.tensors.items()}
    expected = headers[0].split_tensors
    if len(tensors) != (sum(len(header.tensors) for header in headers) if expected is None else expected):
        return None
    blocks: Counter[int] = Counter()
    inputs = outputs = 0
    for name, size in tensors.items():
        block = re.match(r"blk\.(\d{1,3})\.", name)
        if block:
            blocks[int(block[1])] += size
        elif name.startswith(INPUT_TENSORS):
            inputs += size
        else:
            outputs += size
    return GgufWeights(
        total_bytes=sum(tensors.values()),
        input_bytes=inputs,
        block_bytes=tuple(blocks[index] for index in range(max(blocks, default=-1) + 1)),
        output_bytes=outputs,
        tied_output="output.weight" not in tensors and "token_embd.weight" in tensors,
    )


def gguf_bits(header: GgufHeader) -> float | None:
    """Return the bits of an element on average over one file's tensors; None where it has none."""
    elements = sum(math.prod(tensor.shape) for tensor in header.tensors.values())
    return sum(tensor.size_bytes for tensor in header.tensors.values()) * 8 / elements if elements else None
