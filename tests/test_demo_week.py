"""The week before the demo: what triage says of a history that was simulated over the real fleet's setup."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from kvwatch.app import Devices, open_poller
from kvwatch.demo.command import config_of
from kvwatch.demo.day import CHAT, EMBEDDING, HOUR
from kvwatch.demo.fleet import Fleet
from kvwatch.demo.week import week_before
from kvwatch.history.store import Store
from kvwatch.triage.live import changes_in

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.capacity_change import CapacityChange
    from kvwatch.history.minute import Minute

pytestmark = pytest.mark.anyio


async def remembered(opening: float) -> list[Minute]:
    """Start the fleet at a moment of its script and return its week before."""
    async with Fleet(opening=opening) as fleet:
        config = config_of(fleet, None, speed=360.0)
        devices = Devices(command=fleet.nvml_command, environment=fleet.nvml_env, host_pids=False)
        async with open_poller(config, devices) as poller, asyncio.timeout(30):
            while True:
                snapshot = await poller.poll()
                if all(server.reading and server.device_bytes for server in snapshot.servers):
                    return list(week_before(snapshot, opening=opening, seed=1))
                await asyncio.sleep(0.1)


def changes(path: Path, minutes: list[Minute]) -> dict[tuple[str, str], CapacityChange]:
    """Write a history and return what triage says of it."""
    store = Store(path, retention_seconds=30 * 24 * HOUR, max_bytes=1 << 30)
    store.write(minutes)
    store.close()
    return {(one.server, one.baseline): one for one in changes_in(path, now=time.time())}


async def test_capacity_halved_since_last_week_with_no_deploy(tmp_path: Path) -> None:
    """Longer prompts are the cause at the chat server; its neighbour, and yesterday, show no change."""
    found = changes(tmp_path / "history.db", await remembered(8 * HOUR))
    week = found[CHAT, "7d"]
    assert week.ratio is not None
    assert week.ratio <= 0.45
    assert (week.cause, week.deployed) == ("prompts_longer", False)
    assert found[CHAT, "start"].cause == "prompts_longer"
    assert {found[key].cause for key in ((CHAT, "1d"), (EMBEDDING, "7d"), (EMBEDDING, "1d"))} == {"no_change"}
    assert {one.deployed for one in found.values()} == {False}


async def test_a_server_that_has_just_restarted_has_no_such_week() -> None:
    """Begun after the evening's restart, the demo invents no past for servers that were started since."""
    assert await remembered(20 * HOUR) == []
