"""A scripted day in a real Prometheus, minute by minute, with what kvwatch's own history says of it."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch.families import Families, add_data, add_source
from kvwatch.triage.live import changes_in
from tests.previews.answers import Asker
from tests.scenarios.days import DAYS
from tests.scenarios.history_path import write_history
from tests.scenarios.pipeline import INTERVAL_SECONDS, moments, play
from tests.scenarios.prometheus_path import Backfill, scraped, serving
from tests.scenarios.world import HOUR, MINUTE, NOW

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kvwatch.snapshot import Snapshot

DAY = "two-servers-start-at-once"
"""Six hours before its end a chat and an embedding server start together, and the chat's pool is smaller."""
_HOURS = 8
_INSTANCE = "gpu-node-1:9836"
_LAST_SECONDS = 10 * MINUTE
"""So long before the end the history was last asked."""


@contextlib.contextmanager
def scripted(folder: Path) -> Iterator[Asker]:
    """Let the day happen, and ask at its end."""
    (day,) = [day for day in DAYS if day.name == DAY]
    by_minute = {-MINUTE * step for step in range(int(_HOURS * HOUR / MINUTE) + 1)}
    when = dict.fromkeys(sorted(by_minute), True)
    published = play(day, 0, sorted((dict(moments(day)) | when).items()))
    history = folder / "history.db"
    write_history(history, published)
    changes = changes_in(history, now=published[-1].snapshot.taken_at)
    backfill = Backfill()
    for poll in published:
        told = changes if poll.at > NOW - _LAST_SECONDS else ()
        backfill.add(
            scraped(_families(replace(poll.snapshot, capacity_changes=told)), poll.at, _INSTANCE), poll.at
        )
    backfill.write(folder)
    (device, *_) = published[-1].snapshot.devices
    with serving(folder) as url:
        yield Asker(
            url=url,
            start=NOW - _HOURS * HOUR,
            end=NOW,
            scrape_seconds=INTERVAL_SECONDS,
            chosen={
                "server": day.about,
                "device": device.reading.uuid,
                "baseline": day.baseline,
                "back": "1d",
            },
        )


def _families(snapshot: Snapshot) -> Families:
    families = Families("15 min")
    add_data(families, snapshot)
    for source in snapshot.sources:
        add_source(families, source)
    return families
