"""Rules about pools, queues and slots: what fires, what does not, and what cannot be told."""

from __future__ import annotations

import pytest

from kvwatch.finding import RuleId
from kvwatch.readings import RankReading
from kvwatch.snapshot import Basis
from tests.findings.states import (
    Moment,
    Rank,
    found,
    held_for,
    inspected,
    llama,
    silent,
    unjudged,
    vllm,
)

FULL = Rank(usage=0.97, running=9, waiting=6)
FREE = Rank(usage=0.3, running=3, waiting=6)
R = RuleId

# Situation -> rule, the polls' state held for so many seconds, what is expected.
FIRES: dict[str, tuple[RuleId, float, Moment, str]] = {
    "a queue before a full pool": (
        R.WAITING_POOL_FULL, 60, Moment(servers=[vllm(FULL)]),
        "chat has 6 requests waiting: its pool is full, 97% of it used"),
    "a queue, and the free rest is less than a typical request": (
        R.WAITING_POOL_FULL, 60, Moment(servers=[vllm(Rank(usage=0.8, waiting=1, typical=3600.0))]),
        "chat has 1 request waiting: its pool is full, 80% of it used"),
    "a queue before a full pool, the slots full as well": (
        R.WAITING_POOL_FULL, 60, Moment(servers=[vllm(FULL, limit=9)]), "its pool is full"),
    "one rank of two has a queue and a full pool": (
        R.WAITING_POOL_FULL, 60, Moment(servers=[vllm(Rank(), Rank(usage=0.97, waiting=6, name="1"))]),
        "chat (rank 1) has 6 requests waiting"),
    "a queue before a full pool whose slots nobody states": (
        R.WAITING_POOL_FULL, 60, Moment(servers=[vllm(FULL, limit=None)]), "6 requests waiting"),
    "a queue while memory and slots are free": (
        R.STALLED_POOL_FREE, 60, Moment(servers=[vllm(FREE)]),
        "6 requests wait at chat while memory for 7 more and a slot are free"),
    "a queue while memory is free for typical requests, not for the longest": (
        R.STALLED_POOL_FREE, 60, Moment(servers=[vllm(Rank(usage=0.8, waiting=2))]),
        "much longer than the mean"),
    "a queue for slots": (
        R.REQUEST_LIMIT_REACHED, 60, Moment(servers=[vllm(FREE, limit=3)]),
        "all 3 request slots are taken, and memory takes 7 more"),
    "a queue before a llama-server's slots": (
        R.REQUEST_LIMIT_REACHED, 60, Moment(servers=[llama(busy=4, deferred=5)]),
        "5 requests wait at llama: all 4 request slots are taken"),
    "the pool is smaller than the longest request": (
        R.NO_ROOM_FOR_ONE, 0, Moment(servers=[vllm(Rank(blocks=250, usage=0.0, running=0))]),
        "chat can never hold a request of 4,000 tokens: 249 usable blocks, 250 needed"),
    "no memory for one more typical request for ten minutes": (
        R.NO_ROOM_NOW, 600, Moment(servers=[vllm(Rank(usage=0.95, running=9))]),
        "chat runs 9 requests and has no memory for one more of the typical 1,600 tokens"),
    "no memory on either rank": (
        R.NO_ROOM_NOW, 600,
        Moment(servers=[vllm(Rank(usage=0.95, running=9), Rank(usage=0.95, running=9, name="1"))]),
        "chat runs 18 requests"),
    "a default llama-server: four slots share one pool and each may claim all of it": (
        R.WORST_CASE_OVER_POOL, 0, Moment(servers=[llama()]),
        "the 4 slots of llama may claim 32,768 tokens of a pool of 8,192"),
}  # fmt: skip

