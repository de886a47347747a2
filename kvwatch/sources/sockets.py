"""Listening TCP sockets and the processes that hold them, from /proc/net/tcp{,6} and /proc/PID/fd."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.processes import read_stat

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from collections.abc import Set as AbstractSet
    from pathlib import Path

Address = IPv4Address | IPv6Address

_LISTEN = b"0A"  # TCP_LISTEN, include/net/tcp_states.h
_LOOPBACK: tuple[Address, ...] = (IPv4Address("127.0.0.1"), IPv6Address("::1"))
_WILDCARD_4 = IPv4Address(0)
_WILDCARD_6 = IPv6Address(0)
_PROBE_PORT = 9  # connecting a UDP socket sends nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class ListeningSocket:
    """One TCP socket in state LISTEN, by the inode that also names it in /proc/PID/fd."""

    address: Address
    port: int
    inode: int
    uid: int
    """Of the user who opened it; the table tells this to everybody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SocketHolder:
    """A process that holds a socket open, and under which descriptor."""

    pid: int
    start_ticks: int
    descriptor: str
    inode: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderWalk:
    """What one walk over all descriptors found, and what it could not see."""

    holders: tuple[SocketHolder, ...]
    unreadable_processes: int
    complete: bool
    """False when the limit of descriptors was reached."""


def local_addresses(host: str) -> tuple[Address, ...]:
    """Say which addresses of this machine `host` means; empty where it means another machine.

    Only literal addresses and `localhost` are understood: a name server is never asked. A wildcard
    means loopback, as it does to connect(2).
    """
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost":
        return _LOOPBACK
    try:
        found = socket.getaddrinfo(name, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):
        return ()
    where = found[0][4]
    address = _plain(ip_address(str(where[0]).partition("%")[0]))
    if address.is_unspecified:
        return _LOOPBACK[:1] if isinstance(address, IPv4Address) else _LOOPBACK[1:]
    if address.is_loopback or _is_assigned(address, where[2:]):
        return (address,)
    return ()


def listening_sockets(
    root: Path, ports: Container[int], *, process: str = "self"
) -> tuple[ListeningSocket, ...]:
    """Read the listening sockets on `ports` in the network namespace of `process`.

    Raises SourceError where neither table can be read.
    """
    found: list[ListeningSocket] = []
    failure: OSError | None = None
    for table in ("tcp", "tcp6"):
        try:
            found += _read_table(root / process / "net" / table, ports)
        except OSError as error:
            # A kernel without IPv6 has no tcp6, which is no failure as long as tcp could be read.
            failure = failure or (error if table == "tcp" else None)
    if failure is not None and not found:
        reason = Reason.PERMISSION if isinstance(failure, PermissionError) else Reason.NOT_FOUND
        raise SourceError(reason, f"cannot read {failure.filename}: {failure.strerror}")
    return tuple(found)


def serving_inodes(
    sockets: tuple[ListeningSocket, ...], addresses: tuple[Address, ...], port: int
) -> frozenset[int]:
    """Pick the sockets that a connection to `addresses` and `port` reaches.

    For each address the closest match wins, as in the kernel's lookup: the address itself, then the
    wildcard of its family, then for IPv4 the IPv6 wildcard (net/ipv4/inet_hashtables.c, compute_score).
    """
    inodes: set[int] = set()
    for address in addresses:
        wildcards = (_WILDCARD_4, _WILDCARD_6) if isinstance(address, IPv4Address) else (_WILDCARD_6,)
        for choice in (address, *wildcards):
            match = {entry.inode for entry in sockets if entry.port == port and entry.address == choice}
            if match:
                inodes |= match
                break
    return frozenset(inodes)


