"""The listening socket behind a service: which process of its family holds it, and how it is reached."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import TYPE_CHECKING

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.discovery.networks import OWN
from kvwatch.sources.processes import read_user
from kvwatch.sources.sockets import find_holders, still_holds
from kvwatch.target import Hindrance

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from kvwatch.sources.discovery.descent import Descent
    from kvwatch.sources.discovery.networks import Networks
    from kvwatch.sources.discovery.services import Service
    from kvwatch.sources.sockets import ListeningSocket, SocketHolder

MAX_DESCRIPTORS = 200_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A listening socket and the process that holds it."""

    namespace: str
    entry: ListeningSocket
    holder: SocketHolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Knock:
    """A port that may be asked, or that answered: the listening process, and the URL."""

    opening: Opening
    host: str

    @property
    def key(self) -> tuple[int, int, int]:
        """What an answer is remembered by."""
        return self.opening.holder.pid, self.opening.holder.start_ticks, self.opening.entry.port


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """Where a service is reached, or why that is not known.

    Attributes:
        namespace: of its network; None where it cannot be told.
        host: as far as it is known: empty where it is not.
        holder: who holds the listening socket; None where that may not be seen, or nobody does.
        choices: several sockets, where the command line does not say which; they may be asked.
        waits: whether the next look may show more; otherwise only a change or the next look at everything.

    """

    namespace: str | None
    host: str = ""
    port: int | None = None
    holder: SocketHolder | None = None
    hindrance: Hindrance | None = None
    choices: tuple[Knock, ...] = ()
    waits: bool = False

    def is_settled(self, root: Path) -> bool:
        """Say whether it still leads where it did: one stat and one link are read."""
        if self.waits:
            return False
        return self.holder is None or still_holds(root, self.holder)


