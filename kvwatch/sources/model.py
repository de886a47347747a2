"""Model files: config.json of a model folder, read once for each version of the file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.gguf import read_gguf_header
from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.llamacpp import LlamaModel
from kvwatch.cost.spec import ModelSpecError
from kvwatch.cost.weights import gguf_bits, gguf_weights
from kvwatch.plan import GgufModel, Model
from kvwatch.readings import SourceError
from kvwatch.sources.checkpoint import read_checkpoint
from kvwatch.sources.model_path import (
    MAX_CONFIG_BYTES,
    is_gguf,
    open_regular,
    read_config,
    served_file,
    served_folder,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO


_HASHED_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class _Version:
    inode: int
    size: int
    changed_ns: int


class ModelFiles:
    """Read model files, keeping each result, failures included, until the file changes."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[_Version, Model | GgufModel | SourceError]] = {}

    def find(self, name: str, pids: Sequence[int]) -> Model | GgufModel | None:
        """Return the model that a server's processes call `name`; None where its files are not seen.

        Raises SourceError as `read` does.
        """
        found = served_file(name, pids) if name.endswith(".gguf") else served_folder(name, pids)
        return None if found is None else self.read(found)

    def read(self, path: Path) -> Model | GgufModel:
        """Return the model at `path`: a config.json, the folder that holds one, or a GGUF file.

        Raises SourceError: not_found, permission, too_large, parse_error, unknown_architecture or
        missing_field, naming the file and what is wrong in it.
        """
        file = path / "config.json" if path.is_dir() else path
        with open_regular(file) as stream:
            status = os.fstat(stream.fileno())
            version = _Version(status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._known.get(file)
            if known is None or known[0] != version:
                known = (version, _read(file, stream))
                # A path through /proc goes with the process that it was seen by.
                self._known = {path: own for path, own in self._known.items() if _is_there(path)}
                self._known[file] = known
        if isinstance(known[1], SourceError):
            raise SourceError(known[1].reason, known[1].detail)
        return known[1]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _read(file: Path, stream: BinaryIO) -> Model | GgufModel | SourceError:
    try:
        if is_gguf(stream):
            header = read_gguf_header(stream)
            llama = LlamaModel.from_header(header)
            stream.seek(0)
            return GgufModel(
                llama=llama,
                hash=hashlib.sha256(stream.read(_HASHED_BYTES)).hexdigest()[:12],
                weights=gguf_weights([header]),
                bits_per_weight=gguf_bits(header),
            )
        content = stream.read(MAX_CONFIG_BYTES + 1)
        spec = read_hf_config(read_config(file, content))
    except ModelSpecError as error:
        return SourceError(error.reason, f"{file}: {error}")
    except SourceError as error:
        return error
    return Model(
        spec=spec, hash=hashlib.sha256(content).hexdigest()[:12], weights=read_checkpoint(file.parent)
    )
