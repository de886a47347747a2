"""One window of a server as one moment: its typical request, its pool, its load, what it was made of."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvwatch.readings import SumCount
from kvwatch.triage.alternation import alternates
from kvwatch.triage.costs import cost_of
from kvwatch.triage.exported_cost import blocks_per_full_token, blocks_per_token
from kvwatch.triage.spread import standard_error

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kvwatch.observation import Observation, Setup
    from kvwatch.triage.costs import TypicalCost

_GONE_SECONDS = 600.0
"""A rank not seen for so long before the window's last step is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPool:
    """The pool that one rank had at the end of a window."""

    rank: str
    usable_blocks: int | None
    usable_bytes: int | None
    setup: Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """What one window comes to, all ranks together. None is unknown; counts are of the whole window."""

    observed_seconds: float
    """Watched by at least one rank's steps."""
    pools: tuple[RankPool, ...]
    """Of the ranks that were there at the end, by name."""
    setup: Setup
    """Of the last step."""
    started_at: float | None
    sleeping: bool
    """Whether the server slept in the last step."""
    finished: float | None
    queued: float | None
    """How many more requests were in the server in the last step than in the first."""
    alternating: bool
    """Whether steps of two configurations take turns, as when two servers answer under one name."""
    prompt_tokens: float | None
    """Mean of the finished requests."""
    generation_tokens: float | None
    prompt_error: float | None
    """Standard error of `prompt_tokens`, in tokens; None where the steps are too few to tell it."""
    generation_error: float | None
    generated: float | None
    """Tokens generated in the window."""
    blocks_per_token: float | None
    """By the capacity of typical requests that was exported, else of full-length ones: what is left where the
    groups are not known."""
    usage_mean: float | None
    usage_max: float | None
    running_mean: float | None
    """All ranks together."""
    running_max: float | None
    """Of one rank."""
    waiting_mean: Mapping[str, float] = field(default_factory=dict)
    """By reason, all ranks together."""
    waiting_max: float | None = None
    preemptions: float | None = None
    suspected: float | None = None
    queue: SumCount | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None

    @property
    def ranks(self) -> tuple[str, ...]:
        """Return the ranks that were there at the end."""
        return tuple(pool.rank for pool in self.pools)

    @property
    def usable_blocks(self) -> int | None:
        """Return the usable blocks of all ranks."""
        return _whole_sum(pool.usable_blocks for pool in self.pools)

    @property
    def request_tokens(self) -> float | None:
        """Return T, the mean length of a finished request."""
        if self.prompt_tokens is None or self.generation_tokens is None:
            return None
        return self.prompt_tokens + self.generation_tokens

    @property
    def cost(self) -> TypicalCost | None:
        """Return the cost function of the setup; None where it is not settled."""
        return cost_of(self.setup)

    @property
    def typical_fit_empty(self) -> int | None:
        """Return how many typical requests the empty pools take: floored for each rank, then added."""
        cost, tokens = self.cost, self.request_tokens
        if cost is None or tokens is None:
            return None
        limit = self.setup.request_limit
        return _whole_sum(
            None if pool.usable_blocks is None else cost.fit_empty(pool.usable_blocks, tokens, limit)
            for pool in self.pools
        )

    @property
    def hit_ratio(self) -> float | None:
        """Return the part of looked-up prompt tokens that the prefix cache had."""
        if not self.prefix_queries or self.prefix_hits is None:
            return None
        return self.prefix_hits / self.prefix_queries

    @property
    def queue_mean_seconds(self) -> float | None:
        """Return the mean time in the queue of those that left it."""
        return self.queue.sum / self.queue.count if self.queue and self.queue.count > 0 else None

    @property
    def finished_per_second(self) -> float | None:
        """Return the rate at which requests finished while it was watched."""
        if self.finished is None or self.observed_seconds <= 0:
            return None
        return self.finished / self.observed_seconds

    @property
    def arrived_per_second(self) -> float | None:
        """Return the rate at which requests came: those that finished, and by how many the rest grew."""
        if self.finished is None or self.observed_seconds <= 0:
            return None
        return max(0.0, self.finished + (self.queued or 0.0)) / self.observed_seconds

    @property
    def generated_per_second(self) -> float | None:
        """Return the rate at which tokens came out while it was watched."""
        if self.generated is None or self.observed_seconds <= 0:
            return None
        return self.generated / self.observed_seconds

    @property
    def waiting(self) -> float | None:
        """Return the mean of waiting requests, all reasons together."""
        return math.fsum(self.waiting_mean.values()) if self.waiting_mean else None

    @property
    def demand(self) -> float | None:
        """Return the mean of requests in the server, running and waiting; None where either is not known."""
        if self.running_mean is None or self.waiting is None:
            return None
        return self.running_mean + self.waiting


