"""What is written is what is read, once, and no longer than it should be."""

from __future__ import annotations

import sqlite3
from dataclasses import fields, replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.history.minute import joined
from kvwatch.history.reader import HistoryReader
from kvwatch.history.store import Store
from kvwatch.observation import Neighbour, Observation, Setup, StartWindow
from kvwatch.readings import SumCount
from tests.history.made import AT, SETUP, minute, observation

if TYPE_CHECKING:
    from pathlib import Path

HOUR, DAY = 3600, 86400
HOUR_AT = AT // HOUR * HOUR + HOUR


class Clock:
    """Both clocks, which the test sets."""

    def __init__(self) -> None:
        self.wall, self.monotonic = float(AT), 0.0


def store(
    path: Path, *, retention_seconds: float = 30 * DAY, max_bytes: int = 512 << 20, clock: Clock | None = None
) -> Store:
    """Return a store at a moment of the tests."""
    clock = clock or Clock()
    return Store(
        path,
        retention_seconds=retention_seconds,
        max_bytes=max_bytes,
        clock=lambda: clock.monotonic,
        wall_clock=lambda: clock.wall,
    )


def read(path: Path, server: str = "chat", *, step: float | None = None) -> tuple[Observation, ...]:
    """Return all observations of a server."""
    with HistoryReader(path) as reader:
        return reader.observations(server, 0, 1e12, step=step)


def test_a_minute_comes_back_as_it_was(tmp_path: Path) -> None:
    """Every field, of a known and of an unknown minute, two ranks and two servers."""
    path = tmp_path / "new folder" / "history.db"
    unknown = Observation(server="chat", rank="1", at=float(AT), seconds=60.0, setup=Setup())
    writer = store(path)
    writer.write(
        [
            minute(),
            replace(minute(), observation=unknown),
            minute(AT + 60, server="embed", setup=replace(SETUP, fingerprint="other")),
        ]
    )
    assert read(path) == (observation(), unknown)
    assert read(path, "embed") == (
        observation(AT + 60, server="embed", setup=replace(SETUP, fingerprint="other")),
    )
    assert read(path, "nobody") == ()
    with HistoryReader(path) as reader:
        assert reader.servers() == ("chat", "embed")
        assert reader.span() == (AT, AT + 120)
        own = reader.observations("embed", 0, 1e12)[0]
    for field in fields(Observation):
        assert type(getattr(own, field.name)) is type(getattr(observation(float(AT)), field.name)), field.name
    writer.close()


def test_setups_are_kept_once(tmp_path: Path) -> None:
    """A month of one setup is one row of it."""
    path = tmp_path / "history.db"
    writer = store(path)
    for number in range(5):
        writer.write([minute(AT + 60 * number), minute(AT + 60 * number, rank="1")])
    writer.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM setups").fetchone() == (1,)
        assert connection.execute("SELECT count(*) FROM minutes").fetchone() == (10,)


def test_the_same_minute_written_twice_is_there_once(tmp_path: Path) -> None:
    """After a failure nobody knows whether a write came through: it is given again."""
    writer = store(tmp_path / "history.db")
    writer.write([minute()])
    writer.write([minute(), minute(AT + 60)])
    assert read(tmp_path / "history.db") == (observation(), observation(AT + 60))


def test_two_parts_of_a_minute_make_one(tmp_path: Path) -> None:
    """A daemon restarted in a minute: gains add up, means weigh, the rest is the later part's."""
    path = tmp_path / "history.db"
    first = store(path)
    first.write([minute(last=20, polls=3, running_mean=1.0, running_max=9.0, finished=4.0, usage_max=None)])
    first.close()
    later = minute(
        first=40, polls=1, running_mean=5.0, running_max=5.0, finished=6.0, typical_capacity=None,
        waiting_mean={"deferred": 4.0}, preemptions=None, queue_seconds=SumCount(sum=1.0, count=2.0),
        setup=replace(SETUP, fingerprint=None), device_bytes={},
    )  # fmt: skip
    store(path).write([later])
    (own,) = read(path)
    assert (own.finished, own.preemptions, own.running_mean, own.running_max) == (10, 1, 2, 9)
    assert own.queue_seconds == SumCount(sum=2.25, count=22)
    assert own.waiting_mean == {"capacity": 0.5, "deferred": 1.0}
    assert (own.usage_max, own.typical_capacity) == (0.75, 99 / 29)
    assert own.setup == SETUP
    assert own.device_bytes == {"GPU-0": 700 << 20, "GPU-1": 0}


def test_parts_join_in_either_order() -> None:
    """The earlier part may be written later."""
    one, other = minute(last=20, polls=3, finished=4.0), minute(first=40, polls=5, finished=6.0)
    assert joined(one, other) == joined(other, one)
    assert (joined(one, other).first_at, joined(one, other).last_at) == (AT + 2.5, AT + 57.5)


