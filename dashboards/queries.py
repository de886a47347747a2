"""PromQL of the dashboards, and nothing else: every name comes from the catalogue.

An absent series is an unknown, so nothing here turns absence into a number: a count that may be zero falls
back to `0 * count(of what was looked at)`, which is absent too when nothing was looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch import metrics as m
from kvwatch.snapshot import Component

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvwatch.metrics import Metric

_NODE = {"job": "$job", "instance": "$instance"}
BY_SERVER = "job, instance, server"
BY_RANK = "job, instance, server, rank"
_BY_SOURCE = "job, instance, source, target"


def select(metric: Metric, *, suffix: str = "", **labels: str) -> str:
    """Return a selector; a label's value is a regular expression. Raises ValueError for a strange label."""
    strange = set(labels) - set(metric.labels)
    if strange:
        msg = f"{metric.name} has no label {', '.join(sorted(strange))}"
        raise ValueError(msg)
    matchers = ", ".join(f'{label}=~"{value}"' for label, value in (_NODE | labels).items())
    return f"{metric.name}{suffix}{{{matchers}}}"


def whole(metric: Metric, **labels: str) -> str:
    """Add up a server's ranks; absent where one of them is unknown, since a sum would pass it over."""
    value = select(metric, **labels)
    unknown = f"{select(m.REQUESTS_RUNNING, **labels)} unless on ({BY_RANK}) {value}"
    return f"sum by ({BY_SERVER}) ({value}) unless on ({BY_SERVER}) ({unknown})"


def count_or_zero(found: str, among: str) -> str:
    """Return how many were found, 0 only where there was something to look at."""
    return f"count({found}) or 0 * count({among})"


def by_rank(metric: Metric, extra: str = "", **labels: str) -> str:
    """Return a family by rank; `extra` continues the list of labels that are kept."""
    return f"max by ({BY_RANK}{extra}) ({select(metric, **labels)})"


# Variables
JOBS = f"label_values({m.UP.name}, job)"
INSTANCES = f'label_values({m.UP.name}{{job=~"$job"}}, instance)'
# Servers by their sources, so that one that is down can still be chosen.
SERVERS = f"label_values({select(m.SOURCE_UP, source='engine')}, target)"
DEVICES = f"label_values({select(m.DEVICE_INFO)}, device)"

# Fleet
_WATCHED = (
    f"label_replace(max by (job, instance, target) ({select(m.SOURCE_UP, source='engine')}), "
    '"server", "$1", "target", "(.+)")'
)
ANSWERS = f"max by ({BY_SERVER}) ({_WATCHED})"
ROOM = whole(m.FIT_GUARANTEED)
FIT_NOW = whole(m.FIT_NOW)
RESIDENT_LIMIT = whole(m.FIT_RESIDENT_LIMIT)
HEADROOM = whole(m.FIT_HEADROOM)
RUNNING = f"sum by ({BY_SERVER}) ({select(m.REQUESTS_RUNNING)})"
WAITING = f"sum by ({BY_SERVER}) ({select(m.REQUESTS_WAITING)})"
USAGE = f"max by ({BY_SERVER}) ({select(m.KV_USAGE)})"
ASLEEP = f"max by ({BY_SERVER}) ({select(m.SERVER_SLEEPING)})"
IDENTITY = f"max by ({BY_SERVER}, model, engine) ({select(m.SERVER_INFO)})"

SERVERS_WATCHED = f"count({ANSWERS})"
SERVERS_WITHOUT_ROOM = count_or_zero(f"({ROOM}) == 0", ROOM)
SERVERS_UNKNOWN = count_or_zero(f"{ANSWERS} unless on ({BY_SERVER}) ({ROOM})", ANSWERS)
_UP = select(m.SOURCE_UP)
_NOT_WANTED = select(m.SOURCE_REASON, reason="not_enabled")
SOURCES_DOWN = count_or_zero(f"{_UP} == 0 unless on ({_BY_SOURCE}) {_NOT_WANTED}", _UP)
# `up` is Prometheus' own; a daemon that was down for the whole time range has no instance to choose.
DAEMONS_SILENT = count_or_zero('up{job=~"$job"} == 0', 'up{job=~"$job"}')

SOURCE_UP = f"max by ({_BY_SOURCE}) ({_UP})"
SOURCE_REASON = f"max by ({_BY_SOURCE}, reason) ({select(m.SOURCE_REASON)})"
SOURCE_AGE = f"time() - max by ({_BY_SOURCE}) ({select(m.SOURCE_LAST_SUCCESS)})"


def _parts(components: Iterable[Component]) -> str:
    asked = select(m.DEVICE_LEDGER, device="$device", component="|".join(components))
    return f"sum by (device, server, component) ({asked})"


# Apart, so that what is free lies on top of what is held.
OWNED_PARTS = _parts(part for part in Component if part != Component.FREE)
FREE_PART = _parts([Component.FREE])
DEVICE_TOTAL = f"max by (device) ({select(m.DEVICE_TOTAL, device='$device')})"

