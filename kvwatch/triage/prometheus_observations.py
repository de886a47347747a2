"""Series of one server as Observations: gauges as sampled, counters as gained, over resets too. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from kvwatch import metrics
from kvwatch.observation import Observation
from kvwatch.readings import SumCount
from kvwatch.triage.prometheus_setups import Setups, blocks_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvwatch.triage.prometheus_series import Series

_LONGEST_GAP_SECONDS = 300.0
"""What a counter gained over a longer hole in its samples belongs to no step."""

_SUM, _COUNT = f"{metrics.QUEUE_SECONDS.name}_sum", f"{metrics.QUEUE_SECONDS.name}_count"
_ENGINE_COUNTERS = (
    metrics.FINISHED_REQUESTS.name,
    metrics.FINISHED_PROMPT_TOKENS.name,
    metrics.FINISHED_GENERATION_TOKENS.name,
    metrics.GENERATION_TOKENS.name,
    metrics.PREEMPTIONS.name,
    metrics.PREFIX_QUERIES.name,
    metrics.PREFIX_HITS.name,
    _SUM,
    _COUNT,
)
"""All of them begin anew when the engine does."""
_OWN_COUNTERS = (metrics.RECOMPUTE_SUSPECTED.name,)
"""Begin anew when kvwatch does."""
_GAUGES = (
    metrics.KV_USAGE.name,
    metrics.KV_CAPACITY_BLOCKS.name,
    metrics.KV_CAPACITY_TOKENS.name,
    metrics.KV_CAPACITY_BYTES.name,
    metrics.REQUESTS_RUNNING.name,
    metrics.REQUEST_LIMIT.name,
    metrics.TYPICAL_CAPACITY.name,
)
_RANK_FAMILIES = (
    *_GAUGES,
    metrics.REQUESTS_WAITING.name,
    metrics.TYPICAL_TOKENS.name,
    *_ENGINE_COUNTERS,
    *_OWN_COUNTERS,
)
SERVER_FAMILIES = (
    metrics.SERVER_INFO.name,
    metrics.SERVER_CONFIG_INFO.name,
    metrics.SERVER_SHARE.name,
    metrics.SERVER_PIN.name,
    metrics.SERVER_START.name,
    metrics.SERVER_SLEEPING.name,
    metrics.FULL_LENGTH.name,
    metrics.KV_GROUP_INFO.name,
    metrics.SERVER_DEVICE_MEMORY.name,
    *_RANK_FAMILIES,
)
"""What is asked of a server."""

Values = dict[int, float]
"""Step -> value of its last sample."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Steps of equal length that begin at whole multiples of it; step k ends at `k` x `seconds`."""

    seconds: float

    def index(self, at: float) -> int:
        """Return the step whose end is nearest: samples of query_range stand at the ends."""
        return round(at / self.seconds)

    def start(self, step: int) -> float:
        """Return a step's start in Unix seconds."""
        return (step - 1) * self.seconds


def observations_of(
    server: str, series: Sequence[Series], grid: Grid, *, drivers: Mapping[str, str]
) -> list[Observation]:
    """Return one server's observations, oldest first; a step without a sample of the rank has none.

    `drivers` is device -> driver version.
    """
    setups = Setups(series, drivers, grid.index)
    starts = _values(series, metrics.SERVER_START.name, grid)
    sleeping = _values(series, metrics.SERVER_SLEEPING.name, grid)
    device_bytes = _by_label(series, metrics.SERVER_DEVICE_MEMORY.name, "device", grid)
    by_rank: dict[str, list[Series]] = {}
    for one in series:
        if one.name in _RANK_FAMILIES:
            by_rank.setdefault(one.labels.get("rank", ""), []).append(one)
    result: list[Observation] = []
    for rank, own in by_rank.items():
        reader = _Rank(own, grid)
        for step in reader.steps():
            blocks = blocks_of(
                usable_blocks=reader.gauge(metrics.KV_CAPACITY_BLOCKS.name, step),
                usable_bytes=reader.gauge(metrics.KV_CAPACITY_BYTES.name, step),
                capacity_tokens=reader.gauge(metrics.KV_CAPACITY_TOKENS.name, step),
                full_length=setups.full_length_tokens(step),
            )
            limit = reader.gauge(metrics.REQUEST_LIMIT.name, step)
            asleep = sleeping.get(step)
            running, usage = (reader.gauge(metric.name, step) for metric in _LOAD)
            waiting = reader.waiting(step)
            result.append(
                Observation(
                    server=server,
                    rank=rank,
                    at=grid.start(step),
                    seconds=grid.seconds,
                    setup=setups.at(step, request_limit=limit, blocks=blocks),
                    started_at=starts.get(step),
                    sleeping=None if asleep is None else asleep > 0,
                    usable_blocks=blocks.usable_blocks,
                    usable_bytes=blocks.usable_bytes,
                    typical_prompt_tokens=reader.typical("prompt", step),
                    typical_generation_tokens=reader.typical("generation", step),
                    typical_capacity=reader.gauge(metrics.TYPICAL_CAPACITY.name, step),
                    finished=reader.gain(metrics.FINISHED_REQUESTS.name, step),
                    finished_prompt_tokens=reader.gain(metrics.FINISHED_PROMPT_TOKENS.name, step),
                    finished_generation_tokens=reader.gain(metrics.FINISHED_GENERATION_TOKENS.name, step),
                    usage_mean=usage,
                    usage_max=usage,
                    running_mean=running,
                    running_max=running,
                    waiting_mean=waiting,
                    waiting_max=sum(waiting.values()) if waiting else None,
                    preemptions=reader.gain(metrics.PREEMPTIONS.name, step),
                    suspected=reader.gain(metrics.RECOMPUTE_SUSPECTED.name, step),
                    queue_seconds=reader.queue(step),
                    prefix_queries=reader.gain(metrics.PREFIX_QUERIES.name, step),
                    prefix_hits=reader.gain(metrics.PREFIX_HITS.name, step),
                    generation_tokens=reader.gain(metrics.GENERATION_TOKENS.name, step),
                    device_bytes={
                        device: round(values[step])
                        for device, values in device_bytes.items()
                        if step in values
                    },
                )
            )
    return sorted(result, key=lambda observation: (observation.at, observation.rank))


