"""What was kept of servers, from the exported series in anything that speaks Prometheus's API.

Few queries, all of one form: the last sample of each step of each family. A step without a sample has
none in the answer, whatever the look-back of the API, so that a hole stays a hole.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from kvwatch import metrics
from kvwatch.observation import Observation, Setup
from kvwatch.triage.prometheus_api import RangeQuery
from kvwatch.triage.prometheus_observations import SERVER_FAMILIES, Grid, observations_of
from kvwatch.triage.prometheus_series import matcher, name_matcher
from kvwatch.triage.prometheus_servers import series_by_server
from kvwatch.triage.prometheus_starts import (
    LONGEST_START_SECONDS,
    LOOK_BEFORE_SECONDS,
    START_FAMILIES,
    start_windows,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kvwatch.observation import StartWindow
    from kvwatch.triage.prometheus_api import PrometheusApi
    from kvwatch.triage.prometheus_series import Series
    from kvwatch.triage.source import Span

_SLEEPING = metrics.SERVER_SLEEPING.name
_START_STEP_SECONDS = 15.0
_DRIVER_SECONDS = 3600.0
_MEMORY_STEP_SECONDS = 300.0
_LONGEST_LOOK_SECONDS = 600.0
_MOVE_SLACK_SECONDS = 300.0
"""A daemon that moved may be seen at two addresses for so long."""
_LOOKS_BACK = ((3600.0, 60.0), (86_400.0, 300.0), (30 * 86_400.0, 3600.0))
"""(seconds, step): where the last observation is looked for, the near past first."""


class PrometheusSource:
    """Read exported series; `selector` are matchers that each query carries, such as `job="kvwatch"`."""

    def __init__(self, api: PrometheusApi, *, selector: str = "") -> None:
        self._api = api
        self._selector = selector

    @property
    def notes(self) -> Sequence[str]:
        """Return what the API said beside its answers."""
        return [f"the API warns: {warning}" for warning in self._api.warnings]

    def latest(self, before: float) -> float | None:
        """Return when the last observation before a moment ends; None where there is none for a month."""
        for seconds, step in _LOOKS_BACK:
            query = self._query(
                [metrics.REQUESTS_RUNNING.name, metrics.KV_CAPACITY_BLOCKS.name],
                before - seconds,
                before,
                step,
            )
            (series,) = self._api.ranges([query])
            ends = [one.samples[-1][0] for one in series if one.samples]
            if ends:
                return min(max(ends), before)
        return None

    def servers(self, at: float) -> list[str]:
        """Return the names of the servers that were seen in the hour before a moment."""
        (series,) = self._api.ranges([self._query([metrics.SERVER_INFO.name], at - 3600, at, 60.0)])
        return sorted(series_by_server(series, slack_seconds=_MOVE_SLACK_SECONDS))

    def read(self, spans: Sequence[Span], server: str | None) -> list[Mapping[str, list[Observation]]]:
        """Return, for each span, server -> its observations; a counter's first gain needs a step before."""
        own = "" if server is None else matcher("server", server.partition("@")[0])
        queries: list[RangeQuery] = []
        for span in spans:
            start = span.start_at - span.step_seconds
            queries.append(self._query(SERVER_FAMILIES, start, span.end_at, span.step_seconds, own))
            queries.append(self._sleeping(start, span.end_at, span.step_seconds, own))
        # Of each span its own: a driver may be another one now.
        queries += [
            self._query(
                [metrics.DEVICE_INFO.name], span.end_at - _DRIVER_SECONDS, span.end_at, span.step_seconds
            )
            for span in spans
        ]
        answers = self._api.ranges(queries)
        devices, answers = answers[2 * len(spans) :], answers[: 2 * len(spans)]
        answers[1::2] = [[replace(one, name=_SLEEPING) for one in answer] for answer in answers[1::2]]
        slack = max(_MOVE_SLACK_SECONDS, *(span.step_seconds for span in spans))
        together = series_by_server((one for answer in answers for one in answer), slack_seconds=slack)
        names = {id(one): name for name, own_series in together.items() for one in own_series}
        result: list[Mapping[str, list[Observation]]] = []
        for span, answer, sleeping, infos in zip(spans, answers[::2], answers[1::2], devices, strict=True):
            drivers = {one.labels.get("device", ""): one.labels.get("driver", "") for one in infos}
            grid = Grid(seconds=span.step_seconds)
            by_server: dict[str, list[Series]] = {}
            for one in (*answer, *sleeping):
                if id(one) in names:
                    by_server.setdefault(names[id(one)], []).append(one)
            result.append(
                {
                    name: [
                        observation
                        for observation in observations_of(name, series, grid, drivers=drivers)
                        if observation.at >= span.start_at
                    ]
                    for name, series in by_server.items()
                    if server in (None, name, name.partition("@")[0])
                }
            )
        return result

    def device_bytes(self, spans: Sequence[Span], devices: Sequence[str]) -> list[Observation]:
        """Return what all servers held of the devices in the spans."""
        if not devices:
            return []
        own = _any_of("device", devices)
        queries = [
            self._query(
                [metrics.SERVER_DEVICE_MEMORY.name], span.start_at, span.end_at, _MEMORY_STEP_SECONDS, own
            )
            for span in spans
        ]
        held: dict[tuple[str, float], dict[str, int]] = {}
        for answer in self._api.ranges(queries):
            for one in answer:
                for at, value in one.samples:
                    key = (one.labels.get("server", ""), at)
                    held.setdefault(key, {})[one.labels.get("device", "")] = round(value)
        return [
            Observation(
                server=server,
                rank="",
                at=at - _MEMORY_STEP_SECONDS,
                seconds=_MEMORY_STEP_SECONDS,
                setup=Setup(),
                device_bytes=device_bytes,
            )
            for (server, at), device_bytes in sorted(held.items())
        ]

    def starts(self, server: str, started_at: Sequence[float], devices: Sequence[str]) -> list[StartWindow]:
        """Return the windows of a server's starts, as far as they were seen."""
        if not started_at or not devices:
            return []
        name = server.partition("@")[0]
        on_devices = _any_of("device", devices)
        queries: list[RangeQuery] = []
        for start in started_at:
            begin, end = start - LOOK_BEFORE_SECONDS, start + LONGEST_START_SECONDS
            queries.append(
                self._query(START_FAMILIES, begin, end, _START_STEP_SECONDS, matcher("server", name))
            )
            queries.append(self._query(START_FAMILIES, begin, end, _START_STEP_SECONDS, on_devices))
        answers = self._api.ranges(queries)
        windows: list[StartWindow] = []
        for start, own, near in zip(started_at, answers[::2], answers[1::2], strict=True):
            found = start_windows(name, start, own, near, step_seconds=_START_STEP_SECONDS)
            windows += [replace(window, server=server) for window in found]
        return windows

    def _query(self, names: Sequence[str], start: float, end: float, step: float, *own: str) -> RangeQuery:
        """Return the query of the last sample of each step; steps end at whole multiples of their length."""
        matchers = ",".join(part for part in (name_matcher(names), *own, self._selector) if part)
        # Of a long step its end is enough, and spares the API all the samples before.
        length = min(step, _LONGEST_LOOK_SECONDS)
        return _stepped(f"last_over_time({{{matchers}}}[{_just_under(length)}])", start, end, step)

    def _sleeping(self, start: float, end: float, step: float, own: str) -> RangeQuery:
        matchers = ",".join(part for part in (own, self._selector) if part)
        return _stepped(f"max_over_time({_SLEEPING}{{{matchers}}}[{_just_under(step)}])", start, end, step)


def _stepped(expression: str, start: float, end: float, step: float) -> RangeQuery:
    first, last = -(-start // step) * step + step, end // step * step
    return RangeQuery(expression=expression, start=first, end=max(first, last), step_seconds=step)


def _just_under(step: float) -> str:
    """Return a range a millisecond shorter than the step: before Prometheus 3 both of its ends are in it."""
    return f"{round(step * 1000) - 1}ms"


def _any_of(label: str, values: Sequence[str]) -> str:
    pattern = "|".join(re.escape(value) for value in sorted(set(values)))
    return matcher(label, pattern).replace("=", "=~", 1)
