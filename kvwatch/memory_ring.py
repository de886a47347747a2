"""What processes held of each device over the last hours: kept only where it changed, and bounded."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kvwatch.readings import ProcessTable
    from kvwatch.snapshot import DeviceState, ProcessState

RETENTION_SECONDS = 7200.0
"""A start that takes longer has no window."""
SAMPLES = 96
"""Of one process on one device; beyond that old neighbours are merged."""

ProcessKey = tuple[str, int, int | None]
"""Device, PID and start time in clock ticks, None where /proc does not tell it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was held from `at` (Unix seconds) until the next sample; None where it was not known."""

    at: float
    bytes: int | None
    most_bytes: int | None
    """More than `bytes` only where samples were merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Samples in order of time."""

    samples: tuple[Sample, ...] = ()

    def add(self, at: float, value: int | None) -> Series:
        """Return the series with one more value; one that is as before adds nothing."""
        if self.samples and self.samples[-1].bytes == value:
            return self
        return Series(samples=_bounded((*self.samples, Sample(at=at, bytes=value, most_bytes=value))))

    def since(self, at: float) -> Series:
        """Return the series without what ended before a moment."""
        first = 0
        while first + 1 < len(self.samples) and self.samples[first + 1].at <= at:
            first += 1
        return Series(samples=self.samples[first:]) if first else self

    def value_at(self, at: float) -> int | None:
        """Return what was held at a moment."""
        before = [sample for sample in self.samples if sample.at <= at]
        return before[-1].bytes if before else None

    def most_between(self, first: float, last: float) -> int | None:
        """Return the most that was seen between two moments; None where nothing was."""
        ends = [*(sample.at for sample in self.samples[1:]), float("inf")]
        seen = [
            sample.most_bytes
            for sample, end in zip(self.samples, ends, strict=False)
            if sample.at <= last and end > first and sample.most_bytes is not None
        ]
        return max(seen, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """One process on one device."""

    series: Series
    name: str = ""
    server: str = ""
    """The last server that it was matched to."""
    parent_pid: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRing:
    """The memory of all processes on all devices, whoever they are; replaced whole at each poll."""

    began_at: float | None = None
    """Unix seconds of the first poll."""
    tracks: Mapping[ProcessKey, Track] = field(default_factory=dict)
    free: Mapping[str, Series] = field(default_factory=dict)
    """Device -> its free bytes."""
    listed_since: Mapping[str, float] = field(default_factory=dict)
    """Device -> since when each poll saw its whole list of processes; absent where the last did not."""

    def advance(
        self,
        at: float,
        devices: Sequence[DeviceState],
        processes: Sequence[ProcessState],
        table: ProcessTable,
    ) -> MemoryRing:
        """Return the ring after one more poll at `at`, Unix seconds."""
        listed = {
            device.reading.uuid: self.listed_since.get(device.reading.uuid, at)
            for device in devices
            if device.reading.processes_reason is None and not device.reading.divided
        }
        tracks: dict[ProcessKey, Track] = {}
        for process in processes:
            key = self._key(process, table)
            tracks[key] = self._longer(key, process, at, table)
        for key, track in self.tracks.items():
            if key not in tracks:
                # Gone where the whole list was read; where it was not, nothing is known.
                gone = track.series.add(at, 0 if key[0] in listed else None)
                tracks[key] = replace(track, series=gone)
        start = at - RETENTION_SECONDS
        free = {device.reading.uuid: device.reading.free_bytes for device in devices}
        return MemoryRing(
            began_at=at if self.began_at is None else self.began_at,
            tracks=dict(_recent(tracks, start)),
            free={
                uuid: self.free.get(uuid, Series()).add(at, free.get(uuid)).since(start)
                for uuid in {*self.free, *free}
            },
            listed_since=listed,
        )

    def _key(self, process: ProcessState, table: ProcessTable) -> ProcessKey:
        identity = table.processes.get(process.pid)
        if identity is not None:
            return process.device, process.pid, identity.start_ticks
        # For a while /proc does not tell: it goes on as the process that it was.
        same = (key for key, track in self.tracks.items() if _may_be(key, track, process))
        return next(same, (process.device, process.pid, None))

    def _longer(self, key: ProcessKey, process: ProcessState, at: float, table: ProcessTable) -> Track:
        identity = table.processes.get(process.pid)
        known = self.tracks.get(key)
        series = Series() if known is None else known.series
        absent_since = self.listed_since.get(process.device)
        if known is None and absent_since is not None:
            series = series.add(absent_since, 0)
        return Track(
            series=series.add(at, process.used_bytes),
            name=process.name or (known.name if known else ""),
            server=process.server or (known.server if known else ""),
            parent_pid=identity.parent_pid if identity else known.parent_pid if known else None,
        )


def _may_be(key: ProcessKey, track: Track, process: ProcessState) -> bool:
    return key[:2] == (process.device, process.pid) and track.series.samples[-1].bytes != 0


def _recent(tracks: Mapping[ProcessKey, Track], start: float) -> Iterator[tuple[ProcessKey, Track]]:
    """Yield what is not over and done with since before `start`."""
    for key, track in tracks.items():
        last = track.series.samples[-1]
        if last.bytes or last.at > start:
            yield key, replace(track, series=track.series.since(start))


def _bounded(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
    """Merge the older half two by two when there are too many: their times coarsen, their peaks stay."""
    if len(samples) <= SAMPLES:
        return samples
    half = len(samples) // 4 * 2
    merged: list[Sample] = []
    for first, second in zip(samples[:half:2], samples[1:half:2], strict=True):
        known = [most for most in (first.most_bytes, second.most_bytes) if most is not None]
        merged.append(replace(first, most_bytes=max(known, default=None)))
    return (*merged, *samples[half:])