def test_after_a_restart_of_the_server_the_later_life_counts() -> None:
    """What the earlier one was is not filled in."""
    later = minute(first=40, started_at=AT + 30.0, typical_capacity=None, setup=Setup(), device_bytes={})
    own = joined(minute(last=20), later).observation
    assert (own.typical_capacity, own.setup, own.device_bytes) == (None, Setup(), {})


def test_a_clock_turned_back_writes_nothing_twice(tmp_path: Path) -> None:
    """The hour that comes again is dropped where it was watched, and kept where it was not."""
    path = tmp_path / "history.db"
    writer = store(path)
    writer.write([minute(AT + 60 * number, finished=1.0) for number in range(0, 60, 2)])
    writer.write([minute(AT + 60 * number, first=1, last=58, finished=50.0) for number in range(60)])
    finished = [own.finished for own in read(path)]
    assert finished == [1.0, 50.0] * 30


def test_hours_are_what_their_minutes_are(tmp_path: Path) -> None:
    """Sums, means and most agree with the minutes; a change of setup or start divides an hour."""
    path = tmp_path / "history.db"
    writer = store(path)
    start = HOUR_AT - 600
    other = replace(SETUP, fingerprint="other")
    for number in range(150):
        late = number >= 40
        writer.write(
            [
                minute(
                    start + 60 * number,
                    polls=1 + number % 3,
                    finished=None if number % 7 == 0 else float(number),
                    running_mean=float(number % 11),
                    running_max=float(number % 13),
                    usage_mean=None if number < 100 else 0.5,
                    started_at=float(start + 2400) if late else 1000.0,
                    setup=other if late else SETUP,
                )
            ]
        )
    minutes, hours = read(path), read(path, step=HOUR)
    assert [own.at for own in hours] == [start, HOUR_AT, start + 2400, HOUR_AT + HOUR, HOUR_AT + 2 * HOUR]
    assert [own.seconds for own in hours] == [600, 1800, 1800, 3600, 1200]
    assert [own.setup for own in hours] == [SETUP, SETUP, other, other, other]
    for own in hours:
        inside = [one for one in minutes if own.at <= one.at < own.at + own.seconds]
        weights = [1 + round((one.at - start) / 60) % 3 for one in inside]
        assert own.finished == sum(one.finished or 0 for one in inside)
        mean = sum((one.running_mean or 0) * weight for one, weight in zip(inside, weights, strict=True))
        assert own.running_mean == pytest.approx(mean / sum(weights))
        assert own.running_max == max(one.running_max or 0 for one in inside)
        assert own.queue_seconds == SumCount(sum=1.25 * len(inside), count=20.0 * len(inside))
        assert own.typical_capacity == pytest.approx(99 / 29)
        assert own.started_at == inside[-1].started_at
        assert own.device_bytes == inside[-1].device_bytes
    assert [own.usage_mean for own in hours] == [None, None, None, 0.5, 0.5]
    half_days = read(path, step=12 * HOUR)
    assert sum(own.finished or 0 for own in half_days) == sum(own.finished or 0 for own in minutes)
    ten = read(path, step=600)
    assert sum(own.finished or 0 for own in ten) == sum(own.finished or 0 for own in minutes)
    with HistoryReader(path) as reader:
        part = reader.observations("chat", HOUR_AT + 61, HOUR_AT + HOUR + 1, step=HOUR)
        assert [(own.at, own.seconds) for own in part] == [
            (HOUR_AT + 120, 1680),
            (start + 2400, 1800),
            (HOUR_AT + HOUR, 60),
        ]
        assert reader.starts("chat", 0, 1e12) == (1000.0, start + 2400)
        assert reader.setups("chat", 0, 1e12) == ((start, "0", SETUP), (start + 2400, "0", other))


def test_a_minute_that_comes_late_changes_its_hour(tmp_path: Path) -> None:
    """The clock was turned back over an hour that was summed already, in which there was a hole."""
    path = tmp_path / "history.db"
    writer = store(path)
    writer.write([minute(HOUR_AT + 60 * number, finished=1.0) for number in (0, 70, 140)])
    writer.write([minute(HOUR_AT + 60, finished=5.0)])
    assert [own.finished for own in read(path, step=HOUR)] == [6.0, 1.0, 1.0]


def test_what_is_older_than_the_retention_goes(tmp_path: Path) -> None:
    """Rows, hours, setups and series of it; a day an hour at most, so that a wrong clock costs little."""
    path, clock = tmp_path / "history.db", Clock()
    writer = store(path, retention_seconds=2 * DAY, clock=clock)
    writer.write(
        [minute(AT + number * HOUR, setup=replace(SETUP, model=str(number))) for number in range(4 * 24)]
    )
    writer.write([minute(AT, server="gone")])
    clock.wall = AT + 4 * DAY
    assert writer.write([]).oldest_at == AT, "not right after the start, when a clock may be wrong"
    for _ in range(4):
        clock.monotonic += HOUR
        oldest = writer.write([]).oldest_at
    assert oldest is not None
    assert AT + 2 * DAY - HOUR < oldest <= AT + 2 * DAY
    writer.close()
    with HistoryReader(path) as reader:
        assert reader.servers() == ("chat",)
        assert len(reader.observations("chat", 0, 1e12)) == 48
        assert len(reader.observations("chat", 0, 1e12, step=HOUR)) == 48
        assert len(reader.setups("chat", 0, 1e12)) == 48
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM setups").fetchone()[0] in (48, 49)


