"""What is said of a change: the right cause, no surer than what was seen, and factors that add up."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from kvwatch.snapshot import KvGroup
from kvwatch.triage.document import verdict_document
from kvwatch.triage.explanation import explain
from kvwatch.triage.markdown import render_markdown
from kvwatch.triage.text import PLAIN, WIDTH, render_text
from kvwatch.triage.verdict import Cause, Confidence
from tests.triage.moments import DAY, GIB, HOUR, MIB, NOW, SETUP, hour, other, record, restart

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.observation import Setup, StartWindow

MORNING = NOW - 6 * HOUR
THEN = NOW - DAY


@dataclass(frozen=True, kw_only=True)
class Case:
    """Two hours and what must be said of them."""

    cause: Cause
    confidence: Confidence | None = None
    then: Mapping[str, Any] = field(default_factory=dict)
    now: Mapping[str, Any] = field(default_factory=dict)
    old: Setup = SETUP
    new: Setup = SETUP
    starts: tuple[StartWindow, ...] = ()
    ratio: float | None = None
    evidence: str | None = None


AGAIN = {"started_at": MORNING}
PINNED = other(
    share_ratio=None, pin_bytes=int(6.26 * GIB), bytes_per_block=None, groups=(), resident_blocks=512
)

LARGE_BLOCKS = other(
    block_size=1600,
    full_length_tokens=16_000,
    resident_blocks=10,
    bytes_per_block=1600 * 131_072,
    groups=(KvGroup(kind="full", layers=32, block_size=1600, page_bytes=6_553_600, window=None),),
)

CASES = {
    "nothing changed": Case(cause=Cause.NO_CHANGE),
    "prompts doubled": Case(
        cause=Cause.PROMPTS_LONGER, confidence=Confidence.HIGH, now={"prompt": 3200.0}, ratio=125 / 225
    ),
    "answers tripled": Case(
        cause=Cause.ANSWERS_LONGER, now={"answer": 1200.0}, confidence=Confidence.HIGH, ratio=125 / 175
    ),
    "prompts doubled, too few requests to say": Case(
        cause=Cause.NOT_ENOUGH_DATA, then={"finished": 0.1}, now={"finished": 0.1, "prompt": 3200.0}
    ),
    "prompts a quarter longer in forty requests is chance": Case(
        cause=Cause.NO_CHANGE, then={"finished": 0.7}, now={"finished": 0.7, "prompt": 2000.0}
    ),
    "prompts a quarter longer in six hundred is not": Case(
        cause=Cause.PROMPTS_LONGER, now={"prompt": 2000.0}, ratio=125 / 150
    ),
    "share lowered": Case(
        cause=Cause.POOL_SMALLER_CONFIG,
        confidence=Confidence.HIGH,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(share_ratio=0.8, fingerprint="f1"),
        ratio=0.5,
        evidence="share",
    ),
    "two servers started at once: 4.72 GiB became 1.84 with the same flags": Case(
        cause=Cause.POOL_SMALLER_STARTUP_RACE,
        confidence=Confidence.HIGH,
        then={"usable_blocks": 2416},
        now={"usable_blocks": 942, **AGAIN},
        starts=(restart(MORNING, ("embedding", 0, 3 * GIB)),),
        ratio=942 / 2416,
        evidence="neighbour_grew",
    ),
    "a neighbour took only some of what is lost": Case(
        cause=Cause.POOL_SMALLER_STARTUP_RACE,
        confidence=Confidence.MEDIUM,
        now={"usable_blocks": 2000, **AGAIN},
        starts=(restart(MORNING, ("embedding", 0, GIB)),),
    ),
    "smaller after a watched start with steady neighbours": Case(
        cause=Cause.POOL_SMALLER_UNEXPLAINED,
        confidence=Confidence.MEDIUM,
        now={"usable_blocks": 2000, **AGAIN},
        starts=(restart(MORNING, ("embedding", 3 * GIB, 3 * GIB)),),
        evidence="no_neighbour_grew",
    ),
    "smaller after a start that nobody watched": Case(
        cause=Cause.POOL_SMALLER_UNEXPLAINED,
        confidence=Confidence.LOW,
        now={"usable_blocks": 2000, **AGAIN},
        evidence="start_not_watched",
    ),
    "a share lowered is the cause though a neighbour grew too": Case(
        cause=Cause.POOL_SMALLER_CONFIG,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(share_ratio=0.7, fingerprint="f1"),
        starts=(restart(MORNING, ("embedding", 0, 3 * GIB)),),
    ),
    "192,636 tokens in 6.26 GiB became 184,260 with another engine": Case(
        cause=Cause.TOKEN_DEARER_ENGINE,
        confidence=Confidence.HIGH,
        old=PINNED,
        new=other(
            **{
                name: getattr(PINNED, name)
                for name in ("share_ratio", "pin_bytes", "bytes_per_block", "groups")
            },
            version="0.33.0",
        ),
        then={"usable_blocks": 192_636 // 16 - 1},
        now={"usable_blocks": 184_260 // 16 - 1, **AGAIN},
        ratio=(184_260 // 16 - 1) / (192_636 // 16 - 1),
        evidence="engine_version",
    ),
    "cache in twice the bytes": Case(
        cause=Cause.TOKEN_DEARER_CACHE_DTYPE,
        confidence=Confidence.HIGH,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(
            cache_dtype="float32",
            bytes_per_block=2 * 16 * 131_072,
            groups=(KvGroup(kind="full", layers=32, block_size=16, page_bytes=131_072, window=None),),
        ),
        ratio=0.5,
        evidence="cache_dtype",
    ),
    "another model under the same name": Case(
        cause=Cause.TOKEN_DEARER_MODEL,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(
            model_hash="bbbb",
            bytes_per_block=2 * 16 * 131_072,
            groups=(KvGroup(kind="full", layers=64, block_size=16, page_bytes=65_536, window=None),),
        ),
        ratio=0.5,
        evidence="model",
    ),
    "sixty to forty": Case(
        cause=Cause.MIXED,
        now={"usable_blocks": 2400, "prompt": 2450.0, **AGAIN},
        new=other(share_ratio=0.8),
    ),
    "request limit lowered and reached": Case(
        cause=Cause.REQUEST_LIMIT,
        confidence=Confidence.HIGH,
        now={"running_max": 8.0, "running_mean": 8.0, "waiting_mean": {"capacity": 5.0}, **AGAIN},
        new=other(request_limit=8),
        evidence="request_limit_reached",
    ),
    "requests wait, nothing comes out, the pool has room": Case(
        cause=Cause.STALLED_NOT_MEMORY,
        now={"waiting_mean": {"capacity": 9.0}, "generation_tokens": 0.0, "finished": 0.0},
        evidence="stall",
    ),
    "three times the requests, and they queue": Case(
        cause=Cause.MORE_TRAFFIC,
        now={"finished": 30.0, "running_mean": 30.0, "usage_max": 1.0, "waiting_mean": {"capacity": 4.0}},
    ),
    "shorter prompts": Case(cause=Cause.CAPACITY_GREW, now={"prompt": 800.0}, ratio=125 / 75),
    "a larger pool": Case(cause=Cause.CAPACITY_GREW, now={"usable_blocks": 8000, **AGAIN}, ratio=2.0),
    "asleep": Case(
        cause=Cause.NOT_ENOUGH_DATA,
        now={"sleeping": True, "finished": None, "usable_blocks": None, "running_mean": None},
    ),
    "pool lost without traffic": Case(
        cause=Cause.POOL_SMALLER_CONFIG,
        confidence=Confidence.MEDIUM,
        now={"usable_blocks": 2000, "finished": 0.0, **AGAIN},
        new=other(share_ratio=0.8),
    ),
    "a share raised does not explain a smaller pool, a race does": Case(
        cause=Cause.POOL_SMALLER_STARTUP_RACE,
        confidence=Confidence.HIGH,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(share_ratio=0.92, fingerprint="f1"),
        starts=(restart(MORNING, ("embedding", 0, 5 * GIB)),),
    ),
    "a share raised does not explain a smaller pool": Case(
        cause=Cause.POOL_SMALLER_UNEXPLAINED,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(share_ratio=0.92, fingerprint="f1"),
        starts=(restart(MORNING),),
    ),
    "another name for the same model, and an engine that makes tokens dearer": Case(
        cause=Cause.TOKEN_DEARER_ENGINE,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(model="chat-2", version="0.33.0", bytes_per_block=2 * 16 * 131_072),
        ratio=0.5,
    ),
    "another name for the same model explains no pool": Case(
        cause=Cause.POOL_SMALLER_UNEXPLAINED,
        now={"usable_blocks": 2000, **AGAIN},
        new=other(model="chat-2"),
    ),
    "one tensor rank instead of two: pool and cost by one deploy": Case(
        cause=Cause.TOKEN_DEARER_ENGINE,
        confidence=Confidence.MEDIUM,
        then={"usable_blocks": 12_000},
        now={"usable_blocks": 4000, **AGAIN},
        old=other(
            tensor_parallel=2,
            bytes_per_block=8 * 131_072,
            groups=(KvGroup(kind="full", layers=32, block_size=16, page_bytes=32_768, window=None),),
        ),
        ratio=1 / 3,
        evidence="tensor_parallel",
    ),
    "a tenth of the tokens comes out while requests wait beside a free pool": Case(
        cause=Cause.STALLED_NOT_MEMORY,
        now={"waiting_mean": {"capacity": 9.0}, "generation_tokens": 100.0, "finished": 0.8},
        evidence="stall",
    ),
    "requests wait for what is not memory while others are served": Case(
        cause=Cause.STALLED_NOT_MEMORY,
        confidence=Confidence.MEDIUM,
        now={"waiting_mean": {"deferred": 9.0}},
        evidence="waiting_not_memory",
    ),
    "they always waited so": Case(
        cause=Cause.NO_CHANGE,
        then={"waiting_mean": {"deferred": 9.0}},
        now={"waiting_mean": {"deferred": 9.0}},
    ),
    "never more than eight run, and nobody states a limit": Case(
        cause=Cause.REQUEST_LIMIT,
        confidence=Confidence.LOW,
        old=other(request_limit=None),
        new=other(request_limit=None),
        now={"running_max": 8.0, "running_mean": 8.0, "waiting_mean": {"capacity": 5.0}},
        evidence="request_limit_suspected",
    ),
    "each request takes longer, so that more are there: not more traffic": Case(
        cause=Cause.NO_CHANGE,
        confidence=Confidence.MEDIUM,
        now={"running_mean": 25.0, "running_max": 32.0, "usage_max": 1.0, "waiting_mean": {"capacity": 5.0}},
    ),
    "three times the requests, as many as there are slots": Case(
        cause=Cause.MORE_TRAFFIC,
        now={
            "finished": 30.0,
            "running_mean": 256.0,
            "running_max": 256.0,
            "waiting_mean": {"capacity": 9.0},
        },
        evidence="request_limit_reached",
    ),
    "half the pool and half the prompt": Case(
        cause=Cause.NO_CHANGE,
        confidence=Confidence.MEDIUM,
        now={"usable_blocks": 2200, "prompt": 700.0, **AGAIN},
        new=other(share_ratio=0.7),
        ratio=125 / 69 * 2200 / 4000,
    ),
    "a mean that crosses the edge of a large block": Case(
        cause=Cause.NO_CHANGE,
        confidence=Confidence.MEDIUM,
        old=LARGE_BLOCKS,
        new=LARGE_BLOCKS,
        then={"prompt": 1195.0, "answer": 395.0, "usable_blocks": 60},
        now={"prompt": 1212.0, "answer": 398.0, "usable_blocks": 60},
        ratio=0.5,
    ),
    "prompts doubled in large blocks": Case(
        cause=Cause.PROMPTS_LONGER,
        old=LARGE_BLOCKS,
        new=LARGE_BLOCKS,
        then={"prompt": 1000.0, "usable_blocks": 60},
        now={"prompt": 2000.0, "usable_blocks": 60},
        ratio=0.5,
    ),
    "nothing says how long requests were": Case(
        cause=Cause.NOT_ENOUGH_DATA,
        then={"finished": None},
        now={"finished": None},
        evidence="lengths_unknown",
    ),
    "whether it started again is not known": Case(
        cause=Cause.POOL_SMALLER_UNEXPLAINED,
        confidence=Confidence.LOW,
        then={"started_at": None},
        now={"usable_blocks": 2000, "started_at": None},
        evidence="start_unknown",
    ),
    "neither groups nor R: the exported capacity is what is left": Case(
        cause=Cause.PROMPTS_LONGER,
        confidence=Confidence.MEDIUM,
        old=other(groups=(), resident_blocks=None),
        new=other(groups=(), resident_blocks=None),
        then={"typical_prompt_tokens": 1600.0, "typical_generation_tokens": 400.0, "typical_capacity": 32.0},
        now={
            "prompt": 3200.0,
            "typical_prompt_tokens": 3200.0,
            "typical_generation_tokens": 400.0,
            "typical_capacity": 4000 / 225,
        },
    ),
    "neither groups nor R nor an exported capacity": Case(
        cause=Cause.NOT_ENOUGH_DATA,
        old=other(groups=(), resident_blocks=None),
        new=other(groups=(), resident_blocks=None),
        now={"prompt": 3200.0},
    ),
}


@pytest.mark.parametrize("situation", CASES)
def test_the_verdict(situation: str) -> None:
    """The cause is the one that was made, no surer than what was seen allows, and the terms add up."""
    case = CASES[situation]
    verdict = explain(
        record(hour(THEN, case.old, **case.then), hour(NOW, case.new, **case.now), starts=case.starts)
    )
    assert verdict.cause is case.cause, verdict.headline
    if case.confidence is not None:
        assert verdict.confidence is case.confidence
    if case.ratio is not None:
        assert verdict.ratio == pytest.approx(case.ratio)
    if verdict.ratio is not None:
        assert verdict.factors.log_ratio == pytest.approx(math.log(verdict.ratio), abs=1e-9)
    if case.evidence is not None:
        assert case.evidence in {one.kind for one in verdict.evidence}
    assert verdict.exit_code == {Cause.NO_CHANGE: 0, Cause.NOT_ENOUGH_DATA: 3}.get(verdict.cause, 1)


@pytest.mark.parametrize("situation", CASES)
def test_every_output_tells_it(situation: str) -> None:
    """Terminal, Markdown and JSON all name cause and headline; the terminal keeps to 80 columns."""
    case = CASES[situation]
    verdict = explain(
        record(hour(THEN, case.old, **case.then), hour(NOW, case.new, **case.now), starts=case.starts)
    )
    text = render_text(verdict, PLAIN)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= WIDTH
    assert str(case.cause) in text
    assert f"`{case.cause}`" in render_markdown(verdict)
    document = json.loads(json.dumps(verdict_document(verdict), allow_nan=False))
    assert document["cause"] == case.cause
    assert {"typical_fit_empty", "pool_bytes", "pool_blocks", "prompt_tokens"} <= document["now"].keys()
    assert set(document["factors"]) == {"pool", "cost_per_token", "prompt_length", "generation_length"}
    assert document["headline"] == verdict.headline


def test_nothing_seen_of_yesterday_is_not_enough() -> None:
    """A baseline without observations gives no number at all."""
    verdict = explain(record((), hour(NOW)))
    assert verdict.cause is Cause.NOT_ENOUGH_DATA
    assert (verdict.ratio, verdict.factors.pool) == (None, None)


def test_a_lost_rank_is_told_as_such() -> None:
    """Half the ranks, half the pool: the prompts of the other half are as long as ever."""
    verdict = explain(record(hour(THEN, ranks=("0", "1")), hour(NOW, ranks=("0",))))
    assert verdict.cause is Cause.RANK_LOST
    assert verdict.ratio == pytest.approx(0.5)


def test_a_pool_that_shrank_in_sleep() -> None:
    """No start lies between, a nap does."""
    nap = hour(NOW - 8 * HOUR, sleeping=True, usable_blocks=None, finished=None)
    awake = hour(NOW - 7 * HOUR, usable_blocks=2400)
    verdict = explain(record(hour(THEN), hour(NOW, usable_blocks=2400), between=(*nap, *awake)))
    assert verdict.cause is Cause.POOL_SMALLER_SLEEP_WAKE


def test_less_prefix_sharing_is_told_beside_the_factors() -> None:
    """It changes how many fit together, and is no factor of the formula."""
    then = hour(THEN, prefix_queries=1000.0, prefix_hits=700.0)
    verdict = explain(record(then, hour(NOW, prefix_queries=1000.0, prefix_hits=100.0)))
    assert verdict.cause is Cause.NO_CHANGE
    (sharing,) = [one for one in verdict.evidence if one.kind == "prefix_sharing"]
    assert "fewer requests" in sharing.text
    assert "880 then, 1,840 now" in sharing.text


def test_a_hybrid_of_windows_is_not_taken_for_uniform() -> None:
    """With most layers windowed, doubling the prompt costs far less than half of the room."""
    groups = (
        KvGroup(kind="full", layers=4, block_size=16, page_bytes=65_536, window=None),
        *(KvGroup(kind="window", layers=4, block_size=16, page_bytes=65_536, window=512) for _ in range(6)),
    )
    hybrid = other(groups=groups, resident_blocks=512 + 6 * 33, bytes_per_block=4 * 65_536)
    verdict = explain(record(hour(THEN, hybrid), hour(NOW, hybrid, prompt=3200.0)))
    assert verdict.ratio == pytest.approx((125 + 6 * 33) / (225 + 6 * 33))


def test_megabytes_of_a_neighbour_are_no_race() -> None:
    """A small process beside a start does not explain gigabytes."""
    starts = (restart(MORNING, ("exporter", 0, 300 * MIB)),)
    verdict = explain(record(hour(THEN), hour(NOW, usable_blocks=2000, **AGAIN), starts=starts))
    assert verdict.cause is Cause.POOL_SMALLER_UNEXPLAINED


@pytest.mark.parametrize(
    "blocks, cause",
    [
        pytest.param(4000, Cause.RANK_LOST, id="the others keep their pools"),
        pytest.param(2000, Cause.POOL_SMALLER_STARTUP_RACE, id="a race took more from the others"),
    ],
)
def test_one_rank_of_eight_is_not_what_halved_the_pool(blocks: int, cause: Cause) -> None:
    """A lost rank is the cause where it did most of the fall, and evidence where it did not."""
    then = hour(THEN, ranks=tuple("01234567"))
    now = hour(NOW, ranks=tuple("0123456"), usable_blocks=blocks, **AGAIN)
    verdict = explain(record(then, now, starts=(restart(MORNING, ("embedding", 0, 5 * GIB)),)))
    assert verdict.cause is cause
    assert "ranks" in {one.kind for one in verdict.evidence}


def test_fewer_ranks_after_a_start_may_have_been_meant() -> None:
    """A rank that is gone without a start is lost for certain; with one, perhaps not."""
    then = hour(THEN, ranks=("0", "1"))
    lost = explain(record(then, hour(NOW, ranks=("0",))))
    fewer = explain(record(then, hour(NOW, ranks=("0",), **AGAIN)))
    assert (lost.confidence, fewer.confidence) == (Confidence.HIGH, Confidence.MEDIUM)


def test_two_servers_behind_one_name_are_not_one() -> None:
    """Two configurations that take turns give no verdict; one deploy taken back does."""
    old, new = hour(NOW), hour(NOW, other(model_hash="bbbb", fingerprint="f1"))
    turns = tuple((old, new)[index % 2][index] for index in range(60))
    verdict = explain(record(hour(THEN), turns))
    assert verdict.cause is Cause.NOT_ENOUGH_DATA
    assert "two servers answer" in verdict.headline
    taken_back = (*old[:20], *new[20:30], *old[30:])
    assert explain(record(hour(THEN), taken_back)).cause is Cause.NO_CHANGE


def test_less_than_half_of_an_hour_is_not_high() -> None:
    """What was not watched may have been different."""
    then, now = hour(THEN), hour(NOW, prompt=3200.0)
    whole, part = (explain(record(then, steps)) for steps in (now, now[:25]))
    assert (whole.confidence, part.confidence) == (Confidence.HIGH, Confidence.MEDIUM)
    assert "partly_watched" in {one.kind for one in part.evidence}


def test_levers_have_this_servers_figures() -> None:
    """The pin that gives the old pool back, null block included, and the requests that fit now."""
    starts = (restart(MORNING, ("embedding", 0, 3 * GIB)),)
    verdict = explain(record(hour(THEN), hour(NOW, usable_blocks=2000, **AGAIN), starts=starts))
    actions = {lever.name: lever.action for lever in verdict.levers}
    assert f"{4001 * 16 * 131_072:,} bytes" in actions["pin_bytes"]
    assert "That is 16 now" in actions["admission_limit"]


def test_several_factors_have_the_levers_of_each() -> None:
    """The factor that took most first, none twice."""
    now = hour(NOW, other(share_ratio=0.8), usable_blocks=2400, prompt=2450.0, **AGAIN)
    verdict = explain(record(hour(THEN), now))
    names = [lever.name for lever in verdict.levers]
    assert names == ["pin_bytes", "more_cache", "admission_limit", "shorter_prompts"]
