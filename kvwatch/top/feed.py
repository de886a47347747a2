"""What has come in so far, and whether it may still be shown as current. Pure; clocks are handed in."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING

from kvwatch.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import tzinfo

    from kvwatch.top.views import View

_OVERDUE_REFRESHES = 3
_SILENT_AT_MOST_SECONDS = 10.0
"""Where no interval is known by which an answer could be late."""
_LATELY_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One moment on the clocks of this machine."""

    monotonic: float
    unix: float
    zone: tzinfo | None = None
    """Of the times that are shown; None: this machine's."""

    def clock(self, unix_seconds: float) -> str:
        """Return a time of day, with the date where it is not today's."""
        try:
            at = datetime.fromtimestamp(unix_seconds, self.zone)
            today = datetime.fromtimestamp(self.unix, self.zone)
        except (OverflowError, ValueError, OSError):
            return "an impossible time"
        return f"{at:%H:%M:%S}" if at.date() == today.date() else f"{at:%d %b %H:%M:%S}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """What an origin has told, and since when it has not."""

    origin: str
    refresh_seconds: float
    """Between two answers, where the origin answers at once."""
    view: View | None = None
    new_at: float | None = None
    """Monotonic seconds at which the snapshot shown was first seen."""
    answered_at: float | None = None
    """Monotonic seconds of the last answer."""
    failing_since: float | None = None
    """Unix seconds."""
    failure: str = ""
    counts: tuple[tuple[float, Mapping[str, int]], ...] = ()
    """Of the last minute: monotonic seconds, and each server's suspected recomputes."""

    def with_view(self, view: View, now: Moment) -> Feed:
        """Return the feed after an answer."""
        same = self.view is not None and (self.view.sequence, self.view.taken_at) == (
            view.sequence,
            view.taken_at,
        )
        counts = self.counts if same else self._counts_with(view, now)
        return replace(
            self,
            view=_with_growth(view, counts),
            counts=counts,
            new_at=self.new_at if same else now.monotonic,
            answered_at=now.monotonic,
            failing_since=None,
            failure="",
        )

    def with_failure(self, failure: str, now: Moment) -> Feed:
        """Return the feed after an attempt that gave no snapshot."""
        since = self.failing_since if self.failing_since is not None else now.unix
        return replace(self, failing_since=since, failure=failure)

    def _counts_with(self, view: View, now: Moment) -> tuple[tuple[float, Mapping[str, int]], ...]:
        counts = {
            server.name: suspected
            for server in view.servers
            if (suspected := server.total("suspected")) is not None
        }
        recent = [(at, old) for at, old in self.counts if now.monotonic - at <= _LATELY_SECONDS]
        return (*recent, (now.monotonic, counts))

    def age_seconds(self, now: Moment) -> float | None:
        """Return for how long the snapshot has been seen; by this machine's clock alone. None before one."""
        return None if self.new_at is None else max(0.0, now.monotonic - self.new_at)

    def doubt(self, now: Moment) -> str:
        """Return why what is shown may no longer hold; empty where it does."""
        if self.failing_since is not None:
            return f"{self.failure}, since {now.clock(self.failing_since)}"
        if self.view is None or self.answered_at is None:
            return ""
        if self.view.stale:
            return "kvwatch answers but has stopped polling"
        late = max(_OVERDUE_REFRESHES * self.refresh_seconds, _SILENT_AT_MOST_SECONDS)
        if now.monotonic - self.answered_at > late:
            silent = now.unix - (now.monotonic - self.answered_at)
            return f"no answer since {now.clock(silent)}"
        interval = self.view.interval_seconds
        allowed = None if interval is None else Snapshot.STALE_INTERVALS * interval + self.refresh_seconds
        if allowed is not None and (self.age_seconds(now) or 0) > allowed:
            return "kvwatch answers, but always with the same poll"
        return ""


def _with_growth(view: View, counts: tuple[tuple[float, Mapping[str, int]], ...]) -> View:
    """Return the view with how much each server's count grew; a count that was reset starts anew."""
    grown = {}
    for server in view.servers:
        seen = [past[server.name] for _, past in counts if server.name in past]
        grown[server.name] = sum(max(0, after - before) for before, after in pairwise(seen))
    servers = tuple(replace(server, redone_lately=grown[server.name]) for server in view.servers)
    return replace(view, servers=servers)
