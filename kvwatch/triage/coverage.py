"""Which windows were watched, and which one stands for one that was not. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvwatch.observation import Observation
    from kvwatch.triage.question import Window
    from kvwatch.triage.source import Span

_LEAST_PART = 0.25
"""Of a window: when less was watched, another one says more."""
_ENOUGH_PART = 0.75
"""Of a window that stands for another."""


def is_watched(observations: Iterable[Observation], window: Window) -> bool:
    """Tell whether enough of a window was watched to speak of it."""
    return _watched_seconds(observations, window) >= _LEAST_PART * window.seconds


def nearest_watched(observations: Sequence[Observation], window: Window, around: Span) -> Window | None:
    """Return the watched window of the same length that is nearest to one, within a span; None without one.

    It begins where a step of the observations does, so that it is the same whatever they were read from.
    """
    length = window.seconds
    starts = sorted(
        {one.at for one in observations if around.start_at <= one.at <= around.end_at - length},
        key=lambda start: (abs(start - window.start_at), start),
    )
    for start in starts:
        candidate = replace(window, start_at=start, end_at=start + length, name=f"near {window.name}")
        if _watched_seconds(observations, candidate) >= _ENOUGH_PART * length:
            return candidate
    return None


def _watched_seconds(observations: Iterable[Observation], window: Window) -> float:
    """Return how much of a window steps of any rank cover."""
    spans = sorted(
        (max(one.at, window.start_at), min(one.at + one.seconds, window.end_at))
        for one in observations
        if one.at < window.end_at and one.at + one.seconds > window.start_at
    )
    total, reached = 0.0, window.start_at
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
