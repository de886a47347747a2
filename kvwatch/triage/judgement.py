"""Which cause of the closed list it is, and how sure that is: the factor first, then what moved it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kvwatch.triage.changes import SERVED_NAME
from kvwatch.triage.comparison import Unit
from kvwatch.triage.limits import (
    is_pressed,
    is_rush,
    is_stalled,
    limit_reached,
    plateau,
    waits_for_neither,
)
from kvwatch.triage.verdict import Cause, Confidence

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.triage.changes import Changes
    from kvwatch.triage.comparison import Comparison
    from kvwatch.triage.moment import Moment
    from kvwatch.triage.question import Record

_MOST_OF_IT = 0.66
"""A factor that did less of the fall than this is not the cause alone."""
_LEADING = 0.4
_LITTLE = math.log(0.8)
_SLIGHT, _MATERIAL = math.log(1.1), math.log(1.25)
"""What chance may have made: below the one nothing changed, above the other it cannot be told."""
_RACE_PART = 0.5
"""Of the lost bytes, that neighbours must have taken for a race to be settled."""
_RACE_HINT = 0.2
_RACE_BYTES = 256 << 20
_PLAIN = 3.0
"""A factor so many times above chance is beyond doubt."""
_ANOTHER_POOL = (
    "share_ratio",
    "pin_bytes",
    "num_gpu_blocks_override",
    "devices",
    "tensor_parallel",
    "pipeline_parallel",
)
"""Settings that set the pool's size by themselves; others move it through what is left for it."""
_MORE_IS_MORE = ("share_ratio", "pin_bytes", "num_gpu_blocks_override")
"""Of these, a larger value makes a larger pool: raised, they do not explain a smaller one."""
_NOT_THE_POOL = {"driver", "request_limit", SERVED_NAME}
_ONE_DEPLOY = ("model", "model_hash", "version", "tensor_parallel")
"""What moves pool and cost together."""
_HALF_WATCHED = 0.5
_DEARER = {
    "cache_dtype": Cause.TOKEN_DEARER_CACHE_DTYPE,
    "model_hash": Cause.TOKEN_DEARER_MODEL,
    "model": Cause.TOKEN_DEARER_MODEL,
    "engine": Cause.TOKEN_DEARER_ENGINE,
    "version": Cause.TOKEN_DEARER_ENGINE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A cause and how sure it is; `factor` is the one that did most of it, where one did."""

    cause: Cause
    confidence: Confidence
    factor: str | None = None


def judge(
    record: Record, before: Moment, after: Moment, comparison: Comparison, changes: Changes
) -> Judgement:
    """Return the cause, no surer than what was watched of both windows allows."""
    judgement = _judge(record, before, after, comparison, changes)
    watched = min(
        moment.observed_seconds / max(1.0, window.seconds)
        for moment, window in ((before, record.baseline), (after, record.now))
    )
    if watched < _HALF_WATCHED and judgement.confidence is Confidence.HIGH:
        return replace(judgement, confidence=Confidence.MEDIUM)
    return judgement


def _judge(
    record: Record, before: Moment, after: Moment, comparison: Comparison, changes: Changes
) -> Judgement:
    """Return the cause. Capacity first; where it did not move, what else holds requests up."""
    if before.alternating or after.alternating:
        return Judgement(cause=Cause.NOT_ENOUGH_DATA, confidence=Confidence.LOW)
    usual = before.generated_per_second
    if is_stalled(record.now_observations, usual) and not is_stalled(record.baseline_observations, usual):
        # Whatever else moved: nothing comes out though there is room.
        return Judgement(cause=Cause.STALLED_NOT_MEMORY, confidence=Confidence.HIGH)
    if comparison.factors.log_ratio is None:
        return _without_lengths(comparison, before, after, changes)
    fell = {
        name: value
        for name, value in comparison.factors.items()
        if value is not None and value < 0 and comparison.moved(name)
    }
    lowered = _lowered(before, after)
    limited = limit_reached(after) and (lowered or not limit_reached(before))
    # A restart for a lower limit may move the pool a little too; it is the limit that holds requests up.
    little = limited and lowered and comparison.factors.log_ratio > _LITTLE
    if comparison.capacity_moved and comparison.factors.log_ratio < 0 and fell and not little:
        name, did = _leader(fell, changes)
        if did > _MOST_OF_IT * math.fsum(fell.values()):
            sure = Confidence.MEDIUM if comparison.estimated else Confidence.HIGH
            return Judgement(cause=Cause.MIXED, confidence=sure)
        return _of_factor(name, fell[name], before, after, comparison, changes)
    if limited and (lowered or not is_rush(before, after)):
        return Judgement(
            cause=Cause.REQUEST_LIMIT, confidence=Confidence.HIGH if lowered else Confidence.MEDIUM
        )
    if comparison.capacity_moved and comparison.factors.log_ratio > 0:
        return Judgement(cause=Cause.CAPACITY_GREW, confidence=Confidence.HIGH)
    if is_rush(before, after):
        return Judgement(cause=Cause.MORE_TRAFFIC, confidence=Confidence.MEDIUM)
    return _beside_capacity(record, before, after, comparison)


def _beside_capacity(record: Record, before: Moment, after: Moment, comparison: Comparison) -> Judgement:
    """Judge where capacity is what it was, and the clients send what they sent."""
    then, now = record.baseline_observations, record.now_observations
    if plateau(now) is not None and plateau(then) is None:
        return Judgement(cause=Cause.REQUEST_LIMIT, confidence=Confidence.LOW)
    if waits_for_neither(now) and not waits_for_neither(then):
        return Judgement(cause=Cause.STALLED_NOT_MEMORY, confidence=Confidence.MEDIUM)
    difference = comparison.difference
    if difference > _MATERIAL:
        return Judgement(cause=Cause.NOT_ENOUGH_DATA, confidence=Confidence.LOW)
    # Without running and waiting requests a limit or a stall would not have been seen.
    seen = after.running_mean is not None and after.waiting is not None and difference <= _SLIGHT
    seen = seen and (is_pressed(before) or not is_pressed(after)) and not comparison.made_up
    seen = seen and not comparison.at_an_edge
    return Judgement(cause=Cause.NO_CHANGE, confidence=Confidence.HIGH if seen else Confidence.MEDIUM)


def _leader(fell: Mapping[str, float], changes: Changes) -> tuple[str, float]:
    """Return the factor that took most, and what it took.

    Another model or engine moves the pool too, since it leaves more or less for it: one cause, not two.
    """
    pool, cost = fell.get("pool"), fell.get("cost_per_token")
    deployed = any(field in changes.settings for field in _ONE_DEPLOY)
    if pool is not None and cost is not None and deployed:
        settled = pool + cost
        if all(settled <= value for value in fell.values()):
            return ("cost_per_token" if cost <= _LEADING * settled else "pool"), settled
    name = min(fell, key=lambda one: fell[one])
    return name, fell[name]


def _without_lengths(comparison: Comparison, before: Moment, after: Moment, changes: Changes) -> Judgement:
    """Judge where too few requests finished, or their cost is not known: only the pool can have an answer."""
    pool = comparison.factors.pool
    if pool is not None and pool < 0 and comparison.moved("pool") and not after.sleeping:
        found = _of_factor("pool", pool, before, after, comparison, changes)
        sure = Confidence.MEDIUM if found.confidence is Confidence.HIGH else found.confidence
        return Judgement(cause=found.cause, confidence=sure, factor="pool")
    return Judgement(cause=Cause.NOT_ENOUGH_DATA, confidence=Confidence.LOW)


def _lowered(before: Moment, after: Moment) -> bool:
    limits = before.setup.request_limit, after.setup.request_limit
    return limits[0] is not None and limits[1] is not None and limits[1] < limits[0]


def _of_factor(
    name: str, value: float, before: Moment, after: Moment, comparison: Comparison, changes: Changes
) -> Judgement:
    if name == "pool":
        cause, confidence = _pool_cause(value, before, after, comparison, changes)
    elif name == "cost_per_token":
        cause, confidence = _cost_cause(changes)
    else:
        cause = Cause.PROMPTS_LONGER if name == "prompt_length" else Cause.ANSWERS_LONGER
        noise = dict(comparison.noise.items())[name] or 0.0
        plain = abs(value) >= _PLAIN * noise and not comparison.estimated
        confidence = Confidence.HIGH if plain else Confidence.MEDIUM
    return Judgement(cause=cause, confidence=confidence, factor=name)


def _pool_cause(
    value: float, before: Moment, after: Moment, comparison: Comparison, changes: Changes
) -> tuple[Cause, Confidence]:
    if changes.ranks_lost and len(after.ranks) < len(before.ranks):
        by_ranks = math.log(len(after.ranks) / len(before.ranks)) if after.ranks else -math.inf
        if by_ranks <= _MOST_OF_IT * value:
            # A start with fewer ranks may have been meant.
            return Cause.RANK_LOST, Confidence.MEDIUM if changes.restarted_at else Confidence.HIGH
        if by_ranks <= (1 - _MOST_OF_IT) * value:
            return Cause.MIXED, Confidence.MEDIUM
        value -= by_ranks
    if changes.restarted_at is None and before.started_at is not None and after.started_at is not None:
        if changes.slept is not None:
            return Cause.POOL_SMALLER_SLEEP_WAKE, Confidence.HIGH
        return Cause.POOL_SMALLER_UNEXPLAINED, Confidence.LOW
    raised = {name for name in _MORE_IS_MORE if name in changes.settings and changes.settings[name].is_raised}
    if any(name in changes.settings for name in _ANOTHER_POOL if name not in raised):
        return Cause.POOL_SMALLER_CONFIG, Confidence.HIGH
    if comparison.unit is not Unit.BYTES and changes.settings.keys() & _DEARER.keys():
        # Fewer blocks of other bytes may be the same pool: then it is the token that takes more.
        return _cost_cause(changes)[0], Confidence.MEDIUM
    race = _race(value, comparison, before, changes)
    if race is Confidence.HIGH:
        return Cause.POOL_SMALLER_STARTUP_RACE, race
    if changes.settings.keys() - _NOT_THE_POOL - raised - ({"fingerprint"} if raised else set()):
        return Cause.POOL_SMALLER_CONFIG, Confidence.MEDIUM
    if race is not None:
        return Cause.POOL_SMALLER_STARTUP_RACE, race
    if changes.slept is not None and changes.restarted_at is None:
        return Cause.POOL_SMALLER_SLEEP_WAKE, Confidence.MEDIUM
    watched = changes.start_watched and changes.restarted_at is not None
    return Cause.POOL_SMALLER_UNEXPLAINED, Confidence.MEDIUM if watched else Confidence.LOW


def _race(value: float, comparison: Comparison, before: Moment, changes: Changes) -> Confidence | None:
    """Return how sure it is that neighbours took the memory while the server started."""
    grown = changes.grown_bytes
    if grown < _RACE_BYTES:
        return None
    if comparison.unit is None or comparison.unit != "bytes" or comparison.before is None:
        return Confidence.MEDIUM  # how many bytes were lost is not known
    # Ranks have a device each, and the pool is counted of all of them.
    lost = comparison.before.pool * -math.expm1(value) / max(1, len(before.ranks))
    if grown >= _RACE_PART * lost:
        return Confidence.HIGH
    return Confidence.MEDIUM if grown >= _RACE_HINT * lost else None


def _cost_cause(changes: Changes) -> tuple[Cause, Confidence]:
    named = [cause for field, cause in _DEARER.items() if field in changes.settings]
    if not named:
        # Parallelism, block size or a flag: what the engine lays out, not what the model is.
        known = changes.settings.keys() - _NOT_THE_POOL - {"fingerprint"}
        return Cause.TOKEN_DEARER_ENGINE, Confidence.MEDIUM if known else Confidence.LOW
    return named[0], Confidence.HIGH if len(set(named)) == 1 else Confidence.MEDIUM
