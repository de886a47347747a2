"""One rank's minute: built up from polls, or put together from two parts. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvwatch.history import columns
from kvwatch.history.counters import QUEUE_COUNT, QUEUE_SUM
from kvwatch.history.setups import says_no_more
from kvwatch.observation import Observation, Setup, is_same_start
from kvwatch.readings import SumCount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.snapshot import RankState, ServerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """An observation, and which polls it is of: two parts of one minute can be told from one part twice."""

    observation: Observation
    polls: int
    first_at: float
    """Unix seconds of its first poll."""
    last_at: float


@dataclass(slots=True)
class _Mean:
    sum: float = 0.0
    count: int = 0
    most: float | None = None

    def add(self, value: float | None) -> None:
        if value is not None:
            self.sum += value
            self.count += 1
            self.most = value if self.most is None else max(self.most, value)

    @property
    def mean(self) -> float | None:
        return self.sum / self.count if self.count else None


@dataclass(slots=True)
class Building:
    """A minute that is not over."""

    first_at: float
    last_at: float
    polls: int = 0
    setup: Setup = field(default_factory=Setup)
    state: dict[str, Any] = field(default_factory=dict)
    gains: dict[str, float] = field(default_factory=dict)
    usage: _Mean = field(default_factory=_Mean)
    running: _Mean = field(default_factory=_Mean)
    waiting: _Mean = field(default_factory=_Mean)
    reasons: dict[str, _Mean] = field(default_factory=dict)
    device_bytes: dict[str, int] = field(default_factory=dict)

    def add(
        self,
        *,
        at: float,
        server: ServerState,
        rank: RankState,
        setup: Setup,
        gains: Mapping[str, float],
        started_at: float | None,
        restarted: bool,
    ) -> None:
        """Add one poll, `at` Unix seconds."""
        self.first_at, self.last_at = min(self.first_at, at), max(self.last_at, at)
        self.polls += 1
        if restarted:
            self.state.clear()  # what was known of its last life does not hold
            self.device_bytes.clear()
            self.setup = setup
        elif not says_no_more(setup, self.setup):
            self.setup = setup
        length = rank.typical.length if rank.typical else None
        state = {
            "started_at": started_at,
            "sleeping": server.reading.sleeping if server.reading else None,
            "usable_blocks": rank.usable_blocks,
            "usable_bytes": rank.capacity_bytes,
            "typical_prompt_tokens": length.prompt_tokens if length else None,
            "typical_generation_tokens": length.generation_tokens if length else None,
            "typical_capacity": rank.typical.capacity if rank.typical else None,
        }
        self.state.update({name: value for name, value in state.items() if value is not None})
        for name, gain in gains.items():
            self.gains[name] = self.gains.get(name, 0.0) + gain
        self.usage.add(rank.usage_ratio)
        self.running.add(rank.reading.running)
        for reason, count in rank.reading.waiting.items():
            known = reason if reason in columns.WAITING else "unspecified"
            self.reasons.setdefault(known, _Mean()).add(count)
        if rank.reading.waiting:
            self.waiting.add(sum(rank.reading.waiting.values()))
        known_bytes = {device: used for device, used in server.device_bytes.items() if used is not None}
        if known_bytes:
            self.device_bytes = known_bytes

    def minute(self, server: str, rank: str, at: float, seconds: float) -> Minute:
        """Return what it came to."""
        gains: dict[str, Any] = dict(self.gains)
        queue_sum, queue_count = gains.pop(QUEUE_SUM, None), gains.pop(QUEUE_COUNT, None)
        observation = Observation(
            server=server,
            rank=rank,
            at=at,
            seconds=seconds,
            setup=self.setup,
            usage_mean=self.usage.mean,
            usage_max=self.usage.most,
            running_mean=self.running.mean,
            running_max=self.running.most,
            waiting_mean={
                reason: one.sum / one.count for reason, one in sorted(self.reasons.items()) if one.count
            },
            waiting_max=self.waiting.most,
            queue_seconds=None
            if queue_sum is None or queue_count is None
            else SumCount(sum=queue_sum, count=queue_count),
            device_bytes=dict(self.device_bytes),
            **self.state,
            **gains,
        )
        return Minute(observation=observation, polls=self.polls, first_at=self.first_at, last_at=self.last_at)


def are_apart(one: Minute, other: Minute) -> bool:
    """Tell whether two records of a minute are of different parts of it.

    They are where kvwatch was started anew in it. They are not where a row is written a second time, nor
    where the clock was turned back: then the same time was watched twice.
    """
    return one.last_at < other.first_at or other.last_at < one.first_at


def joined(one: Minute, other: Minute) -> Minute:
    """Return the minute that two parts of it make."""
    first, last = sorted((one, other), key=lambda part: part.first_at)
    before, after = first.observation, last.observation
    same_life = is_same_start(before.started_at, after.started_at)
    values: dict[str, Any] = {}
    for name in (*columns.LATEST, *columns.TYPICAL):
        later = getattr(after, name)
        values[name] = getattr(before, name) if later is None and same_life else later
    for name in columns.GAINS:
        values[name] = _sum(getattr(before, name), getattr(after, name))
    for name in columns.MEANS:
        values[name] = _mean(getattr(before, name), first.polls, getattr(after, name), last.polls)
    for name in columns.MOST:
        known = [value for part in (before, after) if (value := getattr(part, name)) is not None]
        values[name] = max(known, default=None)
    reasons = sorted({*before.waiting_mean, *after.waiting_mean})
    means = {
        reason: _mean(
            before.waiting_mean.get(reason), first.polls, after.waiting_mean.get(reason), last.polls
        )
        for reason in reasons
    }
    no_news = same_life and says_no_more(after.setup, before.setup)
    return Minute(
        observation=replace(
            after,
            setup=before.setup if no_news else after.setup,
            seconds=max(before.seconds, after.seconds),
            waiting_mean={reason: value for reason, value in means.items() if value is not None},
            queue_seconds=_queue(before.queue_seconds, after.queue_seconds),
            device_bytes=after.device_bytes or (before.device_bytes if same_life else {}),
            **values,
        ),
        polls=first.polls + last.polls,
        first_at=first.first_at,
        last_at=last.last_at,
    )


def _sum(one: float | None, other: float | None) -> float | None:
    return other if one is None else one if other is None else one + other


def _mean(one: float | None, weight: int, other: float | None, other_weight: int) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return (one * weight + other * other_weight) / (weight + other_weight)


def _queue(one: SumCount | None, other: SumCount | None) -> SumCount | None:
    if one is None or other is None:
        return other if one is None else one
    return SumCount(sum=one.sum + other.sum, count=one.count + other.count)