class DoorFinder:
    """Finds doors in the socket tables and the descriptors of a service's own family."""

    def __init__(self, root: Path, networks: Networks, descent: Descent) -> None:
        self._root = root
        self._networks = networks
        self._descent = descent

    def find(self, service: Service, others: Collection[int]) -> Door:
        """Look for a service's door; `others` are the processes of other services."""
        pid, port = service.main.pid, service.port
        namespace = self._networks.namespace(pid)
        if namespace is None:
            detail = f"the network namespace of process {pid} cannot be told"
            return Door(
                namespace=None, hindrance=Hindrance(reason=Reason.PERMISSION, detail=detail), waits=True
            )
        expected = service.stated_host
        if namespace != OWN:
            expected = self._networks.expected_host(pid, namespace) or ""
        if service.hindrance is not None:
            return Door(namespace=namespace, host=expected, port=port, hindrance=service.hindrance)
        try:
            entries = self._entries(pid, namespace, port)
        except SourceError as error:
            hindrance = Hindrance(reason=error.reason, detail=error.detail)
            return Door(namespace=namespace, host=expected, port=port, hindrance=hindrance, waits=True)
        family = service.members
        if port is not None and entries:
            family = self._descent.below(service.members, without=others)
        openings, unreadable = self.openings(namespace, entries, family)
        if not openings and unreadable and port is not None and entries:
            return self._unseen(service, namespace, entries, expected)
        if not openings:
            return Door(
                namespace=namespace,
                host=expected,
                port=port,
                hindrance=_not_open(service, held=bool(entries), unreadable=bool(unreadable)),
                waits=True,
            )
        if port is None and len({opening.entry.port for opening in openings}) > 1:
            detail = f"process {pid} has several ports and its command line does not say which to ask"
            return Door(
                namespace=namespace,
                hindrance=Hindrance(reason=Reason.AMBIGUOUS, detail=detail),
                choices=self.knocks(
                    [one for one in openings if not self._networks.is_handed_out(one.entry.port)]
                ),
            )
        return self._first_reached(openings, expected)

    def openings(
        self, namespace: str, entries: Sequence[ListeningSocket], family: Collection[int]
    ) -> tuple[list[Opening], int]:
        """Return the listening sockets that a family holds, the likeliest first.

        With it, how many of the family may not be looked at. Of several holders of a socket the oldest
        counts: children inherit what their launcher opened.
        """
        inodes = frozenset(entry.inode for entry in entries)
        walk = find_holders(self._root, inodes, max_descriptors=MAX_DESCRIPTORS, pids=sorted(family))
        by_inode: dict[int, SocketHolder] = {}
        for holder in sorted(walk.holders, key=lambda one: (one.start_ticks, one.pid)):
            by_inode.setdefault(holder.inode, holder)
        openings = [
            Opening(namespace=namespace, entry=entry, holder=by_inode[entry.inode])
            for entry in sorted(entries, key=_likeliest)
            if entry.inode in by_inode
        ]
        return openings, walk.unreadable_processes

    def knocks(self, openings: Sequence[Opening]) -> tuple[Knock, ...]:
        """Return those of some openings that are reached from here."""
        hosts = [self._networks.host_of(one.holder.pid, one.namespace, one.entry) for one in openings]
        return tuple(
            Knock(opening=opening, host=host)
            for opening, host in zip(openings, hosts, strict=True)
            if isinstance(host, str)
        )

    def _entries(self, pid: int, namespace: str, port: int | None) -> tuple[ListeningSocket, ...]:
        table = self._networks.listening(pid, namespace)
        return tuple(entry for entry in table if port in (None, entry.port))

    def _first_reached(self, openings: Sequence[Opening], expected: str) -> Door:
        """Return the first of a server's sockets that is reached; of several it takes any request."""
        doors: list[Door] = []
        for opening in openings:
            host = self._networks.host_of(opening.holder.pid, opening.namespace, opening.entry)
            door = Door(
                namespace=opening.namespace,
                host=host if isinstance(host, str) else expected,
                port=opening.entry.port,
                holder=opening.holder,
                hindrance=None if isinstance(host, str) else host,
            )
            if door.hindrance is None:
                return door
            doors.append(door)
        return doors[0]

    def _unseen(
        self, service: Service, namespace: str, entries: Sequence[ListeningSocket], expected: str
    ) -> Door:
        """Take the port that the command line states where nobody may see who holds it, but whose user it is.

        Anybody can give a process the words of a server, and the port of another user's program with them.
        """
        users = {read_user(self._root, member) for member in service.members}
        own = [entry for entry in entries if entry.uid in users]
        if not own:
            hindrance = _not_open(service, held=True, unreadable=True)
            return Door(
                namespace=namespace, host=expected, port=service.port, hindrance=hindrance, waits=True
            )
        entry = min(own, key=_likeliest)
        host = self._networks.host_of(service.main.pid, namespace, entry)
        if isinstance(host, Hindrance):
            return Door(namespace=namespace, port=entry.port, hindrance=host)
        return Door(namespace=namespace, host=host, port=entry.port)


def _likeliest(entry: ListeningSocket) -> tuple[bool, bool, bool]:
    """Order sockets: IPv4 before IPv6, every address before one, loopback last."""
    address = entry.address
    return not isinstance(address, IPv4Address), not address.is_unspecified, address.is_loopback


def _not_open(service: Service, *, held: bool, unreadable: bool) -> Hindrance:
    pid = service.main.pid
    if service.port is None and unreadable:
        detail = f"the ports of process {pid} may not be read: run as root or with CAP_SYS_PTRACE"
        return Hindrance(reason=Reason.PERMISSION, detail=detail)
    if service.port is None:
        detail = f"process {pid} has not opened a port yet"
    elif held:
        detail = f"port {service.port} is another process's; process {pid} waits for it or is about to fail"
    else:
        detail = f"process {pid} has not opened port {service.port} yet"
    return Hindrance(reason=Reason.LOADING, detail=detail)
