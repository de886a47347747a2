"""A finding: something that is wrong now, in words, with what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How urgent a finding is: the `severity` label."""

    CRITICAL = "critical"
    """Users wait or fail now."""
    WARNING = "warning"
    """To be looked at today."""
    INFO = "info"
    """A limit or a gap to know about."""


class RuleId(StrEnum):
    """What was found: the `rule` label. The list is closed; docs/findings.md explains each."""

    WAITING_POOL_FULL = "waiting_pool_full"
    NO_ROOM_FOR_ONE = "no_room_for_one"
    NO_ROOM_NOW = "no_room_now"
    RECOMPUTE_SUSPECTED = "recompute_suspected"
    PREEMPTING = "preempting"
    REQUEST_LIMIT_REACHED = "request_limit_reached"
    STALLED_POOL_FREE = "stalled_pool_free"
    WORST_CASE_OVER_POOL = "worst_case_over_pool"
    SHARE_SUM_OVER_LIMIT = "share_sum_over_limit"
    SHARE_SUM_UNKNOWN = "share_sum_unknown"
    UNPINNED_NEIGHBOURS = "unpinned_neighbours"
    PIN_OUT_OF_STEP = "pin_out_of_step"
    ORPHAN_MEMORY = "orphan_memory"
    POOL_CHANGED_SAME_FLAGS = "pool_changed_same_flags"
    CAPACITY_HALVED = "capacity_halved"
    MODEL_DISAGREES = "model_disagrees"
    ENGINE_METRIC_MISSING = "engine_metric_missing"
    SOURCE_DOWN = "source_down"
    DATA_STALE = "data_stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One rule that holds for one subject; `server` and `device` are empty where none is meant."""

    rule: RuleId
    severity: Severity
    server: str = ""
    device: str = ""
    summary: str
    """What is the case, with its numbers, in one sentence."""
    detail: str
    """What users feel."""
    next_step: str
    """What to do, in one sentence."""
    since: float
    """Unix seconds since when it has held without a break."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unjudged:
    """A rule that could not be judged for a subject: it may hold or not."""

    rule: RuleId
    server: str = ""
    device: str = ""
    why: str