SILENT: dict[str, tuple[RuleId, float, Moment]] = {
    "a full pool and no queue": (R.WAITING_POOL_FULL, 300, Moment(servers=[vllm(Rank(usage=0.97))])),
    "a queue before a free pool": (R.WAITING_POOL_FULL, 300, Moment(servers=[vllm(FREE)])),
    "a queue for less than a minute": (R.WAITING_POOL_FULL, 55, Moment(servers=[vllm(FULL)])),
    "waiting for remote KV data is no lack of room": (
        R.WAITING_POOL_FULL, 300, Moment(servers=[vllm(Rank(usage=0.97, deferred=9))])),
    "asleep: an old queue on its page": (
        R.WAITING_POOL_FULL, 300, Moment(servers=[vllm(FULL, sleeping=True)])),
    "a queue before a full pool is no stall": (R.STALLED_POOL_FREE, 300, Moment(servers=[vllm(FULL)])),
    "a queue for slots is no stall": (R.STALLED_POOL_FREE, 300, Moment(servers=[vllm(FREE, limit=3)])),
    "remote KV data is no stall of ours": (
        R.STALLED_POOL_FREE, 300, Moment(servers=[vllm(Rank(usage=0.3, deferred=9))])),
    "a queue that is served within a poll": (R.STALLED_POOL_FREE, 0, Moment(servers=[vllm(FREE)])),
    "the last requests of a saturated pool": (
        R.STALLED_POOL_FREE, 300, Moment(servers=[vllm(Rank(usage=0.86, waiting=6, typical=160.0))])),
    "slots are free": (R.REQUEST_LIMIT_REACHED, 300, Moment(servers=[vllm(FREE)])),
    "all slots taken and nobody waits": (
        R.REQUEST_LIMIT_REACHED, 300, Moment(servers=[vllm(Rank(running=3), limit=3)])),
    "all slots taken before a full pool: more slots would not help": (
        R.REQUEST_LIMIT_REACHED, 300, Moment(servers=[vllm(FULL, limit=9)])),
    "llama-server with an idle slot": (
        R.REQUEST_LIMIT_REACHED, 300, Moment(servers=[llama(busy=3, deferred=1)])),
    "a pool for one request, and it is in use": (
        R.NO_ROOM_FOR_ONE, 60, Moment(servers=[vllm(Rank(blocks=251, usage=1.0))])),
    "no request at all: nothing is missed": (
        R.NO_ROOM_NOW, 900, Moment(servers=[vllm(Rank(usage=0.95, running=0))])),
    "room for a typical request, none for the longest": (
        R.NO_ROOM_NOW, 900, Moment(servers=[vllm(Rank(usage=0.85))])),
    "the other rank has room": (
        R.NO_ROOM_NOW, 900, Moment(servers=[vllm(Rank(usage=0.95), Rank(name="1"))])),
    "it waits already: another rule's": (R.NO_ROOM_NOW, 900, Moment(servers=[vllm(FULL)])),
    "a pool for one at a time is full whenever it works": (
        R.NO_ROOM_NOW, 900, Moment(servers=[vllm(Rank(blocks=150, usage=0.9, running=1))])),
    "full for nine minutes": (
        R.NO_ROOM_NOW, 540, Moment(servers=[vllm(Rank(usage=0.95, running=9))])),
    "a llama-server whose pool holds all that its slots may claim": (
        R.WORST_CASE_OVER_POOL, 60, Moment(servers=[llama(pool=32_768)])),
    "a split pool": (
        R.WORST_CASE_OVER_POOL, 60, Moment(servers=[llama(pool=None, unified=False)])),
    "vLLM preempts and goes on": (
        R.WORST_CASE_OVER_POOL, 60, Moment(servers=[vllm(Rank(), limit=500)])),
}  # fmt: skip

