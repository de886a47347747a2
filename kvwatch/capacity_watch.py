"""Asks every few minutes, in a short-lived process, how capacities changed by the daemon's own history.

A process of its own: what a month of history takes to be read is given back when it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from pathlib import Path

from kvwatch.capacity_change import CapacityChange

log = logging.getLogger(__name__)

_FIRST_SECONDS = 90.0
"""After the daemon's start: the first minute is written by then."""
_INTERVAL_SECONDS = 300.0
_SHORTEST_SECONDS = 10.0
_DEADLINE_SECONDS = 60.0
_PACKAGES = Path(__file__).parents[1]
_LISTS = ("evidence", "levers")


class CapacityWatch:
    """Keeps the answers of the last look; `run` looks again and again, sooner where time passes faster."""

    def __init__(self, path: Path, *, interval_seconds: float = _INTERVAL_SECONDS, pace: float = 1.0) -> None:
        self._path = path
        self._first_seconds = min(_FIRST_SECONDS, interval_seconds) / pace
        # A look is a process: however fast time passes, it is not to take much of the machine.
        self._interval_seconds = max(interval_seconds / pace, min(interval_seconds, _SHORTEST_SECONDS))
        self.changes: tuple[CapacityChange, ...] = ()
        """None of them older than two looks; empty where the history cannot be read."""

    async def run(self) -> None:
        """Look until cancelled; a look that fails leaves nothing standing."""
        await asyncio.sleep(self._first_seconds)
        while True:
            try:
                self.changes = await self._look()
            except (TimeoutError, OSError, ValueError, TypeError) as error:
                self.changes = ()
                log.warning("capacity changes: %s", str(error) or f"reading {self._path} takes too long")
            await asyncio.sleep(self._interval_seconds)

    async def _look(self) -> tuple[CapacityChange, ...]:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "kvwatch.triage.live",
            self._path,
            # This very package, wherever the daemon was started; -P keeps the working directory's out.
            env={**os.environ, "PYTHONPATH": str(_PACKAGES)},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(_DEADLINE_SECONDS):
                answer, words = await process.communicate()
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        if process.returncode != 0:
            # The store says by itself when the file cannot be had.
            log.debug("capacity changes: %s", words.decode(errors="replace").strip())
            return ()
        return tuple(_change(item) for item in json.loads(answer))


def _change(item: dict[str, object]) -> CapacityChange:
    lists = {name: tuple(value) for name, value in item.items() if name in _LISTS and isinstance(value, list)}
    return CapacityChange(**(item | lists))  # type: ignore[arg-type]
