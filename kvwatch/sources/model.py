"""Model files: config.json of a model folder, read once for each version of the file."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.spec import ModelSpecError
from kvwatch.plan import Model
from kvwatch.readings import SourceError
from kvwatch.sources.checkpoint import read_checkpoint
from kvwatch.sources.model_path import MAX_CONFIG_BYTES, open_regular, read_config, served_folder

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Version:
    inode: int
    size: int
    changed_ns: int


class ModelFiles:
    """Read model files, keeping each result, failures included, until the file changes."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[_Version, Model | SourceError]] = {}

    def find(self, name: str, pids: Sequence[int]) -> Model | None:
        """Return the model that a server's processes call `name`; None where its files are not seen.

        Raises SourceError as `read` does.
        """
        folder = served_folder(name, pids)
        return None if folder is None else self.read(folder)

    def read(self, path: Path) -> Model:
        """Return the model at `path`, a config.json or the folder that holds one.

        Raises SourceError: not_found, permission, too_large, parse_error, unknown_architecture or
        missing_field, naming the file and what is wrong in it.
        """
        file = path / "config.json" if path.is_dir() else path
        with open_regular(file) as stream:
            status = os.fstat(stream.fileno())
            version = _Version(status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._known.get(file)
            if known is None or known[0] != version:
                known = (version, _read(file, stream.read(MAX_CONFIG_BYTES + 1)))
                self._known[file] = known
        if isinstance(known[1], SourceError):
            raise SourceError(known[1].reason, known[1].detail)
        return known[1]


def _read(file: Path, content: bytes) -> Model | SourceError:
    try:
        spec = read_hf_config(read_config(file, content))
    except ModelSpecError as error:
        return SourceError(error.reason, f"{file}: {error}")
    except SourceError as error:
        return error
    return Model(
        spec=spec, hash=hashlib.sha256(content).hexdigest()[:12], weights=read_checkpoint(file.parent)
    )
