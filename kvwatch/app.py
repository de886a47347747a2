"""The daemon: polls, serves and reloads until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from kvwatch.exposition import Exposition, ReloadState, SnapshotCollector
from kvwatch.wiring import Devices, open_access, open_changes, open_history, open_poller, watch_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvwatch.config import Config
    from kvwatch.history.keeper import Keeper
    from kvwatch.poller import Poller

log = logging.getLogger(__name__)


class Daemon:
    """The running daemon.

    Args:
        config: what to start with.
        load: reads the configuration again, for SIGHUP; None when there is no file. Raises ConfigError, as
            the daemon itself does where its web configuration is bad.
        devices: how NVML is reached.
        on_listen: gets the address that was bound.
        pace: how many seconds of the findings' rules pass in one.

    """

    def __init__(
        self,
        config: Config,
        *,
        load: Callable[[], Config] | None = None,
        devices: Devices | None = None,
        on_listen: Callable[[str, int], None] = lambda _host, _port: None,
        pace: float = 1.0,
    ) -> None:
        self._config = config
        self._load = load
        self._devices = devices or Devices()
        self._on_listen = on_listen
        self._pace = pace
        self._reload_state = ReloadState(successful=True, succeeded_at=time.time())
        self._access = None if config.web_config_file is None else open_access(config.web_config_file)
        self._stop = asyncio.Event()
        self._poll_now = asyncio.Event()

    async def run(self) -> None:
        """Run until SIGTERM, SIGINT or `stop`. Raises OSError when the address cannot be had."""
        from kvwatch.server import build_app, serve  # noqa: PLC0415 - `kvwatch once` needs no HTTP server

        loop = asyncio.get_running_loop()
        history = open_history(self._config, os.environ)
        changes = None if history is None else open_changes(history, pace=self._pace)
        async with open_poller(self._config, self._devices, history, changes, pace=self._pace) as poller:
            exposition = Exposition(
                SnapshotCollector(
                    current=lambda: poller.snapshot,
                    reload_state=self._reloads,
                    clock=time.monotonic,
                ),
                clock=time.monotonic,
            )
            loop.add_signal_handler(signal.SIGHUP, lambda: self._reload(poller))
            loop.add_signal_handler(signal.SIGUSR1, lambda: self._let_go(poller))
            loop.add_signal_handler(signal.SIGUSR2, lambda: self._take_up(poller))
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.stop)
            listen = self._config.listen
            http = asyncio.create_task(
                serve(
                    build_app(poller, exposition, clock=time.monotonic),
                    listen.host,
                    listen.port,
                    self._on_listen,
                    self._access,
                )
            )
            polls = asyncio.create_task(self._poll_for_ever(poller, exposition, history))
            stop = asyncio.create_task(self._stop.wait())
            tasks: set[asyncio.Task[Any]] = {http, polls, stop}
            if history is not None:
                tasks.add(asyncio.create_task(history.run()))
            if changes is not None:
                tasks.add(asyncio.create_task(changes.run()))
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                if history is not None:
                    await history.close()
            for task in done:
                task.result()  # raises what ended it, if anything did
        log.info("stopped")

    @property
    def is_encrypted(self) -> bool:
        """Whether connections are TLS."""
        return self._access is not None and self._access.tls() is not None

    def stop(self) -> None:
        """End `run`."""
        self._stop.set()

    async def _poll_for_ever(self, poller: Poller, exposition: Exposition, history: Keeper | None) -> None:
        """Poll at each interval; a poll that takes longer skips ticks, two never run at once."""
        clock = time.monotonic
        due = clock()
        while True:
            snapshot = await poller.poll()
            if history is not None:
                history.record(snapshot)
            try:
                exposition.refresh()
            except Exception:  # it will fail the scrape, which says so; polls go on
                log.exception("exposition")
            due = max(due + self._config.interval_seconds, clock())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(due - clock()):
                    await self._poll_now.wait()
                self._poll_now.clear()
                due = clock()

    def _let_go(self, poller: Poller) -> None:
        """Release the driver, so that a GPU can be reset or the driver replaced."""
        if poller.devices is None:
            log.warning("SIGUSR1: no driver is read, so there is none to let go")
            return
        seconds = self._config.nvml.let_go_seconds
        log.info("SIGUSR1: letting the driver go for %.0f s, or until SIGUSR2", seconds)
        poller.devices.let_go(seconds)
        self._poll_now.set()

    def _take_up(self, poller: Poller) -> None:
        if poller.devices is None:
            log.warning("SIGUSR2: no driver is read, so there is none to take up")
            return
        log.info("SIGUSR2: taking the driver up again")
        poller.devices.take_up()
        self._poll_now.set()

    def _reloads(self) -> ReloadState:
        """Return the last load of the configuration and the web configuration: as bad as the worse one."""
        access, own = self._access, self._reload_state
        if access is None:
            return own
        return ReloadState(
            successful=own.successful and access.successful,
            succeeded_at=max(own.succeeded_at, access.succeeded_at),
        )

    def _reload(self, poller: Poller) -> None:
        from kvwatch.config import ConfigError  # noqa: PLC0415 - see kvwatch.cli: only a daemon with a file

        if self._access is not None:
            self._access_look = asyncio.create_task(self._access.look(force=True))
        if self._load is None and self._access is not None:
            return
        if self._load is None:
            log.warning("SIGHUP: there is no configuration file to load")
            return
        try:
            config = self._load()
        except ConfigError as error:
            self._reload_state = ReloadState(successful=False, succeeded_at=self._reload_state.succeeded_at)
            for problem in error.problems:
                log.warning("the old configuration stays in force: %s", problem)
            return
        kept = [
            key
            for key in ("listen", "web_config_file", "nvml", "scrape", "history", "pods", "log")
            if getattr(config, key) != getattr(self._config, key)
        ]
        if kept:
            log.warning("needs a restart to take effect: %s", ", ".join(kept))
        self._config = config
        poller.change(watch_of(config, pace=self._pace))
        self._reload_state = ReloadState(successful=True, succeeded_at=time.time())
        log.info("configuration loaded: %d servers", len(config.servers))
