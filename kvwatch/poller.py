"""One poll: gather all sources at once, join what they read, publish one snapshot. Owns what accumulates."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.assessor import Assessor
from kvwatch.completion import complete
from kvwatch.custody import Custody
from kvwatch.finder import Finder
from kvwatch.health import Health
from kvwatch.join import Inputs, Joined, join
from kvwatch.kinship import without_younger
from kvwatch.pid_namespace import withhold
from kvwatch.progress import Progress
from kvwatch.readings import EngineReading, NvmlReading, Outcome, ProcessTable, Reason, Source, SourceError
from kvwatch.snapshot import Snapshot
from kvwatch.sources.discovery.found import DISCOVERY
from kvwatch.sources.local import LocalReading
from kvwatch.sources.pods import PODS
from kvwatch.sources.processes import boot_ticks
from kvwatch.sources.procfs import address_of
from kvwatch.visit import visit

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kvwatch.engines.adapter import Adapter
    from kvwatch.sources.contract import DeviceSource, Sources
    from kvwatch.target import Target
    from kvwatch.typical import TypicalLength
    from kvwatch.visit import Visit

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What to watch, and how; replaced whole when the configuration is loaded again."""

    targets: tuple[Target, ...]
    interval_seconds: float
    """Between polls: it is published with each snapshot, whose age it gives a meaning."""
    typical_window_seconds: float
    """Window of the typical request."""
    share_limit_ratio: float
    """What a device's servers may claim together, exported beside what they do."""
    discovery: bool = False
    """Whether servers that nobody configured are looked for."""
    driver_needed: bool = False
    """Whether a machine without NVIDIA's library is a fault."""
    pace: float = 1.0
    """How many seconds of the findings' rules pass in one: the demo's day is short."""


