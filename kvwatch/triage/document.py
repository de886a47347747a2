"""A verdict as plain JSON values; null is unknown, absent is never."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kvwatch.triage.comparison import Unit

if TYPE_CHECKING:
    from kvwatch.triage.comparison import Comparison, Measure
    from kvwatch.triage.moment import Moment
    from kvwatch.triage.question import Window
    from kvwatch.triage.verdict import Verdict


def verdict_document(verdict: Verdict) -> dict[str, Any]:
    """Return everything that a verdict says."""
    comparison = verdict.comparison
    return {
        "server": verdict.server,
        "cause": str(verdict.cause),
        "confidence": str(verdict.confidence),
        "headline": verdict.headline,
        "ratio": verdict.ratio,
        "factors": dict(verdict.factors.items()),
        "unit": None if comparison is None or comparison.unit is None else str(comparison.unit),
        "baseline": _moment(
            verdict.baseline,
            verdict.baseline_window,
            comparison,
            None if comparison is None else comparison.before,
        ),
        "now": _moment(
            verdict.now, verdict.now_window, comparison, None if comparison is None else comparison.after
        ),
        "evidence": [asdict(one) for one in verdict.evidence],
        "disproof": list(verdict.disproof),
        "levers": [asdict(lever) for lever in verdict.levers],
        "trend": [{"at": at, "typical_fit_empty": value} for at, value in verdict.trend],
    }


def _moment(
    moment: Moment | None, window: Window, comparison: Comparison | None, measure: Measure | None
) -> dict[str, Any]:
    in_bytes = comparison is not None and comparison.unit is Unit.BYTES
    document: dict[str, Any] = {
        "name": window.name,
        "from": window.start_at,
        "to": window.end_at,
        "typical_fit_empty": None,
        "typical_capacity": None if measure is None else measure.capacity,
        "pool_bytes": measure.pool if measure is not None and in_bytes else None,
        "pool_blocks": None,
        "cost": None if measure is None else measure.cost,
        "cost_bytes": measure.cost if measure is not None and in_bytes else None,
        "cost_blocks": None,
        "prompt_tokens": None,
        "generation_tokens": None,
    }
    if moment is None:
        return document
    tokens, cost = moment.request_tokens, moment.cost
    return document | {
        "typical_fit_empty": moment.typical_fit_empty,
        "pool_blocks": moment.usable_blocks,
        "cost_blocks": None if cost is None or tokens is None else cost.blocks(tokens),
        "prompt_tokens": moment.prompt_tokens,
        "generation_tokens": moment.generation_tokens,
        "finished_requests": moment.finished,
        "observed_seconds": moment.observed_seconds,
        "started_at": moment.started_at,
        "ranks": list(moment.ranks),
        "running_mean": moment.running_mean,
        "waiting_mean": moment.waiting,
        "usage_mean": moment.usage_mean,
        "usage_max": moment.usage_max,
        "preemptions": moment.preemptions,
        "queue_mean_seconds": moment.queue_mean_seconds,
        "prefix_hit_ratio": moment.hit_ratio,
        "request_limit": moment.setup.request_limit,
        "version": moment.setup.version,
        "model": moment.setup.model,
        "model_hash": moment.setup.model_hash,
        "fingerprint": moment.setup.fingerprint,
        "cache_dtype": moment.setup.cache_dtype,
    }
