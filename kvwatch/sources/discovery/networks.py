"""Network namespaces: which one a process is in, what listens there, and how that is reached from here."""

from __future__ import annotations

import os
from ipaddress import IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.readings import Reason
from kvwatch.sources.discovery.routes import container_addresses, is_attached, leads_into
from kvwatch.sources.sockets import listening_sockets
from kvwatch.target import Hindrance

if TYPE_CHECKING:
    from kvwatch.sources.sockets import Address, ListeningSocket

OWN = "own"
"""The network namespace that kvwatch is in."""

_EVERY_PORT = range(1, 65536)
_EPHEMERAL = range(32768, 61000)  # the kernel's own choice, where the file cannot be read
_INTERFACES = Path("/sys/class/net")


class Networks:
    """The network namespaces of this machine's processes; socket tables are kept until `forget`.

    Args:
        root: of the processes.
        interfaces: where the kernel lists network interfaces.

    """

    def __init__(self, root: Path, interfaces: Path = _INTERFACES) -> None:
        self._root = root
        self._interfaces = interfaces
        self._tables: dict[str, tuple[ListeningSocket, ...]] = {}
        self._handed_out: range | None = None

    def forget(self) -> None:
        """Read socket tables anew when they are next asked for."""
        self._tables.clear()

    def namespace(self, pid: int) -> str | None:
        """Name the network namespace of a process; None where that cannot be told."""
        marks = [self._mark(process) for process in (str(pid), "self")]
        if None in marks:
            # Each namespace has socket tables of its own, and anybody may ask for their numbers
            # (fs/proc/generic.c, proc_register).
            try:
                marks = [
                    str(os.stat(f"{self._root}/{process}/net/tcp").st_ino)  # noqa: PTH116
                    for process in (pid, "self")
                ]
            except OSError:
                return None
        return OWN if marks[0] == marks[1] else f"net-{marks[0]}"

    def listening(self, pid: int, namespace: str) -> tuple[ListeningSocket, ...]:
        """Return all listening sockets of a process's namespace; raises SourceError as the table's reader."""
        if namespace not in self._tables:
            process = "self" if namespace == OWN else str(pid)
            self._tables[namespace] = listening_sockets(self._root, _EVERY_PORT, process=process)
        return self._tables[namespace]

    def is_handed_out(self, port: int) -> bool:
        """Say whether the kernel hands out a port by itself, so that nobody chose it."""
        if self._handed_out is None:
            self._handed_out = _ephemeral_ports(self._root)
        return port in self._handed_out

    def expected_host(self, pid: int, namespace: str) -> str | None:
        """Return the address at which a process in another namespace would be reached; None: it has none."""
        addresses = container_addresses(self._root, pid)
        return None if namespace == OWN or not addresses else str(addresses[0])

    def host_of(self, pid: int, namespace: str, entry: ListeningSocket) -> str | Hindrance:
        """Return the address under which a process's listening socket is reached, or why it is not.

        A container's address is used only where a connection has shown that it leads into the container:
        the same address may be a stranger's machine in our own network.
        """
        if namespace == OWN:
            if not entry.address.is_unspecified:
                return str(entry.address)
            return "127.0.0.1" if isinstance(entry.address, IPv4Address) else "::1"
        if entry.address.is_loopback:
            return _unreachable(pid, entry, f"only on {entry.address}, inside its container")
        theirs = container_addresses(self._root, pid)
        if not entry.address.is_unspecified:
            theirs = tuple(address for address in theirs if address == entry.address)
        for address in theirs:
            if _family_fits(entry.address, address) and self._is_reached(pid, address, entry.port):
                return str(address)
        where = f"at {theirs[0]}" if theirs else "without an address"
        return _unreachable(pid, entry, f"{where} in a network of its own that is not reached from here")

    def _is_reached(self, pid: int, address: Address, port: int) -> bool:
        return is_attached(self._root, self._interfaces, address) and leads_into(
            self._root, pid, address, port
        )

    def _mark(self, process: str) -> str | None:
        try:
            return str((self._root / process / "ns" / "net").readlink()).strip("net:[]")
        except OSError:
            return None


def _family_fits(bound: Address, address: Address) -> bool:
    """Say whether a wildcard socket takes connections to an address; the IPv6 one takes both families."""
    return bound.version in (6, address.version)


def _unreachable(pid: int, entry: ListeningSocket, where: str) -> Hindrance:
    detail = (
        f"port {entry.port} of process {pid} is open {where}: run kvwatch in the host's network, or "
        f"configure the published address with its process, {{url: http://HOST:PORT, pid: {pid}}}"
    )
    return Hindrance(reason=Reason.UNREACHABLE, detail=detail)


def _ephemeral_ports(root: Path) -> range:
    try:
        first, last = (root / "sys" / "net" / "ipv4" / "ip_local_port_range").read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return _EPHEMERAL
