"""The files of one run: read once, bounded, and found again by the paths that other files name."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kvwatch.check.declaration import Place, Problem
from kvwatch.readings import Reason, SourceError
from kvwatch.sources.model_path import open_regular

if TYPE_CHECKING:
    from kvwatch.check.reading.words import Word

MAX_BYTES = 2 << 20
_SYSTEM_FOLDERS = ("/etc/systemd/", "/usr/lib/systemd/", "/lib/systemd/", "/run/systemd/")


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenFile:
    """A file of the command line; `name` is as it was given there."""

    name: str
    text: str

    @property
    def path(self) -> PurePosixPath:
        """Return its name as a path."""
        return PurePosixPath(self.name)


class UnopenedError(Exception):
    """A file that cannot be opened at all; the text says why."""


def read_file(name: str) -> GivenFile | Problem:
    """Return a file's text (`-`: standard input), or what keeps it from being text; raises UnopenedError."""
    path = Path(name)
    try:
        if name == "-":
            content = sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with open_regular(path) as stream:
                content = stream.read(MAX_BYTES + 1)
    except SourceError as error:
        raise UnopenedError(_why(path, error)) from None
    except (OSError, ValueError) as error:
        raise UnopenedError(str(error)) from None
    if len(content) > MAX_BYTES:
        return _problem(name, None, f"larger than {MAX_BYTES >> 20} MiB: is it a configuration?")
    if b"\0" in content:
        line = content.count(b"\n", 0, content.index(b"\0")) + 1
        return _problem(name, line, "a NUL byte stands here: this is not a text file")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _problem(name, line, "this line is not UTF-8; save the file as UTF-8")
    return GivenFile(name=name, text=text.replace("\r\n", "\n").replace("\r", "\n"))


def _why(path: Path, error: SourceError) -> str:
    if error.reason is Reason.PERMISSION:
        return "permission denied"
    try:
        if path.is_dir():
            return "this is a folder; name the files in it"
        return "this is no regular file" if path.exists() else "no such file"
    except OSError as failure:
        return failure.strerror or str(failure)


def _problem(name: str, line: int | None, message: str) -> Problem:
    return Problem(place=Place(file=name, line=line), message=message)


@dataclass(slots=True)
class Shelf:
    """All files of a run; `used` are those that another one reads, and that declare nothing by themselves."""

    files: dict[str, GivenFile] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    beside: dict[str, GivenFile | None] = field(default_factory=dict)
    variables: dict[str, Word] = field(default_factory=dict)
    """Of files of variables that nobody names: they settle what compose files and scripts leave open."""

    def find(self, path: str, by: str) -> GivenFile | None:
        """Return the file that `by` calls `path`: among the files given, or next to `by`.

        A file given whose name ends like the path is the one, where only one does; else a file of that
        relative path beside `by`, or of that name in the same folder. Units of systemd's own folders may also
        name files of this machine by their full path.
        """
        given = self._given(path, by)
        if given is not None:
            self.used.add(given.name)
            return given
        folder = Path(by).parent
        pure = PurePosixPath(path)
        if not pure.name or "\0" in path:
            return None
        places = [folder / pure.name] if pure.is_absolute() else [folder / pure, folder / pure.name]
        if pure.is_absolute() and str(Path(by).absolute()).startswith(_SYSTEM_FOLDERS):
            places.insert(0, Path(path))
        return next((found for place in places if (found := self._read(place)) is not None), None)

    def _given(self, path: str, by: str) -> GivenFile | None:
        wanted = PurePosixPath(path)
        relative = os.path.normpath(str(PurePosixPath(by).parent / wanted))
        for name in self.files:
            if name != by and os.path.normpath(name) == relative:
                return self.files[name]
        named = [file for name, file in self.files.items() if name != by and file.path.name == wanted.name]
        for count in range(len(wanted.parts), 0, -1):
            tail = wanted.parts[-count:]
            found = [file for file in named if file.path.parts[-count:] == tail]
            if len(found) == 1:
                return found[0]
            if found:
                return None
        return None

    def _read(self, path: Path) -> GivenFile | None:
        name = str(path)
        if name not in self.beside:
            try:
                found = read_file(name)
            except UnopenedError:
                found = None
            self.beside[name] = found if isinstance(found, GivenFile) else None
        return self.beside[name]
