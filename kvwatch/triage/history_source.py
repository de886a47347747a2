"""What was kept of servers, from kvwatch's own history file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.observation import SAME_START_SECONDS, is_same_start

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.history.reader import HistoryReader
    from kvwatch.observation import Observation, StartWindow
    from kvwatch.triage.source import Span

_LONGEST_START_SECONDS = 86_400.0
_MEMORY_STEP_SECONDS = 300.0


class HistorySource:
    """Read an open history file."""

    def __init__(self, reader: HistoryReader) -> None:
        self._reader = reader

    @property
    def notes(self) -> Sequence[str]:
        """Return nothing: a file says all or fails."""
        return ()

    def latest(self, before: float) -> float | None:
        """Return when the last observation before a moment ends; None where there is none."""
        span = self._reader.span()
        return None if span is None or span[0] >= before else min(span[1], before)

    def servers(self, _at: float) -> list[str]:
        """Return the names of all servers that are kept."""
        return list(self._reader.servers())

    def read(self, spans: Sequence[Span], server: str | None) -> list[Mapping[str, list[Observation]]]:
        """Return, for each span, server -> its observations, oldest first; of all where none is named."""
        names = self._reader.servers() if server is None else (server,)
        return [
            {name: found for name in names if (found := list(self._observations(name, span)))}
            for span in spans
        ]

    def device_bytes(self, spans: Sequence[Span], devices: Sequence[str]) -> list[Observation]:
        """Return observations of all servers on the devices, in steps of some minutes."""
        wanted = set(devices)
        return [
            observation
            for span in spans
            for name in self._reader.servers()
            for observation in self._reader.observations(
                name, span.start_at, span.end_at, step=_MEMORY_STEP_SECONDS
            )
            if wanted & observation.device_bytes.keys()
        ]

    def starts(self, server: str, started_at: Sequence[float], devices: Sequence[str]) -> list[StartWindow]:
        """Return the windows of a server's starts on the devices, as far as they were seen."""
        if not started_at:
            return []
        windows = self._reader.start_windows(
            server, min(started_at) - SAME_START_SECONDS, max(started_at) + _LONGEST_START_SECONDS
        )
        return [
            window
            for window in windows
            if (not devices or window.device in devices)
            and any(is_same_start(window.started_at, start) for start in started_at)
        ]

    def _observations(self, server: str, span: Span) -> Sequence[Observation]:
        return self._reader.observations(server, span.start_at, span.end_at, step=span.step_seconds)
