"""What triage is asked: one server, a window then and a window now, and what was seen in them and between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.observation import Observation, StartWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of time, Unix seconds; `name` is the baseline's: 1d, 7d, start, or the moment as given."""

    start_at: float
    end_at: float
    name: str = ""

    @property
    def seconds(self) -> float:
        """Length of the window."""
        return self.end_at - self.start_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Everything that one verdict rests on; the same from history and from Prometheus.

    Observations come in any order, all ranks together. Those of a window must not overlap each other;
    `timeline` may overlap the windows and may have longer steps: it is never counted, only looked through.
    """

    server: str
    baseline: Window
    now: Window
    baseline_observations: tuple[Observation, ...] = ()
    """Of `server`, steps inside the baseline window; empty where nothing was watched then."""
    now_observations: tuple[Observation, ...] = ()
    """Of `server`, steps inside the now window."""
    timeline: tuple[Observation, ...] = ()
    """Of `server`, from the baseline's start to now's end: restarts, sleeps, settings, gaps, the trend."""
    start_windows: tuple[StartWindow, ...] = ()
    """Starts of `server` known from any time up to the end of now, the one before the baseline included."""
    others: tuple[Observation, ...] = ()
    """Other servers in both windows; only their device bytes are read."""
    minimum_finished: float = 30
    """Requests that must have finished in each window; fewer are not enough traffic to say."""
