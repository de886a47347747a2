"""A server's start as the device memory series around it show it: who else grew meanwhile. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch import metrics
from kvwatch.observation import Neighbour, StartWindow

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kvwatch.triage.prometheus_series import Series

LONGEST_START_SECONDS = 1800.0
"""A server that shows no pool so long after its process began: nothing is said about that start."""

LOOK_BEFORE_SECONDS = 120.0
"""How old a sample may be that tells what was held when the process began."""

START_FAMILIES = (
    metrics.PROCESS_INFO.name,
    metrics.PROCESS_MEMORY.name,
    metrics.SERVER_DEVICE_MEMORY.name,
    metrics.DEVICE_FREE.name,
    metrics.DEVICE_LEDGER.name,
    metrics.KV_CAPACITY_BLOCKS.name,
)
"""What is asked of the time around a start, of all servers on the devices."""

_OTHER = "other"
"""The ledger's word for processes of no known server."""

Samples = dict[float, float]
"""Unix seconds -> value."""


def start_windows(
    server: str,
    started_at: float,
    own: Sequence[Series],
    near: Sequence[Series],
    *,
    step_seconds: float,
) -> list[StartWindow]:
    """Return a start's windows, one a device; none where no page with a pool is seen in time.

    Args:
        server: the server's name, as its series carry it.
        started_at: Unix seconds.
        own: series of the server itself.
        near: series of everything on its devices, the server included.
        step_seconds: between evaluations; a sample may be as much older than it says.

    """
    pool_seen = [
        at
        for one in own
        if one.name == metrics.KV_CAPACITY_BLOCKS.name
        for at, _ in one.samples
        if started_at + step_seconds <= at <= started_at + LONGEST_START_SECONDS
    ]
    if not pool_seen:
        return []
    ready_at = min(pool_seen)
    devices = sorted(
        {
            one.labels.get("device", "")
            for one in own
            if one.name == metrics.SERVER_DEVICE_MEMORY.name
            and any(started_at <= at <= ready_at for at, _ in one.samples)
        }
    )
    windows = []
    for device in devices:
        close = [_clipped(one, started_at, ready_at) for one in near if one.labels.get("device") == device]
        moments = sorted({at for samples, _ in close for at in samples})
        # What was held when the process began is told by the last look before, else by the first one after.
        before = [at for at in moments if at <= started_at]
        moments = moments[max(0, len(before) - 1) :]
        if not moments or moments[-1] <= started_at:
            continue
        here = [({at: samples[at] for at in moments if at in samples}, one) for samples, one in close]
        free = _merged(samples for samples, one in here if one.name == metrics.DEVICE_FREE.name)
        windows.append(
            StartWindow(
                server=server,
                device=device,
                started_at=started_at,
                ready_at=ready_at,
                seen_from=max(started_at, moments[0]),
                free_first_bytes=_bytes(free.get(min(free))) if free else None,
                free_last_bytes=_bytes(free.get(max(free))) if free else None,
                neighbours=_neighbours(server, here, moments),
            )
        )
    return windows


def _clipped(one: Series, started_at: float, ready_at: float) -> tuple[Samples, Series]:
    begins = started_at - LOOK_BEFORE_SECONDS
    return {at: value for at, value in one.samples if begins <= at <= ready_at}, one


def _neighbours(
    server: str, here: Sequence[tuple[Samples, Series]], moments: Sequence[float]
) -> tuple[Neighbour, ...]:
    """Return the other processes of a device, or what is left to tell of them."""
    memory = {
        one.labels.get("pid", ""): samples for samples, one in here if one.name == metrics.PROCESS_MEMORY.name
    }
    seen: dict[str, tuple[Samples, Mapping[str, str]]] = {}
    for samples, one in here:
        if one.name == metrics.PROCESS_INFO.name and samples:
            before = seen.get(one.labels.get("pid", ""), ({}, {}))[0]
            seen[one.labels.get("pid", "")] = ({**before, **samples}, one.labels)
    if seen:
        return tuple(
            _neighbour(
                presence=presence,
                held=memory.get(pid, {}),
                moments=moments,
                server=labels.get("server", ""),
                name=labels.get("name", ""),
                pid=int(pid) if pid.isdecimal() else 0,
            )
            for pid, (presence, labels) in sorted(seen.items())
            # An earlier life of the server that had not gone yet is a neighbour too.
            if labels.get("server", "") != server or moments[-1] not in presence
        )
    return (*_other_servers(server, here, moments), *_nobodys(here, moments))


def _other_servers(
    server: str, here: Sequence[tuple[Samples, Series]], moments: Sequence[float]
) -> Iterator[Neighbour]:
    """Yield whole servers, each of their lives apart: a restart drops most of what they hold."""
    for samples, one in here:
        name = one.labels.get("server", "")
        if one.name != metrics.SERVER_DEVICE_MEMORY.name or name == server:
            continue
        for life in _lives(samples):
            yield _neighbour(presence=life, held=life, moments=moments, server=name, name="", pid=0)


def _nobodys(here: Sequence[tuple[Samples, Series]], moments: Sequence[float]) -> Iterator[Neighbour]:
    """Yield what is no known server's: as the ledger has it, else what is missing from the free memory."""
    ledger = _merged(
        samples
        for samples, one in here
        if one.name == metrics.DEVICE_LEDGER.name and one.labels.get("component") == _OTHER
    )
    if ledger:
        yield _neighbour(presence=ledger, held=ledger, moments=moments, server="", name=_OTHER, pid=0)
        return
    free = _merged(samples for samples, one in here if one.name == metrics.DEVICE_FREE.name)
    servers = [samples for samples, one in here if one.name == metrics.SERVER_DEVICE_MEMORY.name]
    if moments[0] not in free or moments[-1] not in free:
        return
    taken = free[moments[0]] - free[moments[-1]]
    taken -= sum(samples.get(moments[-1], 0.0) - samples.get(moments[0], 0.0) for samples in servers)
    if taken > 0:
        bytes_taken = round(taken)
        yield Neighbour(
            server="", name=_OTHER, pid=0, first_bytes=0, last_bytes=bytes_taken, most_bytes=bytes_taken
        )


def _lives(samples: Samples) -> Iterator[Samples]:
    life: Samples = {}
    for at, value in sorted(samples.items()):
        if life and value < max(life.values()) / 2:
            yield life
            life = {}
        life[at] = value
    if life:
        yield life


def _neighbour(
    *, presence: Samples, held: Samples, moments: Sequence[float], server: str, name: str, pid: int
) -> Neighbour:
    """Return one neighbour: 0 where it was not there, None where it was and what it held is not known."""

    def at(moment: float) -> int | None:
        return _bytes(held.get(moment)) if moment in presence else 0

    return Neighbour(
        server=server,
        name=name,
        pid=pid,
        first_bytes=at(moments[0]),
        last_bytes=at(moments[-1]),
        most_bytes=_bytes(max(held.values())) if held else None,
    )


def _merged(parts: Iterable[Samples]) -> Samples:
    result: Samples = {}
    for part in parts:
        result.update(part)
    return result


def _bytes(value: float | None) -> int | None:
    return None if value is None else round(value)
