"""A checkpoint's weights, from the headers of its safetensors files; tensors are never read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.weights import checkpoint_bytes, read_safetensors_header
from kvwatch.readings import SourceError
from kvwatch.sources.model_path import open_regular

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from kvwatch.cost.weights import WeightBytes

_INDEX = "model.safetensors.index.json"
_MAX_INDEX_BYTES = 64 * 1024 * 1024
_MAX_FILES = 1024


def read_checkpoint(folder: Path) -> WeightBytes | None:
    """Return the weights of the checkpoint in a folder; None where its files do not settle them."""
    try:
        files = sorted(folder.glob("*.safetensors"))[: _MAX_FILES + 1]
        if not files or len(files) > _MAX_FILES:
            return None
        headers = {}
        for file in files:
            with open_regular(file) as stream:
                headers[file.name] = read_safetensors_header(stream)
        return checkpoint_bytes(headers=headers, index=_read_index(folder / _INDEX))
    except (OSError, SourceError, ModelSpecError):
        return None


def _read_index(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    with open_regular(file) as stream:
        content = stream.read(_MAX_INDEX_BYTES + 1)
    if len(content) > _MAX_INDEX_BYTES:
        return None
    try:
        index = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return index if isinstance(index, dict) else None
