"""The web configuration in force: read at the start, read again when a file of it changes."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from typing import TYPE_CHECKING

from kvwatch.config_problems import ConfigError
from kvwatch.config_yaml import Problem
from kvwatch.sources.threads import BlockingCalls
from kvwatch.web_config import WebConfigFile
from kvwatch.web_config_passwords import Passwords
from kvwatch.web_gate import Gate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kvwatch.web_config import WebSettings
    from kvwatch.web_config_tls import TlsPolicy

log = logging.getLogger(__name__)

_LOOK_EVERY_SECONDS = 1.0
_READ_DEADLINE_SECONDS = 5.0

_Signature = tuple[tuple[int, int, int, int, int] | None, ...]


class WebConfigWatch:
    """Hold the settings in force. Raises `ConfigError` where the file is bad at the start.

    A new file that is bad changes nothing, and neither does one that takes away TLS, users or the demand for
    a certificate: an editor may have written half of it, and a restart takes it as it is.
    """

    def __init__(self, path: Path) -> None:
        self._file = WebConfigFile(path)
        self._file.read()  # to learn which files are named
        self._seen = _signature(self._file.files)
        self._settings = self._file.read()
        self._problems: tuple[Problem, ...] = ()
        self._one_look = asyncio.Lock()
        self.on_change: Callable[[], None] = lambda: None
        """Called when other settings have come into force."""
        self._blocking = BlockingCalls("kvwatch-web-config")
        self.successful = True
        self.succeeded_at = time.time()
        self.gate = Gate(Passwords(self._settings.users))
        self.gate.change(self._settings)

    def tls(self) -> TlsPolicy | None:
        """Return what a connection that is made now must bring."""
        return self._settings.tls

    async def run(self) -> None:
        """Look for changes until cancelled; a disk that hangs holds up nothing else."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_SECONDS)
            await self.look()

    async def look(self, *, force: bool = False) -> None:
        """Read the files again if one changed, or in any case."""
        async with self._one_look:
            await self._look(force=force)

    async def _look(self, *, force: bool) -> None:
        seen = self._seen
        try:
            seen = await self._blocking.run(
                lambda: _signature(self._file.files), deadline_seconds=_READ_DEADLINE_SECONDS
            )
            if seen == self._seen and not force:
                return
            settings = await self._blocking.run(self._file.read, deadline_seconds=_READ_DEADLINE_SECONDS)
        except TimeoutError:
            self._refuse(
                (Problem(file=str(self._file.path), line=None, key="", message="cannot be read in time"),)
            )
            return
        except ConfigError as error:
            self._seen = seen
            self._refuse(error.problems)
            return
        self._seen = seen
        taken_away = _taken_away(self._settings, settings)
        if taken_away:
            message = f"it would take away {taken_away}; restart kvwatch if that is meant"
            self._refuse((Problem(file=str(self._file.path), line=None, key="", message=message),))
            return
        if settings.tls == self._settings.tls:
            settings = dataclasses.replace(settings, tls=self._settings.tls)
        self._settings = settings
        self._problems = ()
        self.gate.change(settings)
        self.on_change()
        self.successful, self.succeeded_at = True, time.time()
        log.info(
            "web configuration loaded: TLS %s, %d users", "on" if settings.tls else "off", len(settings.users)
        )

    def _refuse(self, problems: tuple[Problem, ...]) -> None:
        self.successful = False
        if problems == self._problems:
            return
        self._problems = problems
        for problem in problems:
            log.warning("the old web configuration stays in force: %s", problem)


def _taken_away(old: WebSettings, new: WebSettings) -> str:
    """Name the protection that the new settings lack; empty where there is none."""
    if old.tls is not None and new.tls is None:
        return "TLS"
    if old.users and not new.users:
        return "every user"
    if old.tls is not None and new.tls is not None:
        if old.tls.demands_certificates and not new.tls.demands_certificates:
            return "the demand for client certificates"
        if old.tls.allowed_sans is not None and new.tls.allowed_sans is None:
            return "the list of allowed names"
    return ""


def _signature(files: tuple[Path, ...]) -> _Signature:
    """Return what changes when a file does, or when a link on the way to it is turned."""
    return tuple(_stat(file) for file in files)


def _stat(file: Path) -> tuple[int, int, int, int, int] | None:
    try:
        found = os.stat(file)  # noqa: PTH116 - one call, links followed
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
