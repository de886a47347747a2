"""One rank's pool in requests: which cost function holds, and what it makes of the engine's figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from kvwatch.capacity import Facts, engine_start_blocks, rank_state
from kvwatch.cost.hf import read_hf_config
from kvwatch.cost.vllm import VllmOptions, plan_blocks
from kvwatch.fit import Bound, Fit
from kvwatch.readings import RankReading, Slot, SlotPool
from kvwatch.snapshot import Basis
from kvwatch.target import Target
from kvwatch.typical import TypicalLength
from tests.replay import CAPTURES

if TYPE_CHECKING:
    from kvwatch.snapshot import RankState

TARGET = Target(name="chat", url="http://127.0.0.1:8000", host="127.0.0.1", port=8000)
IDLE = RankReading(
    rank="0",
    num_blocks=100,
    block_size=32,
    max_concurrency=3.125,
    usage_ratio=0.0,
    running=0,
    waiting={"capacity": 0, "deferred": 0},
)
HYBRID = replace(IDLE, num_blocks=900, max_concurrency=900 / 389)
TYPICAL = TypicalLength(prompt_tokens=200.0, generation_tokens=55.5, requests=20)
SPEC = read_hf_config(json.loads((CAPTURES / "vllm" / "tiny-llama-config.json").read_text()))
PLAN = plan_blocks(SPEC, VllmOptions(max_model_len=1024, block_size=32))


@dataclass(frozen=True)
class HybridPlan:
    """The measured hybrid as a plan: A_start 389, A(2048) 384, R(2048) 89; blocks of 32 kB."""

    start_blocks: int = 389
    bytes_per_block: int = 32_000

    def admission_blocks(self, length: int) -> int:
        """Charge one full group and five window groups."""
        blocks = -(-length // 32)
        return blocks + 5 * min(blocks, 65)

    def resident_blocks(self, length: int) -> int:
        """Hold at most five blocks of 32 for each window of 128."""
        blocks = -(-length // 32)
        return blocks + 5 * min(blocks, 5)


HYBRID_PLAN = HybridPlan()


def state(
    reading: RankReading = IDLE,
    *,
    full: int | None = 1024,
    plan: object | None = None,
    asleep: bool = False,
    bytes_known: bool = True,
    typical: TypicalLength | None = None,
    **target: object,
) -> RankState:
    """Return the state of a rank."""
    facts = Facts(
        target=replace(TARGET, **target),  # type: ignore[arg-type]
        full_length_tokens=full,
        asleep=asleep,
        plan=plan,  # type: ignore[arg-type]
        bytes_known=bytes_known and plan is not None,
    )
    return rank_state(reading, facts, typical)


START = {
    "uniform": (100, 3.125, 32),
    "hybrid": (900, 900 / 389, 389),
    "one request takes all": (50, 1.0, 50),
    "many take one block each": (5000, 5000.0, 1),
    "no quotient of whole numbers": (100, 3.2, None),
    "not stated": (100, None, None),
    "the pool is not stated": (None, 3.125, None),
    "more concurrent requests than blocks": (100, 1e9, None),
    "as small as a number can be": (100, 5e-324, None),
}


@pytest.mark.parametrize("situation", START)
def test_the_planners_charge_from_the_engines_own_figures(situation: str) -> None:
    """A_start is N / maximum concurrency where that is a whole number, and unknown otherwise."""
    blocks, concurrency, expected = START[situation]
    assert engine_start_blocks(replace(IDLE, num_blocks=blocks, max_concurrency=concurrency)) == expected


@dataclass(frozen=True)
class Cost:
    """Which cost holds: A_start, R and what they rest on."""

    start: int | None
    resident: int | None
    basis: Basis | None
    fits: tuple[int | None, int | None] | None
    """fit_empty and resident_limit."""
    bytes_known: bool = False


RESIDENT, ADMISSION = Basis.RESIDENT, Basis.ADMISSION
OLD = replace(IDLE, max_concurrency=None)
COSTS = {
    "a uniform engine states it all": (state(), Cost(32, 32, RESIDENT, (3, 3))),
    "and its model file adds bytes": (state(plan=PLAN), Cost(32, 32, RESIDENT, (3, 3), bytes_known=True)),
    "but not where the ranks that divide it are unknown": (
        state(plan=PLAN, bytes_known=False), Cost(32, 32, RESIDENT, (3, 3))),
    "a hybrid engine alone": (state(HYBRID, full=2048), Cost(389, 389, ADMISSION, (2, 2))),
    "a hybrid engine and its model file": (
        state(HYBRID, full=2048, plan=HYBRID_PLAN), Cost(389, 89, RESIDENT, (6, 10), bytes_known=True)),
    "a hybrid engine and another model's file": (
        state(HYBRID, full=2048, plan=PLAN), Cost(389, 389, ADMISSION, (2, 2))),
    "a uniform engine and a hybrid model's file": (
        state(plan=HYBRID_PLAN), Cost(32, 32, RESIDENT, (3, 3))),
    "an older engine without a charge, and a model file": (
        state(OLD, plan=PLAN), Cost(32, 32, RESIDENT, (3, 3), bytes_known=True)),
    "an older engine alone": (state(OLD), Cost(None, None, None, None)),
    "the full length is not known": (state(full=None), Cost(32, None, None, None)),
    "the pool is not known": (state(replace(IDLE, num_blocks=None)), Cost(None, None, None, None)),
    "a pool of nothing but the null block": (
        state(replace(IDLE, num_blocks=1, max_concurrency=None)), Cost(None, None, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("situation", COSTS)
def test_which_cost_holds(situation: str) -> None:
    """The page wins, a model file that contradicts it is not believed, and nothing is guessed."""
    got, expected = COSTS[situation]
    assert (got.start_blocks, got.resident_blocks, got.basis) == (
        expected.start, expected.resident, expected.basis,
    )  # fmt: skip
    assert (None if got.full is None else (got.full.empty, got.full.resident_limit)) == expected.fits
    assert (got.capacity_bytes is not None) == expected.bytes_known
    assert (got.bytes_per_token is not None) == expected.bytes_known


def test_the_pool_in_tokens_and_bytes() -> None:
    """Tokens are what full-length requests can hold; bytes are the usable blocks'."""
    got = state(replace(IDLE, usage_ratio=51 / 99, running=2), plan=PLAN, request_limit=16)
    assert (got.usable_blocks, got.free_blocks, got.usage_ratio) == (99, 48, 51 / 99)
    assert got.capacity_tokens == 99 * 32
    assert got.free_tokens == 48 * 32
    # 4 layers x 2 heads x (32 + 32) x 2 bytes a token
    assert got.bytes_per_token == 1024
    assert got.capacity_bytes == 99 * 32 * 1024
    assert got.last_block_waste_tokens == 2 * 31
    assert got.worst_case_ratio == 16 * 32 / 99
    hybrid = state(HYBRID, full=2048, plan=HYBRID_PLAN)
    assert hybrid.capacity_tokens == pytest.approx(899 / 89 * 2048)
    assert hybrid.bytes_per_token == pytest.approx(89 * 32_000 / 2048)
    assert hybrid.worst_case_ratio is None


