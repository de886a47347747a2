"""A scripted day in kvwatch's own history file, written as the daemon writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.history.recorder import Recorder
from kvwatch.history.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvwatch.history.minute import Minute
    from kvwatch.observation import StartWindow
    from tests.scenarios.pipeline import Published

_YEAR_SECONDS = 365 * 86_400.0


def write_history(path: Path, published: Iterable[Published]) -> None:
    """Record the polls; kvwatch begins anew where the snapshots' numbers do."""
    store = Store(path, retention_seconds=_YEAR_SECONDS, max_bytes=1 << 30)
    recorder = Recorder()
    minutes: list[Minute] = []
    windows: list[StartWindow] = []
    sequence = 0
    for poll in published:
        if poll.snapshot.sequence <= sequence:
            minutes += recorder.flush()
            recorder = Recorder()
        sequence = poll.snapshot.sequence
        minutes += recorder.record(poll.snapshot)
        windows += poll.starts
    minutes += recorder.flush()
    store.write(minutes, windows)
    store.close()
