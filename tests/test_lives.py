"""Starts and wakings: what neighbours held meanwhile, and which pools came of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.fit import Load
from kvwatch.lives import WINDOWS, Lives
from kvwatch.memory_ring import RETENTION_SECONDS
from kvwatch.readings import (
    DeviceReading,
    EngineReading,
    ProcessIdentity,
    ProcessTable,
    RankReading,
    Reason,
)
from kvwatch.snapshot import DeviceState, Match, ProcessState, RankState, ServerState
from kvwatch.target import Target

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.observation import StartWindow

GIB = 1 << 30
LOAD = Load(running=0, waiting=0, waiting_for_capacity=False, request_limit=None)


@dataclass(frozen=True, kw_only=True)
class Server:
    """One server in one poll: what it says, and what its processes (PIDs with bytes) hold."""

    name: str = "asr"
    blocks: int | None = 1000
    """None: it does not answer."""
    reason: Reason = Reason.UNREACHABLE
    started: float | None = 100.0
    stated: bool = False
    """Its page states that start."""
    listener: int | None = 10
    held: Mapping[int, int | None] = field(default_factory=lambda: {11: 20 * GIB})
    asleep: bool = False
    flags: str = "0123456789ab"


@dataclass(frozen=True, kw_only=True)
class Poll:
    """One poll; `others` are (PID, bytes) of nobody in particular, on the one card."""

    at: float
    servers: Sequence[Server] = ()
    others: Mapping[int, int | None] = field(default_factory=dict)
    parents: Mapping[int, int] = field(default_factory=dict)
    orphans: Mapping[int, int] = field(default_factory=dict)
    """Of the server `asr`, which is gone."""
    free: int = 30 * GIB


def lived(*polls: Poll) -> Lives:
    """Return the lives after these polls."""
    lives = Lives()
    for poll in polls:
        listening = {server.name: server.listener for server in poll.servers if server.listener is not None}
        pids = [
            *listening.values(),
            *poll.others,
            *poll.orphans,
            *(pid for server in poll.servers for pid in server.held),
        ]
        lives = lives.advance(
            poll.at,
            servers=[_state(server) for server in poll.servers],
            devices=[
                DeviceState(
                    reading=DeviceReading(
                        uuid="GPU-0", index=0, name="card", driver="1", total_bytes=32 * GIB,
                        free_bytes=poll.free,
                    )
                )
            ],
            processes=[
                *(_process(pid, used, None) for pid, used in poll.others.items()),
                *(replace(_process(pid, used, "asr"), orphan=True) for pid, used in poll.orphans.items()),
                *(
                    _process(pid, used, server.name if server.listener is not None else None)
                    for server in poll.servers
                    for pid, used in server.held.items()
                ),
            ],
            table=ProcessTable(
                processes={
                    pid: ProcessIdentity(
                        pid=pid, start_ticks=pid * 100, parent_pid=poll.parents.get(pid, 1), name=f"p{pid}"
                    )
                    for pid in pids
                },
                listeners={name: (pid,) for name, pid in listening.items()},
            ),
            reasons={
                server.name: server.reason if server.blocks is None else None for server in poll.servers
            },
        )  # fmt: skip
    return lives


def _process(pid: int, used: int | None, server: str | None) -> ProcessState:
    match = Match.NONE if server is None else Match.TREE
    return ProcessState(
        device="GPU-0", pid=pid, used_bytes=used, name=f"p{pid}", server=server, match=match
    )  # fmt: skip


def _state(server: Server) -> ServerState:
    target = Target(name=server.name, url="http://h:1", host="h", port=1)
    bytes_here = {"GPU-0": sum(used or 0 for used in server.held.values())} if server.held else {}
    owned = bytes_here if server.listener is not None else {}
    if server.blocks is None:
        return ServerState(target=target, reading=None, started_at=None, device_bytes=owned)
    rank = RankReading(rank="0", num_blocks=server.blocks)
    return ServerState(
        target=target,
        reading=EngineReading(
            engine="vllm", ranks=(rank,), version="0.28.1", sleeping=server.asleep,
            memory_kept=not server.asleep,
            start_timestamp_seconds=server.started if server.stated else None,
        ),
        ranks=(RankState(reading=rank, load=LOAD),),
        fingerprint=server.flags,
        started_at=server.started,
        device_bytes=owned,
    )  # fmt: skip


LOADING = Server(blocks=None, listener=None, held={})
ALIGNER = {20: 8 * GIB}


def only(lives: Lives) -> StartWindow:
    """Return the one window."""
    (window,) = lives.windows
    return window


def grown(window: StartWindow) -> list[tuple[int, int | None, int | None, int | None, int | None]]:
    """Return each neighbour's PID, first, last, most and growth, in GiB."""
    return [
        (
            neighbour.pid,
            *(
                None if value is None else value // GIB
                for value in (
                    neighbour.first_bytes, neighbour.last_bytes, neighbour.most_bytes, neighbour.grew_bytes
                )
            ),
        )
        for neighbour in window.neighbours
    ]  # fmt: skip


