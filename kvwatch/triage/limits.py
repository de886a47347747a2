"""What holds requests up besides memory: the request limit, a stall, a queue that only traffic made."""

from __future__ import annotations

import math
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
_TRICKLE = 0.1
"""Of the usual output: less of it, while requests wait and there is room, is a stall too."""
_WAITING_PART = 0.25
"""Of a window in which requests wait though there is room, from which it is more than a burst."""
_PLATEAU_STEPS = 10
_PLATEAU_FILL = 0.95
_RUSH = 1.5
_GREAT_RUSH = 2.0
_MORE_CAME = 1.15


def is_stalled(observations: Sequence[Observation], usual_per_second: float | None = None) -> bool:
    """Tell whether requests wait at the end of a window though the pool has room, and nothing comes out.

    `usual_per_second`: tokens that came out of the whole server at other times; without it only a complete
    standstill counts.
    """
    if not observations:
        return False
    end = max(one.at + one.seconds for one in observations)
    recent = [one for one in observations if one.at >= end - max(_STALL_SECONDS, 5 * one.seconds)]
    ranks = len({one.rank for one in recent})
    usual = None if usual_per_second is None else usual_per_second / ranks
    stalled = [one for one in recent if _stands_still(one, usual)]
    seconds = sum(one.seconds for one in stalled)
    return bool(recent) and seconds >= _STALL_SECONDS and len(stalled) >= _STALL_PART * len(recent)


def _stands_still(one: Observation, usual_per_second: float | None) -> bool:
    if not _waits_with_room(one):
        return False
    if one.generation_tokens is None:
        return one.finished == 0
    least = 0.0 if usual_per_second is None else _TRICKLE * usual_per_second * one.seconds
    return one.generation_tokens <= least


def _waits_with_room(one: Observation) -> bool:
    waiting = sum(one.waiting_mean.values())
    return (
        waiting >= _QUEUE and not one.sleeping and one.usage_max is not None and one.usage_max <= _ROOMY_USAGE
    )


def waits_for_neither(observations: Sequence[Observation]) -> bool:
    """Tell whether requests wait for long though the pool has room and slots are free.

    For a transfer or a grammar (`deferred`), or for their turn to be read: not for memory.
    """
    waited = [one for one in observations if _waits_with_room(one) and _has_slots(one)]
    return _seconds(waited) >= max(_STALL_SECONDS, _WAITING_PART * _seconds(observations))


def _has_slots(one: Observation) -> bool:
    limit = one.setup.request_limit
    return limit is not None and one.running_max is not None and one.running_max < limit


def plateau(observations: Sequence[Observation]) -> float | None:
    """Return the number of running requests that is never exceeded while others wait and there is room.

    It looks like a request limit that nobody states. None where a limit is stated, or there is none such.
    """
    waited = [one for one in observations if _waits_with_room(one)]
    if len(waited) < _PLATEAU_STEPS or any(one.setup.request_limit is not None for one in waited):
        return None
    tops = {one.running_max for one in waited}
    top = tops.pop()
    if tops or not top or any((one.running_mean or 0.0) < _PLATEAU_FILL * top for one in waited):
        return None
    long = _seconds(waited) >= _WAITING_PART * _seconds(observations)
    busy = all((one.generation_tokens or one.finished or 0) > 0 for one in waited)
    return top if long and busy else None


def _seconds(observations: Sequence[Observation]) -> float:
    return math.fsum(one.seconds for one in observations)


def limit_reached(moment: Moment) -> bool:
    """Tell whether requests waited for a slot while the pool had room."""
    limit = moment.setup.request_limit
    if limit is None or moment.running_max is None or moment.usage_max is None:
        return False
    waited = (moment.waiting or 0.0) >= _QUEUE
    return waited and moment.running_max >= limit and moment.usage_max <= _ROOMY_USAGE


def is_rush(before: Moment, after: Moment) -> bool:
    """Tell whether clearly more requests came, and they press on the server or are twice as many.

    More of them in the server is not enough: they stay longer where each is slower.
    """
    came = _times(before.arrived_per_second, after.arrived_per_second)
    held = _times(before.demand, after.demand)
    if came is not None and came < _MORE_CAME:
        return False
    grown = [times for times in (came, held) if times is not None]
    if not grown:
        return False
    pressed = is_pressed(after) and not is_pressed(before)
    return max(grown) >= _RUSH and (pressed or min(grown) >= _GREAT_RUSH)


def _times(then: float | None, now: float | None) -> float | None:
    return None if not then or now is None else now / then


def is_pressed(moment: Moment) -> bool:
    """Tell whether requests queued, were preempted, or filled the pool."""
    queue = (moment.waiting or 0.0) >= _QUEUE
    full = moment.usage_max is not None and moment.usage_max >= _FULL_USAGE
    return queue or full or bool(moment.preemptions)