# One server
ONE = {"server": "$server"}
ONE_ROOM = whole(m.FIT_GUARANTEED, **ONE)
ONE_NOW = whole(m.FIT_NOW, **ONE)
ONE_EMPTY = whole(m.FIT_EMPTY, **ONE)
ONE_LIMIT = whole(m.FIT_RESIDENT_LIMIT, **ONE)
ONE_HEADROOM = whole(m.FIT_HEADROOM, **ONE)
ONE_FULL_LENGTH = f"max by ({BY_SERVER}) ({select(m.FULL_LENGTH, **ONE)})"

RANK_ROOM = by_rank(m.FIT_GUARANTEED, **ONE)
RANK_NOW = by_rank(m.FIT_NOW, **ONE)
RANK_EMPTY = by_rank(m.FIT_EMPTY, **ONE)
RANK_LIMIT = by_rank(m.FIT_RESIDENT_LIMIT, **ONE)
RANK_HEADROOM = by_rank(m.FIT_HEADROOM, **ONE)
RANK_CEILING = by_rank(m.FIT_CEILING, **ONE)
RANK_BOUND = by_rank(m.FIT_BOUND_BY, ", bound", **ONE)
RANK_RUNNING = by_rank(m.REQUESTS_RUNNING, **ONE)
RANK_WAITING = by_rank(m.REQUESTS_WAITING, ", reason", **ONE)
RANK_REQUEST_LIMIT = by_rank(m.REQUEST_LIMIT, **ONE)
RANK_USAGE = by_rank(m.KV_USAGE, **ONE)
RANK_FREE_TOKENS = by_rank(m.KV_FREE_TOKENS, **ONE)
RANK_CAPACITY_TOKENS = by_rank(m.KV_CAPACITY_TOKENS, **ONE)
RANK_WORST_CASE = by_rank(m.WORST_CASE_DEMAND, **ONE)
RANK_ENGINE_CONCURRENCY = by_rank(m.ENGINE_MAX_CONCURRENCY, **ONE)
RANK_ENGINE_TOKENS = by_rank(m.ENGINE_KV_TOKENS, **ONE)
RANK_TYPICAL_TOKENS = by_rank(m.TYPICAL_TOKENS, ", part", **ONE)
RANK_TYPICAL_NOW = by_rank(m.TYPICAL_FIT_NOW, **ONE)
RANK_TYPICAL_LIMIT = by_rank(m.TYPICAL_RESIDENT_LIMIT, **ONE)
RANK_TYPICAL_CAPACITY = by_rank(m.TYPICAL_CAPACITY, **ONE)


def rate_of(metric: Metric, labels: str, suffix: str = "") -> str:
    """Return the rate of one server's counter, added up by `labels`."""
    return f"sum by ({labels}) (rate({select(metric, suffix=suffix, **ONE)}[$__rate_interval]))"


def _mean(metric: Metric) -> str:
    """Return the mean of a summary; absent while nothing finished, which is not a mean of zero."""
    return f"{rate_of(metric, BY_RANK, '_sum')} / ({rate_of(metric, BY_RANK, '_count')} > 0)"


SUSPECTED_PER_MINUTE = f"60 * {rate_of(m.RECOMPUTE_SUSPECTED, BY_RANK)}"
PREEMPTIONS_PER_MINUTE = f"60 * {rate_of(m.PREEMPTIONS, BY_RANK)}"
FINISHED_PER_MINUTE = f"60 * {rate_of(m.FINISHED_REQUESTS, f'{BY_RANK}, reason')}"
MEAN_QUEUE_SECONDS = _mean(m.QUEUE_SECONDS)
MEAN_FIRST_TOKEN_SECONDS = _mean(m.FIRST_TOKEN_SECONDS)

LOWER_BOUNDS = (
    f"count by ({BY_SERVER}) ({select(m.FIT_BASIS, basis='admission', **ONE)}) "
    f"or 0 * count by ({BY_SERVER}) ({select(m.FIT_BASIS, **ONE)})"
)
MODEL_ERROR = f"max by ({BY_SERVER}) ({select(m.KV_MODEL_ERROR, **ONE)})"
SERVER_MEMORY = f"max by (job, instance, server, device) ({select(m.SERVER_DEVICE_MEMORY, **ONE)})"
POOL_BYTES = by_rank(m.KV_CAPACITY_BYTES, **ONE)
MINIMUM_POOL_BYTES = f"max by ({BY_SERVER}) ({select(m.MINIMUM_KV_BYTES, **ONE)})"

ONE_SOURCE_UP = f"max by ({_BY_SOURCE}) ({select(m.SOURCE_UP, target='$server')})"
ONE_SOURCE_REASON = f"max by ({_BY_SOURCE}, reason) ({select(m.SOURCE_REASON, target='$server')})"
ONE_SOURCE_AGE = f"time() - max by ({_BY_SOURCE}) ({select(m.SOURCE_LAST_SUCCESS, target='$server')})"
