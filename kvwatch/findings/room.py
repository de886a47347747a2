"""Whether one rank has room for what waits: memory and request slots apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.fit import Fit
    from kvwatch.snapshot import RankState

SATURATED_USAGE = 0.85
"""From here on a queue is the pool's, even where the free rest would take a request of mean length: the
first in the queue may be longer than the mean, and it is served first (vllm/v1/core/sched/scheduler.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """One rank; None is unknown."""

    waiting: int | None
    """Requests that wait for room: not those that wait for remote KV data."""
    running: int | None
    slots: int | None
    slots_full: bool | None
    memory_fits: int | None
    """Further requests that the free memory takes, whatever the slots: typical ones where there is a
    typical one, else of full length."""
    full_fits: int | None
    """The same of full length."""
    typical_tokens: float | None
    usage_ratio: float | None

    @property
    def memory_full(self) -> bool | None:
        """Tell whether memory is what new requests lack."""
        if self.memory_fits == 0 or (self.usage_ratio is not None and self.usage_ratio >= SATURATED_USAGE):
            return True
        return None if self.memory_fits is None else False


def room_of(rank: RankState) -> Room:
    """Return the room of one rank, as of this poll."""
    reading, load = rank.reading, rank.load
    waits = [count for reason, count in reading.waiting.items() if reason != "deferred" or reading.slots]
    slots = load.request_limit
    taken = load.running if reading.slots is None else reading.slots.busy_slots
    typical = rank.typical
    length = None
    if typical is not None and typical.capacity is not None:
        length = typical.length.prompt_tokens + typical.length.generation_tokens
    slots_full = None if slots is None or taken is None else taken >= slots
    full_fits = _fits(rank, rank.full, rank.resident_blocks, slots_full=slots_full)
    if length is None or typical is None or not typical.capacity or rank.usable_blocks is None:
        memory_fits = full_fits
    else:
        blocks = rank.usable_blocks / typical.capacity
        memory_fits = _fits(rank, typical.fit, blocks, slots_full=slots_full)
    return Room(
        waiting=sum(waits) if reading.waiting else None,
        running=load.running,
        slots=slots,
        slots_full=slots_full,
        memory_fits=memory_fits,
        full_fits=full_fits,
        typical_tokens=length,
        usage_ratio=rank.usage_ratio,
    )


def _fits(rank: RankState, fit: Fit | None, blocks: float | None, *, slots_full: bool | None) -> int | None:
    """Return how many more requests of so many blocks the free memory takes.

    With a slot left, the fit says so, admission charge included; with none it is 0 for that reason, and
    what they would hold is counted instead.
    """
    if fit is not None and fit.now is not None and not slots_full:
        return fit.now
    if rank.free_blocks is None or not blocks:
        return None
    return int(rank.free_blocks / blocks)
