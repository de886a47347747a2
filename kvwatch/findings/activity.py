"""What happened to a rank within the last minutes: counters' gains, bounded and over restarts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.snapshot import RankState

PREEMPTED_SECONDS = 600.0
SUSPECTED_SECONDS = 300.0
_STEPS = 60
"""So finely is a window divided: a counter that moves at every poll keeps no more samples than that."""
FULL_USAGE = 0.7
"""Below it nobody is preempted; when the victims' blocks are free again, a full pool reads about so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A counter over a window of monotonic seconds: (moment, value), oldest first."""

    window_seconds: float
    samples: tuple[tuple[float, float], ...] = ()

    def add(self, at: float, value: float | None) -> Gain:
        """Return the window with one more value; None adds nothing, and one that fell counts from zero."""
        if value is None:
            return self
        samples = self.samples
        if samples and value < samples[-1][1]:
            samples = ((at, 0.0),)
        if len(samples) > 1 and at - samples[-2][0] < self.window_seconds / _STEPS:
            samples = samples[:-1]
        samples = (*samples, (at, value))
        first = 0
        while first + 1 < len(samples) and samples[first + 1][0] <= at - self.window_seconds:
            first += 1
        return Gain(window_seconds=self.window_seconds, samples=samples[first:])

    @property
    def gained(self) -> float | None:
        """Return what the counter gained in the window; None before it was read twice."""
        return self.samples[-1][1] - self.samples[0][1] if len(self.samples) > 1 else None


def _gain(seconds: float) -> Gain:
    return Gain(window_seconds=seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One rank's last minutes; replaced whole at each poll."""

    preempted: Gain = field(default_factory=lambda: _gain(PREEMPTED_SECONDS))
    finished: Gain = field(default_factory=lambda: _gain(PREEMPTED_SECONDS))
    suspected: Gain = field(default_factory=lambda: _gain(SUSPECTED_SECONDS))
    """Only those that were suspected while the pool was about full."""
    suspected_raw: int | None = None
    suspected_full: int = 0
    usage_ratio: float | None = None

    def advance(self, rank: RankState, suspected: int | None, *, at: float) -> Activity:
        """Return the activity after one more poll at `at`, monotonic seconds.

        `suspected` is the count since kvwatch started, None where no page tells.
        """
        reading = rank.reading
        usages = [usage for usage in (self.usage_ratio, rank.usage_ratio) if usage is not None]
        more = (
            0 if suspected is None or self.suspected_raw is None else max(0, suspected - self.suspected_raw)
        )
        full = self.suspected_full + (more if not usages or max(usages) >= FULL_USAGE else 0)
        finished = sum(reading.finished_total.values()) if reading.finished_total else None
        return Activity(
            preempted=self.preempted.add(at, reading.preemptions_total),
            finished=self.finished.add(at, finished),
            suspected=self.suspected.add(at, None if suspected is None else float(full)),
            suspected_raw=suspected,
            suspected_full=full,
            usage_ratio=rank.usage_ratio,
        )
