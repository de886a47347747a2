"""What happened on a server's devices while it started or woke: cut out of the ring of samples."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.observation import Neighbour, StartWindow

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from kvwatch.memory_ring import MemoryRing, ProcessKey

NEIGHBOURS = 16
"""Of one window: those that grew most, then those that held most."""


def cut_windows(
    ring: MemoryRing,
    *,
    server: str,
    own: Collection[ProcessKey],
    started_at: float,
    ready_at: float,
    woke: bool = False,
) -> tuple[StartWindow, ...]:
    """Return the window on each device that the server's processes are on.

    `own` are its present processes; an earlier life of the same server that was still there is a neighbour.
    """
    seen_from = started_at if ring.began_at is None else max(started_at, ring.began_at)
    pids = {pid for _, pid, _ in own}
    windows = []
    for device in sorted({device for device, _, _ in own}):
        neighbours = _neighbours(ring, device, own, pids, seen_from, ready_at)
        free = ring.free.get(device)
        windows.append(
            StartWindow(
                server=server,
                device=device,
                started_at=started_at,
                ready_at=ready_at,
                seen_from=seen_from,
                free_first_bytes=None if free is None else free.value_at(seen_from),
                free_last_bytes=None if free is None else free.value_at(ready_at),
                neighbours=tuple(sorted(neighbours, key=_weight, reverse=True)[:NEIGHBOURS]),
                woke=woke,
            )
        )
    return tuple(windows)


def _neighbours(
    ring: MemoryRing,
    device: str,
    own: Collection[ProcessKey],
    own_pids: Collection[int],
    first: float,
    last: float,
) -> Iterator[Neighbour]:
    for key, track in ring.tracks.items():
        # A child that the server started and that has ended is none of its neighbours.
        if key[0] != device or key in own or track.parent_pid in own_pids:
            continue
        series = track.series
        if series.samples[0].at > last:
            continue
        most = series.most_between(first, last)
        if most == 0:
            continue  # it had gone before, or came with nothing
        yield Neighbour(
            server=track.server,
            name=track.name,
            pid=key[1],
            first_bytes=series.value_at(first),
            last_bytes=series.value_at(last),
            most_bytes=most,
        )


def _weight(neighbour: Neighbour) -> tuple[int, int]:
    return neighbour.grew_bytes or 0, neighbour.most_bytes or 0
