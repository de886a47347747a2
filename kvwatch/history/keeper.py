"""The daemon's side of history: snapshots become rows, which go to the store beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.readings import Outcome, Reason, Source, SourceError
from kvwatch.sources.threads import BlockingCalls

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from kvwatch.history.minute import Minute
    from kvwatch.history.recorder import Recorder
    from kvwatch.history.store import Store
    from kvwatch.observation import StartWindow
    from kvwatch.snapshot import HistoryState, Snapshot

log = logging.getLogger(__name__)

TARGET = "store"
"""The `target` label beside source="history"."""
MOST_PENDING = 4096
"""Rows that are kept in memory while the file cannot be written: half a day of five servers, some MiB."""
_BATCH = 512
_WRITE_SECONDS = 30.0
RETRY_SECONDS = 10.0
_IDLE_SECONDS = 300.0
"""With nothing to write the file is looked after so often."""
_CLOSE_SECONDS = 1.0
_CALL_SECONDS = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """One minute or one start window."""

    minute: Minute | None = None
    window: StartWindow | None = None


class Keeper:
    """Keep what the polls saw.

    `record` returns at once. A file that cannot be written, or a disk that hangs, costs
    memory, and beyond MOST_PENDING rows the oldest of them; never a poll.

    Args:
        store: where rows go; only its own thread touches it.
        recorder: what makes rows of snapshots.
        asked: whether somebody chose the file: where nobody did, having no place for it is no fault.
        retry_seconds: between attempts while the file cannot be written.
        clock: monotonic seconds, for durations.

    """

    def __init__(
        self,
        store: Store,
        recorder: Recorder,
        *,
        asked: bool = True,
        retry_seconds: float = RETRY_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._recorder = recorder
        self._asked = asked
        self._retry_seconds = retry_seconds
        self._clock = clock
        self._calls = BlockingCalls("kvwatch-history")
        self._pending: deque[_Row] = deque()
        self._wake = asyncio.Event()
        self._outcome: Outcome | None = None
        self._starts: tuple[StartWindow, ...] = ()
        self._worked = False
        self._dropping = False
        self.state: HistoryState | None = None
        """Of the last write that worked; None while it does not."""

    @property
    def path(self) -> Path:
        """Where the file is."""
        return self._store.path

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """How the last attempt went; nothing before the first one ended."""
        return () if self._outcome is None else (self._outcome,)

    def record(self, snapshot: Snapshot) -> None:
        """Add one poll; never raises."""
        try:
            minutes = self._recorder.record(snapshot)
        except Exception as error:  # a bug here must not end the polls
            log.exception("history")
            self._outcome = Outcome(
                source=Source.HISTORY, target=TARGET, reason=Reason.INTERNAL_ERROR, detail=repr(error)
            )
            return
        self._add(_Row(minute=minute) for minute in minutes)
        # A snapshot holds the last starts for as long as they are the last.
        self._add(_Row(window=window) for window in snapshot.start_windows if window not in self._starts)
        self._starts = snapshot.start_windows

    async def run(self) -> None:
        """Write what comes, until cancelled."""
        while True:
            self._wake.clear()
            written = await self._write(_WRITE_SECONDS)
            if written and self._pending:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_IDLE_SECONDS if written else self._retry_seconds):
                    await self._wake.wait()

    async def close(self) -> None:
        """Write the open minute and close the file, in a second at most; `run` must have ended."""
        self._add(_Row(minute=minute) for minute in self._recorder.flush())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                while not await self._write(_CLOSE_SECONDS) or self._pending:
                    if self._outcome is not None and self._outcome.reason not in (None, Reason.TIMEOUT):
                        break
                    await asyncio.sleep(_CALL_SECONDS)  # for a call that was under way when `run` ended
                await self._calls.run(self._store.close, deadline_seconds=_CLOSE_SECONDS)
        if self._pending:
            log.warning("history: %d rows could not be written and are lost", len(self._pending))

    async def _write(self, deadline_seconds: float) -> bool:
        """Write a batch; tell whether that worked. What was not written stays."""
        rows = [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]
        minutes = [row.minute for row in rows if row.minute is not None]
        windows = [row.window for row in rows if row.window is not None]
        started = self._clock()
        state: HistoryState | None = None
        reason, detail = None, ""
        try:
            state = await self._calls.run(
                lambda: self._store.write(minutes, windows), deadline_seconds=deadline_seconds
            )
        except TimeoutError as error:
            reason, detail = Reason.TIMEOUT, str(error) or f"writing {self.path} takes too long"
        except SourceError as error:
            reason, detail = error.reason, error.detail
            if reason is Reason.PERMISSION and not self._asked and not self._worked:
                reason = Reason.NOT_ENABLED
                detail += "; name a place with history.path, or switch it off with history: off"
        except Exception as error:
            log.exception("history")
            reason, detail = Reason.INTERNAL_ERROR, repr(error)
        finally:
            if state is None:
                self._pending.extendleft(reversed(rows))
                self._drop()
        self.state = state
        self._worked = self._worked or state is not None
        self._dropping = self._dropping and state is None
        self._outcome = Outcome(
            source=Source.HISTORY,
            target=TARGET,
            reason=reason,
            detail=detail,
            duration_seconds=self._clock() - started,
        )
        return state is not None

    def _add(self, rows: Iterable[_Row]) -> None:
        self._pending.extend(rows)
        self._drop()
        if self._pending:
            self._wake.set()

    def _drop(self) -> None:
        """Drop the oldest rows that are too many."""
        while len(self._pending) > MOST_PENDING:
            self._pending.popleft()
            if not self._dropping:
                log.warning("history: the file cannot be written for too long; the oldest rows are dropped")
                self._dropping = True
