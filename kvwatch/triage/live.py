"""Triage in the daemon: its own history is asked what changed since a day, a week, the last start."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from kvwatch.capacity_change import CapacityChange
from kvwatch.history.reader import HistoryReader
from kvwatch.readings import Reason, SourceError
from kvwatch.sources.threads import BlockingCalls
from kvwatch.triage.explanation import explain
from kvwatch.triage.history_source import HistorySource
from kvwatch.triage.reading import START, STEP_SECONDS, Question, read_records
from kvwatch.triage.verdict import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvwatch.triage.source import Source
    from kvwatch.triage.verdict import Verdict

log = logging.getLogger(__name__)

BASELINES = ("1d", "7d", START)
_WINDOW_SECONDS = 3600.0
_FIRST_SECONDS = 90.0
"""After the daemon's start: the first minute is written by then."""
_INTERVAL_SECONDS = 300.0
_DEADLINE_SECONDS = 60.0
_OLD_SECONDS = 900.0
_MOST_LEVERS = 3
_DEPLOYED = {"restart", "engine_version", "model", "cache_dtype", "tensor_parallel", "share", "pin"} | {
    "full_length",
    "request_limit",
    "setting",
}


class CapacityWatch:
    """Keeps the answers of the last look; `run` looks again and again in a thread of its own."""

    def __init__(self, path: Path, *, interval_seconds: float = _INTERVAL_SECONDS) -> None:
        self._path = path
        self._interval_seconds = interval_seconds
        self._calls = BlockingCalls("kvwatch-triage")
        self.changes: tuple[CapacityChange, ...] = ()
        """None of them older than two looks; empty where the history cannot be read."""

    async def run(self) -> None:
        """Look until cancelled; a look that fails leaves nothing standing."""
        await asyncio.sleep(min(_FIRST_SECONDS, self._interval_seconds))
        while True:
            try:
                self.changes = await self._calls.run(
                    lambda: changes_in(self._path), deadline_seconds=_DEADLINE_SECONDS
                )
            except TimeoutError:
                self.changes = ()
                log.warning("capacity changes: reading %s takes too long", self._path)
            except SourceError as error:
                self.changes = ()
                if error.reason is not Reason.NOT_FOUND:  # the store says so, and why
                    log.debug("capacity changes: %s", error)
            except Exception:
                self.changes = ()
                log.exception("capacity changes")
            await asyncio.sleep(self._interval_seconds)


def changes_in(path: Path) -> tuple[CapacityChange, ...]:
    """Return what changed by a history file, of the servers that were watched lately. Blocks.

    Raises SourceError.
    """
    with HistoryReader(path) as reader:
        source = HistorySource(reader)
        end = source.latest(float("inf"))
        return () if end is None else tuple(_changes(source, end))


def _changes(source: Source, end: float) -> Iterator[CapacityChange]:
    end = end // STEP_SECONDS * STEP_SECONDS
    for baseline in BASELINES:
        question = Question(
            server=None,
            end_at=end,
            baseline=baseline,
            baseline_name=baseline,
            window_seconds=_WINDOW_SECONDS,
        )
        for record in read_records(source, question):
            observed = [one.at + one.seconds for one in record.now_observations]
            if observed and end - max(observed) <= _OLD_SECONDS:
                yield change_of(explain(record), baseline)


def change_of(verdict: Verdict, baseline: str) -> CapacityChange:
    """Return a verdict as the daemon publishes it."""
    known = [(name, value) for name, value in verdict.factors.items() if value is not None]
    return CapacityChange(
        server=verdict.server,
        baseline=baseline,
        at=verdict.now_window.end_at,
        ratio=verdict.ratio,
        factors=dict(known) if verdict.ratio is not None else {},
        cause=str(verdict.cause),
        confidence=str(verdict.confidence),
        headline=verdict.headline,
        evidence=tuple(one.text for one in verdict.evidence),
        levers=tuple(lever.action for lever in verdict.levers[:_MOST_LEVERS]),
        deployed=_is_deployed(verdict),
    )


def _is_deployed(verdict: Verdict) -> bool | None:
    if verdict.cause is Cause.NOT_ENOUGH_DATA:
        return None
    return bool(_DEPLOYED & {one.kind for one in verdict.evidence})