UNTOLD: dict[str, tuple[RuleId, Moment]] = {
    "a queue, and how full the pool is is not known": (
        R.WAITING_POOL_FULL, Moment(servers=[vllm(Rank(usage=None, waiting=6))])),
    "what waits is not stated": (R.WAITING_POOL_FULL, Moment(servers=[vllm(Rank(usage=0.97, waiting=None))])),
    "the server does not answer": (R.WAITING_POOL_FULL, Moment(servers=[silent()])),
    "a queue before a free pool, and nobody states the slots": (
        R.STALLED_POOL_FREE, Moment(servers=[vllm(FREE, limit=None)])),
    "the same may be a queue for slots": (
        R.REQUEST_LIMIT_REACHED, Moment(servers=[vllm(FREE, limit=None)])),
    "the pool is not stated": (R.NO_ROOM_FOR_ONE, Moment(servers=[vllm(Rank(blocks=None))])),
    "a llama-server's pool is not known": (
        R.NO_ROOM_FOR_ONE, Moment(servers=[llama(pool=None, unified=None)])),
    "how full one rank is is not known": (
        R.NO_ROOM_NOW, Moment(servers=[vllm(Rank(usage=0.95), Rank(usage=None, name="1"))])),
    "worst case of an unknown pool": (
        R.WORST_CASE_OVER_POOL, Moment(servers=[llama(pool=None, unified=None)])),
    "preemptions are not counted": (R.PREEMPTING, Moment(servers=[vllm(Rank(preempted=None))])),
    "finished requests are not counted": (R.PREEMPTING, Moment(servers=[vllm(Rank(finished=None))])),
    "suspicions cannot be told": (R.RECOMPUTE_SUSPECTED, Moment(servers=[vllm(Rank(waiting=None))])),
}  # fmt: skip


@pytest.mark.parametrize("situation", FIRES)
def test_what_fires(situation: str) -> None:
    """Once, with its figures, as soon as it has held for long enough, and with all its words."""
    rule, seconds, moment, words = FIRES[situation]
    (finding,) = found(inspected(*held_for(seconds, moment)), rule)
    assert words in finding.summary
    assert finding.since == 1_000_000.0
    assert finding.server == moment.servers[0].target.name
    assert finding.detail.endswith(".")
    assert finding.next_step.endswith(".")
    assert "None" not in finding.summary + finding.detail + finding.next_step


@pytest.mark.parametrize("situation", SILENT)
def test_what_does_not_fire(situation: str) -> None:
    """Neither a finding nor, where all is known, a doubt."""
    rule, seconds, moment = SILENT[situation]
    inspection = inspected(*held_for(seconds, moment))
    assert found(inspection, rule) == []
    assert unjudged(inspection, rule) == []


@pytest.mark.parametrize("situation", UNTOLD)
def test_what_cannot_be_told(situation: str) -> None:
    """No finding, and no all-clear: the rule stands among the unjudged, with a reason."""
    rule, moment = UNTOLD[situation]
    inspection = inspected(*held_for(900, moment))
    assert found(inspection, rule) == []
    assert [bool(subject.why) for subject in unjudged(inspection, rule)] == [True]


def test_only_a_start_up_charge_proves_no_lack_of_room() -> None:
    """A hybrid's planner may charge more than a request takes: zero is a lower bound there."""
    server = vllm(Rank(blocks=250, usage=0.0, running=0), full=8000)
    assert server.ranks[0].basis is Basis.ADMISSION
    assert server.ranks[0].full is not None
    assert server.ranks[0].full.empty == 0
    inspection = inspected(Moment(servers=[server]))
    assert found(inspection, R.NO_ROOM_FOR_ONE) == []
    assert len(unjudged(inspection, R.NO_ROOM_FOR_ONE)) == 1


def counted(*steps: tuple[float, float, float]) -> list[Moment]:
    """Return polls with (moment, preemptions, finished requests)."""
    return [
        Moment(at=at, servers=[vllm(Rank(preempted=preempted, finished=finished))])
        for at, preempted, finished in steps
    ]


