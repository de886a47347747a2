"""The wiring: what a configuration's plain values open."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

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
    from collections.abc import AsyncIterator, Mapping, Sequence
    from pathlib import Path

    from kvwatch.capacity_watch import CapacityWatch
    from kvwatch.config import Config, Server
    from kvwatch.history.keeper import Keeper
    from kvwatch.web_config_watch import WebConfigWatch

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