def test_a_start_race_is_kept_with_who_grew_and_by_how_much() -> None:
    """Two start together on one card, and each finds the other's growth in its own window."""
    lives = lived(
        Poll(at=95, free=31 * GIB),
        Poll(at=100, servers=[LOADING], others={20: 1 * GIB, 11: 1 * GIB}, free=29 * GIB),
        Poll(at=105, servers=[LOADING], others={20: 6 * GIB, 11: 15 * GIB}, free=10 * GIB),
        Poll(at=110, servers=[Server()], others={20: 6 * GIB}, free=5 * GIB),
    )
    window = only(lives)
    assert (window.server, window.device, window.started_at, window.ready_at) == ("asr", "GPU-0", 100, 110)
    assert (window.seen_from, window.free_first_bytes, window.free_last_bytes) == (100, 29 * GIB, 5 * GIB)
    assert grown(window) == [(20, 1, 6, 6, 5)]
    assert window.grew_bytes == 5 * GIB
    assert not window.woke


NO_WINDOW: dict[str, list[Poll]] = {
    "it was ready when kvwatch came": [Poll(at=500, servers=[Server()]), Poll(at=505, servers=[Server()])],
    "it was ready long before it was watched": [Poll(at=500), Poll(at=505, servers=[Server()])],
    "it did not answer for a while and is the same": [
        Poll(at=90), Poll(at=110, servers=[Server(started=50)]),
        Poll(at=115, servers=[Server(blocks=None, held={})]), Poll(at=120, servers=[Server(started=50)])],
    "its key was wrong at first": [
        Poll(at=500, servers=[Server(blocks=None, reason=Reason.UNAUTHORIZED)]),
        Poll(at=505, servers=[Server()])],
    "its start time is not known": [Poll(at=90), Poll(at=110, servers=[Server(started=None)])],
    "the start took longer than anything is kept": [
        Poll(at=90), Poll(at=101 + RETENTION_SECONDS, servers=[Server()])],
    "the start time flickers": [
        Poll(at=90, servers=[Server(started=50, listener=None)]),
        Poll(at=110, servers=[Server(started=51.5, listener=None)])],
    "the clock was set, and /proc says the same process started later": [
        Poll(at=90, servers=[Server(started=50)]), Poll(at=95, servers=[Server(started=93)])],
    "the clock was set, and the page says when it started all along": [
        Poll(at=90, servers=[Server(started=50, stated=True, listener=12)]),
        Poll(at=95, servers=[Server(started=50.25, stated=True, listener=13)])],
    "it is not on a device": [Poll(at=90), Poll(at=110, servers=[Server(held={})])],
}  # fmt: skip


@pytest.mark.parametrize("situation", NO_WINDOW)
def test_no_window_is_made_up(situation: str) -> None:
    """A start that was not watched has no evidence."""
    assert lived(*NO_WINDOW[situation]).windows == ()


