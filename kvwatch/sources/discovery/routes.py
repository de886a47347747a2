"""Where an address leads: what the routing table says, and what a connection proves."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import TYPE_CHECKING

from kvwatch.sources.sockets import local_addresses, table_address

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kvwatch.sources.sockets import Address

_CONNECT_SECONDS = 0.3
_MAX_ADDRESSES = 8
_REJECT = 0x0200  # RTF_REJECT, include/uapi/linux/route.h
_MAPPED = "0000000000000000FFFF0000"
_GLOBAL_SCOPE = "00"  # IPV6_ADDR_ANY of include/net/ipv6.h: neither loopback nor link-local


@dataclass(frozen=True, slots=True, kw_only=True)
class _Route:
    interface: str
    prefix_bits: int
    metric: int
    gateway: Address
    rejects: bool


def container_addresses(root: Path, pid: int) -> tuple[Address, ...]:
    """Return the addresses of a process's network namespace, loopback and link-local apart, IPv4 first."""
    found: list[Address] = [*_own_4(root / str(pid) / "net" / "fib_trie")]
    found += _own_6(root / str(pid) / "net" / "if_inet6")
    return tuple(dict.fromkeys(found))[:_MAX_ADDRESSES]


def is_attached(root: Path, interfaces: Path, address: Address) -> bool:
    """Say whether an address lies behind a software interface of this machine, with no router in between.

    Bridges and virtual links lead to this machine's containers; what leads elsewhere is never asked. A router
    that is this machine itself counts as none (Cilium's routes).
    """
    routes = _routes_4(root, address) if isinstance(address, IPv4Address) else _routes_6(root, address)
    best = min(routes, key=lambda route: (-route.prefix_bits, route.metric), default=None)
    if best is None or best.rejects or best.prefix_bits == 0:
        return False
    if not best.gateway.is_unspecified and not local_addresses(str(best.gateway)):
        return False
    return best.interface != "lo" and not (interfaces / best.interface / "device").exists()


def leads_into(root: Path, pid: int, address: Address, port: int) -> bool:
    """Say whether a connection to an address ends in the network namespace of a process.

    The connection is opened, looked for in the process's own table of sockets, and closed: nothing is sent.
    """
    try:
        with socket.create_connection((str(address), port), _CONNECT_SECONDS) as connection:
            host, local_port = connection.getsockname()[:2]
            ours = f"{_digits(ip_address(host))}:{local_port:04X}"
            tables = (root / str(pid) / "net" / table for table in ("tcp", "tcp6"))
            return any(_has_connection(table, port, {ours, _MAPPED + ours}) for table in tables)
    except OSError:
        return False


def _has_connection(table: Path, port: int, remotes: set[str]) -> bool:
    try:
        with table.open() as lines:
            for line in lines:
                _, own, remote, *_ = [*line.split(maxsplit=3), "", "", ""]
                if remote in remotes and own.endswith(f":{port:04X}"):
                    return True
    except OSError:
        pass
    return False


def _digits(address: Address) -> str:
    """Write an address as /proc/net/tcp{,6} does: 32-bit words in the machine's own byte order."""
    packed = address.packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)


def _own_4(trie: Path) -> Iterator[Address]:
    """Yield the IPv4 addresses of a namespace: in fib_trie the leaves that are `/32 host LOCAL`."""
    leaf = ""
    for line in _lines(trie):
        if line.startswith("|-- "):
            leaf = line.removeprefix("|-- ")
        elif line.startswith("/32 host LOCAL"):
            address = ip_address(leaf)
            if not address.is_loopback:
                yield address


def _own_6(table: Path) -> Iterator[Address]:
    for line in _lines(table):
        fields = line.split()
        if fields[3] == _GLOBAL_SCOPE:
            yield IPv6Address(bytes.fromhex(fields[0]))


def _routes_4(root: Path, address: IPv4Address) -> Iterator[_Route]:
    """Yield the routes of our own namespace that an address falls under (/proc/net/route)."""
    for line in list(_lines(root / "self" / "net" / "route"))[1:]:
        interface, destination, gateway, flags, _, _, metric, mask, *_ = line.split()
        bits = int(table_address(mask.encode()))
        if int(address) & bits == int(table_address(destination.encode())):
            yield _Route(
                interface=interface,
                prefix_bits=bits.bit_count(),
                metric=int(metric),
                gateway=table_address(gateway.encode()),
                rejects=bool(int(flags, 16) & _REJECT),
            )


def _routes_6(root: Path, address: IPv6Address) -> Iterator[_Route]:
    """Yield the same of IPv6 (/proc/net/ipv6_route, whose addresses are plain hexadecimal)."""
    for line in _lines(root / "self" / "net" / "ipv6_route"):
        destination, prefix, _, _, gateway, metric, _, _, flags, interface = line.split()
        bits = int(prefix, 16)
        if (int(address) ^ int(destination, 16)) >> (128 - bits) == 0:
            yield _Route(
                interface=interface,
                prefix_bits=bits,
                metric=int(metric, 16),
                gateway=IPv6Address(int(gateway, 16)),
                rejects=bool(int(flags, 16) & _REJECT),
            )


def _lines(path: Path) -> Iterable[str]:
    """Return the lines of a small file without the spaces around them; none where it cannot be read."""
    try:
        return [line.strip() for line in path.read_text().splitlines()]
    except OSError:
        return []
