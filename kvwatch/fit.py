"""How many requests fit: integer arithmetic over a pool's blocks or a llama-server's slots."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from kvwatch.readings import SlotPool


class Bound(StrEnum):
    """What keeps `fit_guaranteed` from being larger: the `bound` label of `kvwatch_fit_bound_by`."""

    MEMORY = "memory"
    SLOTS = "slots"
    QUEUE = "queue"


class RequestCost(Protocol):
    """What one request of a given length costs, in blocks of one rank's pool."""

    def admission_blocks(self, length: int) -> int:
        """Return A(length): blocks that must be free to admit a prompt of `length` tokens."""

    def resident_blocks(self, length: int) -> int:
        """Return R(length): the most blocks a request holds while it decodes at `length` tokens."""


@dataclass(frozen=True, slots=True)
class UniformCost:
    """Full attention in every layer: one group, so A(L) = R(L) = ceil(L / block size)."""

    block_size: int

    def admission_blocks(self, length: int) -> int:
        """Return ceil(length / block size)."""
        return -(-length // self.block_size)

    resident_blocks = admission_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Requests of one length against one rank's pool; None where an input is unknown."""

    now: int | None = None
    """What today's free blocks take if the running requests do not grow."""
    guaranteed: int | None = None
    """The promise: 0 while anything waits for capacity; never above what can be held to full length."""
    empty: int | None = None
    resident_limit: int | None = None
    headroom: int | None = None
    """Negative: what was accepted cannot all grow to full length."""
    bound_by: Bound | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests of one rank; None where the engine does not say."""

    running: int | None
    waiting: int | None
    waiting_for_capacity: bool | None
    request_limit: int | None


def fit_blocks(*, usable: int, free: int | None, admission: int, resident: int, load: Load) -> Fit:
    """Fit requests that need `admission` free blocks to enter and hold `resident` at their longest.

    All in blocks of one rank. The first request that enters must find max(A, R) free; each further
    one takes R, one prefill at a time.
    """
    first = max(admission, resident)
    limit = load.request_limit
    by_memory = usable // resident
    resident_limit = _at_most(by_memory, limit)
    memory_now = None if free is None else _entering(free, first, resident)
    free_slots = None if limit is None or load.running is None else max(0, limit - load.running)
    now = None if memory_now is None else _at_most(memory_now, free_slots)
    if limit is not None and load.running is None:
        now = None  # how many of the slots are taken is not known
    guaranteed = _promise(now, _headroom(resident_limit, load), load)
    bound: Bound | None = None
    if load.waiting_for_capacity:
        bound = Bound.QUEUE
    elif guaranteed is not None:
        without_slots = _promise(memory_now, _headroom(by_memory, load), load)
        bound = Bound.MEMORY if guaranteed == without_slots else Bound.SLOTS
    return Fit(
        now=now,
        guaranteed=guaranteed,
        empty=_at_most(_entering(usable, first, resident), limit),
        resident_limit=resident_limit,
        headroom=_headroom(resident_limit, load),
        bound_by=bound,
    )


def fit_slots(
    pool: SlotPool, *, length: int, pool_tokens: int | None, unified: bool | None, load: Load
) -> Fit | None:
    """Fit requests of `length` tokens into a llama-server's slots; None when the pool is not known.

    A split pool gives each slot cells of its own, so idle slots are the answer. A unified pool is shared
    by slots that may each claim all of it; an idle slot's old tokens are reclaimable
    (tools/server/server-context.cpp, b11434).
    """
    if unified is None and pool_tokens is None:
        return None
    total = pool.total_slots
    split = unified is False
    claimed_cells = pool.slot_limit_tokens * (total if split else 1)
    if pool_tokens is not None and pool_tokens < claimed_cells:
        return None  # the configuration contradicts the server's own slots
    if not split and pool_tokens is None:
        return None
    idle = None if pool.busy_slots is None else max(0, total - pool.busy_slots)
    if split or pool_tokens is None:
        resident_limit, now, promise = total, idle, idle
    else:
        resident_limit = min(total, pool_tokens // length)
        now = _cells(idle, pool_tokens, busy_tokens(pool), length)
        promise = _cells(idle, pool_tokens, _claimed_tokens(pool), length)
    headroom = _headroom(resident_limit, load)
    if load.waiting_for_capacity:
        promise = 0
    bound: Bound | None = None
    if promise is not None:
        bound = Bound.QUEUE if load.waiting_for_capacity else Bound.SLOTS if promise == idle else Bound.MEMORY
    return Fit(
        now=now,
        guaranteed=promise,
        empty=resident_limit,
        resident_limit=resident_limit,
        headroom=headroom,
        bound_by=bound,
    )


def busy_tokens(pool: SlotPool) -> int | None:
    """Return the tokens that busy slots hold now: B; 0 when no slot is busy, None when not all said so."""
    if pool.busy_slots == 0:
        return 0
    if pool.slots is None:
        return None
    total = 0
    for slot in pool.slots:
        if slot.busy:
            if slot.resident_tokens is None:
                return None
            total += slot.resident_tokens
    return total


def _claimed_tokens(pool: SlotPool) -> int | None:
    """Return what the busy slots may grow to, each at most its limit; an unlimited request claims that."""
    if pool.busy_slots == 0:
        return 0
    if pool.slots is None:
        return None
    total = 0
    for slot in pool.slots:
        if slot.busy:
            claim = slot.limit_tokens
            if slot.resident_tokens is not None and slot.remaining_tokens is not None:
                claim = min(claim, slot.resident_tokens + slot.remaining_tokens)
            total += claim
    return total


def _cells(idle: int | None, pool_tokens: int, taken: int | None, length: int) -> int | None:
    if idle is None or taken is None:
        return None
    # Slots that share a prefix count its cells more than once, so `taken` may exceed the pool.
    return min(idle, max(0, pool_tokens - taken) // length)


def _entering(free: int, first: int, each: int) -> int:
    return 0 if free < first else 1 + (free - first) // each


def _headroom(resident_limit: int, load: Load) -> int | None:
    if load.running is None or load.waiting is None:
        return None
    return resident_limit - load.running - load.waiting


def _promise(now: int | None, headroom: int | None, load: Load) -> int | None:
    if load.waiting_for_capacity:
        return 0
    if now is None or headroom is None or load.waiting_for_capacity is None:
        return None
    return max(0, min(now, headroom))


def _at_most(value: int, limit: int | None) -> int:
    return value if limit is None else min(value, limit)