PREEMPTIONS: dict[str, tuple[list[Moment], str | None]] = {
    "six of eleven": (counted((0, 0, 0), (60, 6, 11)), "6 preemptions in 10 min, beside 11 finished"),
    "nothing finishes any more": (counted((0, 5, 100), (60, 9, 100)), "4 preemptions in 10 min"),
    "over a restart they count from zero": (counted((0, 500, 900), (60, 4, 10)), "4 preemptions"),
    "a healthy level: 1,538 beside 19,801 that all finished": (
        counted((0, 0, 0), (590, 1538, 19_801)), None),
    "two": (counted((0, 0, 0), (60, 2, 3)), None),
    "the first reading is high already": (counted((0, 4000, 10)), None),
    "a counter that stands": (counted((0, 4000, 10), (60, 4000, 11)), None),
    "more than ten minutes ago": (
        counted((0, 0, 0), (60, 6, 11), (400, 6, 200), (700, 6, 300), (1300, 6, 400)), None),
    "a restart with nothing after it": (counted((0, 500, 900), (60, 0, 0)), None),
}  # fmt: skip


@pytest.mark.parametrize("situation", PREEMPTIONS)
def test_preemptions_are_judged_beside_what_finished(situation: str) -> None:
    """A non-zero counter alone pages nobody."""
    moments, words = PREEMPTIONS[situation]
    summaries = [finding.summary for finding in found(inspected(*moments), R.PREEMPTING)]
    assert len(summaries) == (0 if words is None else 1)
    assert words is None or words in summaries[0]


def suspected(*steps: tuple[float, int, float]) -> list[Moment]:
    """Return polls with (moment, suspected so far, usage)."""
    return [
        Moment(at=at, servers=[vllm(Rank(usage=usage))], suspected={("chat", "0"): count})
        for at, count, usage in steps
    ]


SUSPICIONS: dict[str, tuple[list[Moment], bool]] = {
    "six at once in a full pool": (suspected((0, 0, 0.98), (5, 6, 0.6)), True),
    "two in five minutes": (suspected((0, 0, 0.98), (5, 1, 0.9), (200, 2, 0.9)), True),
    "one alone": (suspected((0, 0, 0.98), (5, 1, 0.9)), False),
    "six while the pool was nearly empty": (suspected((0, 0, 0.2), (5, 6, 0.1)), False),
    "many before kvwatch looked": (suspected((0, 40, 0.98), (5, 40, 0.98)), False),
    "two, six minutes apart": (
        suspected((0, 0, 0.98), (5, 1, 0.9), (200, 1, 0.9), (310, 1, 0.9), (370, 2, 0.9)), False),
}  # fmt: skip


@pytest.mark.parametrize("situation", SUSPICIONS)
def test_suspected_recomputes(situation: str) -> None:
    """Two within five minutes, in a pool that is full enough for it."""
    moments, fires = SUSPICIONS[situation]
    assert bool(found(inspected(*moments), R.RECOMPUTE_SUSPECTED)) == fires


def test_an_engine_whose_usage_is_unknown_is_judged_by_its_requests_alone() -> None:
    """Old releases state no usable gauge; running lost and waiting gained say enough."""
    moments = [
        Moment(at=at, servers=[vllm(Rank(usage=None))], suspected={("chat", "0"): count})
        for at, count in ((0.0, 0), (5.0, 6))
    ]
    assert found(inspected(*moments), R.RECOMPUTE_SUSPECTED)


def test_words_survive_a_rank_that_states_nothing() -> None:
    """No rule fails for want of a figure."""
    server = vllm(Rank(usage=None, running=None, waiting=None, blocks=None, typical=None, finished=None))
    bare = RankReading(rank="0")
    assert server.ranks[0].reading != bare
    inspection = inspected(*held_for(900, Moment(servers=[server])))
    assert inspection.findings == ()
    assert not any("Traceback" in subject.why for subject in inspection.unjudged)


def test_what_is_advised_against_the_worst_case_mends_it() -> None:
    """A larger -c alone would be claimed by each slot, too; fewer slots or a split pool are not."""
    (finding,) = found(inspected(*held_for(0, Moment(servers=[llama()]))), R.WORST_CASE_OVER_POOL)
    assert finding.next_step == (
        "Take -np 1 for full length, or -np 4 without --kv-unified: a split pool, 2,048 tokens a slot, and"
        " 8,192 with -c 32768."
    )