def find_holders(
    root: Path, inodes: AbstractSet[int], *, max_descriptors: int, pids: Iterable[int] | None = None
) -> HolderWalk:
    """Walk the descriptors of all processes, or of `pids` only, for the sockets `inodes`.

    Every holder counts: servers with several API processes share one socket or one port.
    """
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    holders: list[SocketHolder] = []
    unreadable = 0
    left = max_descriptors
    for pid in (_all_pids(root) if pids is None else pids) if wanted else ():
        try:
            with os.scandir(f"{root}/{pid}/fd") as entries:
                for entry in entries:
                    if left == 0:
                        return HolderWalk(
                            holders=tuple(holders), unreadable_processes=unreadable, complete=False
                        )
                    left -= 1
                    inode = wanted.get(_link(entry.path))
                    holder = None if inode is None else _holder(root, pid, entry.name, inode)
                    if holder is not None:
                        holders.append(holder)
        except PermissionError:
            unreadable += 1
        except OSError:
            continue
    return HolderWalk(holders=tuple(holders), unreadable_processes=unreadable, complete=True)


def still_holds(root: Path, holder: SocketHolder) -> bool:
    """Say whether this very process still holds the socket: one stat and one link are read."""
    stat = read_stat(root, holder.pid)
    if stat is None or stat.start_ticks != holder.start_ticks:
        return False
    try:
        link = _link(f"{root}/{holder.pid}/fd/{holder.descriptor}")
    except PermissionError:
        return True  # it was readable when found: what changed are rights, not the process
    return link == f"socket:[{holder.inode}]"


def _holder(root: Path, pid: int, descriptor: str, inode: int) -> SocketHolder | None:
    """Tie a found descriptor to its process; the link is read again after the start time was."""
    stat = read_stat(root, pid)
    if stat is None:
        return None
    holder = SocketHolder(pid=pid, start_ticks=stat.start_ticks, descriptor=descriptor, inode=inode)
    return holder if still_holds(root, holder) else None


def _link(path: str) -> str:
    """Read a link; empty where it is gone."""
    try:
        return os.readlink(path)  # noqa: PTH115 (read for every descriptor; a Path doubles the cost)
    except PermissionError:
        raise
    except OSError:
        return ""


def _all_pids(root: Path) -> Iterator[int]:
    """Yield the numbers of all processes."""
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                if entry.name.isdecimal():
                    yield int(entry.name)
    except OSError:
        return


def _read_table(path: Path, ports: Container[int]) -> Iterator[ListeningSocket]:
    """Yield the listening sockets of one table; other lines, most of a busy machine's, are passed over."""
    with path.open("rb") as lines:
        for line in lines:
            fields = line.split(maxsplit=10) if _LISTEN in line else []
            try:
                if fields[3] != _LISTEN:
                    continue
                address, _, port = fields[1].partition(b":")
                inode, uid = int(fields[9]), int(fields[7])
                # A socket that no descriptor names any more has inode 0.
                if inode != 0 and int(port, 16) in ports:
                    yield ListeningSocket(
                        address=table_address(address), port=int(port, 16), inode=inode, uid=uid
                    )
            except (IndexError, ValueError):
                continue


def table_address(digits: bytes) -> Address:
    """Decode an address of /proc/net/tcp{,6}: 32-bit words in the machine's own byte order."""
    words = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
    packed = b"".join(word.to_bytes(4, sys.byteorder) for word in words)
    return _plain(ip_address(packed))


def _plain(address: Address) -> Address:
    """Write an IPv4 address mapped into IPv6 as what it is."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _is_assigned(address: Address, scope: tuple[object, ...]) -> bool:
    """Say whether an address is one of this machine's: one can bind to it, and route to it from itself.

    The second half matters where net.ipv4.ip_nonlocal_bind or its IPv6 twin lets bind(2) accept any address.
    """
    host = str(address)
    family = socket.AF_INET6
    if isinstance(address, IPv4Address):
        family, scope = socket.AF_INET, ()
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0, *scope))
            probe.connect((host, _PROBE_PORT, *scope))
        if family == socket.AF_INET:
            return True
        # IPv6 routes from any bound source, but picks an own address as its own source (RFC 6724, rule 1).
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host, _PROBE_PORT, *scope))
            source = str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return False
    return ip_address(source) == address
