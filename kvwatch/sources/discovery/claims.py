"""Which of the found services are servers that the configuration names: by process, then by address."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING

from kvwatch.readings import SourceError
from kvwatch.sources.commands import split_words
from kvwatch.sources.discovery.networks import OWN
from kvwatch.sources.sockets import local_addresses

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kvwatch.readings import ProcessTable
    from kvwatch.sources.discovery.candidates import Candidate
    from kvwatch.sources.discovery.doors import Door
    from kvwatch.sources.discovery.services import Service
    from kvwatch.sources.sockets import Address
    from kvwatch.target import Target

_PROXY = "docker-proxy"
_MAX_BYTES = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What belongs to configured servers."""

    listeners: frozenset[int] = frozenset()
    """Their listening processes."""
    candidates: frozenset[int] = frozenset()
    """Processes of server commands that are these or their nearest such ancestors."""
    local: tuple[tuple[frozenset[Address], int], ...] = ()
    """Where on this machine they are reached."""
    elsewhere: frozenset[tuple[str, int]] = frozenset()
    """Their addresses as configured, and those that a published port of a container leads to."""

    def covers(self, service: Service, door: Door) -> bool:
        """Say whether a service is a configured server."""
        by_process = not service.shares_process and not self.candidates.isdisjoint(service.members)
        if by_process or (door.holder is not None and door.holder.pid in self.listeners):
            return True
        if (door.host, door.port) in self.elsewhere:
            return True
        return door.namespace == OWN and any(
            port in (service.port, door.port) and _covers(addresses, service.host, door.host)
            for addresses, port in self.local
        )

    def covers_address(self, namespace: str, host: str, port: int) -> bool:
        """Say whether a configured server is reached at an address."""
        if (host, port) in self.elsewhere:
            return True
        return namespace == OWN and any(
            own == port and _covers(addresses, host, host) for addresses, own in self.local
        )


class ClaimReader:
    """Makes claims of the configured servers; what does not change between two polls is kept."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._local: dict[tuple[str, int], frozenset[Address]] = {}
        self._published: dict[tuple[int, int], tuple[str, int] | None] = {}

    def read(
        self, configured: Sequence[Target], table: ProcessTable, candidates: Mapping[int, Candidate]
    ) -> Claims:
        """Return the claims of this moment."""
        places = {(target.host, target.port) for target in configured}
        self._local = {
            place: self._local[place] if place in self._local else _addresses(place[0]) for place in places
        }
        listeners = {pid for target in configured for pid in table.listeners.get(target.name, ())}
        published = {where for pid in listeners if (where := self._leads_to(table, pid)) is not None}
        nearest = {pid for one in listeners if (pid := _nearest(table, one, candidates)) is not None}
        return Claims(
            listeners=frozenset(listeners),
            candidates=frozenset(nearest),
            local=tuple((addresses, port) for (_, port), addresses in self._local.items() if addresses),
            elsewhere=frozenset(places | published),
        )

    def forget(self) -> None:
        """Look up everything anew: a name or an address may have come to this machine."""
        self._local.clear()
        self._published.clear()

    def _leads_to(self, table: ProcessTable, pid: int) -> tuple[str, int] | None:
        """Return the container's address behind a port that Docker published."""
        identity = table.processes.get(pid)
        if identity is None or identity.name != _PROXY:
            return None
        key = (pid, identity.start_ticks)
        if key not in self._published:
            self._published[key] = _container_of(self._root, pid)
        return self._published[key]


def _nearest(table: ProcessTable, pid: int, candidates: Mapping[int, Candidate]) -> int | None:
    """Return the process itself or its nearest ancestor whose command line starts a server."""
    seen: set[int] = set()
    while pid in table.processes and pid not in seen:
        if pid in candidates:
            return pid
        seen.add(pid)
        pid = table.processes[pid].parent_pid
    return None


def _addresses(host: str) -> frozenset[Address]:
    """Return the addresses of this machine that a configured host means, this machine's own name included."""
    if host.lower() == socket.gethostname().lower():
        return frozenset((*local_addresses("127.0.0.1"), *local_addresses("::1")))
    return frozenset(local_addresses(host))


def _covers(addresses: frozenset[Address], stated: str | None, found: str) -> bool:
    """Say whether a connection to one of the addresses ends at a socket: a wildcard takes all."""
    if stated in (None, "0.0.0.0", "::"):
        return True
    if stated == "localhost":
        return any(address.is_loopback for address in addresses)
    for host in (stated, found):
        try:
            if ip_address(host or "") in addresses:
                return True
        except ValueError:
            continue
    return False


def _container_of(root: Path, pid: int) -> tuple[str, int] | None:
    """Read where a docker-proxy leads (moby, cmd/docker-proxy: -container-ip, -container-port)."""
    try:
        with (root / str(pid) / "cmdline").open("rb") as file:
            words = list(split_words(file.read(_MAX_BYTES)))
        host = words[words.index("-container-ip") + 1]
        return host, int(words[words.index("-container-port") + 1])
    except (OSError, SourceError, ValueError, IndexError):
        return None
