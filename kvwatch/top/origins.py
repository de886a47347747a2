"""Where snapshots come from: a daemon's page, or polls of kvwatch's own. I/O."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from kvwatch.sources.threads import BlockingCalls
from kvwatch.top.fields import number

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from kvwatch.config import Config
    from kvwatch.top.daemon_page import Daemon

    Answer = dict[str, Any] | str
    """A snapshot's document, or in words why there is none."""

_PATIENCE_SECONDS = 8.0
_FASTEST_SECONDS, _SLOWEST_SECONDS = 1.0, 5.0


def refresh_of(interval_seconds: object) -> float:
    """Return how often to ask a daemon that polls at an interval; often, where that is not known."""
    seconds = number(interval_seconds) or _FASTEST_SECONDS
    return min(max(seconds, _FASTEST_SECONDS), _SLOWEST_SECONDS)


async def ask_daemon(daemon: Daemon) -> AsyncGenerator[Answer, None]:
    """Yield a daemon's snapshots for ever, as often as it polls but at least every 5 s."""
    calls = BlockingCalls("kvwatch-top")
    refresh = _FASTEST_SECONDS
    while True:
        started = time.monotonic()
        answer: Answer
        try:
            answer = await calls.run(
                lambda: daemon.snapshot(timeout_seconds=_PATIENCE_SECONDS), deadline_seconds=_PATIENCE_SECONDS
            )
        except TimeoutError:
            answer = f"kvwatch does not answer within {_PATIENCE_SECONDS:g} s"
        if isinstance(answer, dict):
            refresh = refresh_of(answer.get("interval_seconds"))
        yield answer
        await asyncio.sleep(max(0.0, refresh - (time.monotonic() - started)))


async def poll_here(config: Config) -> AsyncGenerator[Answer, None]:
    """Yield the snapshots of a poller of this process, one an interval."""
    from kvwatch.document import snapshot_document  # noqa: PLC0415
    from kvwatch.wiring import Devices, open_poller  # noqa: PLC0415 - reads NVML, /proc and pages

    async with open_poller(config, Devices()) as poller:
        if config.discovery:
            await poller.discover()
        while True:
            started = time.monotonic()
            yield snapshot_document(await poller.poll())
            await asyncio.sleep(max(0.0, config.interval_seconds - (time.monotonic() - started)))
