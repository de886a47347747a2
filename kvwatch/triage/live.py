"""What the daemon's own history says of capacity since a day, a week, the last start.

python -m kvwatch.triage.live FILE      prints it as JSON, for kvwatch.capacity_watch
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.capacity_change import CapacityChange
from kvwatch.history.reader import HistoryReader
from kvwatch.readings import SourceError
from kvwatch.triage.explanation import explain
from kvwatch.triage.history_source import HistorySource
from kvwatch.triage.reading import START, STEP_SECONDS, Question, read_records
from kvwatch.triage.verdict import Cause

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.triage.source import Source
    from kvwatch.triage.verdict import Verdict

BASELINES = ("1d", "7d", START)
_WINDOW_SECONDS = 3600.0
_OLD_SECONDS = 900.0
_MOST_LEVERS = 3
_DEPLOYED = {"restart", "engine_version", "model", "cache_dtype", "tensor_parallel", "share", "pin"} | {
    "full_length",
    "request_limit",
    "setting",
}


def changes_in(path: Path, *, now: float) -> tuple[CapacityChange, ...]:
    """Return what changed by a history file, of the servers that were watched shortly before `now`. Blocks.

    `now` is in Unix seconds: a history that is no longer written says nothing of today. Raises SourceError.
    """
    with HistoryReader(path) as reader:
        source = HistorySource(reader)
        end = source.latest(now)
        if end is None or now - end > _OLD_SECONDS:
            return ()
        return tuple(_changes(source, end))


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
    """Tell whether anything was started or set anew; None where that is not known."""
    seen = {one.kind for one in verdict.evidence}
    if verdict.cause is Cause.NOT_ENOUGH_DATA:
        return None
    if _DEPLOYED & seen:
        return True
    moments = [one.setup for one in (verdict.baseline, verdict.now) if one is not None]
    known = all(one.version is not None and one.fingerprint is not None for one in moments)
    return False if known and "start_unknown" not in seen else None


def main() -> int:
    """Print the changes that a history file tells of; the status is 1 where it cannot be read."""
    os.nice(10)
    try:
        changes = changes_in(Path(sys.argv[1]), now=time.time())
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    json.dump([asdict(change) for change in changes], sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
