"""`kvwatch demo`: the same daemon as always, told to watch the built-in fleet."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

from kvwatch.app import Daemon
from kvwatch.config import Config, History, Listen, Server, default_config
from kvwatch.demo.day import DEFAULT_SPEED, HOUR, OPENING
from kvwatch.demo.fleet import Fleet, FleetError
from kvwatch.demo.week import week_before
from kvwatch.history.store import Store
from kvwatch.logs import set_up_logging
from kvwatch.wiring import Devices, open_poller

_INTERVAL_SECONDS = 1.0
_SCRIPT_SECONDS_A_RULE_SECOND = 6.0
"""A rule's minute is six of the script's, one second at the usual speed: a rush of ninety is seen."""
_FIRST_LOOKS, _FIRST_LOOK_SECONDS = 20, 0.1
_TYPICAL_HOURS = 1.5
"""Of the script: a window of fifteen real minutes would average over several of its days."""


def run_demo(
    listen: Listen | None = None, *, speed: float = DEFAULT_SPEED, opening: float = OPENING, seed: int = 1
) -> int:
    """Run the daemon on the fleet until SIGTERM or SIGINT; return the exit status."""
    set_up_logging("logfmt", "warning")
    try:
        fleet = Fleet(speed=speed, opening=opening, seed=seed)
        asyncio.run(_run(fleet, listen, speed=speed, opening=opening, seed=seed))
    except asyncio.CancelledError:
        return 0
    except FleetError as error:
        print(f"kvwatch: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"kvwatch: cannot listen: {error.strerror or error}", file=sys.stderr)
        return 1
    return 0


async def _run(fleet: Fleet, listen: Listen | None, *, speed: float, opening: float, seed: int) -> None:
    # Until the daemon takes over, SIGTERM must not leave the fleet's folder behind; SIGINT never does.
    main = asyncio.current_task()
    if main is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, main.cancel)
    async with fleet:
        config = config_of(fleet, listen, speed=speed)
        devices = Devices(command=fleet.nvml_command, environment=fleet.nvml_env, host_pids=False)
        await _remember(fleet, config, devices, opening=opening, seed=seed)
        story = asyncio.create_task(_tell(fleet))
        try:
            pace = max(1.0, speed / _SCRIPT_SECONDS_A_RULE_SECOND)
            await Daemon(config, devices=devices, on_listen=_announce, pace=pace).run()
        finally:
            story.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await story


def config_of(fleet: Fleet, listen: Listen | None, *, speed: float) -> Config:
    """Return the configuration that a user of such a fleet would write, with windows as short as its day."""
    servers = tuple(
        Server.model_validate(
            {
                "name": server.name,
                "url": server.url,
                "model_config": str(server.model_config),
                "request_limit": server.request_limit,
            }
        )
        for server in fleet.servers
    )
    config = default_config().model_copy(
        update={
            "interval_seconds": _INTERVAL_SECONDS,
            # The fleet and nothing else, whatever runs on this machine.
            "discovery": False,
            "typical_window_seconds": max(_TYPICAL_HOURS * HOUR / speed, 3 * _INTERVAL_SECONDS),
            "servers": servers,
            "history": History.model_validate({"path": str(fleet.history)}),
        }
    )
    return config if listen is None else config.model_copy(update={"listen": listen})


async def _remember(fleet: Fleet, config: Config, devices: Devices, *, opening: float, seed: int) -> None:
    """Fill the demo's own history with the week before; without a first whole look it stays empty."""
    async with open_poller(config, devices) as poller:
        for _ in range(_FIRST_LOOKS):
            snapshot = await poller.poll()
            if all(server.reading is not None and server.device_bytes for server in snapshot.servers):
                break
            await asyncio.sleep(_FIRST_LOOK_SECONDS)
        else:
            return
    minutes = list(week_before(snapshot, opening=opening, seed=seed))
    if not minutes or config.history is None:
        return
    store = Store(
        fleet.history,
        retention_seconds=config.history.retention_seconds,
        max_bytes=config.history.max_bytes,
    )
    try:
        await asyncio.to_thread(store.write, minutes)
    finally:
        store.close()
    print("kvwatch demo: the week before, in its history, is simulated", file=sys.stderr, flush=True)


async def _tell(fleet: Fleet) -> None:
    async for line in fleet.story():
        print(line, file=sys.stderr, flush=True)


def _announce(host: str, port: int) -> None:
    url = f"http://{Listen(host=host, port=port)}/"
    print(f"kvwatch demo: {url} and {url}metrics", file=sys.stderr, flush=True)