SEEN: dict[str, tuple[list[Poll], float]] = {
    "watched from before": ([Poll(at=90), Poll(at=110, servers=[Server()])], 100),
    "kvwatch came while it was loading": (
        [Poll(at=105, servers=[LOADING]), Poll(at=110, servers=[Server()])], 105),
    "llama-server listens while it loads": (
        [Poll(at=105, servers=[Server(blocks=None, reason=Reason.LOADING)]),
         Poll(at=110, servers=[Server()])], 105),
    "restarted between two polls": (
        [Poll(at=90, servers=[Server(started=50)]),
         Poll(at=110, servers=[Server(listener=12, held={13: GIB})])], 100),
    "restarted behind a proxy that went on listening": (
        [Poll(at=90, servers=[Server(started=50, stated=True)]),
         Poll(at=110, servers=[Server(stated=True, held={13: GIB})])], 100),
    "restarted within seconds of its first start": (
        [Poll(at=98, servers=[Server(started=97, stated=True)]),
         Poll(at=110, servers=[Server(stated=True, held={13: GIB})])], 100),
    "restarted after an outage": (
        [Poll(at=90, servers=[Server(started=50)]), Poll(at=95, servers=[LOADING]),
         Poll(at=110, servers=[Server(listener=12, held={13: GIB})])], 100),
    "a new process did not answer in time at first": (
        [Poll(at=90, servers=[Server(started=50)]),
         Poll(at=105, servers=[Server(blocks=None, reason=Reason.TIMEOUT, listener=12, held={13: GIB})]),
         Poll(at=110, servers=[Server(listener=12, held={13: GIB})])], 100),
    "nobody watched the server, but kvwatch watched the card": (
        [Poll(at=90), Poll(at=100, others={11: GIB}), Poll(at=105, others={11: 20 * GIB}),
         Poll(at=110, servers=[Server()])], 100),
}  # fmt: skip


@pytest.mark.parametrize("situation", SEEN)
def test_every_start_that_was_watched_has_one(situation: str) -> None:
    """Also when the server was not configured or did not answer meanwhile."""
    polls, seen_from = SEEN[situation]
    window = only(lived(*polls))
    assert (window.started_at, window.seen_from, window.ready_at) == (100, seen_from, 110)


def test_processes_that_are_found_later_change_nothing() -> None:
    """The window ends when the server was ready, not when kvwatch knew whose the memory is."""
    unplaced = Server(held={})
    window = only(
        lived(
            Poll(at=90, others={20: GIB}),
            Poll(at=110, servers=[unplaced], others={11: 20 * GIB, 20: 3 * GIB}),
            Poll(at=115, servers=[unplaced], others={11: 20 * GIB, 20: 9 * GIB}),
            Poll(at=120, servers=[Server()], others={20: 9 * GIB}),
            Poll(at=125, servers=[Server()], others={20: 9 * GIB}),
        )
    )
    assert (window.ready_at, grown(window)) == (110, [(20, 1, 3, 3, 2)])
    late = [Poll(at=90), Poll(at=110, servers=[unplaced]), Poll(at=175, servers=[unplaced])]
    assert lived(*late, Poll(at=180, servers=[Server()])).windows == ()


def test_its_own_growth_is_no_neighbours_and_its_former_self_is() -> None:
    """What of the old process was still there when the new one measured is evidence."""
    window = only(
        lived(
            Poll(at=90, servers=[Server(started=50, held={11: 20 * GIB})]),
            Poll(at=101, servers=[LOADING], others={11: 20 * GIB, 13: GIB}),
            Poll(at=110, servers=[Server(listener=12, held={13: 6 * GIB})]),
        )
    )
    assert grown(window) == [(11, 20, 0, 20, 0)]
    assert window.neighbours[0].server == "asr"
    assert window.grew_bytes == 0


def test_an_orphan_of_its_former_life_is_a_neighbour() -> None:
    """It holds memory beside the new life, under the same server's name."""
    window = only(
        lived(
            Poll(at=90, servers=[Server(started=50)]),
            Poll(at=110, servers=[Server(listener=12, held={13: 6 * GIB})], orphans={11: 20 * GIB}),
        )
    )
    assert grown(window) == [(11, 20, 20, 20, 0)]


def test_a_child_that_it_started_and_that_ended_is_no_neighbour() -> None:
    """Nor is a process that had gone before the start."""
    window = only(
        lived(
            Poll(at=90, others={30: GIB}),
            Poll(at=95),
            Poll(at=101, servers=[LOADING], others={15: GIB, 11: GIB}, parents={15: 11}),
            Poll(at=110, servers=[Server()]),
        )
    )
    assert window.neighbours == ()
    assert window.grew_bytes == 0