def test_usage_is_read_to_the_nearest_block() -> None:
    """A gauge is a ratio of whole blocks that doubles cannot always hold."""
    for used in range(100):
        assert state(replace(IDLE, usage_ratio=used / 99)).free_blocks == 99 - used


def test_the_textbooks_ceiling_stands_beside() -> None:
    """60 GiB and 2 GiB a request give 30, while the null block leaves 29."""
    got = state(replace(IDLE, num_blocks=61_440, block_size=16, max_concurrency=30.0), full=32_768)
    assert got.full is not None
    assert (got.ceiling, got.full.resident_limit) == (30, 29)
    assert state(HYBRID, full=2048).ceiling is None


def test_a_sleeping_engines_gauges_are_not_believed() -> None:
    """Usage tends to 0 when the pool was given back: nothing is free and nothing fits."""
    got = state(asleep=True, typical=TYPICAL)
    assert (got.usage_ratio, got.free_blocks, got.free_tokens) == (None, None, None)
    assert got.full == Fit()
    assert got.typical is not None
    assert got.typical.fit == Fit()
    assert got.usable_blocks == 99


WAITING = {
    "for room": ({"capacity": 1, "deferred": 0}, 0, Bound.QUEUE, 1),
    "for another server's blocks": ({"capacity": 0, "deferred": 1}, 2, Bound.MEMORY, 1),
    "for a reason of a later version": ({"capacity": 0, "deferred": 0, "lora": 1}, 0, Bound.QUEUE, 1),
    "and the engine does not say for what": ({"unspecified": 2}, 0, Bound.QUEUE, 2),
    "nobody": ({"unspecified": 0}, 3, Bound.MEMORY, 0),
    "not stated": ({}, None, None, None),
}


