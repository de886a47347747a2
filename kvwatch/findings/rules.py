"""All rules, in the order in which a person wants to read them. The list is closed: see docs/findings.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.finding import RuleId, Severity
from kvwatch.findings import capacity, devices, pools, starts, trust
from kvwatch.findings.rule import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.findings.rule import Evidence, Verdict


def judged_elsewhere(_: Evidence) -> Iterator[Verdict]:
    """Yield nothing: a snapshot cannot tell that it is old, so exposition.py does."""
    return iter(())


RULES: tuple[Rule, ...] = (
    Rule(
        id=RuleId.WAITING_POOL_FULL,
        severity=Severity.CRITICAL,
        hold_seconds=60.0,
        judge=pools.waiting_pool_full,
    ),
    Rule(id=RuleId.NO_ROOM_FOR_ONE, severity=Severity.CRITICAL, judge=pools.no_room_for_one),
    Rule(id=RuleId.DATA_STALE, severity=Severity.CRITICAL, judge=judged_elsewhere),
    Rule(
        id=RuleId.REQUEST_LIMIT_REACHED,
        severity=Severity.WARNING,
        hold_seconds=60.0,
        judge=pools.request_limit_reached,
    ),
    Rule(
        id=RuleId.STALLED_POOL_FREE,
        severity=Severity.WARNING,
        hold_seconds=60.0,
        judge=pools.stalled_pool_free,
    ),
    Rule(id=RuleId.RECOMPUTE_SUSPECTED, severity=Severity.WARNING, judge=pools.recompute_suspected),
    Rule(id=RuleId.PREEMPTING, severity=Severity.WARNING, judge=pools.preempting),
    Rule(id=RuleId.NO_ROOM_NOW, severity=Severity.WARNING, hold_seconds=600.0, judge=pools.no_room_now),
    Rule(id=RuleId.CAPACITY_HALVED, severity=Severity.WARNING, judge=capacity.capacity_halved),
    Rule(
        id=RuleId.POOL_CHANGED_SAME_FLAGS,
        severity=Severity.WARNING,
        judge=starts.pool_changed_same_flags,
    ),
    Rule(id=RuleId.WORST_CASE_OVER_POOL, severity=Severity.WARNING, judge=pools.worst_case_over_pool),
    Rule(id=RuleId.SHARE_SUM_OVER_LIMIT, severity=Severity.WARNING, judge=devices.share_sum_over_limit),
    Rule(id=RuleId.UNPINNED_NEIGHBOURS, severity=Severity.WARNING, judge=devices.unpinned_neighbours),
    Rule(id=RuleId.PIN_OUT_OF_STEP, severity=Severity.WARNING, judge=devices.pin_out_of_step),
    Rule(id=RuleId.ORPHAN_MEMORY, severity=Severity.WARNING, hold_seconds=60.0, judge=devices.orphan_memory),
    Rule(id=RuleId.SOURCE_DOWN, severity=Severity.WARNING, hold_seconds=60.0, judge=trust.source_down),
    Rule(id=RuleId.MODEL_DISAGREES, severity=Severity.WARNING, judge=trust.model_disagrees),
    Rule(
        id=RuleId.ENGINE_METRIC_MISSING,
        severity=Severity.WARNING,
        hold_seconds=60.0,
        judge=trust.engine_metric_missing,
    ),
    Rule(
        id=RuleId.SHARE_SUM_UNKNOWN,
        severity=Severity.INFO,
        hold_seconds=60.0,
        judge=devices.share_sum_unknown,
    ),
)
