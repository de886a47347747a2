"""Polls become minutes: one row for each server and rank. Pure: the snapshots bring both clocks along."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.history.counters import LONGEST_GAP_SECONDS, RankCounters, totals_of
from kvwatch.history.minute import Building
from kvwatch.history.setups import setup_of
from kvwatch.observation import is_same_start
from kvwatch.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.history.minute import Minute
    from kvwatch.snapshot import DeviceState, ServerState

MINUTE_SECONDS = 60


def step_seconds(interval_seconds: float) -> int:
    """Return the length of a step: a minute, or as many whole ones as hold a poll."""
    return MINUTE_SECONDS * max(1, math.ceil(interval_seconds / MINUTE_SECONDS))


@dataclass(slots=True)
class _Watched:
    """What is remembered of a server between polls."""

    looked_at: float
    """Monotonic seconds of the last poll that tried it, answering or not."""
    clock: float
    """The wall clock less the monotonic one, then."""
    started_at: float | None = None
    ranks: dict[str, RankCounters] = field(default_factory=dict)

    def is_same_start(self, started_at: float | None, clock: float) -> bool:
        """Tell whether a start is the last one; those of /proc move along when the wall clock is set."""
        moved = None if self.started_at is None else self.started_at + clock - self.clock
        return is_same_start(self.started_at, started_at) or is_same_start(moved, started_at)


class Recorder:
    """Fold snapshots into minutes; what is recorded in a poll belongs to the minute in which the poll ended.

    A gain counts in the minute of the later of the two polls it lies between, so that all gains add up to
    what the counters gained. Minutes are those of the wall clock. When it jumps, the open minute ends: a
    forward jump leaves a hole; after a backward one the same minutes come again, and the store keeps those
    that it has.
    """

    def __init__(self, *, step: int = MINUTE_SECONDS) -> None:
        self._step = step
        self._at: int | None = None
        self._open: dict[tuple[str, str], Building] = {}
        self._servers: dict[str, _Watched] = {}

    def record(self, snapshot: Snapshot) -> tuple[Minute, ...]:
        """Add one poll; return the minutes that are over."""
        at = math.floor(snapshot.taken_at / self._step) * self._step
        closed: tuple[Minute, ...] = ()
        if at != self._at:
            closed = self.flush()
            self._at = at
        longest_gap = max(LONGEST_GAP_SECONDS, Snapshot.STALE_INTERVALS * snapshot.interval_seconds)
        for server in snapshot.servers:
            self._record_server(server, snapshot, longest_gap)
        now = snapshot.monotonic_at
        self._servers = {
            name: watched for name, watched in self._servers.items() if now - watched.looked_at <= longest_gap
        }
        return closed

    def flush(self) -> tuple[Minute, ...]:
        """End the open minute; return it, of all servers."""
        at, buildings = self._at, self._open
        self._at, self._open = None, {}
        if at is None:
            return ()
        return tuple(
            building.minute(server, rank, float(at), float(self._step))
            for (server, rank), building in sorted(buildings.items())
        )

    def _record_server(self, server: ServerState, snapshot: Snapshot, longest_gap: float) -> None:
        name, now = server.target.name, snapshot.monotonic_at
        clock = snapshot.taken_at - now
        watched = self._servers.setdefault(name, _Watched(looked_at=now, clock=clock))
        if server.reading is not None:
            same = watched.is_same_start(server.started_at, clock)
            if watched.started_at is None or not is_same_start(watched.started_at, server.started_at):
                watched.started_at = server.started_at
            driver = _driver(server, snapshot.devices)
            for rank in server.ranks:
                own = rank.reading.rank
                watched.ranks[own], gains = watched.ranks.get(own, RankCounters()).advance(
                    totals_of(rank.reading, snapshot.recompute_suspected.get((name, own))),
                    at=now,
                    looked_at=watched.looked_at,
                    restarted=not same,
                    longest_gap_seconds=longest_gap,
                )
                building = self._open.get((name, own))
                if building is None:
                    building = Building(first_at=snapshot.taken_at, last_at=snapshot.taken_at)
                    self._open[name, own] = building
                building.add(
                    at=snapshot.taken_at,
                    server=server,
                    rank=rank,
                    setup=setup_of(server, rank, driver),
                    gains=gains,
                    started_at=watched.started_at,
                    restarted=not same,
                )
        watched.looked_at, watched.clock = now, clock


def _driver(server: ServerState, devices: Sequence[DeviceState]) -> str | None:
    """Return the driver's version where the server's devices are; a machine has one."""
    own = [device.reading for device in devices if device.reading.uuid in server.device_bytes]
    versions = {reading.driver for reading in own if reading.driver is not None}
    return versions.pop() if len(versions) == 1 else None
