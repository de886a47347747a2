"""The daemon's side: nothing waits for a disk, memory is bounded, the open minute is written at the end."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.history import keeper as module
from kvwatch.history.keeper import Keeper
from kvwatch.history.reader import HistoryReader
from kvwatch.history.recorder import Recorder
from kvwatch.history.store import Store
from kvwatch.readings import Reason
from tests.history.made import AT, rank, server, snapshot, until
from tests.history.test_store import WINDOW

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio


def keeper_of(path: Path) -> Keeper:
    """Return a keeper."""
    return Keeper(Store(path, retention_seconds=1e9, max_bytes=512 << 20), Recorder(), retry_seconds=0.05)


async def test_at_the_end_the_open_minute_is_written(tmp_path: Path) -> None:
    """Also where nothing was written before, and the file is closed: no log of writes is left."""
    path = tmp_path / "history.db"
    keeper = keeper_of(path)
    later = replace(WINDOW, started_at=AT + 1.0, woke=True)
    keeper.record(snapshot(AT + 5, server(rank(finished=1)), starts=(WINDOW,)))
    keeper.record(snapshot(AT + 10, server(rank(finished=3)), starts=(WINDOW, later)))
    await keeper.close()
    with HistoryReader(path) as reader:
        (own,) = reader.observations("chat", 0, 1e12)
        assert reader.start_windows("chat", 0, 1e12) == (WINDOW, later)
    assert (own.at, own.finished) == (AT, 2)
    await keeper.close()


async def test_a_disk_that_hangs_holds_up_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Polls go on, the end comes within its second; once the disk answers, everything is written."""
    path = tmp_path / "history.db"
    keeper = keeper_of(path)
    task = asyncio.create_task(keeper.run())
    await until(lambda: bool(keeper.outcomes))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")  # whoever writes now waits
    longest = 0.0
    for number in range(10):
        started = time.monotonic()
        keeper.record(snapshot(AT + 60 * number, server(rank(finished=number))))
        await asyncio.sleep(0.01)
        longest = max(longest, time.monotonic() - started)
    assert longest < 0.5
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    started = time.monotonic()
    await keeper.close()
    assert time.monotonic() - started < 1.5
    assert [record.getMessage() for record in caplog.records] == [
        "history: 10 rows could not be written and are lost"
    ]
    assert [outcome.reason for outcome in keeper.outcomes] == [Reason.TIMEOUT]
    other.execute("ROLLBACK")
    other.close()
    for _ in range(200):
        await keeper.close()
        if keeper.outcomes[0].reason is None:
            break
    with HistoryReader(path) as reader:
        assert [own.at for own in reader.observations("chat", 0, 1e12)] == [AT + 60 * n for n in range(10)]


async def test_memory_is_bounded_while_nothing_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The newest rows stay, one message says that others go."""
    monkeypatch.setattr(module, "MOST_PENDING", 100)
    (tmp_path / "folder").write_text("a file where a folder should be")
    keeper = keeper_of(tmp_path / "folder" / "history.db")
    task = asyncio.create_task(keeper.run())
    for number in range(300):
        keeper.record(snapshot(AT + 60 * number, server(rank(finished=number))))
        await asyncio.sleep(0.001)
    assert [outcome.reason for outcome in keeper.outcomes] == [Reason.DISK]
    assert len(keeper._pending) <= 100
    assert sum("the oldest rows are dropped" in record.getMessage() for record in caplog.records) == 1
    (tmp_path / "folder").unlink()
    await until(lambda: not keeper._pending and keeper.outcomes[0].reason is None)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await keeper.close()
    with HistoryReader(tmp_path / "folder" / "history.db") as reader:
        ats = [own.at for own in reader.observations("chat", 0, 1e12)]
    assert ats == [AT + 60 * number for number in range(299 - 100, 300)]


async def test_a_bug_in_recording_costs_the_history_and_says_so(tmp_path: Path) -> None:
    """Polls go on; the next good one clears it."""
    keeper = keeper_of(tmp_path / "history.db")
    keeper.record(None)  # type: ignore[arg-type]
    assert [outcome.reason for outcome in keeper.outcomes] == [Reason.INTERNAL_ERROR]
    keeper.record(snapshot(AT, server(rank())))
    await keeper.close()
    assert [outcome.reason for outcome in keeper.outcomes] == [None]
