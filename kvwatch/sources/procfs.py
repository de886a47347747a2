"""The processes behind the GPUs and the servers: who they are, their ancestors, and who listens for whom.

Nothing here is asynchronous: the poller runs it in a thread. Every answer is tied to a process by
(PID, start time), and what is known is only looked up again when something changed.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.readings import Outcome, ProcessIdentity, ProcessTable, Reason, Source, SourceError
from kvwatch.sources.processes import add_lineage, read_boot_time, read_stat
from kvwatch.sources.sockets import (
    Address,
    SocketHolder,
    find_holders,
    listening_sockets,
    local_addresses,
    serving_inodes,
    still_holds,
)
from kvwatch.sources.traits import TraitCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvwatch.readings import Home
    from kvwatch.sources.sockets import HolderWalk
    from kvwatch.target import Target

_PROC = Path("/proc")
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"  # PROC_PID_INIT_INO, include/linux/proc_ns.h
_MAX_DESCRIPTORS = 1_000_000  # a few seconds of walking; far beyond any GPU node seen
_BOOT_TIME_FLICKER_SECONDS = 1  # btime is truncated, so it may move by one while the clock stands still


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerAddress:
    """Where a server is reached, and its PID where the configuration or discovery gave it."""

    name: str
    host: str
    port: int
    pid: int | None = None
    start_ticks: int | None = None
    """Of that process, where discovery found it: then its number alone is no proof."""
    home: Home | None = None
    """The container or systemd service that its processes are in, where the configuration says so."""


def address_of(target: Target) -> ServerAddress:
    """Return where a target's process is to be looked for."""
    return ServerAddress(
        name=target.name,
        host=target.host,
        port=target.port,
        pid=target.pid,
        start_ticks=target.start_ticks,
        home=target.home,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """What the last scan found for one server on this machine."""

    server: ServerAddress
    addresses: tuple[Address, ...]
    holders: tuple[SocketHolder, ...] = ()
    reason: Reason | None = None
    detail: str = ""
    settled: bool = False
    """Nothing is left to be found out until something changes."""


class ProcfsSource:
    """Read the processes of interest from /proc.

    One read at a time: it keeps what it found. A full scan (socket tables and all descriptors) happens
    at once for a server never looked for or whose listeners are all gone, and otherwise every
    `rescan_seconds` while a server is unresolved, has lost one of several listeners, or processes have
    come to the GPUs.
    """

    def __init__(
        self,
        *,
        root: Path = _PROC,
        clock: Callable[[], float] = time.monotonic,
        rescan_seconds: float = 30.0,
    ) -> None:
        self._root = root
        self._clock = clock
        self._rescan_seconds = rescan_seconds
        self._findings: dict[str, _Finding] = {}
        self._scanned_at: float | None = None
        self._gpu_processes: frozenset[tuple[int, int]] = frozenset()
        self._boot_time: int | None = None
        self._boot_time_read_at: float | None = None
        self._traits = TraitCache(root)

    @property
    def private_pid_namespace(self) -> bool | None:
        """Whether PIDs here are not the host's, so that absences prove nothing; None where unknown."""
        try:
            link = str((self._root / "self" / "ns" / "pid").readlink())
        except OSError:
            return None
        return link != _INITIAL_PID_NAMESPACE if link.startswith("pid:[") else None

    def read(self, gpu_pids: Iterable[int], servers: Sequence[ServerAddress]) -> ProcessTable:
        """Identify the GPU processes and the servers' listeners, all with their ancestors.

        A server on another machine has neither listeners nor an outcome. One whose listener is not
        known has no entry in `listeners`, and an outcome that says why.
        """
        started = self._clock()
        boot_time = self._read_boot_time(started)
        processes: dict[int, ProcessIdentity] = {}
        gpu_pids = tuple(gpu_pids)
        add_lineage(processes, self._root, gpu_pids, boot_time, self._traits)
        self._find_listeners(
            {server: local_addresses(server.host) for server in servers if server.pid is None},
            frozenset((pid, processes[pid].start_ticks) for pid in gpu_pids if pid in processes),
        )
        listeners: dict[str, tuple[int, ...]] = {}
        outcomes: list[Outcome] = []
        for server in servers:
            if server.pid is not None:
                add_lineage(processes, self._root, (server.pid,), boot_time, self._traits)
                reason, detail = self._judge_configured(server.pid, processes, server.start_ticks)
                pids: tuple[int, ...] = () if reason else (server.pid,)
            elif server.name in self._findings:
                finding = self._findings[server.name]
                holder_pids = (holder.pid for holder in finding.holders)
                add_lineage(processes, self._root, holder_pids, boot_time, self._traits)
                pids = _living(finding.holders, processes)
                reason, detail = finding.reason, finding.detail
                if reason is None and not pids:
                    reason, detail = Reason.NOT_FOUND, "the listening process ended during this reading"
            elif server.home is not None:
                pids = ()
                reason, detail = self._judge_home(server.home, gpu_pids, processes)
            else:
                continue
            if pids:
                listeners[server.name] = pids
            outcomes.append(Outcome(source=Source.PROCFS, target=server.name, reason=reason, detail=detail))
        self._traits.forget_except(processes.values())
        duration = self._clock() - started
        return ProcessTable(
            processes=processes,
            listeners=listeners,
            configured=frozenset(
                server.name for server in servers if server.pid is not None and server.start_ticks is None
            ),
            homes={server.name: server.home for server in servers if server.home is not None},
            hidden=frozenset(pid for pid in gpu_pids if pid not in processes and self._is_hidden(pid)),
            outcomes=tuple(replace(outcome, duration_seconds=duration) for outcome in outcomes),
        )

    @staticmethod
    def _judge_home(
        home: Home, gpu_pids: Iterable[int], processes: Mapping[int, ProcessIdentity]
    ) -> tuple[Reason | None, str]:
        """Say that none of a server's processes was seen where its configuration says they are."""
        if any(home.holds(processes[pid]) for pid in gpu_pids if pid in processes):
            return None, ""
        return Reason.NOT_FOUND, f"no process that holds a GPU is in {home}"

    def _is_hidden(self, pid: int) -> bool:
        """Tell whether a process exists though /proc does not show it (proc(5), hidepid)."""
        if self._root != _PROC or read_stat(self._root, pid) is not None:
            return False
        try:
            os.kill(pid, 0)  # sends nothing
        except PermissionError:
            return True
        except OSError:
            return False
        return True

    def _judge_configured(
        self, pid: int, processes: Mapping[int, ProcessIdentity], start_ticks: int | None
    ) -> tuple[Reason | None, str]:
        """Say what is wrong with a PID that was given; None and no words where it is alive."""
        stat = read_stat(self._root, pid)
        if stat is None or pid not in processes:
            return Reason.NOT_FOUND, f"process {pid} does not exist, or /proc hides it (hidepid)"
        if start_ticks not in (None, processes[pid].start_ticks):
            return Reason.NOT_FOUND, f"process {pid} has ended, and another one has its number"
        if stat.exited:
            return Reason.NOT_FOUND, f"process {pid} has exited and waits to be reaped"
        return None, ""

    def _find_listeners(
        self, here: Mapping[ServerAddress, tuple[Address, ...]], gpu_processes: frozenset[tuple[int, int]]
    ) -> None:
        """Bring the findings up to date: verify the known ones, and scan if one must or may."""
        here = {server: addresses for server, addresses in here.items() if addresses}
        arrived = bool(gpu_processes - self._gpu_processes)
        self._gpu_processes = gpu_processes
        now = self._clock()
        verified: dict[str, _Finding] = {}
        urgent = False
        for server, addresses in here.items():
            known = self._findings.get(server.name)
            if known is None or (known.server, known.addresses) != (server, addresses):
                urgent = True
                continue
            holders = tuple(holder for holder in known.holders if still_holds(self._root, holder))
            urgent = urgent or bool(known.holders and not holders)
            settled = known.settled and holders == known.holders and not arrived
            verified[server.name] = replace(known, holders=holders, settled=settled)
        pending = any(not finding.settled for finding in verified.values())
        rested = self._scanned_at is None or now - self._scanned_at >= self._rescan_seconds
        if urgent or (pending and rested):
            self._scanned_at = now
            for name, finding in self._scan(here).items():
                before = verified.get(name)
                # A scan that saw too little does not undo what has just been verified.
                if finding.holders or before is None or not before.holders:
                    verified[name] = finding
        self._findings = verified

    def _scan(self, here: Mapping[ServerAddress, tuple[Address, ...]]) -> dict[str, _Finding]:
        """Look for the listeners of all servers in the socket tables and the descriptors of all processes.

        The tables are those of our own network namespace: a local address leads nowhere else.
        """
        try:
            sockets = listening_sockets(self._root, {server.port for server in here})
        except SourceError as error:
            return {
                server.name: _Finding(
                    server=server, addresses=addresses, reason=error.reason, detail=error.detail
                )
                for server, addresses in here.items()
            }
        wanted = {
            server: serving_inodes(sockets, addresses, server.port) for server, addresses in here.items()
        }
        walk = find_holders(self._root, frozenset().union(*wanted.values()), max_descriptors=_MAX_DESCRIPTORS)
        return {
            server.name: self._conclude(server, addresses, wanted[server], walk)
            for server, addresses in here.items()
        }

    def _conclude(
        self,
        server: ServerAddress,
        addresses: tuple[Address, ...],
        inodes: frozenset[int],
        walk: HolderWalk,
    ) -> _Finding:
        """Say for one server what a scan has shown, and where it fell short why."""
        holders = tuple(holder for holder in walk.holders if holder.inode in inodes)
        orphans = len(inodes - {holder.inode for holder in holders})
        where = f"port {server.port} of {server.host}"
        reason, detail = None, ""
        if not inodes:
            reason, detail = Reason.NOT_FOUND, f"nothing listens on {where} in this network namespace"
        elif not walk.complete:
            reason = Reason.TOO_LARGE
            detail = f"gave up on {where} after {_MAX_DESCRIPTORS} descriptors; configure the server's pid"
        elif orphans:
            missing = f"{orphans} of {len(inodes)} sockets on {where} belong to processes that cannot be seen"
            if self.private_pid_namespace and not walk.unreadable_processes:
                reason = Reason.NAMESPACE
                detail = f"{missing}; run in the host's PID namespace (hostPID, docker --pid=host)"
            else:
                reason = Reason.PERMISSION
                detail = (
                    f"{missing} ({walk.unreadable_processes} processes are unreadable); "
                    "run as root or with CAP_SYS_PTRACE"
                )
        return _Finding(
            server=server,
            addresses=addresses,
            holders=holders,
            reason=reason,
            detail=detail,
            settled=reason is None,
        )

    def _read_boot_time(self, now: float) -> int | None:
        """Read the boot time now and then: it moves when the clock is set."""
        if self._boot_time_read_at is None or now - self._boot_time_read_at >= self._rescan_seconds:
            fresh = read_boot_time(self._root)
            self._boot_time_read_at = now
            if (
                fresh is None
                or self._boot_time is None
                or abs(fresh - self._boot_time) > _BOOT_TIME_FLICKER_SECONDS
            ):
                self._boot_time = fresh
        return self._boot_time


def _living(holders: Iterable[SocketHolder], processes: Mapping[int, ProcessIdentity]) -> tuple[int, ...]:
    """List the PIDs of those holders that are still the same processes."""
    return tuple(
        sorted(
            {
                holder.pid
                for holder in holders
                if holder.pid in processes and processes[holder.pid].start_ticks == holder.start_ticks
            }
        )
    )
