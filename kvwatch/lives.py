"""The lives of servers: when each started, fell asleep and woke, with which pool, and who grew meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.memory_ring import RETENTION_SECONDS, MemoryRing
from kvwatch.observation import is_same_start
from kvwatch.readings import ProcessTable, Reason
from kvwatch.shares import gave_memory_back
from kvwatch.start_windows import cut_windows

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from kvwatch.memory_ring import ProcessKey
    from kvwatch.observation import StartWindow
    from kvwatch.snapshot import DeviceState, ProcessState, ServerState

WINDOWS = 8
"""The last starts and wakings that are kept of one server."""
POOLS = 8
"""The last pools that are remembered of one server."""
_SAME_STATED_SECONDS = 0.5
"""A process states the same moment all its life."""
_PLACING_SECONDS = 60.0
"""So long after a start its processes may be found; then it is on no device that is seen."""
_NOT_UP = (Reason.UNREACHABLE, Reason.LOADING)
"""Why a server that is starting does not answer; any other reason says nothing about that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Poolsize:
    """The pool of one start, and under which settings it came about."""

    ready_at: float
    """Unix seconds."""
    setup: tuple[object, ...]
    """What decides the pool, as far as it is known; equal for equal flags, versions, models, cards."""
    sizes: Mapping[str, int]
    """Rank -> blocks, or cells of a llama-server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A start or a waking that is over and has no window yet; both moments are Unix seconds."""

    began_at: float
    ready_at: float
    woke: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One server from its start until its end."""

    listeners: frozenset[tuple[int, int]] = frozenset()
    """(PID, start ticks) of what listens; empty where not known."""
    started_at: float | None = None
    """Unix seconds."""
    stated_start: float | None = None
    """Unix seconds of its start as its own page states it."""
    ready: bool = False
    measured: bool = False
    """Its pool is among those remembered."""
    start: Start | None = None
    """To be cut out as soon as it is known which processes are the server's."""
    asleep_at: float | None = None
    """Unix seconds when it was last seen asleep; None when it is awake."""
    awake_bytes: Mapping[str, int] | None = None
    """Device -> the most that it held there awake; None before it was seen awake."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lives:
    """All servers' lives, and the ring of samples; replaced whole at each poll."""

    ring: MemoryRing = field(default_factory=MemoryRing)
    present: Mapping[str, Life] = field(default_factory=dict)
    windows: tuple[StartWindow, ...] = ()
    """In order of time."""
    pools: Mapping[str, tuple[Poolsize, ...]] = field(default_factory=dict)
    """Server -> the pools of its last starts, the present one last."""

    @property
    def awake_bytes(self) -> dict[str, Mapping[str, int]]:
        """Return what each server held when it was awake, where that was seen."""
        return {name: life.awake_bytes for name, life in self.present.items() if life.awake_bytes is not None}

    def advance(
        self,
        now: float,
        *,
        servers: Sequence[ServerState],
        devices: Sequence[DeviceState],
        processes: Sequence[ProcessState],
        table: ProcessTable,
        reasons: Mapping[str, Reason | None],
    ) -> Lives:
        """Return the lives after one more poll at `now`, Unix seconds.

        `reasons` says by server why it does not answer.
        """
        first_poll = self.ring.began_at is None
        ring = self.ring.advance(now, devices, processes, table)
        present = {name: life for name, life in self.present.items() if name in reasons}
        windows: list[StartWindow] = []
        pools = {name: kept for name, kept in self.pools.items() if name in reasons}
        for server in servers:
            name = server.target.name
            life, before = _life(server, table), self.present.get(name)
            if server.reading is None:
                present[name] = _unanswered(before, life, reasons.get(name))
                continue
            began = _began(before, life, ring=ring, first_poll=first_poll, now=now)
            woke = _woke_from(before, life, server)
            continues = before is not None and _same(before, life)
            present[name] = _lived_on(before if continues else None, life, server, now)
            if gave_memory_back(server):
                continue
            start = present[name].start
            if began is not None:
                start = Start(began_at=began, ready_at=now, woke=False)
            elif woke is not None:
                start = Start(began_at=woke, ready_at=now, woke=True)
            if start is not None:
                cut = cut_windows(
                    ring,
                    server=name,
                    own=_own(name, processes, ring),
                    started_at=start.began_at,
                    ready_at=start.ready_at,
                    woke=start.woke,
                )
                windows += cut
                over = cut or now - start.ready_at > _PLACING_SECONDS
                present[name] = replace(present[name], start=None if over else start)
            if not present[name].measured or woke is not None:
                size = _poolsize(server, devices, now)
                pools[name] = (*pools.get(name, ()), *size)[-POOLS:]
                present[name] = replace(present[name], measured=bool(size))
        return Lives(
            ring=ring,
            present=present,
            windows=_last_of_each((*self.windows, *windows), set(reasons)),
            pools=pools,
        )