def moment_of(observations: Sequence[Observation]) -> Moment | None:
    """Reduce the steps of one window, of all ranks, to a moment; None where there is none."""
    if not observations:
        return None
    ordered = sorted(observations, key=lambda one: (one.at, one.rank))
    by_rank: dict[str, list[Observation]] = defaultdict(list)
    for one in ordered:
        by_rank[one.rank].append(one)
    end = max(one.at + one.seconds for one in ordered)
    present = {
        rank: steps
        for rank, steps in by_rank.items()
        if end - (steps[-1].at + steps[-1].seconds) <= max(_GONE_SECONDS, 3 * steps[-1].seconds)
    }
    last = ordered[-1]
    requests = _total(ordered, lambda one: one.finished)
    prompts = _total(ordered, lambda one: one.finished_prompt_tokens)
    answers = _total(ordered, lambda one: one.finished_generation_tokens)
    return Moment(
        observed_seconds=max(math.fsum(one.seconds for one in steps) for steps in by_rank.values()),
        pools=tuple(_pool(rank, steps) for rank, steps in sorted(present.items())),
        setup=_setup(ordered),
        started_at=next((one.started_at for one in reversed(ordered) if one.started_at is not None), None),
        sleeping=last.sleeping is True,
        finished=requests,
        queued=_queued(by_rank.values()),
        alternating=any(alternates(steps) for steps in by_rank.values()),
        prompt_tokens=_mean_length(prompts, requests),
        generation_tokens=_mean_length(answers, requests),
        prompt_error=standard_error((one.finished, one.finished_prompt_tokens) for one in ordered),
        generation_error=standard_error((one.finished, one.finished_generation_tokens) for one in ordered),
        generated=_total(ordered, lambda one: one.generation_tokens),
        blocks_per_token=_mean(ordered, blocks_per_token) or _mean(ordered, blocks_per_full_token),
        usage_mean=_mean(ordered, lambda one: one.usage_mean),
        usage_max=_most(ordered, lambda one: one.usage_max),
        running_mean=_sum_of_means(by_rank, lambda one: one.running_mean),
        running_max=_most(ordered, lambda one: one.running_max),
        waiting_mean=_waiting(by_rank),
        waiting_max=_most(ordered, lambda one: one.waiting_max),
        preemptions=_total(ordered, lambda one: one.preemptions),
        suspected=_total(ordered, lambda one: one.suspected),
        queue=_queue(ordered),
        prefix_queries=_total(ordered, lambda one: one.prefix_queries),
        prefix_hits=_total(ordered, lambda one: one.prefix_hits),
    )


def _pool(rank: str, steps: Sequence[Observation]) -> RankPool:
    # A server that starts again states its pool late, and one that sleeps may not state it at all.
    known = [one for one in steps if one.usable_blocks is not None]
    last = known[-1] if known else steps[-1]
    with_bytes = [one for one in known if one.usable_blocks == last.usable_blocks]
    return RankPool(
        rank=rank,
        usable_blocks=last.usable_blocks,
        usable_bytes=next((one.usable_bytes for one in reversed(with_bytes) if one.usable_bytes), None),
        setup=last.setup,
    )


def _setup(ordered: Sequence[Observation]) -> Setup:
    """Return the last setup of a page that was whole: one that states the pool, where there is one."""
    stated = [one.setup for one in ordered if one.usable_blocks is not None]
    return stated[-1] if stated else ordered[-1].setup


def _queued(ranks: Iterable[Sequence[Observation]]) -> float | None:
    held = [
        [
            one.running_mean + math.fsum(one.waiting_mean.values())
            for one in steps
            if one.running_mean is not None and one.waiting_mean
        ]
        for steps in ranks
    ]
    known = [values for values in held if values]
    return math.fsum(values[-1] - values[0] for values in known) if known else None


def _mean_length(tokens: float | None, requests: float | None) -> float | None:
    return tokens / requests if requests and tokens is not None else None


def _values(
    steps: Iterable[Observation], value: Callable[[Observation], float | None]
) -> list[tuple[float, float]]:
    return [(found, one.seconds) for one in steps if (found := value(one)) is not None]


def _total(steps: Iterable[Observation], value: Callable[[Observation], float | None]) -> float | None:
    known = _values(steps, value)
    return math.fsum(found for found, _ in known) if known else None


def _most(steps: Iterable[Observation], value: Callable[[Observation], float | None]) -> float | None:
    return max((found for found, _ in _values(steps, value)), default=None)


def _mean(steps: Iterable[Observation], value: Callable[[Observation], float | None]) -> float | None:
    known = _values(steps, value)
    seconds = math.fsum(length for _, length in known)
    return math.fsum(found * length for found, length in known) / seconds if seconds > 0 else None


def _sum_of_means(
    by_rank: Mapping[str, Sequence[Observation]], value: Callable[[Observation], float | None]
) -> float | None:
    means = [mean for steps in by_rank.values() if (mean := _mean(steps, value)) is not None]
    return math.fsum(means) if means else None


def _waiting(by_rank: Mapping[str, Sequence[Observation]]) -> dict[str, float]:
    means: dict[str, float] = {}
    for reason in sorted({key for steps in by_rank.values() for one in steps for key in one.waiting_mean}):
        mean = _sum_of_means(by_rank, _waiting_for(reason))
        if mean is not None:
            means[reason] = mean
    return means


def _waiting_for(reason: str) -> Callable[[Observation], float | None]:
    return lambda one: one.waiting_mean.get(reason)


def _queue(steps: Iterable[Observation]) -> SumCount | None:
    known = [one.queue_seconds for one in steps if one.queue_seconds is not None]
    if not known:
        return None
    return SumCount(sum=math.fsum(one.sum for one in known), count=math.fsum(one.count for one in known))


def _whole_sum(values: Iterable[int | None]) -> int | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) if found and len(known) == len(found) else None
