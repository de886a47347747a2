"""Processes as /proc tells them: identity, start time, ancestors. The root is injected."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.readings import ProcessIdentity
from kvwatch.sources.traits import read_traits

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kvwatch.sources.traits import TraitCache

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_STAT_BYTES = 4096  # 52 numbers and a name of at most 64 characters


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    """The fields of /proc/PID/stat that are used here (proc(5))."""

    name: str
    state: str
    parent_pid: int
    threads: int
    start_ticks: int

    @property
    def exited(self) -> bool:
        """Whether nothing of it runs any more; a zombie leader may have threads that still do."""
        return self.state in {"Z", "X", "x"} and self.threads <= 1


def parse_stat(data: bytes) -> ProcessStat | None:
    """Read one /proc/PID/stat; None where it is not one. The name may hold spaces and parentheses."""
    _, opened, rest = data.partition(b"(")
    name, closed, tail = rest.rpartition(b")")
    fields = tail.split()
    if not (opened and closed):
        return None
    try:
        return ProcessStat(
            name=name.decode(errors="replace"),
            state=fields[0].decode(errors="replace"),
            parent_pid=int(fields[1]),
            threads=int(fields[17]),
            start_ticks=int(fields[19]),
        )
    except (IndexError, ValueError):
        return None


def read_stat(root: Path, pid: int) -> ProcessStat | None:
    """Read a process's stat; None where there is no such process or it is hidden."""
    try:
        # Read twice per process and poll: a buffered Path costs double.
        with open(f"{root}/{pid}/stat", "rb", buffering=0) as stat:  # noqa: PTH123
            return parse_stat(stat.read(_STAT_BYTES))
    except OSError:
        return None


def read_user(root: Path, pid: int) -> int | None:
    """Return the effective user of a process, as everybody may read it; None where it is gone or hidden.

    The owner of /proc/PID will not do: root owns the folder of a process that must not be dumped (proc(5)).
    """
    try:
        with open(f"{root}/{pid}/status", "rb", buffering=0) as status:  # noqa: PTH123 - as `read_stat`
            for line in status.read(_STAT_BYTES).splitlines():
                if line.startswith(b"Uid:"):
                    return int(line.split()[2])
    except (OSError, IndexError, ValueError):
        return None
    return None


def read_identity(
    root: Path, pid: int, boot_time: int | None, cache: TraitCache | None = None
) -> ProcessIdentity | None:
    """Identify a process; None where it is gone, hidden, or replaced by another while it was read.

    `boot_time` is in whole Unix seconds, so `started_at` may be early by up to one second.
    """
    stat = read_stat(root, pid)
    if stat is None:
        return None
    traits = None if cache is None else cache.get(pid, stat.start_ticks, stat.name)
    if traits is None:
        traits = read_traits(root, pid, stat.name)
        again = read_stat(root, pid)
        if again is None or again.start_ticks != stat.start_ticks:
            return None
        if cache is not None and again.name == stat.name:
            cache.keep(pid, stat.start_ticks, stat.name, traits)
        stat = again
    place = traits.placement
    return ProcessIdentity(
        pid=pid,
        start_ticks=stat.start_ticks,
        parent_pid=stat.parent_pid,
        name=stat.name,
        started_at=None if boot_time is None else boot_time + stat.start_ticks / _TICKS_PER_SECOND,
        executable=traits.executable,
        role=traits.role,
        container=place.container,
        pod_uid=place.pod_uid,
        unit=place.unit,
        group=place.group,
    )


def add_lineage(
    processes: dict[int, ProcessIdentity],
    root: Path,
    pids: Iterable[int],
    boot_time: int | None,
    cache: TraitCache | None = None,
) -> None:
    """Add to `processes` those of `pids` that exist, and all their ancestors."""
    for first in pids:
        pid, child = first, None
        while pid > 0 and pid not in processes:
            identity = read_identity(root, pid, boot_time, cache)
            if child is not None and (identity is None or identity.start_ticks > child.start_ticks):
                # No parent is younger than its child: the parent died, and its number may serve another.
                identity = read_identity(root, child.pid, boot_time, cache)
                if identity is None or identity.parent_pid == child.parent_pid:
                    break
            if identity is None:
                break
            processes[identity.pid] = child = identity
            pid = identity.parent_pid


def boot_ticks() -> int:
    """Return the time in the unit and from the moment that start times have."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * _TICKS_PER_SECOND)


def read_boot_time(root: Path) -> int | None:
    """Read `btime` of /proc/stat in whole Unix seconds; None where it is not there."""
    try:
        with (root / "stat").open("rb") as lines:
            for line in lines:
                if line.startswith(b"btime "):
                    return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return None
