"""Where records come from: what history and Prometheus both can be asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.observation import Observation, StartWindow


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of time to read, Unix seconds, in steps of so many seconds or finer."""

    start_at: float
    end_at: float
    step_seconds: float = 60.0


class Source(Protocol):
    """What was kept of servers. Names are as shown: several servers of one name are told apart."""

    @property
    def notes(self) -> Sequence[str]:
        """Return what is to be told beside the verdict, such as that an answer was partial."""

    def latest(self, before: float) -> float | None:
        """Return when the last observation before a moment ends, Unix seconds; None where none is."""

    def servers(self, at: float) -> Sequence[str]:
        """Return the names of the servers that are known around a moment."""

    def read(self, spans: Sequence[Span], server: str | None) -> list[Mapping[str, list[Observation]]]:
        """Return, for each span, server -> its observations, oldest first; of all where none is named."""

    def device_bytes(self, spans: Sequence[Span], devices: Sequence[str]) -> list[Observation]:
        """Return observations of all servers on the devices, of which only their device bytes are filled."""

    def starts(self, server: str, started_at: Sequence[float], devices: Sequence[str]) -> list[StartWindow]:
        """Return the windows of a server's starts at those moments, as far as they were seen."""
