"""Which processes were whose, from poll to poll: engines that outlive their server are told apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.kinship import ancestry, is_complete, speakers, was_left_behind
from kvwatch.owners import Owner, untold
from kvwatch.readings import Reason
from kvwatch.snapshot import Match

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import ProcessTable

Key = tuple[int, int]
"""(PID, start time): a number that is used again is another process."""

GRACE_SECONDS = 10.0
"""An engine that shuts down after its server takes a moment (vllm/v1/engine/utils.py waits 5 s for it)."""
_GRACE_POLLS = 2
_KEPT_SECONDS = 600.0
"""Longer than any driver was seen to leave a process out of its list; a process cannot come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ward:
    """A process on a GPU that is or was a server's."""

    server: str
    """Empty where no server was ever seen with it."""
    url: str = ""
    """The server's: the same name may be given to another one."""
    anchor: Key | None
    """The process in its line that tied it to the server: the listener, or what launched both."""
    listeners: frozenset[Key] = frozenset()
    """The server's listeners at that time."""
    seen_at: float
    """Monotonic seconds, of the last poll that saw the process."""
    lost_at: float | None = None
    """When a poll first saw it without its server; None while that lives."""
    lost_polls: int = 0

    def is_orphan(self, at: float) -> bool:
        """Tell whether it has been without its server for long enough."""
        return (
            self.lost_at is not None
            and self.lost_polls >= _GRACE_POLLS
            and at - self.lost_at >= GRACE_SECONDS
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Custody:
    """All wards; replaced whole at each poll."""

    wards: Mapping[Key, Ward] = field(default_factory=dict)

    def advance(
        self,
        table: ProcessTable,
        owners: Mapping[int, Owner],
        *,
        watched: Mapping[str, str],
        at: float,
    ) -> tuple[Custody, Mapping[int, Owner]]:
        """Return the custody after one more poll, and the owners as it settles them.

        `watched` are the servers' names and URLs, `at` is in monotonic seconds. A process that cannot be
        identified is judged by nothing that was known of its number.
        """
        heard = {
            server: frozenset(table.processes[pid].key for pid in pids if pid in table.processes)
            for server, pids in speakers(table).items()
        }
        scene = _Scene(table=table, heard=heard, watched=watched, at=at)
        wards = {key: ward for key, ward in self.wards.items() if at - ward.seen_at < _KEPT_SECONDS}
        settled = dict(owners)
        for pid, owner in owners.items():
            process = table.processes.get(pid)
            if process is None:
                continue
            ward = _next(wards.get(process.key), owner, scene, pid)
            if ward is None:
                wards.pop(process.key, None)
                continue
            wards[process.key] = ward
            settled[pid] = _settle(ward, owner, scene, pid)
        return Custody(wards=wards), settled


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scene:
    """What one poll saw."""

    table: ProcessTable
    heard: Mapping[str, frozenset[Key]]
    """Server -> the processes that can answer for it."""
    watched: Mapping[str, str]
    at: float


def _next(ward: Ward | None, owner: Owner, scene: _Scene, pid: int) -> Ward | None:
    """Return what is to be remembered of a process; None where nothing is."""
    if owner.server is not None and owner.anchor is not None:
        return Ward(
            server=owner.server,
            url=scene.watched.get(owner.server, ""),
            anchor=owner.anchor,
            listeners=scene.heard.get(owner.server, frozenset()),
            seen_at=scene.at,
        )
    if ward is None:
        if not was_left_behind(scene.table, pid):
            return None
        ward = Ward(server="", anchor=None, seen_at=scene.at)
    elif _has_its_server(ward, scene, pid):
        if not _is_watched(ward, scene):
            return None
        return replace(ward, seen_at=scene.at, lost_at=None, lost_polls=0)
    elif not is_complete(scene.table, pid):
        return replace(ward, seen_at=scene.at)  # too little was read to tell
    lost_at = scene.at if ward.lost_at is None else ward.lost_at
    return replace(ward, seen_at=scene.at, lost_at=lost_at, lost_polls=ward.lost_polls + 1)


def _has_its_server(ward: Ward, scene: _Scene, pid: int) -> bool:
    """Tell whether something of the server that the process came from is alive.

    A parent that is no longer in a process's line has ended: nothing else changes a line. That alone is no
    loss where one of several API servers, or an engine core in between, has ended.
    """
    if ward.anchor is None:
        return False
    processes = scene.table.processes
    alive = processes.get(ward.anchor[0])
    return (
        (alive is not None and alive.key == ward.anchor)
        or ward.anchor in {processes[at].key for at in ancestry(scene.table, pid)}
        or bool(ward.listeners & scene.heard.get(ward.server, frozenset()))
    )


def _is_watched(ward: Ward, scene: _Scene) -> bool:
    return scene.watched.get(ward.server) == ward.url


def _settle(ward: Ward, owner: Owner, scene: _Scene, pid: int) -> Owner:
    if ward.is_orphan(scene.at):
        return Owner(None, Match.NONE, orphan_of=ward.server)
    mine = Owner(ward.server, Match.TREE, anchor=ward.anchor)
    if ward.lost_at is None:
        # Its server is alive and no longer listens, or was not looked for in this poll.
        return owner if owner.server is not None or not _is_watched(ward, scene) else mine
    if ward.server and _is_watched(ward, scene) and not scene.heard.get(ward.server):
        return mine
    name = scene.table.processes[pid].name
    detail = f"process {pid} ({name}) has outlived the server that started it; an orphan if it stays"
    return untold(Reason.AMBIGUOUS, detail)
