"""GPU processes that no command line explains: which of their ports may be asked for an engine's page.

Asking is the last resort, so it is rare: each port once for each process, again only where it did not answer
at all, and never a port of the range that the kernel hands out by itself. There sit the sockets by which the
processes of a job talk to each other (NCCL, torch.distributed, ZMQ, Ray), which expect no strangers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.readings import Reason, SourceError
from kvwatch.sources.sockets import still_holds
from kvwatch.target import Hindrance

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from kvwatch.readings import ProcessTable
    from kvwatch.sources.discovery.descent import Descent
    from kvwatch.sources.discovery.doors import DoorFinder, Knock
    from kvwatch.sources.discovery.networks import Networks

_AGAIN = frozenset({Reason.UNREACHABLE, Reason.TIMEOUT, Reason.LOADING, Reason.HTTP_ERROR})
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 30.0, 600.0
_RAY_TITLE = "ray::"


@dataclass(slots=True)
class _Answer:
    reason: Reason | None
    at: float
    pause_seconds: float


class KnockBook:
    """What ports answered: each is asked once, and again with growing pauses where nobody answered."""

    def __init__(self) -> None:
        self._answers: dict[tuple[int, int, int], _Answer] = {}

    def note(self, key: tuple[int, int, int], reason: Reason | None, now: float) -> None:
        """Write down an answer; None is an engine's page."""
        before = self._answers.get(key)
        pause = min(2 * before.pause_seconds, _LONGEST_PAUSE_SECONDS) if before else _FIRST_PAUSE_SECONDS
        self._answers[key] = _Answer(reason, now, pause)

    def is_server(self, key: tuple[int, int, int]) -> bool:
        """Say whether a port has answered with an engine's page."""
        answer = self._answers.get(key)
        return answer is not None and answer.reason is None

    def is_due(self, key: tuple[int, int, int], now: float) -> bool:
        """Say whether a port may be asked now."""
        answer = self._answers.get(key)
        if answer is None:
            return True
        return answer.reason in _AGAIN and now - answer.at >= answer.pause_seconds

    def keep(self, keys: Collection[tuple[int, int, int]]) -> None:
        """Forget all others."""
        self._answers = {key: answer for key, answer in self._answers.items() if key in keys}


class Strangers:
    """The ports of GPU processes' families, looked up when such a process comes and now and then after."""

    def __init__(
        self, root: Path, networks: Networks, descent: Descent, doors: DoorFinder, book: KnockBook
    ) -> None:
        self._root = root
        self._book = book
        self._networks = networks
        self._descent = descent
        self._doors = doors
        self._families: frozenset[tuple[int, int]] = frozenset()
        self._knocks: tuple[Knock, ...] = ()
        self.hindrances: tuple[Hindrance, ...] = ()
        """Why ports of some families are not known or not reached."""

    def look(
        self, pids: Iterable[int], table: ProcessTable, *, explained: Collection[int], everything: bool
    ) -> tuple[Knock, ...]:
        """Return the ports of the families of GPU processes that have no ancestor in `explained`.

        A port that answered stays as long as its process listens, whatever the driver says meanwhile.
        """
        heads = {
            head
            for pid in pids
            if (head := _head(table, pid, explained)) is not None
            and not table.processes[pid].name.startswith(_RAY_TITLE)
        }
        families = frozenset((head, table.processes[head].start_ticks) for head in heads)
        self._knocks = tuple(knock for knock in self._knocks if still_holds(self._root, knock.opening.holder))
        if everything or families - self._families:
            self._read(families, explained)
        self._families = families
        return self._knocks

    def _read(self, families: Collection[tuple[int, int]], explained: Collection[int]) -> None:
        self._networks.forget()
        self._descent.forget()
        knocks = {knock.key: knock for knock in self._knocks if self._book.is_server(knock.key)}
        hindrances: list[Hindrance] = []
        for head, _ in sorted(families):
            namespace = self._networks.namespace(head)
            try:
                entries = () if namespace is None else self._networks.listening(head, namespace)
            except SourceError as error:
                hindrances.append(Hindrance(reason=error.reason, detail=error.detail))
                continue
            fixed = tuple(entry for entry in entries if not self._networks.is_handed_out(entry.port))
            family = self._descent.below((head,), without=explained)
            openings, unreadable = self._doors.openings(namespace or "", fixed, family)
            if unreadable:
                detail = f"ports of GPU process {head} may not be read: run as root or with CAP_SYS_PTRACE"
                hindrances.append(Hindrance(reason=Reason.PERMISSION, detail=detail))
            knocks |= {knock.key: knock for knock in self._doors.knocks(openings)}
        self._knocks, self.hindrances = tuple(knocks.values()), tuple(hindrances)


def _head(table: ProcessTable, pid: int, explained: Collection[int]) -> int | None:
    """Return the highest ancestor that runs the same program; None where one of all is a known server's.

    A server and its engine processes run one program; a shell or a supervisor above them runs another, and
    whatever listens there is not theirs.
    """
    above: list[int] = []
    while pid > 1 and pid in table.processes and pid not in above:
        above.append(pid)
        pid = table.processes[pid].parent_pid
    if not above or any(one in explained for one in above):
        return None
    program = table.processes[above[0]].executable
    head = above[0]
    for one in above[1:]:
        if program is None or table.processes[one].executable != program:
            break
        head = one
    return head
