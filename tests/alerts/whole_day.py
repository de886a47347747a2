"""The demo's whole day, four minutes long, under the shipped rules on its own clock: make test-dashboards.

`make test` has the same in three pieces that run side by side: see scenes.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import TYPE_CHECKING

import pytest

from tests.alerts.day import DAY
from tests.alerts.scenes import demo
from tests.alerts.stack import Stack, first_in_line, stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.prometheus, pytest.mark.alertmanager]

_OPENING_HOUR, _LAST_HOUR = 8.0, 31.0
_SECONDS_AN_HOUR = 10.0
_EPISODE_SECONDS = 2.0
"""An alert that is away for longer than this has stopped; one evaluation without it is a lost scrape."""
INSTANCE = "demo"
Begun = tuple[float, str, str]
"""(hour of the day's clock, from 8 to 31, alert, server)."""


def test_the_day_fires_exactly_its_alerts_in_order(tmp_path: Path) -> None:
    """Each moment of the day raises its alerts for its server, and no moment raises any other."""
    with first_in_line():
        begun = asyncio.run(_play(tmp_path))
    for hour, alert, server in begun:
        print(f"{int(hour) % 24:02}:{int(hour % 1 * 60):02} {alert} {server}")
    starts = [hour_of(moment.start) for moment in DAY]
    ends = [*starts[1:], _LAST_HOUR]
    for moment, start, end in zip(DAY, starts, ends, strict=True):
        seen = [(alert, server) for hour, alert, server in begun if start <= hour < end]
        assert sorted(seen) == sorted(moment.fires), moment.start


def hour_of(clock: str) -> float:
    """Return the hour of a clock's time; before the opening it is the next day's."""
    hours, minutes = clock.split(":")
    hour = int(hours) + int(minutes) / 60
    return hour if hour >= _OPENING_HOUR else hour + 24


async def _play(folder: Path) -> list[Begun]:
    told: list[tuple[float, str]] = []
    async with contextlib.AsyncExitStack() as running:
        address = await running.enter_async_context(demo(_OPENING_HOUR, told=told))
        one = await running.enter_async_context(stack(folder, {INSTANCE: address}))
        await one.scrapes(1)
        since = time.time()
        noon = await _moment(told, "12:00")
        opened = noon - (hour_of("12:00") - _OPENING_HOUR) * _SECONDS_AN_HOUR
        ends_at = opened + (_LAST_HOUR - _OPENING_HOUR) * _SECONDS_AN_HOUR
        await asyncio.sleep(ends_at - time.time())
        assert await one.lost({INSTANCE: since, "": since}) == set(), "the machine is too busy for this"
        return sorted([begun async for begun in _begun(one, since, opened)])


async def _moment(told: list[tuple[float, str]], clock: str) -> float:
    """Wait until the demo tells of a moment; return when it did."""
    while True:
        for at, line in told:
            if line.startswith(clock):
                return at
        await asyncio.sleep(0.2)


async def _begun(one: Stack, since: float, opened: float) -> AsyncIterator[Begun]:
    series = await one.query('ALERTS{alertstate="firing"}', start=since, end=time.time(), step=0.25)
    for found in series:
        labels = found["metric"]
        server = labels.get("server") or labels.get("target") or labels.get("device", "")
        for at in _episodes([float(at) for at, _ in found["values"]]):
            yield _OPENING_HOUR + (at - opened) / _SECONDS_AN_HOUR, labels["alertname"], server


def _episodes(moments: list[float]) -> Iterator[float]:
    """Yield when an alert began to fire, each time."""
    last = float("-inf")
    for moment in moments:
        if moment - last > _EPISODE_SECONDS:
            yield moment
        last = moment
