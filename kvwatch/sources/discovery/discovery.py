"""One look at this machine: every vLLM and llama-server on it, and where each is reached.

Nothing here is asynchronous: the daemon runs it in a thread of its own, since the kernel can keep whoever
reads a command line waiting for ever. Every finding is tied to a process by (PID, start time); while nothing
changes a look lists /proc once and checks that each known server still listens.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kvwatch.readings import Outcome, Reason, Source
from kvwatch.sources.discovery.candidates import CandidateScan
from kvwatch.sources.discovery.claims import ClaimReader
from kvwatch.sources.discovery.crowd import bounded
from kvwatch.sources.discovery.descent import Descent
from kvwatch.sources.discovery.doors import Door, DoorFinder
from kvwatch.sources.discovery.found import DISCOVERY, Found, Names
from kvwatch.sources.discovery.networks import OWN, Networks
from kvwatch.sources.discovery.services import services_of
from kvwatch.sources.discovery.strangers import KnockBook, Strangers
from kvwatch.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvwatch.readings import ProcessTable
    from kvwatch.sources.discovery.claims import Claims
    from kvwatch.sources.discovery.doors import Knock
    from kvwatch.sources.discovery.services import Service

_MOST_SUSPECTS = 8

Key = tuple[int, int, int]


class Discovery:
    """Finds servers, and remembers what it found; one look at a time.

    Args:
        root: of the processes.
        interfaces: where the kernel lists network interfaces.
        clock: monotonic seconds.

    """

    def __init__(
        self,
        *,
        root: Path = Path("/proc"),
        interfaces: Path = Path("/sys/class/net"),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._clock = clock
        self._networks = Networks(root, interfaces)
        self._descent = Descent(root)
        self._finder = DoorFinder(root, self._networks, self._descent)
        self._scan = CandidateScan(root, clock)
        self._claims = ClaimReader(root)
        self._book = KnockBook()
        self._strangers = Strangers(root, self._networks, self._descent, self._finder, self._book)
        self._services: tuple[Service, ...] = ()
        self._left_out = ""
        self._doors: dict[Key, Door] = {}
        self._names = Names()
        self._gpu_processes: frozenset[tuple[int, int]] = frozenset()
        self._asked: dict[str, Knock] = {}

    @property
    def reading(self) -> int | None:
        """The process whose command line is being read."""
        return self._scan.reading

    def read(
        self,
        gpu_pids: Sequence[int],
        table: ProcessTable,
        configured: Sequence[Target],
        answers: Mapping[str, Reason | None],
        *,
        private: bool | None,
    ) -> Found:
        """Look once.

        `table` holds the GPU processes and the configured servers' listeners with their ancestors, `answers`
        what the suspects of earlier looks answered, by URL: None is an engine's page. `private` says whether
        other processes than those of this container can be seen at all.
        """
        started = self._clock()
        self._networks.forget()
        self._descent.forget()
        try:
            changed, everything = self._scan.look(self._arrived(gpu_pids, table))
        except OSError as error:
            reason = Reason.PERMISSION if isinstance(error, PermissionError) else Reason.NOT_FOUND
            return Found(outcome=_outcome(reason, f"cannot list {self._root}: {error.strerror}"))
        if changed:
            self._services, self._left_out = bounded(self._root, services_of(self._scan.candidates))
        if everything:
            self._claims.forget()
        for url, answer in answers.items():
            if url in self._asked:
                self._book.note(self._asked[url].key, answer, started)
        self._find_doors(everything=everything)
        claims = self._claims.read(configured, table, self._scan.candidates)
        explained = {*self._scan.candidates, *claims.listeners}
        knocks = self._strangers.look(gpu_pids, table, explained=explained, everything=everything)
        free = self._unclaimed(claims)
        unknown = tuple(
            knock
            for knock in (*knocks, *(choice for _, door in free for choice in door.choices))
            if not claims.covers_address(knock.opening.namespace, knock.host, knock.opening.entry.port)
        )
        self._book.keep({knock.key for knock in unknown})
        answering = [knock for knock in knocks if knock in unknown and self._book.is_server(knock.key)]
        due = [knock for knock in unknown if self._book.is_due(knock.key, started)][:_MOST_SUSPECTS]
        self._asked = {url_of(knock.host, knock.opening.entry.port): knock for knock in due}
        outcome = self._outcome(free, len(gpu_pids), private=private)
        return Found(
            targets=self._targets(free, answering, {target.name for target in configured}),
            suspects=tuple(_target_of(knock, url) for url, knock in self._asked.items()),
            outcome=replace(outcome, duration_seconds=self._clock() - started),
        )

    def _arrived(self, gpu_pids: Iterable[int], table: ProcessTable) -> set[int]:
        """Return the GPU processes that are new, with their ancestors: one may have become a server."""
        present = {(pid, table.processes[pid].start_ticks): pid for pid in gpu_pids if pid in table.processes}
        new = [pid for key, pid in present.items() if key not in self._gpu_processes]
        self._gpu_processes = frozenset(present)
        arrived: set[int] = set()
        for first in new:
            pid = first
            while pid in table.processes and pid not in arrived:
                arrived.add(pid)
                pid = table.processes[pid].parent_pid
        return arrived

    def _find_doors(self, *, everything: bool) -> None:
        """Keep the doors that still lead where they did, and look for the others."""
        before, self._doors = self._doors, {}
        for service in self._services:
            door = before.get(service.key)
            doubtful = door is None or (everything and (door.hindrance is not None or door.holder is None))
            if door is None or doubtful or not door.is_settled(self._root):
                others = self._scan.candidates.keys() - service.members
                door = self._finder.find(service, others)
            self._doors[service.key] = door

    def _unclaimed(self, claims: Claims) -> list[tuple[Service, Door]]:
        """Return the services that nobody configured, one for each address.

        Of two on one address the one that listens counts: the other waits for its end, or is about to fail.
        """
        chosen: dict[tuple[object, ...], tuple[Service, Door]] = {}
        for service in self._services:
            door = self._opened_by_asking(self._doors[service.key])
            place: tuple[object, ...] = service.key
            if door.port is not None and door.namespace is not None and service.hindrance is None:
                place = (door.namespace, door.host, door.port)
            known = chosen.get(place)
            if known is None or (known[1].holder is None and door.holder is not None):
                chosen[place] = (service, door)
        return [(service, door) for service, door in chosen.values() if not claims.covers(service, door)]

    def _opened_by_asking(self, door: Door) -> Door:
        """Return the door with the one of its choices that answered as a server does."""
        for choice in door.choices:
            if self._book.is_server(choice.key):
                holder, port = choice.opening.holder, choice.opening.entry.port
                return replace(door, host=choice.host, port=port, holder=holder, hindrance=None)
        return door

    def _targets(
        self, services: Sequence[tuple[Service, Door]], answering: Sequence[Knock], taken: set[str]
    ) -> tuple[Target, ...]:
        wanted: dict[object, tuple[str, int]] = {
            service.key: (_name(service, door), service.main.pid) for service, door in services
        }
        wanted |= {
            ("port", *knock.key): (f"{knock.host}:{knock.opening.entry.port}", knock.opening.holder.pid)
            for knock in answering
        }
        names = self._names.give(wanted, taken)
        return (
            *(_target(names[service.key], service, door) for service, door in services),
            *(
                _target_of(knock, url_of(knock.host, knock.opening.entry.port), names["port", *knock.key])
                for knock in answering
            ),
        )

    def _outcome(
        self, services: Sequence[tuple[Service, Door]], gpu_count: int, *, private: bool | None
    ) -> Outcome:
        """Say whether all there is could be seen."""
        hindrances = [door.hindrance for _, door in services if door.hindrance] + [
            *self._strangers.hindrances
        ]
        denied = next((one.detail for one in hindrances if one.reason is Reason.PERMISSION), None)
        if private:
            detail = (
                "only the processes of this container are seen: run in the host's PID namespace (hostPID)"
            )
            return _outcome(Reason.NAMESPACE, detail)
        if self._scan.hidden or self._scan.hides_others:
            which = f"{len(self._scan.hidden)} processes" if self._scan.hidden else "other users' processes"
            detail = f"{which} are hidden (hidepid): run as root or in the group that /proc is mounted for"
            return _outcome(Reason.PERMISSION, detail)
        if denied is not None:
            return _outcome(Reason.PERMISSION, denied)
        if self._left_out:
            return _outcome(Reason.TOO_LARGE, self._left_out)
        detail = f"looked at {self._scan.count} processes, {gpu_count} of them on GPUs"
        return _outcome(None, f"{detail}: {len(self._services)} are vLLM's or llama-server's")


def url_of(host: str, port: int, prefix: str = "") -> str:
    """Return the URL of an address."""
    return f"http://[{host}]:{port}{prefix}" if ":" in host else f"http://{host}:{port}{prefix}"


def _name(service: Service, door: Door) -> str:
    """Return what a server is called: its address, as a configured server without a name is."""
    if door.port is None:
        return f"{service.main.engine}-{service.main.pid}"
    if door.namespace == OWN and service.is_name:
        return f"{service.host}:{door.port}"
    return f"{door.host or door.namespace}:{door.port}"


def _target(name: str, service: Service, door: Door) -> Target:
    pid: int | None = service.main.pid
    ticks: int | None = service.main.start_ticks
    if service.shares_process:
        # Each of its servers is a child; until that one listens nobody can say which.
        pid = door.holder.pid if door.holder else None
        ticks = door.holder.start_ticks if door.holder else None
    reached = bool(door.host) and door.port is not None and service.hindrance is None
    return Target(
        name=name,
        url=url_of(door.host, door.port or 0, service.prefix) if reached else "",
        host=door.host,
        port=door.port or 0,
        engine=service.main.engine,
        pid=pid,
        start_ticks=ticks,
        discovered=True,
        hindrance=door.hindrance,
    )


def _target_of(knock: Knock, url: str, name: str = "") -> Target:
    holder, entry = knock.opening.holder, knock.opening.entry
    return Target(
        name=name or f"{knock.host}:{entry.port}",
        url=url,
        host=knock.host,
        port=entry.port,
        pid=holder.pid,
        start_ticks=holder.start_ticks,
        discovered=True,
    )


def _outcome(reason: Reason | None, detail: str) -> Outcome:
    return Outcome(source=Source.PROCFS, target=DISCOVERY, reason=reason, detail=detail)