def _life(server: ServerState, table: ProcessTable) -> Life:
    """Return what the present poll says of a server's identity."""
    listeners = frozenset(
        (pid, table.processes[pid].start_ticks)
        for pid in table.listeners.get(server.target.name, ())
        if pid in table.processes
    )
    stated = None if server.reading is None else server.reading.start_timestamp_seconds
    return Life(listeners=listeners, started_at=server.started_at, stated_start=stated)


def _same(before: Life, now: Life) -> bool:
    """Tell whether both are one life; what is not known does not tell them apart.

    A page states its process's start as it was computed then, whatever the clock was set to since; and what
    listens may be a proxy, which outlives the server behind it.
    """
    if before.stated_start is not None and now.stated_start is not None:
        return abs(before.stated_start - now.stated_start) <= _SAME_STATED_SECONDS
    if before.listeners and now.listeners:
        return bool(before.listeners & now.listeners)
    return is_same_start(before.started_at, now.started_at)


def _unanswered(before: Life | None, life: Life, reason: Reason | None) -> Life:
    if before is not None and _same(before, life):
        return before
    # Seen for the first time, it may have been ready for long, unless it is certainly not up.
    return replace(life, ready=before is None and reason not in _NOT_UP)


def _began(
    before: Life | None, life: Life, *, ring: MemoryRing, first_poll: bool, now: float
) -> float | None:
    """Return when a start began that has ended with this poll; None where none was watched."""
    started, watched_from = life.started_at, ring.began_at
    if started is None or watched_from is None or first_poll or now - started > RETENTION_SECONDS:
        return None
    if before is not None and _same(before, life):
        return None if before.ready else started
    return started if started >= watched_from else None


def _woke_from(before: Life | None, life: Life, server: ServerState) -> float | None:
    """Return when a server that is awake was last seen asleep, in the poll before."""
    if before is None or gave_memory_back(server) or not _same(before, life):
        return None
    return before.asleep_at


def _lived_on(before: Life | None, life: Life, server: ServerState, now: float) -> Life:
    """Return the life after a poll in which the server answered; `before` is None for a new one."""
    life = replace(
        life,
        listeners=life.listeners or (before.listeners if before else frozenset()),
        started_at=life.started_at if life.started_at is not None or before is None else before.started_at,
        stated_start=life.stated_start or (before.stated_start if before else None),
        awake_bytes=before.awake_bytes if before else None,
        ready=True,
        measured=before is not None and before.measured,
        start=None if before is None else before.start,
    )
    if gave_memory_back(server):
        return replace(life, asleep_at=now)
    known = {device: held for device, held in server.device_bytes.items() if held is not None}
    if len(known) < len(server.device_bytes):
        return life
    earlier = life.awake_bytes or {}
    most = {device: max(known.get(device, 0), earlier.get(device, 0)) for device in {*known, *earlier}}
    return replace(life, awake_bytes=most)


def _own(server: str, processes: Sequence[ProcessState], ring: MemoryRing) -> frozenset[ProcessKey]:
    places = {
        (process.device, process.pid)
        for process in processes
        if process.server == server and not process.orphan
    }
    return frozenset(
        key for key, track in ring.tracks.items() if key[:2] in places and track.series.samples[-1].bytes != 0
    )


def _poolsize(server: ServerState, devices: Sequence[DeviceState], now: float) -> tuple[Poolsize, ...]:
    """Return the pool of a server that has just become ready; nothing where a rank's is not known."""
    sizes = {rank.reading.rank: _size(server, index) for index, rank in enumerate(server.ranks)}
    known = {rank: size for rank, size in sizes.items() if size is not None}
    if not known or len(known) < len(sizes) or server.fingerprint is None or server.reading is None:
        return ()
    target = server.target
    totals = sorted(
        device.reading.total_bytes or 0 for device in devices if device.reading.uuid in server.device_bytes
    )
    setup = (
        server.fingerprint,
        server.reading.version,
        server.reading.model,
        server.model_hash,
        server.full_length_tokens,
        server.cache_dtype,
        server.share_ratio,
        server.pin_bytes,
        target.request_limit,
        target.max_num_batched_tokens,
        target.tensor_parallel,
        target.pipeline_parallel,
        *totals,
    )
    return (Poolsize(ready_at=now, setup=setup, sizes=known),)


def _size(server: ServerState, index: int) -> int | None:
    rank = server.ranks[index]
    if rank.reading.slots is not None:
        return server.target.pool_tokens
    return rank.reading.num_blocks


def _last_of_each(windows: Sequence[StartWindow], names: Collection[str]) -> tuple[StartWindow, ...]:
    """Keep the last starts of each watched server; the devices of one start count once."""
    kept: set[tuple[str, float]] = set()
    for name in names:
        moments = sorted({window.ready_at for window in windows if window.server == name})
        kept |= {(name, moment) for moment in moments[-WINDOWS:]}
    return tuple(window for window in windows if (window.server, window.ready_at) in kept)