_LOAD = (metrics.REQUESTS_RUNNING, metrics.KV_USAGE)


class _Rank:
    """One rank's values and gains by step."""

    def __init__(self, series: Sequence[Series], grid: Grid) -> None:
        self._gauges = {name: _values(series, name, grid) for name in _GAUGES}
        self._waiting = _by_label(series, metrics.REQUESTS_WAITING.name, "reason", grid)
        self._typical = _by_label(series, metrics.TYPICAL_TOKENS.name, "part", grid)
        self._steps = sorted({grid.index(at) for one in series for at, _ in one.samples})
        longest_gap = max(1, int(_LONGEST_GAP_SECONDS / grid.seconds))
        counters = {name: _sums(series, name, grid) for name in _ENGINE_COUNTERS}
        # All of them begin anew with the engine: one that fell says so for all.
        restarts = {step for values in counters.values() for step in _falls(values)}
        self._gains = {name: _gains(values, restarts, longest_gap) for name, values in counters.items()}
        for name in _OWN_COUNTERS:
            values = _sums(series, name, grid)
            self._gains[name] = _gains(values, _falls(values), longest_gap)

    def steps(self) -> Sequence[int]:
        """Return the steps in which the rank was seen."""
        return self._steps

    def gauge(self, name: str, step: int) -> float | None:
        return self._gauges[name].get(step)

    def gain(self, name: str, step: int) -> float | None:
        return self._gains[name].get(step)

    def typical(self, part: str, step: int) -> float | None:
        return self._typical.get(part, {}).get(step)

    def waiting(self, step: int) -> dict[str, float]:
        return {reason: values[step] for reason, values in self._waiting.items() if step in values}

    def queue(self, step: int) -> SumCount | None:
        total, count = self.gain(_SUM, step), self.gain(_COUNT, step)
        return None if total is None or count is None else SumCount(sum=total, count=count)


def _values(series: Iterable[Series], name: str, grid: Grid) -> Values:
    return {grid.index(at): value for one in series if one.name == name for at, value in one.samples}


def _by_label(series: Iterable[Series], name: str, label: str, grid: Grid) -> dict[str, Values]:
    result: dict[str, Values] = {}
    for one in series:
        if one.name == name:
            own = result.setdefault(one.labels.get(label, ""), {})
            own.update((grid.index(at), value) for at, value in one.samples)
    return result


def _sums(series: Iterable[Series], name: str, grid: Grid) -> Values:
    """Add up a counter's series, those of all reasons; one that is not there yet has counted nothing."""
    result: Values = {}
    for one in series:
        if one.name == name:
            for at, value in one.samples:
                result[grid.index(at)] = result.get(grid.index(at), 0.0) + value
    return result


def _falls(values: Values) -> set[int]:
    """Return the steps in which a counter is lower than before."""
    steps = sorted(values)
    return {step for before, step in pairwise(steps) if values[step] < values[before]}


def _gains(values: Values, restarts: set[int], longest_gap: int) -> Values:
    """Return what a counter gained by step; after a restart that is all it has.

    The first sample has gained an unknown amount, and so has the first after a long gap.
    """
    result: Values = {}
    steps = sorted(values)
    for before, step in pairwise(steps):
        if step - before <= longest_gap:
            restarted = any(other in restarts for other in range(before + 1, step + 1))
            result[step] = values[step] if restarted else values[step] - values[before]
    return result
