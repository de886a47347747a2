"""The typical request: the mean lengths of those that finished in the last window."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedTotals:
    """An engine's cumulative sums over finished requests at one moment (monotonic seconds)."""

    at: float
    requests: float
    prompt_tokens: float
    generation_tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalLength:
    """Mean tokens of the requests that finished in the window."""

    prompt_tokens: float
    generation_tokens: float
    requests: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthWindow:
    """Samples of the cumulative sums, oldest first; at most one older than the window is kept."""

    window_seconds: float
    samples: tuple[FinishedTotals, ...] = ()

    def add(self, totals: FinishedTotals) -> LengthWindow:
        """Return the window with one more sample; a counter that fell starts it anew."""
        samples = self.samples
        if samples and (
            totals.requests < samples[-1].requests
            or totals.prompt_tokens < samples[-1].prompt_tokens
            or totals.generation_tokens < samples[-1].generation_tokens
        ):
            samples = ()
        samples = (*samples, totals)
        start = totals.at - self.window_seconds
        first = 0
        while first + 1 < len(samples) and samples[first + 1].at <= start:
            first += 1
        return LengthWindow(window_seconds=self.window_seconds, samples=samples[first:])

    def typical(self) -> TypicalLength | None:
        """Return the mean lengths over the window; None when nothing finished in it."""
        if len(self.samples) < 2:  # noqa: PLR2004 - a difference needs two
            return None
        first, last = self.samples[0], self.samples[-1]
        requests = last.requests - first.requests
        if requests <= 0:
            return None
        return TypicalLength(
            prompt_tokens=(last.prompt_tokens - first.prompt_tokens) / requests,
            generation_tokens=(last.generation_tokens - first.generation_tokens) / requests,
            requests=requests,
        )
