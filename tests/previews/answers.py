"""What a Prometheus answers to the queries of a panel, with the variables filled in as Grafana does."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ALL = ".*"
"""What Grafana makes of `All`, about."""
_POINTS = 700
"""About one for each pixel of a curve."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One series of an answer: its labels, and values by Unix seconds; where it was absent is no entry."""

    labels: Mapping[str, str]
    values: dict[float, float]

    @property
    def last(self) -> float:
        """The value of an answer of one moment."""
        return next(reversed(self.values.values()))


@dataclass(frozen=True, kw_only=True)
class Asker:
    """A time range and chosen variables of one Prometheus."""

    url: str
    start: float
    end: float
    scrape_seconds: float
    chosen: Mapping[str, str]
    """Values of variables by name; job and instance are all unless chosen."""
    client: httpx.Client = field(default_factory=lambda: httpx.Client(trust_env=False, verify=False))  # noqa: S501 - plain HTTP on this machine

    @property
    def step(self) -> float:
        """Seconds from one point of a curve to the next, no finer than what was scraped."""
        return max(self.scrape_seconds, (self.end - self.start) / _POINTS)

    def filled(self, text: str) -> str:
        """Return a query or a title with its variables filled in."""
        interval = max(self.step + self.scrape_seconds, 4 * self.scrape_seconds)
        made = {
            "job": ALL,
            "instance": ALL,
            "__rate_interval": f"{interval:.0f}s",
            "__range": f"{self.end - self.start:.0f}s",
        }
        for name, value in {**made, **self.chosen}.items():
            text = re.sub(rf"\${name}\b", value, text)
        return text

    def instant(self, query: str) -> list[Series]:
        """Return the series of the end of the time range. Raises ValueError where Prometheus refuses."""
        return list(self._ask("query", query, {"time": self.end}))

    def range(self, query: str) -> list[Series]:
        """Return the series over the time range. Raises ValueError where Prometheus refuses."""
        return list(
            self._ask("query_range", query, {"start": self.start, "end": self.end, "step": self.step})
        )

    def _ask(self, path: str, query: str, when: Mapping[str, float]) -> Iterator[Series]:
        parameters: dict[str, Any] = {"query": self.filled(query), **when}
        answer = self.client.get(f"{self.url}/api/v1/{path}", params=parameters).json()
        if answer["status"] != "success":
            raise ValueError(f"{parameters['query']}: {answer['error']}")
        for result in answer["data"]["result"]:
            points = result.get("values") or [result["value"]]
            yield Series(
                labels={name: text for name, text in result["metric"].items() if name != "__name__"},
                values={float(at): float(value) for at, value in points},
            )