def test_a_clock_years_ahead_for_a_moment_costs_a_day_at_most(tmp_path: Path) -> None:
    """What it wrote lies in the future and is in nobody's way."""
    path, clock = tmp_path / "history.db", Clock()
    writer = store(path, clock=clock)
    writer.write([minute(AT + number * HOUR) for number in range(10 * 24)])
    clock.wall, clock.monotonic = AT + 10 * 365 * DAY, 1000.0
    writer.write([minute(AT + 10 * 365 * DAY)])
    clock.wall = AT + 10 * DAY
    writer.write([minute(AT + 10 * DAY, finished=3.0)])
    kept = read(path)
    assert len(kept) >= 9 * 24
    assert [own.finished for own in kept if own.at == AT + 10 * DAY] == [3.0]


def test_the_file_stays_below_its_size(tmp_path: Path) -> None:
    """The oldest rows go, the newest are all there; one of the far future harms nothing."""
    path = tmp_path / "history.db"
    most = 7 << 19
    writer = store(path, max_bytes=most)
    writer.write([minute(AT + 20 * 365 * DAY)])
    start = AT // HOUR * HOUR
    number = 0
    state = writer.write([])
    for _ in range(50):
        batch = [minute(start + 60 * (number + index), rank=str(index % 4)) for index in range(300)]
        number += 300
        state = writer.write(batch)
        assert state.size_bytes <= most
    assert state.oldest_at is not None
    assert state.oldest_at > start
    kept = read(path)
    assert max(own.at for own in kept[:-1]) == start + 60 * (number - 1)
    assert len(kept) > 3000
    lower = store(path, max_bytes=3 << 20)
    writer.close()
    assert lower.write([]).size_bytes <= 3 << 20
    assert 1000 < len(read(path)) < len(kept)


WINDOW = StartWindow(
    server="chat",
    device="GPU-0",
    started_at=AT - 90.5,
    ready_at=AT - 20.25,
    seen_from=AT - 90.0,
    free_first_bytes=40 << 30,
    free_last_bytes=None,
    neighbours=(
        Neighbour(
            server="embed", name="VLLM::EngineCor", pid=42, first_bytes=0, last_bytes=None, most_bytes=5
        ),
        Neighbour(server="", name="", pid=43, first_bytes=1, last_bytes=2, most_bytes=2),
    ),
)


def test_start_windows_are_kept(tmp_path: Path) -> None:
    """With their neighbours; a second record of the same start replaces the first."""
    path = tmp_path / "history.db"
    writer = store(path)
    early = replace(WINDOW, started_at=AT - 9000.0, ready_at=AT - 8000.0, neighbours=())
    writer.write([], [replace(WINDOW, free_first_bytes=None), early])
    writer.write([minute()], [WINDOW])
    with HistoryReader(path) as reader:
        assert reader.start_windows("chat", 0, 1e12) == (early, WINDOW)
        assert reader.start_windows("chat", AT - 100, 1e12) == (WINDOW,)
        assert reader.start_windows("embed", 0, 1e12) == ()


def test_the_last_start_outlives_the_retention(tmp_path: Path) -> None:
    """A server that has run for two months still has the start that its pool is from."""
    path, clock = tmp_path / "history.db", Clock()
    writer = store(path, retention_seconds=2 * DAY, clock=clock)
    early = replace(WINDOW, started_at=AT - 9000.0, ready_at=AT - 8000.0)
    writer.write([minute(AT), minute(AT + 5 * DAY)], [early, WINDOW, replace(WINDOW, server="gone")])
    clock.wall, clock.monotonic = AT + 5 * DAY, float(HOUR)
    writer.write([])
    clock.monotonic += HOUR
    writer.write([])
    with HistoryReader(path) as reader:
        assert reader.span() == (AT + 5 * DAY, AT + 5 * DAY + 60)
        assert reader.start_windows("chat", 0, 1e12) == (WINDOW,)
        assert reader.start_windows("gone", 0, 1e12) == ()


def test_what_a_newer_version_added_is_passed_over(tmp_path: Path) -> None:
    """A field that this version does not know takes nothing away from the rest."""
    path = tmp_path / "history.db"
    writer = store(path)
    writer.write([minute()], [WINDOW])
    writer.close()
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE setups SET body = json_set(body, '$.colour', 'red')")
        connection.execute("UPDATE starts SET body = json_set(body, '$.neighbours[0].mood', 'fine')")
    assert read(path) == (observation(),)
    with HistoryReader(path) as reader:
        assert reader.start_windows("chat", 0, 1e12) == (WINDOW,)
