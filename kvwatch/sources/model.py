"""Model files: config.json of a model folder, read once for each version of the file."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.spec import ModelSpecError
from kvwatch.plan import Model
from kvwatch.readings import Reason, SourceError

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Version:
    inode: int
    size: int
    changed_ns: int


class ModelFiles:
    """Read model files, keeping each result, failures included, until the file changes."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[_Version, Model | SourceError]] = {}

    def read(self, path: Path) -> Model:
        """Return the model at `path`, a config.json or the folder that holds one.

        Raises SourceError: not_found, permission, too_large, parse_error, unknown_architecture or
        missing_field, naming the file and what is wrong in it.
        """
        file = path / "config.json" if path.is_dir() else path
        try:
            # Non-blocking: a FIFO in place of the file must not hang the daemon.
            descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except PermissionError as error:
            raise SourceError(Reason.PERMISSION, str(error)) from error
        except OSError as error:
            raise SourceError(Reason.NOT_FOUND, str(error)) from error
        with os.fdopen(descriptor, "rb") as stream:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(Reason.NOT_FOUND, f"{file} is no regular file")
            version = _Version(status.st_ino, status.st_size, status.st_mtime_ns)
            known = self._known.get(file)
            if known is None or known[0] != version:
                known = (version, _read(file, stream.read(_MAX_BYTES + 1)))
                self._known[file] = known
        if isinstance(known[1], SourceError):
            raise SourceError(known[1].reason, known[1].detail)
        return known[1]


def _read(file: Path, content: bytes) -> Model | SourceError:
    if len(content) > _MAX_BYTES:
        return SourceError(Reason.TOO_LARGE, f"{file} is larger than {_MAX_BYTES} bytes")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        return SourceError(Reason.PARSE_ERROR, f"{file}: {error}")
    if not isinstance(config, dict):
        return SourceError(Reason.PARSE_ERROR, f"{file} holds no JSON object")
    try:
        spec = read_hf_config(config)
    except ModelSpecError as error:
        return SourceError(error.reason, f"{file}: {error}")
    return Model(spec=spec, hash=hashlib.sha256(content).hexdigest()[:12])
