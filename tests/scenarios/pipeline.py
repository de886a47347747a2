"""A scripted day through the real pipeline: pages and devices -> the poller's own read and join -> snapshots.

Only the outside worlds are scripted. Windows that matter are polled every minute, the time between now and
then; two polls of a hole are no farther apart than the day's script is interesting.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.lives import Lives
from kvwatch.poller import Poller, Watch
from kvwatch.readings import Source
from kvwatch.sources.contract import Sources
from tests.scenarios.machine import World
from tests.scenarios.world import DAY, HOUR, MINUTE, NOW

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.observation import StartWindow
    from kvwatch.snapshot import Snapshot
    from kvwatch.target import Target
    from tests.scenarios.world import Day

INTERVAL_SECONDS = 60.0
_COARSE_SECONDS = 30 * MINUTE
_STEPS_AROUND_A_START = (20.0, 12 * MINUTE)


def moments(day: Day) -> list[tuple[float, bool]]:
    """Return when kvwatch polls, and whether what happens since the poll before matters minute by minute."""
    close: set[float] = set()
    for end in (0.0, -day.span):
        close |= {end - HOUR - 5 * MINUTE + MINUTE * step for step in range(66)}
    length = day.span + 3 * HOUR
    apart = max(_COARSE_SECONDS, day.span / 32 if day.span > DAY else 0.0)
    coarse = {apart * step - length for step in range(int(length / apart))}
    for start in (life.start for script in day.servers for life in script.lives):
        if start > -day.span - 3 * HOUR:
            step, length = _STEPS_AROUND_A_START
            close |= {start - MINUTE + step * count for count in range(int(length / step))}
    for begin, end in day.watched_closely:
        close |= {begin + MINUTE * step for step in range(int((end - begin) / MINUTE))}
    for begin, end, _ in (nap for script in day.servers for nap in script.asleep):
        close |= {begin + MINUTE, end - MINUTE, end + MINUTE}
    every = sorted(moment for moment in close | coarse if moment <= 0)
    return [
        (moment, moment in close)
        for moment in every
        if not any(start <= moment < end for start, end in day.unwatched)
    ]


@dataclass(frozen=True, kw_only=True)
class Published:
    """What one poll came to."""

    at: float
    """Unix seconds of a clock that is right, such as Prometheus's."""
    snapshot: Snapshot
    starts: tuple[StartWindow, ...]
    """Those that were over with this poll."""


def play(day: Day, seed: int, when: Sequence[tuple[float, bool]] | None = None) -> list[Published]:
    """Return the polls of one day; kvwatch begins anew after each time it did not watch.

    `when` are other moments than the day's own, and whether what happens before each matters by the minute.
    """
    return asyncio.run(_play(World(day, seed), moments(day) if when is None else when))


async def _play(world: World, when: Sequence[tuple[float, bool]]) -> list[Published]:
    poller: Poller | None = None
    lives = Lives()
    last: float | None = None
    published: list[Published] = []
    for moment, closely in when:
        if poller is None or (last is not None and _was_down(world.day, last, moment)):
            poller, lives = _poller(world), Lives()
        last = moment
        world.play(moment, closely=closely)
        poller.change(_watch(world.targets()))
        snapshot = await poller.poll()
        known = {id(window) for window in lives.windows}
        lives = _advanced(lives, snapshot, world)
        starts = tuple(window for window in lives.windows if id(window) not in known)
        published.append(Published(at=NOW + moment, snapshot=snapshot, starts=starts))
    return published


def _advanced(lives: Lives, snapshot: Snapshot, world: World) -> Lives:
    return lives.advance(
        snapshot.taken_at,
        servers=snapshot.servers,
        devices=snapshot.devices,
        processes=snapshot.processes,
        table=world.read().processes,
        reasons={
            source.target: source.reason for source in snapshot.sources if source.source == Source.ENGINE
        },
    )


def _was_down(day: Day, before: float, now: float) -> bool:
    return any(start < now and end > before for start, end in day.unwatched)


def _poller(world: World) -> Poller:
    return Poller(
        sources=Sources(
            devices=world,
            local=world,
            pages=world,
            blocking=world,
            page_deadline_seconds=1.0,
            blocking_deadline_seconds=1.0,
        ),
        watch=_watch(world.targets()),
        clock=world.clock,
        wall_clock=world.wall_clock,
    )


def _watch(targets: Sequence[Target]) -> Watch:
    return Watch(
        targets=tuple(targets),
        interval_seconds=INTERVAL_SECONDS,
        typical_window_seconds=15 * MINUTE,
        share_limit_ratio=0.95,
    )
