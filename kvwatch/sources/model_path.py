"""Where a model is: a file, a folder, or an id in this machine's Hugging Face cache; never a download."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvwatch.cost.gguf import read_gguf_header
from kvwatch.readings import Reason, SourceError
from kvwatch.sources.inside import followed, path_inside

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import BinaryIO

    from kvwatch.cost.gguf import GgufHeader

MAX_CONFIG_BYTES = 4 * 1024 * 1024
_GGUF_MAGIC = b"GGUF"
_REVISION_BYTES = 256
_REVISION = re.compile(r"(?!\.)[\w.-]{1,128}", re.ASCII)
"""A commit, or whatever else names one folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundModel:
    """A model as its files describe it: an HF config or a GGUF header."""

    path: Path
    config: Mapping[str, Any] | None = None
    gguf: GgufHeader | None = None


def find_model(name: str) -> FoundModel:
    """Return the model that a path or a Hugging Face id names.

    Raises SourceError: not_found (saying where was looked), permission, too_large, parse_error.
    """
    path = _expanded(name)
    if not path.exists():
        path = _cached(name)
    if path.is_dir():
        path = _in_folder(path)
    with open_regular(path) as stream:
        if is_gguf(stream):
            return FoundModel(path=path, gguf=read_gguf_header(stream))
        return FoundModel(path=path, config=read_config(path, stream.read(MAX_CONFIG_BYTES + 1)))


def is_gguf(stream: BinaryIO) -> bool:
    """Tell whether a file starts as a GGUF does; it is left at its start."""
    magic = stream.read(len(_GGUF_MAGIC))
    stream.seek(0)
    return magic == _GGUF_MAGIC


def served_file(name: str, pids: Sequence[int]) -> Path | None:
    """Return the file that a server's processes call `name`, as they see it; None where it is not seen.

    Raises SourceError: permission where another user's process hides its folders.
    """
    for pid in pids:
        file = path_inside(pid, name)
        if _visible(file, Path.is_file):
            return file
    return None


def _visible(path: Path, test: Callable[[Path], bool]) -> bool:
    """Tell whether a path through /proc passes a test; pathlib itself raises where it may not be followed."""
    try:
        return test(path)
    except PermissionError as error:
        raise SourceError(Reason.PERMISSION, f"{error}; run as root or with CAP_SYS_PTRACE") from error


def served_folder(name: str, pids: Sequence[int]) -> Path | None:
    """Return the folder of the model that a server's processes call `name`; None where it is not seen.

    A path is looked up as the process sees it, in its root or its working directory; an id in the caches of
    root's and of kvwatch's own home. Raises SourceError: permission where it is not in kvwatch's own cache,
    and another user's process hides its folders.
    """
    hidden: SourceError | None = None
    for pid in pids:
        home = path_inside(pid, "/root/.cache/huggingface/hub")
        for folder in (path_inside(pid, name), _revision(home, name)):
            try:
                if folder is not None and _visible(followed(folder / "config.json"), Path.exists):
                    return folder
            except SourceError as error:
                hidden = error
    own = None if name.startswith("/") else _revision(_cache(), name)
    if own is not None and (own / "config.json").exists():
        return own
    if hidden is not None:
        raise hidden
    return None


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; a FIFO or a device in its place must hang nobody.

    A link that a process can make leads nowhere that the process itself does not see.

    Raises SourceError: permission or not_found.
    """
    file = followed(path)
    # A link that has come since is not followed at all.
    alone = 0 if file is path else os.O_NOFOLLOW
    try:
        descriptor = os.open(file, alone | os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError as error:
        raise SourceError(Reason.PERMISSION, str(error)) from error
    except OSError as error:
        raise SourceError(Reason.NOT_FOUND, str(error)) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise SourceError(Reason.NOT_FOUND, f"{path} is no regular file")
    return os.fdopen(descriptor, "rb")


def read_config(path: Path, content: bytes) -> dict[str, Any]:
    """Return the object that a config.json holds; raise SourceError: too_large or parse_error."""
    if len(content) > MAX_CONFIG_BYTES:
        raise SourceError(Reason.TOO_LARGE, f"{path} is larger than {MAX_CONFIG_BYTES} bytes")
    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise SourceError(Reason.PARSE_ERROR, f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise SourceError(Reason.PARSE_ERROR, f"{path} holds no JSON object")
    return config


def _in_folder(folder: Path) -> Path:
    config = folder / "config.json"
    if config.exists():
        return config
    ggufs = sorted(folder.glob("*.gguf"))
    if len(ggufs) == 1 or (ggufs and "-00001-of-" in ggufs[0].name):
        return ggufs[0]
    found = f"{len(ggufs)} GGUF files: name one" if ggufs else "neither config.json nor a GGUF file"
    raise SourceError(Reason.NOT_FOUND, f"{folder} holds {found}")


def _cached(name: str) -> Path:
    """Return the folder of an id's current revision in this user's Hugging Face cache."""
    folder = _revision(_cache(), name)
    if folder is None:
        where = _cache() or "a cache, which a user without a home has not"
        raise SourceError(Reason.NOT_FOUND, f"no such file or folder, and no one revision of it in {where}")
    return folder


def _cache() -> Path | None:
    """Return this user's Hugging Face cache; None for a user without a home, as a service's dynamic one."""
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub)
    if home := os.environ.get("HF_HOME"):
        return Path(home) / "hub"
    try:
        return Path.home() / ".cache" / "huggingface" / "hub"
    except RuntimeError:
        return None


def _expanded(name: str) -> Path:
    """Return a path with `~` replaced; what no home can be found for stays as it is."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def _revision(cache: Path | None, name: str) -> Path | None:
    """Return the folder of an id's current revision, or of its only one (huggingface_hub's layout)."""
    if cache is None:
        return None
    if name.count("/") > 1 or name.startswith((".", "/")):
        return None
    folder = cache / f"models--{name.replace('/', '--')}"
    try:
        reference = followed(folder / "refs" / "main")
        if reference.is_file():
            with open_regular(reference) as stream:
                revision = stream.read(_REVISION_BYTES).decode(errors="replace").strip()
            return folder / "snapshots" / revision if _REVISION.fullmatch(revision) else None
        revisions = list(followed(folder / "snapshots").iterdir())
    except (OSError, SourceError):
        return None
    return revisions[0] if len(revisions) == 1 else None
