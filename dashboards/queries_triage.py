"""PromQL of a fall of capacity: what kvwatch says of it, and the same factors between any two moments."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dashboards.queries import BY_RANK, BY_SERVER, ONE, by_rank, rate_of, select
from kvwatch import metrics as m

if TYPE_CHECKING:
    from kvwatch.metrics import Metric

_BASELINE = {"baseline": "$baseline", "server": "$server"}


def _named(factor: str, value: str) -> str:
    return f'label_replace({value}, "factor", "{factor}", "", "")'


def _of_server(metric: Metric, how: str) -> tuple[str, str]:
    """Return a family of the server now and at the other moment."""
    value = select(metric, **ONE)
    return f"{how} by ({BY_SERVER}) ({value})", f"{how} by ({BY_SERVER}) ({value} offset $back)"


def _gain(more: str, less: str) -> str:
    return f"max({more} / {less}) - 1"


# All servers, now against the time range that is shown: in which did what move?
def _against(metric: Metric, how: str, add: str, inner: str = "") -> str:
    """Return by how much a family differs from what it was over the time range; `add` joins ranks.

    A rank of which nothing is known now is left out of both sides: it would pass for a loss.
    """
    value = select(metric)
    before = f"{how}_over_time({value}[$__range])"
    if inner:
        value, before = (f"sum by ({inner}) ({one})" for one in (value, before))
    known = f"{before} and on ({BY_RANK}) {value}"
    return f"{add} by ({BY_SERVER}) ({value}) / {add} by ({BY_SERVER}) ({known}) - 1"


FLEET_CAPACITY = _against(m.TYPICAL_CAPACITY, "avg", "sum")
# Pool and cost move in steps and at restarts only, so the best value is what they were before.
FLEET_POOL = _against(m.KV_CAPACITY_BYTES, "max", "sum")
FLEET_COST = _against(m.KV_BYTES_PER_TOKEN, "min", "max")
FLEET_LENGTH = _against(m.TYPICAL_TOKENS, "avg", "max", inner=BY_RANK)
FLEET_GROWTH = f"max by ({BY_SERVER}) ({select(m.SERVER_START_GROWTH)})"
FLEET_SINCE_START = f"time() - max by ({BY_SERVER}) ({select(m.SERVER_START)})"

CHANGE = f"max by ({BY_SERVER}) ({select(m.CAPACITY_CHANGE_RATIO, **_BASELINE)}) - 1"
_LOG = select(m.CAPACITY_CHANGE_LOG, **_BASELINE)
FACTORS = (
    f"exp(max by (factor) ({_LOG})) - 1 "
    f"or {_named('together', f'max({select(m.CAPACITY_CHANGE_RATIO, **_BASELINE)}) - 1')}"
)

# Between the end of the time range and $back before: what shrinks capacity has its old value above the line.
_POOL_NOW, _POOL_THEN = _of_server(m.KV_CAPACITY_BYTES, "sum")
_COST_NOW, _COST_THEN = _of_server(m.KV_BYTES_PER_TOKEN, "max")
_CAPACITY_NOW, _CAPACITY_THEN = _of_server(m.TYPICAL_CAPACITY, "sum")
_PARTS = select(m.TYPICAL_TOKENS, **ONE)
_LENGTH = f"max by ({BY_SERVER}) (sum by ({BY_RANK}) ({_PARTS}))"
_LENGTH_THEN = f"max by ({BY_SERVER}) (sum by ({BY_RANK}) ({_PARTS} offset $back))"
TWO_MOMENTS = " or ".join(
    (
        _named("pool", _gain(_POOL_NOW, _POOL_THEN)),
        _named("cost per token", _gain(_COST_THEN, _COST_NOW)),
        _named("request length", _gain(_LENGTH_THEN, _LENGTH)),
        _named("together", _gain(_CAPACITY_NOW, _CAPACITY_THEN)),
    )
)

CAPACITY = by_rank(m.TYPICAL_CAPACITY, **ONE)
CAPACITY_THEN = f"max by ({BY_RANK}) ({select(m.TYPICAL_CAPACITY, **ONE)} offset $back)"
POOL = by_rank(m.KV_CAPACITY_BYTES, **ONE)
COST = by_rank(m.KV_BYTES_PER_TOKEN, **ONE)
PARTS = by_rank(m.TYPICAL_TOKENS, ", part", **ONE)

IDENTITY = f"max by ({BY_SERVER}, engine, version, model, fingerprint) ({select(m.SERVER_INFO, **ONE)})"
SETTINGS = (
    f"max by ({BY_SERVER}, cache_dtype, tensor_parallel, block_size, max_num_batched_tokens) "
    f"({select(m.SERVER_CONFIG_INFO, **ONE)})"
)
_STARTED = f"max by ({BY_SERVER}) ({select(m.SERVER_START, **ONE)})"
_CHANGED = f"max by ({BY_SERVER}) ({select(m.SERVER_CONFIG_CHANGED, **ONE)})"
SINCE_START = f"time() - {_STARTED}"
SINCE_CHANGE = f"time() - {_CHANGED}"
PIN = f"max by ({BY_SERVER}) ({select(m.SERVER_PIN, **ONE)})"

# Marks; times in milliseconds, as Grafana wants them.
STARTS_MS = f"1000 * {_STARTED}"
CHANGES_MS = f"1000 * {_CHANGED}"
# A version that was not there 5 minutes before, of a server that was: a gap alone is no change.
_VERSIONS = f"max by ({BY_SERVER}, version, fingerprint) ({select(m.SERVER_INFO, **ONE)}"
VERSION_CHANGES = (
    f"({_VERSIONS}) unless on ({BY_SERVER}, version, fingerprint) {_VERSIONS} offset 5m)) "
    f"and on ({BY_SERVER}) {_VERSIONS} offset 5m)"
)

_DEVICES = f"max by (job, instance, device) ({select(m.SERVER_DEVICE_MEMORY, **ONE)})"
NEIGHBOURS = (
    f"max by (job, instance, server, device) ({select(m.SERVER_DEVICE_MEMORY)}) "
    f"and on (job, instance, device) {_DEVICES}"
)
STRANGERS = (
    f"sum by (job, instance, device, component) ({select(m.DEVICE_LEDGER, component='other|orphan|free')}) "
    f"and on (job, instance, device) {_DEVICES}"
)
GROWTH = f"max by (job, instance, server, device) ({select(m.SERVER_START_GROWTH, **ONE)})"

RUNNING = by_rank(m.REQUESTS_RUNNING, **ONE)
WAITING = by_rank(m.REQUESTS_WAITING, ", reason", **ONE)
LIMIT = by_rank(m.REQUEST_LIMIT, **ONE)
USAGE = by_rank(m.KV_USAGE, **ONE)
PREEMPTIONS = f"60 * {rate_of(m.PREEMPTIONS, BY_RANK)}"
SUSPECTED = f"60 * {rate_of(m.RECOMPUTE_SUSPECTED, BY_RANK)}"
PREFIX_HITS = f"{rate_of(m.PREFIX_HITS, BY_RANK)} / ({rate_of(m.PREFIX_QUERIES, BY_RANK)} > 0)"
