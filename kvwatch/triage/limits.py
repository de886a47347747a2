"""What holds requests up besides memory: the request limit, a stall, a queue that only traffic made."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvwatch.observation import Observation
    from kvwatch.triage.moment import Moment

_ROOMY_USAGE = 0.85
"""Below it a typical request finds room: pools of a few dozen blocks aside, the next one fits."""
_FULL_USAGE = 0.95
_QUEUE = 0.5
"""Mean waiting requests from which a queue stands rather than flickers."""
_STALL_SECONDS = 300.0
_STALL_PART = 0.8
_RUSH = 1.5
_GREAT_RUSH = 2.0


def is_stalled(observations: Sequence[Observation]) -> bool:
    """Tell whether requests wait at the end of a window though the pool has room, and nothing comes out."""
    if not observations:
        return False
    end = max(one.at + one.seconds for one in observations)
    recent = [one for one in observations if one.at >= end - max(_STALL_SECONDS, 5 * one.seconds)]
    stalled = [one for one in recent if _stands_still(one)]
    seconds = sum(one.seconds for one in stalled)
    return bool(recent) and seconds >= _STALL_SECONDS and len(stalled) >= _STALL_PART * len(recent)


def _stands_still(one: Observation) -> bool:
    waiting = sum(one.waiting_mean.values())
    if waiting < _QUEUE or one.sleeping or one.usage_max is None or one.usage_max > _ROOMY_USAGE:
        return False
    output = one.generation_tokens if one.generation_tokens is not None else one.finished
    if output is None:
        return False
    return output == 0


def limit_reached(moment: Moment) -> bool:
    """Tell whether requests waited for a slot while the pool had room."""
    limit = moment.setup.request_limit
    if limit is None or moment.running_max is None or moment.usage_max is None:
        return False
    waited = (moment.waiting or 0.0) >= _QUEUE
    return waited and moment.running_max >= limit and moment.usage_max <= _ROOMY_USAGE


def is_rush(before: Moment, after: Moment) -> bool:
    """Tell whether clearly more requests came, and they press on the server or are twice as many."""
    rates = before.finished_per_second, after.finished_per_second
    demands = before.demand, after.demand
    grown = [
        now / then for then, now in (rates, demands) if then is not None and now is not None and then > 0
    ]
    if not grown:
        return False
    pressed = is_pressed(after) and not is_pressed(before)
    return max(grown) >= _RUSH and (pressed or min(grown) >= _GREAT_RUSH)


def is_pressed(moment: Moment) -> bool:
    """Tell whether requests queued, were preempted, or filled the pool."""
    queue = (moment.waiting or 0.0) >= _QUEUE
    full = moment.usage_max is not None and moment.usage_max >= _FULL_USAGE
    return queue or full or bool(moment.preemptions)
