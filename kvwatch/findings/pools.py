"""Rules about a server's pool, its queue and its slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.findings.room import Room, room_of
from kvwatch.findings.rule import NO_ANSWER, Condition, Evidence, Unknown, Verdict
from kvwatch.findings.words import count, fewer_or_split, place
from kvwatch.snapshot import Basis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvwatch.snapshot import RankState, ServerState

_LIMIT_UNKNOWN = "how many requests may run at once is not known: set request_limit"


def waiting_pool_full(evidence: Evidence) -> Iterator[Verdict]:
    """Find ranks at which requests wait for memory."""

    def judge(server: ServerState, rank: RankState, room: Room) -> Verdict | None:
        if room.waiting == 0 or room.memory_full is False:
            return None
        if room.waiting is None or room.memory_full is None:
            return _unknown(server, "what waits, or how full the pool is, is not known")
        used = "" if room.usage_ratio is None else f", {room.usage_ratio:.0%} of it used"
        waiting = count(room.waiting, "request")
        return Condition(
            server=server.target.name,
            summary=f"{place(server, rank)} has {waiting} waiting: its pool is full{used}",
            detail="New requests are answered late; what runs may be thrown out and recomputed.",
            next_step=(
                f"Send load elsewhere or add a replica; if the mean request has grown, shorten prompts: "
                f"{_lengths(room, server)}."
            ),
        )

    return _each_rank(evidence, judge)


def stalled_pool_free(evidence: Evidence) -> Iterator[Verdict]:
    """Find ranks at which requests wait though memory and slots are free: no lack of capacity."""

    def judge(server: ServerState, rank: RankState, room: Room) -> Verdict | None:
        if room.waiting == 0 or room.memory_full or room.slots_full:
            return None
        if room.waiting is None or room.memory_fits is None:
            return _unknown(server, "what waits, or how full the pool is, is not known")
        if room.slots_full is None:
            return _unknown(server, _LIMIT_UNKNOWN)
        longer = (
            ""
            if room.full_fits
            else " (a request that is much longer than the mean may still be too long for the free part)"
        )
        return Condition(
            server=server.target.name,
            summary=(
                f"{count(room.waiting, 'request')} wait at {place(server, rank)} while memory for "
                f"{room.memory_fits} more and a slot are free{longer}"
            ),
            detail="Answers begin late, and more memory would not help.",
            next_step=(
                "Look for what is not capacity: prompts that keep the engine computing, adapters, structured "
                "output, a stuck step; see the engine's log and its time to first token."
            ),
        )

    return _each_rank(evidence, judge)


def request_limit_reached(evidence: Evidence) -> Iterator[Verdict]:
    """Find ranks at which requests wait for a slot while memory has room."""

    def judge(server: ServerState, rank: RankState, room: Room) -> Verdict | None:
        split = rank.reading.slots is not None
        if room.waiting == 0 or room.slots_full is False or (room.memory_full and not split):
            return None
        if room.waiting is None or (room.memory_fits is None and not split):
            return _unknown(server, "what waits, or how full the pool is, is not known")
        if room.slots_full is None:
            return _unknown(server, _LIMIT_UNKNOWN)
        flag = "-np" if split else "max_num_seqs"
        rest = "" if split else f", and memory takes {room.memory_fits} more"
        lever = (
            f"Start it with more slots ({flag}) if the memory of its pool allows, or add a replica."
            if split
            else f"Raise {flag} from {room.slots}: memory is not the limit."
        )
        return Condition(
            server=server.target.name,
            summary=(
                f"{count(room.waiting, 'request')} wait at {place(server, rank)}: "
                f"all {room.slots} request slots are taken{rest}"
            ),
            detail="New requests are answered late though the card has room.",
            next_step=lever,
        )

    return _each_rank(evidence, judge)


def no_room_for_one(evidence: Evidence) -> Iterator[Verdict]:
    """Find ranks whose empty pool takes not one request of the length that the server admits."""

    def judge(server: ServerState, rank: RankState, _: Room) -> Verdict | None:
        fit, full = rank.full, server.full_length_tokens
        if fit is None or fit.empty is None or fit.resident_limit is None:
            return _unknown(server, "its pool or its longest request is not known")
        if fit.empty and fit.resident_limit:
            return None
        if rank.basis is Basis.ADMISSION:
            return _unknown(
                server, "only the engine's start-up charge is known, which may be more than it takes"
            )
        admitted = "its longest request" if full is None else f"a request of {full:,} tokens"
        blocks = ""
        if rank.usable_blocks is not None and rank.resident_blocks is not None:
            needed = max(rank.resident_blocks, rank.start_blocks or 0)
            blocks = f": {rank.usable_blocks:,} usable blocks, {needed:,} needed"
        longest = f"at most {rank.capacity_tokens:,.0f}" if rank.capacity_tokens else "what the pool can hold"
        return Condition(
            server=server.target.name,
            summary=f"{place(server, rank)} can never hold {admitted}{blocks}",
            detail="A request near that length waits for ever or is cut off, even on an idle server.",
            next_step=f"Lower the longest request to {longest} tokens, or give the pool more memory.",
        )

    return _each_rank(evidence, judge)


def no_room_now(evidence: Evidence) -> Iterator[Verdict]:
    """Find servers without memory for one more request of the usual length, and nothing waiting yet."""
    for server in evidence.awake():
        name, rooms = server.target.name, [room_of(rank) for rank in server.ranks]
        if server.reading is None:
            yield _unknown(server, NO_ANSWER)
            continue
        if any(room.waiting or room.running == 0 or (room.memory_fits or 0) > 0 for room in rooms):
            continue
        if any(_holds_one(rank) for rank in server.ranks):
            continue  # it has no room whenever it works
        if not rooms or any(None in (room.waiting, room.running, room.memory_fits) for room in rooms):
            yield _unknown(server, "what waits, what runs, or how full the pool is, is not known")
            continue
        yield Condition(
            server=name,
            summary=(
                f"{name} runs {count(sum(room.running or 0 for room in rooms), 'request')} and has no memory "
                f"for one more{_of_length(rooms[0], server)}"
            ),
            detail="Nothing waits yet; the next request will, or what runs is recomputed.",
            next_step=(
                "Add a replica or send new load elsewhere; if the mean request has grown, see "
                "kvwatch_typical_request_tokens and kvwatch_capacity_change_ratio."
            ),
        )


def recompute_suspected(evidence: Evidence) -> Iterator[Verdict]:
    """Find ranks whose running requests went back to the queue: the early sign of preemption."""
    for server, rank in _ranks(evidence):
        name = server.target.name
        activity = evidence.activity.get((name, rank.reading.rank))
        gained = None if activity is None else activity.suspected.gained
        if gained is None:
            yield _unknown(server, "running, waiting and finished requests are not all stated")
        elif gained >= 2:  # noqa: PLR2004 - one alone may be two things that happened between two polls
            yield Condition(
                server=name,
                summary=(
                    f"{count(gained, 'request')} of {place(server, rank)} stopped running without finishing "
                    f"within 5 min while as many began to wait"
                ),
                detail="Answers stall in the middle and go on later; HTTP stays 200.",
                next_step=_less_at_once(rank),
            )


def preempting(evidence: Evidence) -> Iterator[Verdict]:
    """Find ranks that count more than one preemption for ten finished requests."""
    for server, rank in _ranks(evidence):
        activity = evidence.activity.get((server.target.name, rank.reading.rank))
        gained = None if activity is None else activity.preempted.gained
        finished = None if activity is None else activity.finished.gained
        if rank.reading.slots is not None:
            continue  # llama.cpp never preempts
        if gained is None or finished is None:
            yield _unknown(server, "preempted and finished requests are not both counted")
        elif gained >= 3 and gained > 0.1 * finished:  # noqa: PLR2004 - docs/findings.md
            yield Condition(
                server=server.target.name,
                summary=(
                    f"{place(server, rank)} counted {count(gained, 'preemption')} in 10 min, beside "
                    f"{count(finished, 'finished request')}"
                ),
                detail="Work is thrown away and done again: answers stall, and the card is busy for nothing.",
                next_step=_less_at_once(rank),
            )


def worst_case_over_pool(evidence: Evidence) -> Iterator[Verdict]:
    """Find llama-servers whose slots may claim more than the pool that they share."""
    for server in evidence.awake():
        for rank in server.ranks:
            slots, ratio = rank.reading.slots, rank.worst_case_ratio
            if slots is None or server.target.kv_unified is False:
                continue  # blocks, or a split pool: each slot has cells of its own
            pool = server.target.pool_tokens
            if ratio is None or pool is None:
                yield _unknown(server, "its pool is not known: set pool_tokens and kv_unified")
            elif ratio > 1:
                need = slots.total_slots * slots.slot_limit_tokens
                yield Condition(
                    server=server.target.name,
                    summary=(
                        f"the {slots.total_slots} slots of {server.target.name} may claim {need:,} tokens of "
                        f"a pool of {pool:,}"
                    ),
                    detail="When they do, llama-server fails every running request with HTTP 500.",
                    next_step=fewer_or_split(slots.total_slots, slots.slot_limit_tokens, pool),
                )


def _each_rank(
    evidence: Evidence, judge: Callable[[ServerState, RankState, Room], Verdict | None]
) -> Iterator[Verdict]:
    """Yield the verdict of each rank of the servers that are awake."""
    for server in evidence.awake():
        if server.reading is None:
            yield _unknown(server, NO_ANSWER)
        for rank in server.ranks:
            verdict = judge(server, rank, room_of(rank))
            if verdict is not None:
                yield verdict


def _ranks(evidence: Evidence) -> Iterator[tuple[ServerState, RankState]]:
    return ((server, rank) for server in evidence.awake() for rank in server.ranks)


def _unknown(server: ServerState, why: str) -> Unknown:
    return Unknown(server=server.target.name, why=why)


def _holds_one(rank: RankState) -> bool:
    """Tell whether the whole pool is made for one request at a time."""
    typical = None if rank.typical is None else rank.typical.capacity
    limit = typical if typical is not None else None if rank.full is None else rank.full.resident_limit
    return limit is not None and limit < 2  # noqa: PLR2004 - one at a time


def _lengths(room: Room, server: ServerState) -> str:
    typical = "" if room.typical_tokens is None else f"typical now {room.typical_tokens:,.0f} tokens"
    full = "" if server.full_length_tokens is None else f"longest {server.full_length_tokens:,}"
    return ", ".join(filter(None, (typical, full))) or "their lengths are not stated"


def _of_length(room: Room, server: ServerState) -> str:
    if room.typical_tokens is not None:
        return f" of the typical {room.typical_tokens:,.0f} tokens"
    return "" if server.full_length_tokens is None else f" of {server.full_length_tokens:,} tokens"


def _less_at_once(rank: RankState) -> str:
    headroom = None if rank.full is None else rank.full.headroom
    limit = None if rank.full is None else rank.full.resident_limit
    tail = (
        ""
        if headroom is None or limit is None
        else f" (headroom {headroom:,}, holds {limit:,} at full length)"
    )
    return f"Let fewer run at once (max_num_seqs), shorten requests or enlarge the pool{tail}."