@pytest.mark.parametrize("situation", WAITING)
def test_what_a_queue_does_to_the_promise(situation: str) -> None:
    """Only those who wait for something else than room leave the promise standing."""
    waiting, guaranteed, bound, sum_waiting = WAITING[situation]
    got = state(replace(IDLE, waiting=waiting))
    assert got.full is not None
    assert (got.full.guaranteed, got.full.bound_by, got.load.waiting) == (guaranteed, bound, sum_waiting)


def test_the_typical_request() -> None:
    """Lengths are rounded up to whole tokens, blocks to whole blocks; the capacity is not rounded."""
    got = state(replace(IDLE, usage_ratio=9 / 99), typical=TYPICAL).typical
    assert got is not None
    assert got.fit is not None
    assert got.capacity == 99 / 8
    assert (got.fit.now, got.fit.empty, got.fit.resident_limit) == (11, 12, 12)
    hybrid = state(HYBRID, full=2048, plan=HYBRID_PLAN, typical=TYPICAL).typical
    assert hybrid is not None
    assert hybrid.capacity == 899 / (8 + 5 * 5)


@pytest.mark.parametrize(
    "got",
    [
        state(HYBRID, full=2048, typical=TYPICAL),
        state(OLD, typical=TYPICAL),
        state(full=None, typical=TYPICAL),
        state(replace(IDLE, num_blocks=None), typical=TYPICAL),
    ],
    ids=["charge at full length only", "no charge", "no full length", "no pool"],
)
def test_typical_lengths_are_known_where_their_cost_is_not(got: RankState) -> None:
    """What finished is counted by the engine; without a cost it has no fits, and not none."""
    assert got.typical is not None
    assert (got.typical.length, got.typical.fit, got.typical.capacity) == (TYPICAL, None, None)


def slots(*resident: int, deferred: int = 0) -> RankReading:
    """Return a llama-server of four slots of 2048 tokens; those given are busy and unlimited."""
    return RankReading(
        rank="0",
        running=len(resident),
        waiting={"deferred": deferred},
        slots=SlotPool(
            total_slots=4,
            slot_limit_tokens=2048,
            busy_slots=len(resident),
            slots=tuple(
                Slot(limit_tokens=2048, busy=True, resident_tokens=held, remaining_tokens=None)
                for held in resident
            ),
        ),
    )


def test_a_llama_servers_pool() -> None:
    """Its pool has cells and slots, no blocks; a deferred request waits for room."""
    got = state(slots(500, 500, deferred=1), full=2048, pool_tokens=8192, kv_unified=True)
    assert got.full == Fit(now=2, guaranteed=0, empty=4, resident_limit=4, headroom=1, bound_by=Bound.QUEUE)
    assert (got.capacity_tokens, got.free_tokens, got.usage_ratio) == (8192, 7192, 1000 / 8192)
    assert got.worst_case_ratio == 1
    assert got.load.request_limit == 4
    assert (got.usable_blocks, got.last_block_waste_tokens, got.typical, got.basis) == (None,) * 4
    assert state(slots(1500), full=2048, pool_tokens=2048).worst_case_ratio == 4


def test_a_llama_server_whose_pool_nobody_states() -> None:
    """Requests are known; how much is free is not, and is no zero."""
    got = state(slots(500), full=2048)
    assert (got.full, got.capacity_tokens, got.free_tokens, got.usage_ratio) == (None,) * 4
    assert got.load.running == 1


def test_a_sleeping_llama_server() -> None:
    """Its pool may be configured, but it was given back."""
    asleep = RankReading(rank="0", slots=SlotPool(total_slots=4, slot_limit_tokens=2048, busy_slots=None))
    got = state(asleep, full=2048, pool_tokens=8192, kv_unified=True, asleep=True)
    assert (got.full, got.free_tokens, got.usage_ratio) == (Fit(), None, None)
