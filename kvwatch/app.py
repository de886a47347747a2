"""The wiring: a configuration becomes sources, a poller and an HTTP server that run until a signal."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kvwatch.exposition import Exposition, ReloadState, SnapshotCollector
from kvwatch.poller import Poller, Watch
from kvwatch.readings import Home
from kvwatch.sources.contract import Sources
from kvwatch.sources.discovery.discovery import Discovery
from kvwatch.sources.local import LocalSource
from kvwatch.sources.model import ModelFiles
from kvwatch.sources.nvml import NvmlSource
from kvwatch.sources.pods import Kubelet, PodNames
from kvwatch.sources.procfs import ProcfsSource
from kvwatch.sources.scrape import Scraper
from kvwatch.sources.threads import BlockingCalls
from kvwatch.target import Target

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from pathlib import Path

    from kvwatch.capacity_watch import CapacityWatch
    from kvwatch.config import Config, Server
    from kvwatch.history.keeper import Keeper
    from kvwatch.web_config_watch import WebConfigWatch

log = logging.getLogger(__name__)

_FILES_DEADLINE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """How NVML is reached: the child's command and what is added to its environment."""

    command: Sequence[str] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    host_pids: bool = True
    """False for devices whose PIDs are those of kvwatch's own namespace, as the demo's are."""


@contextlib.asynccontextmanager
async def open_poller(
    config: Config,
    devices: Devices,
    history: Keeper | None = None,
    changes: CapacityWatch | None = None,
    *,
    pace: float = 1.0,
) -> AsyncIterator[Poller]:
    """Open the sources that a configuration names; closing never waits for one that hangs."""
    nvml: NvmlSource | None = None
    if config.nvml.enabled is not False:
        nvml = NvmlSource(
            deadline_seconds=config.nvml.deadline_seconds,
            command=devices.command,
            env={**os.environ, **devices.environment},
        )
    scraper = Scraper(max_bytes=config.scrape.max_bytes)
    pods = _pods(config, scraper)
    sources = Sources(
        devices=nvml,
        local=LocalSource(ProcfsSource(), ModelFiles()),
        pages=scraper,
        blocking=BlockingCalls("kvwatch-files"),
        host_pids=devices.host_pids,
        page_deadline_seconds=config.scrape.deadline_seconds,
        blocking_deadline_seconds=_FILES_DEADLINE_SECONDS,
        discovery=Discovery(),
        history=history,
        changes=changes,
        pods=pods,
    )
    try:
        yield Poller(
            sources=sources,
            watch=watch_of(config, pace=pace),
        )
    finally:
        if pods is not None:
            await pods.close()
        await scraper.close()
        if nvml is not None:
            await nvml.close()


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


def open_history(config: Config, environment: Mapping[str, str]) -> Keeper | None:
    """Return what keeps the history; None where it is switched off. The file is opened later."""
    settings = config.history
    if settings is None:
        return None
    # Imported here: `kvwatch once` keeps no history.
    from kvwatch.history import location  # noqa: PLC0415
    from kvwatch.history.keeper import Keeper  # noqa: PLC0415
    from kvwatch.history.recorder import Recorder, step_seconds  # noqa: PLC0415
    from kvwatch.history.store import Store  # noqa: PLC0415

    store = Store(
        settings.path or location.writable_path(environment),
        retention_seconds=settings.retention_seconds,
        max_bytes=settings.max_bytes,
    )
    asked = settings.path is not None or location.is_given(environment)
    return Keeper(store, Recorder(step=step_seconds(config.interval_seconds)), asked=asked)


def open_access(path: Path) -> WebConfigWatch:
    """Return who may connect and how. Raises ConfigError where the web configuration is bad."""
    from kvwatch.web_config_watch import WebConfigWatch  # noqa: PLC0415 - only with a web configuration

    return WebConfigWatch(path)


def open_changes(history: Keeper, *, pace: float = 1.0) -> CapacityWatch:
    """Return what asks the history how capacities changed."""
    from kvwatch.capacity_watch import CapacityWatch  # noqa: PLC0415 - only with a history

    return CapacityWatch(history.path, pace=pace)


def watch_of(config: Config, *, pace: float = 1.0) -> Watch:
    """Return what a configuration says to watch, as plain values."""
    return Watch(
        targets=tuple(_target(server) for server in config.servers),
        interval_seconds=config.interval_seconds,
        typical_window_seconds=config.typical_window_seconds,
        share_limit_ratio=config.share_limit_ratio,
        discovery=config.discovery,
        driver_needed=config.nvml.enabled is True,
        pace=pace,
    )


def _home(server: Server) -> Home | None:
    if server.container is None and server.unit is None:
        return None
    return Home(container=server.container, unit=server.unit)


def _pods(config: Config, pages: Scraper) -> PodNames | None:
    """Return what names pods; None where nothing is to."""
    named = config.pods
    origin: Kubelet | Path | None = named.file if named is not None else None
    if named is not None and named.kubelet is not None:
        origin = Kubelet(url=named.kubelet, bearer_token_file=named.bearer_token_file, ca_file=named.ca_file)
    if origin is None:
        return None
    return PodNames(
        origin,
        pages=pages,
        blocking=BlockingCalls("kvwatch-pods"),
        deadline_seconds=config.scrape.deadline_seconds,
    )


def _target(server: Server) -> Target:
    url = urlsplit(server.url)
    return Target(
        name=server.name,
        url=server.url,
        host=url.hostname or "",
        port=url.port or (443 if url.scheme == "https" else 80),
        engine=None if server.engine == "auto" else server.engine,
        bearer_token_file=server.bearer_token_file,
        ca_file=server.ca_file,
        pid=server.pid,
        home=_home(server),
        model_config=server.model_config_path,
        full_length_tokens=server.full_length_tokens,
        request_limit=server.request_limit,
        max_num_batched_tokens=server.max_num_batched_tokens,
        pool_tokens=server.pool_tokens,
        kv_unified=server.kv_unified,
        cache_dtype=server.cache_dtype,
        share_ratio=server.share_ratio,
        pin_bytes=server.kv_cache_memory_bytes,
        tensor_parallel=server.tensor_parallel,
        pipeline_parallel=server.pipeline_parallel,
        hybrid_manager=server.hybrid_manager,
    )