def test_an_unknown_neighbour_makes_the_growth_unknown() -> None:
    """N/A is not nothing."""
    window = only(
        lived(Poll(at=90, others={20: None}), Poll(at=110, servers=[Server()], others={20: None}))
    )  # fmt: skip
    assert grown(window) == [(20, None, None, None, None)]
    assert window.grew_bytes is None


def test_a_neighbour_that_came_and_went_is_seen_at_its_peak() -> None:
    """A job of a minute can charge a server that starts meanwhile."""
    window = only(
        lived(
            Poll(at=95),
            Poll(at=101, servers=[LOADING], others={30: 9 * GIB}),
            Poll(at=105, servers=[LOADING]),
            Poll(at=110, servers=[Server()]),
        )
    )
    assert grown(window) == [(30, 0, 0, 9, 9)]


def test_waking_has_a_window_of_its_own_and_pausing_none() -> None:
    """From the poll that last saw it asleep to the first that saw it awake."""
    asleep = Server(asleep=True, held={11: GIB})
    lives = lived(
        Poll(at=90),
        Poll(at=110, servers=[Server()]),
        Poll(at=120, servers=[asleep]),
        Poll(at=130, servers=[asleep], others={20: 2 * GIB}),
        Poll(at=135, servers=[Server(blocks=900)], others={20: 5 * GIB}),
        Poll(at=140, servers=[Server(blocks=900)], others={20: 5 * GIB}),
    )
    start, woke = lives.windows
    assert (start.woke, woke.woke) == (False, True)
    assert (woke.started_at, woke.ready_at) == (130, 135)
    assert grown(woke) == [(20, 2, 5, 5, 3)]
    assert [pool.sizes for pool in lives.pools["asr"]] == [{"0": 1000}, {"0": 900}]


def test_what_it_held_awake_is_remembered_while_it_sleeps_and_not_over_a_restart() -> None:
    """A pinned sleeper's claim needs it."""
    awake, asleep = Server(held={11: 20 * GIB}), Server(asleep=True, held={11: GIB})
    polls = [Poll(at=90), Poll(at=110, servers=[awake]), Poll(at=120, servers=[asleep])]
    assert lived(*polls).awake_bytes == {"asr": {"GPU-0": 20 * GIB}}
    restarted = replace(asleep, started=125.0, listener=12)
    assert lived(*polls, Poll(at=130, servers=[restarted])).awake_bytes == {}
    assert lived(Poll(at=120, servers=[asleep])).awake_bytes == {}


def test_pools_are_remembered_with_what_decided_them() -> None:
    """One for each start, once; equal settings give equal setups."""
    second = Server(started=200.0, listener=12, held={13: GIB}, blocks=610)
    third = Server(started=300.0, listener=14, held={15: GIB}, blocks=610, flags="fedcba987654")
    lives = lived(
        Poll(at=110, servers=[Server()]),
        Poll(at=115, servers=[Server()]),
        Poll(at=120, servers=[LOADING]),
        Poll(at=210, servers=[second]),
        Poll(at=310, servers=[third]),
    )
    pools = lives.pools["asr"]
    assert [pool.sizes["0"] for pool in pools] == [1000, 610, 610]
    assert pools[0].setup == pools[1].setup
    assert pools[1].setup != pools[2].setup


def test_only_the_last_starts_are_kept_and_only_of_watched_servers() -> None:
    """A crash loop fills no memory."""
    polls = [Poll(at=90)]
    for number in range(1, WINDOWS + 5):
        server = Server(started=100.0 * number, listener=1000 + number, held={2000 + number: GIB})
        polls.append(Poll(at=100.0 * number + 10, servers=[server]))
    lives = lived(*polls)
    assert len(lives.windows) == WINDOWS
    assert lives.windows[-1].started_at == 100.0 * (WINDOWS + 4)
    assert len(lives.pools["asr"]) == 8
    gone = lived(*polls, Poll(at=5000))
    assert (gone.windows, gone.pools, gone.present) == ((), {}, {})