class Poller:
    """Poll the sources; `snapshot` is the last result, replaced whole, `visits` how servers were read.

    Args:
        sources: where readings come from.
        watch: what to watch.
        clock: monotonic seconds, for durations and ages.
        wall_clock: Unix seconds, for timestamps.

    """

    def __init__(
        self,
        *,
        sources: Sources,
        watch: Watch,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._sources = sources
        self._watch = watch
        self._clock = clock
        self._wall_clock = wall_clock
        self._health = Health()
        self._assessor = Assessor()
        self._progress: Mapping[str, Progress] = {}
        self._adapters: dict[str, Adapter | None] = {}
        self._finder = Finder(sources.discovery, deadline_seconds=sources.blocking_deadline_seconds)
        self._custody = Custody()
        self._sequence = 0
        self.snapshot: Snapshot | None = None
        self.visits: Mapping[str, Visit] = {}

    @property
    def devices(self) -> DeviceSource | None:
        """Return where devices come from; None where they are not read."""
        return self._sources.devices

    def change(self, watch: Watch) -> None:
        """Watch something else from the next poll on; servers that stay keep what accumulated."""
        self._watch = watch
        if not watch.discovery:
            self._finder.forget()

    def _forget_others(self) -> None:
        """Forget what accumulated of servers that are no longer watched."""
        names = {target.name for target in (*self._watch.targets, *self._finder.targets)}
        devices = self.snapshot.devices if self.snapshot else ()
        attributed = {device.reading.uuid for device in devices}
        self._health.forget_servers_except({*names, DISCOVERY, PODS, *attributed})
        self._progress = {name: progress for name, progress in self._progress.items() if name in names}
        self._adapters = {name: adapter for name, adapter in self._adapters.items() if name in names}

    async def discover(self) -> None:
        """Look for servers before the first poll, so that it reads them too."""
        nvml = await self._poll_devices()
        if self._sources.pods is not None:
            self._sources.pods.refresh()
            await self._sources.pods.settled()
        await self._look(nvml, await self._read_local(nvml, self._watch.targets, {}, {}))

    async def poll(self) -> Snapshot:
        """Poll once and publish."""
        started = self._clock()
        watch = self._watch
        self._forget_others()
        asked_ticks = boot_ticks()
        found = self._finder.targets
        nvml, visits, unmasked = await asyncio.gather(
            self._poll_devices(),
            self._visit_all((*watch.targets, *found)),
            self._finder.ask(self._visit),
        )
        found += tuple(target for target, _ in unmasked if target.name not in visits)
        visits = {target.name: made for target, made in unmasked} | visits
        targets = (*watch.targets, *found)
        readings = {name: visit.reading for name, visit in visits.items() if visit.reading}
        local = await self._read_local(nvml, targets, visits, readings)
        looked = await self._look(nvml, local) if watch.discovery else ()
        processes = without_younger(local.processes, _pids_of(nvml), asked_ticks)
        if self._sources.host_pids:
            nvml, processes = withhold(nvml, processes, private=self._sources.local.private_pid_namespace)
        progress = {
            name: self._progress.get(name, Progress()).advance(
                visit.reading,
                now=self._wall_clock(),
                at=self._clock(),
                window_seconds=watch.typical_window_seconds,
            )
            for name, visit in visits.items()
        }
        joined = _join_safely(
            Inputs(
                targets=tuple(complete(target, local.launches.get(target.name)) for target in targets),
                engines=readings,
                models=local.models,
                launches=local.launches,
                devices=nvml.devices,
                processes=processes,
                custody=self._custody,
                at=self._clock(),
                typical=_typical_lengths(progress),
                fingerprints={
                    name: own.fingerprint for name, own in progress.items() if own.fingerprint is not None
                },
                awake_bytes=self._assessor.awake_bytes,
            )
        )
        outcomes = (
            *nvml.outcomes,
            *processes.outcomes,
            *(visit.outcome for visit in visits.values()),
            *joined.outcomes,
            *looked,
            *(self._sources.history.outcomes if self._sources.history else ()),
        )
        pods = self._sources.pods
        if pods is not None:
            pods.refresh()
            outcomes += pods.outcomes
        self._sequence += 1
        self._progress = progress
        self._custody = joined.custody
        self.visits = visits
        snapshot = Snapshot(
            sequence=self._sequence,
            taken_at=self._wall_clock(),
            monotonic_at=self._clock(),
            poll_seconds=self._clock() - started,
            interval_seconds=watch.interval_seconds,
            typical_window_seconds=watch.typical_window_seconds,
            share_limit_ratio=watch.share_limit_ratio,
            devices=joined.devices,
            processes=joined.processes,
            servers=tuple(
                replace(server, config_changed_at=progress[server.target.name].config_changed_at)
                for server in joined.servers
            ),
            sources=self._health.assess(outcomes, now=self._wall_clock()),
            recompute_suspected={
                (name, rank): count for name, own in progress.items() for rank, count in own.suspected.items()
            },
            pods=() if pods is None else pods.named(joined.processes),
            history=self._sources.history.state if self._sources.history else None,
            capacity_changes=self._sources.changes.changes if self._sources.changes else (),
        )
        self.snapshot = self._assessor.assess(
            snapshot,
            table=processes,
            reasons={name: visit.outcome.reason for name, visit in visits.items()},
            driver_needed=watch.driver_needed,
            pace=watch.pace,
        )
        return self.snapshot

    async def _poll_devices(self) -> NvmlReading:
        if self._sources.devices is None:
            return NvmlReading(devices=(), outcomes=())
        try:
            return await self._sources.devices.poll()
        except Exception as error:  # a bug in one source must not blind the others
            log.exception("nvml")
            outcome = _failure(Source.NVML, "driver", Reason.INTERNAL_ERROR, repr(error))
            return NvmlReading(devices=(), outcomes=(outcome,))

    async def _visit_all(self, targets: Sequence[Target]) -> dict[str, Visit]:
        visits = await asyncio.gather(*(self._visit(target) for target in targets))
        by_name = {target.name: made for target, made in zip(targets, visits, strict=True)}
        # A server that no longer answers as it did may be another engine now.
        self._adapters = {name: made.adapter if made.reading else None for name, made in by_name.items()}
        return by_name

    async def _visit(self, target: Target) -> Visit:
        return await visit(
            target,
            self._sources.pages,
            deadline_seconds=self._sources.page_deadline_seconds,
            adapter=self._adapters.get(target.name),
            clock=self._clock,
        )

    async def _look(self, nvml: NvmlReading, local: LocalReading) -> tuple[Outcome, ...]:
        """Look for servers; those that are found are visited from the next poll on."""
        private = self._sources.host_pids and self._sources.local.private_pid_namespace
        pids = [] if private else _pids_of(nvml)  # there a number may be another process's
        return await self._finder.look(pids, local.processes, self._watch.targets, private=private)

    async def _read_local(
        self,
        nvml: NvmlReading,
        targets: Sequence[Target],
        visits: Mapping[str, Visit],
        readings: Mapping[str, EngineReading],
    ) -> LocalReading:
        """Read /proc, command lines and model files in one blocking call beside the event loop."""
        pids = _pids_of(nvml)
        addresses = [
            address_of(target)
            for target in targets
            # Where nobody answers nobody listens; looked for anew, a server is found as soon as it is back.
            if target.pid is not None
            or target.home is not None
            or (target.hindrance is None and not _is_refused(visits.get(target.name)))
        ]
        try:
            return await self._sources.blocking.run(
                lambda: self._sources.local.read(pids, addresses, targets, readings),
                deadline_seconds=self._sources.blocking_deadline_seconds,
            )
        except TimeoutError as error:
            reason, detail = Reason.TIMEOUT, str(error) or "reading /proc or a model file takes too long"
        except Exception as error:
            log.exception("procfs")
            reason, detail = Reason.INTERNAL_ERROR, repr(error)
        failed = SourceError(reason, detail)
        outcomes = tuple(_failure(Source.PROCFS, address.name, reason, detail) for address in addresses)
        return LocalReading(
            processes=ProcessTable(outcomes=outcomes, reason=reason),
            models={target.name: failed for target in targets if target.model_config is not None},
        )


def _is_refused(visit: Visit | None) -> bool:
    return visit is not None and visit.outcome.reason is Reason.UNREACHABLE


def _pids_of(nvml: NvmlReading) -> list[int]:
    return sorted({process.pid for device in nvml.devices for process in device.processes})


def _typical_lengths(progress: Mapping[str, Progress]) -> dict[tuple[str, str], TypicalLength]:
    return {
        (name, rank): typical
        for name, own in progress.items()
        for rank, window in own.windows.items()
        if (typical := window.typical()) is not None
    }


def _join_safely(inputs: Inputs) -> Joined:
    """Join; a bug in it costs this poll's data and says so, never the daemon."""
    try:
        return join(inputs)
    except Exception as error:
        log.exception("join")
        return Joined(
            custody=inputs.custody,
            devices=(),
            processes=(),
            servers=(),
            outcomes=tuple(
                _failure(Source.MODEL, target.name, Reason.INTERNAL_ERROR, repr(error))
                for target in inputs.targets
            ),
        )


def _failure(source: Source, target: str, reason: Reason, detail: str) -> Outcome:
    return Outcome(source=source, target=target, reason=reason, detail=detail)
