"""What a rank's counters gained from poll to poll, over restarts and gaps. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import RankReading

LONGEST_GAP_SECONDS = 300.0
"""What was gained over a longer gap between two looks belongs to no minute."""

QUEUE_SUM = "queue_sum"
QUEUE_COUNT = "queue_count"
SUSPECTED = "suspected"


@dataclass(frozen=True, slots=True)
class Sample:
    """A counter's value at one moment (monotonic seconds)."""

    value: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCounters:
    """The last known value of each counter of one rank; replaced whole at each poll."""

    samples: Mapping[str, Sample] = field(default_factory=dict)

    def advance(
        self,
        totals: Mapping[str, float | None],
        *,
        at: float,
        looked_at: float,
        restarted: bool,
        longest_gap_seconds: float,
    ) -> tuple[RankCounters, dict[str, float]]:
        """Return the counters after one more poll, and what each gained since; absent where unknown.

        `at` is now and `looked_at` when the server was last tried, answering or not (monotonic seconds).
        All counters of a rank begin at zero with its engine: one that fell says so for all of them. The one
        that kvwatch counts itself, `suspected`, begins with kvwatch only.
        """
        before = dict(self.samples)
        if restarted or any(
            value is not None and name != SUSPECTED and name in before and value < before[name].value
            for name, value in totals.items()
        ):
            before |= {name: Sample(0.0, looked_at) for name in totals if name != SUSPECTED}
        gains: dict[str, float] = {}
        after = dict(before)
        for name, value in totals.items():
            if value is None:
                continue
            old = before.get(name)
            if old is not None and value < old.value:
                old = Sample(0.0, old.at)
            if old is not None and at - old.at <= longest_gap_seconds:
                gains[name] = value - old.value
            after[name] = Sample(value, at)
        return RankCounters(samples=after), gains


def totals_of(rank: RankReading, suspected: float | None) -> dict[str, float | None]:
    """Return the rank's counters by the names of an Observation's fields; None where not stated."""
    prompt, generation, queue = (
        rank.finished_prompt_tokens,
        rank.finished_generation_tokens,
        rank.queue_seconds,
    )
    return {
        "finished": sum(rank.finished_total.values()) if rank.finished_total else None,
        "finished_prompt_tokens": None if prompt is None else prompt.sum,
        "finished_generation_tokens": None if generation is None else generation.sum,
        "preemptions": rank.preemptions_total,
        "generation_tokens": rank.generation_tokens_total,
        "prefix_queries": rank.prefix_cache_queries_total,
        "prefix_hits": rank.prefix_cache_hits_total,
        QUEUE_SUM: None if queue is None else queue.sum,
        QUEUE_COUNT: None if queue is None else queue.count,
        SUSPECTED: suspected,
    }
