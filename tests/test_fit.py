"""How many requests fit: the formulas on worked examples, and what must hold for every pool."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvwatch.fit import Bound, Fit, Load, UniformCost, busy_tokens, fit_blocks, fit_slots
from kvwatch.readings import Slot, SlotPool


def load(
    running: int | None = 0,
    waiting: int | None = 0,
    *,
    capacity: bool | None = False,
    limit: int | None = None,
) -> Load:
    """Return a load; by default idle, and without a known limit."""
    return Load(running=running, waiting=waiting, waiting_for_capacity=capacity, request_limit=limit)


IDLE = load()


@dataclass(frozen=True)
class Blocks:
    """A pool of blocks, what it is asked, and the answer."""

    usable: int
    free: int | None
    admission: int
    resident: int
    load: Load
    fit: Fit


def fit(
    now: int | None,
    guaranteed: int | None,
    empty: int | None,
    resident_limit: int | None,
    headroom: int | None,
    bound_by: Bound | None = Bound.MEMORY,
) -> Fit:
    """Return a fit in the order in which people say it."""
    return Fit(
        now=now, guaranteed=guaranteed, empty=empty, resident_limit=resident_limit,
        headroom=headroom, bound_by=bound_by,
    )  # fmt: skip


BLOCKS = {
    "uniform, idle: 99 blocks, 32 a request": Blocks(99, 99, 32, 32, IDLE, fit(3, 3, 3, 3, 3)),
    "uniform, full, 13 wait for room": Blocks(
        99, 0, 32, 32, load(11, 13, capacity=True), fit(0, 0, 3, 3, -21, Bound.QUEUE)),
    "uniform, draining: one fits and two wait for it": Blocks(
        99, 48, 32, 32, load(2, 2, capacity=True), fit(1, 0, 3, 3, -1, Bound.QUEUE)),
    "1.375 requests are one": Blocks(10, 10, 8, 8, IDLE, fit(1, 1, 1, 1, 1)),
    "one block too few": Blocks(99, 31, 32, 32, load(1), fit(0, 0, 3, 3, 2)),
    "exactly enough": Blocks(99, 32, 32, 32, load(1), fit(1, 1, 3, 3, 2)),
    "hybrid, empty: the first prefill needs 384 free, each holds 89": Blocks(
        899, 899, 384, 89, IDLE, fit(6, 6, 6, 10, 10)),
    "hybrid, only the start-up charge is known": Blocks(899, 899, 389, 389, IDLE, fit(2, 2, 2, 2, 2)),
    "hybrid, ten running hold 800": Blocks(899, 99, 384, 89, load(10), fit(0, 0, 6, 10, 0)),
    "recurrent: held at the peak more than asked for on entry": Blocks(
        20, 20, 5, 7, IDLE, fit(2, 2, 2, 2, 2)),
    "free blocks promise more than the growth of those that run leaves": Blocks(
        99, 90, 32, 32, load(2), fit(2, 1, 3, 3, 1)),
    "more were accepted than can grow": Blocks(99, 80, 32, 32, load(5), fit(2, 0, 3, 3, -2)),
    "deferred requests count against the promise but do not forbid it": Blocks(
        99, 99, 32, 32, load(0, 1), fit(3, 2, 3, 3, 2)),
    "two slots for a pool of three": Blocks(
        99, 99, 32, 32, load(limit=2), fit(2, 2, 2, 2, 2, Bound.SLOTS)),
    "all slots taken": Blocks(99, 80, 32, 32, load(2, limit=2), fit(0, 0, 2, 2, 0, Bound.SLOTS)),
    "as many slots as memory takes": Blocks(99, 99, 32, 32, load(limit=3), fit(3, 3, 3, 3, 3)),
    "more run than a limit that was configured too low": Blocks(
        99, 99, 32, 32, load(5, limit=4), fit(0, 0, 3, 3, -2, Bound.MEMORY)),
    "a pool smaller than one request": Blocks(31, 31, 32, 32, IDLE, fit(0, 0, 0, 0, 0)),
    "how full it is, is not known": Blocks(99, None, 32, 32, IDLE, fit(None, None, 3, 3, 3, None)),
    "how full is not known, but somebody waits for room": Blocks(
        99, None, 32, 32, load(1, 1, capacity=True), fit(None, 0, 3, 3, 1, Bound.QUEUE)),
    "how many run is not known": Blocks(99, 99, 32, 32, load(None), fit(3, None, 3, 3, None, None)),
    "how many slots are taken is not known": Blocks(
        99, 99, 32, 32, load(None, limit=8), fit(None, None, 3, 3, None, None)),
    "how many wait is not known": Blocks(
        99, 99, 32, 32, load(0, None, capacity=None), fit(3, None, 3, 3, None, None)),
}  # fmt: skip


@pytest.mark.parametrize("situation", BLOCKS)
def test_requests_fit_into_blocks(situation: str) -> None:
    """Each situation gives the numbers that the formulas give by hand."""
    row = BLOCKS[situation]
    got = fit_blocks(
        usable=row.usable, free=row.free, admission=row.admission, resident=row.resident, load=row.load
    )
    assert got == row.fit


@st.composite
def pools(draw: st.DrawFn) -> Blocks:
    """Return a pool in any state that an engine could report."""
    usable = draw(st.integers(1, 5000))
    resident = draw(st.integers(1, 600))
    running, waiting = draw(st.integers(0, 300)), draw(st.integers(0, 300))
    limit = draw(st.none() | st.integers(1, 300))
    return Blocks(
        usable=usable,
        free=draw(st.none() | st.integers(0, usable)),
        admission=draw(st.integers(1, 900)),
        resident=resident,
        load=load(running, waiting, capacity=draw(st.booleans()) and waiting > 0, limit=limit),
        fit=Fit(),
    )


def measure(pool: Blocks) -> Fit:
    """Return the fit of a pool."""
    return fit_blocks(
        usable=pool.usable, free=pool.free, admission=pool.admission, resident=pool.resident, load=pool.load
    )


@settings(max_examples=50, deadline=None)
@given(pools())
def test_a_promise_never_exceeds_what_today_takes(pool: Blocks) -> None:
    """fit_guaranteed <= fit_now <= fit_empty, all within what can be held, and none negative."""
    got = measure(pool)
    assert got.empty is not None
    assert got.resident_limit is not None
    assert got.resident_limit * pool.resident <= pool.usable
    assert 0 <= got.empty <= got.resident_limit
    if got.now is None:
        assert got.guaranteed in (None, 0)
    else:
        assert got.guaranteed is not None
        assert 0 <= got.guaranteed <= got.now <= got.empty
    assert got.headroom == got.resident_limit - (pool.load.running or 0) - (pool.load.waiting or 0)
    if pool.load.request_limit is not None:
        assert got.resident_limit <= pool.load.request_limit


@settings(max_examples=50, deadline=None)
@given(pools())
def test_what_fits_now_really_fits(pool: Blocks) -> None:
    """Admitting that many, one prefill at a time, never runs out of blocks; one more would."""
    if pool.free is None:
        return
    unlimited = replace(pool, load=replace(pool.load, request_limit=None))
    free, entered = pool.free, 0
    while free >= max(pool.admission, pool.resident):
        free -= pool.resident
        entered += 1
    assert measure(unlimited).now == entered


@settings(max_examples=50, deadline=None)
@given(pools(), st.sampled_from(["admission", "resident", "running", "waiting", "used"]), st.integers(1, 50))
def test_no_fit_rises_when_anything_grows(pool: Blocks, what: str, by: int) -> None:
    """Dearer requests, more load or fewer free blocks never make more fit."""
    if what == "used":
        worse = replace(pool, free=None if pool.free is None else max(0, pool.free - by))
    elif what in ("running", "waiting"):
        worse = replace(pool, load=replace(pool.load, **{what: getattr(pool.load, what) + by}))
    else:
        worse = replace(pool, **{what: getattr(pool, what) + by})
    before, after = measure(pool), measure(worse)
    for name in ("now", "guaranteed", "empty", "resident_limit", "headroom"):
        old, new = getattr(before, name), getattr(after, name)
        assert (old is None) == (new is None)
        assert old is None or new <= old, name


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 64), st.integers(1, 100_000))
def test_a_uniform_request_fills_whole_blocks(block_size: int, length: int) -> None:
    """The last block is part of the cost, and never a whole block too many."""
    blocks = UniformCost(block_size).admission_blocks(length)
    assert (blocks - 1) * block_size < length <= blocks * block_size
    assert UniformCost(block_size).resident_blocks(length) == blocks


def slot(resident: int | None = 0, remaining: int | None = None, *, busy: bool = True) -> Slot:
    """Return a slot that may hold 4096 tokens."""
    return Slot(limit_tokens=4096, busy=busy, resident_tokens=resident, remaining_tokens=remaining)


@dataclass(frozen=True)
class Slots:
    """A llama-server of four slots: busy ones as listed, its pool as configured, and the answer."""

    busy: tuple[Slot, ...] | int | None
    unified: bool | None
    pool_tokens: int | None
    fit: Fit | None
    deferred: int = 0
    slot_limit: int = 4096


FREE = slot(3000, busy=False)
SPLIT, SHARED = False, True
SLOTS = {
    "split, idle": Slots((), SPLIT, None, fit(4, 4, 4, 4, 4, Bound.SLOTS)),
    "split, idle slots' old tokens are reclaimable": Slots((FREE,) * 4, SPLIT, None,
        fit(4, 4, 4, 4, 4, Bound.SLOTS)),
    "split, three busy": Slots((slot(),) * 3, SPLIT, None, fit(1, 1, 4, 4, 1, Bound.SLOTS)),
    "split, all busy, three deferred": Slots(
        (slot(),) * 4, SPLIT, None, fit(0, 0, 4, 4, -3, Bound.QUEUE), deferred=3),
    "split, /slots switched off": Slots(3, SPLIT, None, fit(1, 1, 4, 4, 1, Bound.SLOTS)),
    "split, asleep": Slots(None, SPLIT, None, fit(None, None, 4, 4, None, None)),
    "split, and the configured pool is what four slots have": Slots(
        (), SPLIT, 4 * 4096, fit(4, 4, 4, 4, 4, Bound.SLOTS)),
    "split, and the configured pool is too small for four slots": Slots((), SPLIT, 4096, None),
    "unified, idle, one request may take it all": Slots((), SHARED, 4096, fit(1, 1, 1, 1, 1)),
    "unified, one busy": Slots((slot(1000, 10),), SHARED, 4096, fit(0, 0, 1, 1, 0)),
    "unified, twice the pool, one busy may grow to half of it": Slots(
        (slot(100, None),), SHARED, 2 * 4096, fit(1, 1, 2, 2, 1)),
    "unified, three requests' room, two small ones that will stay small": Slots(
        (slot(100, 20), slot(200, 30)), SHARED, 3 * 4096, fit(2, 2, 3, 3, 1, Bound.SLOTS)),
    "unified, three requests' room, two small ones that may grow": Slots(
        (slot(100), slot(200)), SHARED, 3 * 4096, fit(2, 1, 3, 3, 1)),
    "unified, a claim is at most the slot's limit": Slots(
        (slot(4000, 9999),), SHARED, 2 * 4096, fit(1, 1, 2, 2, 1)),
    "unified, shared prefixes counted twice exceed the pool": Slots(
        (slot(4000), slot(4000)), SHARED, 4096, fit(0, 0, 1, 1, -1)),
    "unified, four running, two deferred": Slots(
        (slot(900, 3000),) * 4, SHARED, 4096, fit(0, 0, 1, 1, -5, Bound.QUEUE), deferred=2),
    "unified, one is deferred although a slot is idle": Slots(
        (slot(100, 20),), SHARED, 3 * 4096, fit(2, 0, 3, 3, 1, Bound.QUEUE), deferred=1),
    "unified, a busy slot does not say what it holds": Slots(
        (slot(None),), SHARED, 2 * 4096, fit(None, 1, 2, 2, 1)),
    "unified, busy and /slots switched off": Slots(1, SHARED, 2 * 4096, fit(None, None, 2, 2, 1, None)),
    "unified, idle and /slots left alone": Slots(0, SHARED, 2 * 4096, fit(2, 2, 2, 2, 2)),
    "unified, asleep": Slots(None, SHARED, 2 * 4096, fit(None, None, 2, 2, None, None)),
    "unified, the pool is not configured": Slots((), SHARED, None, None),
    "unified, the configured pool is smaller than a slot": Slots((), SHARED, 4000, None),
    "nothing configured": Slots((), None, None, None),
    "the mode is not known: a pool below four slots' limits is shared": Slots(
        (), None, 4096, fit(1, 1, 1, 1, 1)),
    "the mode is not known: a pool of four slots' limits is the same either way": Slots(
        (slot(),), None, 4 * 4096, fit(3, 3, 4, 4, 3, Bound.SLOTS)),
}  # fmt: skip


@pytest.mark.parametrize("situation", SLOTS)
def test_requests_fit_into_slots(situation: str) -> None:
    """A split pool's answer is its idle slots; a shared pool's is what the busy ones leave."""
    row = SLOTS[situation]
    listed = row.busy if isinstance(row.busy, tuple) else None
    busy = row.busy if isinstance(row.busy, int | None) else sum(one.busy for one in row.busy)
    if listed is not None:
        listed += (slot(busy=False),) * (4 - len(listed))
    pool = SlotPool(total_slots=4, slot_limit_tokens=row.slot_limit, busy_slots=busy, slots=listed)
    asleep = busy is None
    got = fit_slots(
        pool,
        length=row.slot_limit,
        pool_tokens=row.pool_tokens,
        unified=row.unified,
        load=load(
            None if asleep else busy,
            None if asleep else row.deferred,
            capacity=None if asleep else row.deferred > 0,
            limit=4,
        ),
    )
    assert got == row.fit


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4096), st.none() | st.integers(0, 5000)), max_size=4),
    st.integers(4096, 5 * 4096),
    st.integers(0, 3),
)
def test_a_shared_pools_promise_never_exceeds_its_cells(
    busy: list[tuple[int, int | None]], pool_tokens: int, deferred: int
) -> None:
    """What is promised, and all that the busy slots may still claim, is within the pool."""
    slots = tuple(slot(*one) for one in busy) + (slot(busy=False),) * (4 - len(busy))
    pool = SlotPool(total_slots=4, slot_limit_tokens=4096, busy_slots=len(busy), slots=slots)
    got = fit_slots(
        pool, length=4096, pool_tokens=pool_tokens, unified=True,
        load=load(len(busy), deferred, capacity=deferred > 0, limit=4),
    )  # fmt: skip
    assert got is not None
    assert got.guaranteed is not None
    assert got.now is not None
    assert got.empty is not None
    assert 0 <= got.guaranteed <= got.now <= got.empty == got.resident_limit
    claimed = sum(min(4096, held + (4096 if left is None else left)) for held, left in busy)
    if got.guaranteed:
        assert got.guaranteed * 4096 + claimed <= pool_tokens
    assert busy_tokens(pool) == sum(held for held, _ in busy)
