"""The lives of the servers: when each one starts, what it holds meanwhile, and how big its pool becomes.

All of it follows from the script, so that every process of the fleet knows it without asking another.
The pool is found as vLLM finds it (v1/worker/gpu_worker.py, 0.32): the asked share of the card minus what the
card gained between two looks at its memory, whoever took it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvwatch.demo.day import CARD, DAY, GIB, MINUTE, RESTARTS, SERVERS, ServerPlan, plan_of

# Minutes of the script; a real start takes about as long, the script only runs faster.
_CONTEXT_AFTER = 1 * MINUTE
_FIRST_LOOK_AFTER = 2 * MINUTE
_LOADING_BYTES_PER_SECOND = GIB / MINUTE
_PROFILING = 4 * MINUTE


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """One life of one server, in seconds of the script; the first one was over with starting before it."""

    launched_at: float
    """Minus infinity for the life that the fleet begins with."""
    first_look_at: float
    loaded_at: float
    pool_at: float
    ready_at: float
    stops_at: float


def life_of(plan: ServerPlan, moment: float) -> Life:
    """Return the life that a server is in; one that has stopped is already in its next."""
    day = math.floor(moment / DAY) * DAY
    stops = sorted(
        (offset + restart.stop, offset + restart.launch)
        for restart in RESTARTS
        if restart.server == plan.name
        for offset in (day - DAY, day, day + DAY)
    )
    # The script opens on day 0: what it says of the evening before never happened.
    launch = next((launch for stop, launch in reversed(stops) if 0 <= stop <= moment), -math.inf)
    loaded_at = launch + _FIRST_LOOK_AFTER + plan.weights_bytes / _LOADING_BYTES_PER_SECOND
    return Life(
        launched_at=launch,
        first_look_at=launch + _FIRST_LOOK_AFTER,
        loaded_at=loaded_at,
        pool_at=loaded_at + _PROFILING,
        ready_at=loaded_at + _PROFILING + plan.warming_up_seconds,
        stops_at=next(stop for stop, _ in stops if stop > moment),
    )


def memory_of(plan: ServerPlan, moment: float) -> int | None:
    """Return the bytes that a server's process holds on the card; None while it has no process."""
    life = life_of(plan, moment)
    if moment < life.launched_at:
        return None
    if moment >= life.pool_at:
        return plan.weights_bytes + plan.working_bytes + num_blocks(plan, life) * plan.bytes_per_block
    held = plan.context_bytes if moment >= life.launched_at + _CONTEXT_AFTER else 0
    if moment > life.first_look_at:
        loaded = int((moment - life.first_look_at) * _LOADING_BYTES_PER_SECOND)
        held += min(plan.weights_bytes, loaded)
    return held


def num_blocks(plan: ServerPlan, life: Life) -> int:
    """Return the blocks of a life's pool, the null block included."""
    if plan.pin_bytes is not None:
        return plan.pin_bytes // plan.bytes_per_block
    asked = math.ceil(CARD.total_bytes * plan.share)
    pool = asked - plan.weights_bytes - plan.working_bytes - _growth_beside(plan, life)
    return pool // plan.bytes_per_block


def _growth_beside(plan: ServerPlan, life: Life) -> int:
    """Return what the neighbours gained between a server's two looks at the card's memory."""
    if life.launched_at == -math.inf:
        return 0
    return sum(
        (memory_of(other, life.pool_at) or 0) - (memory_of(other, life.first_look_at) or 0)
        for other in (plan_of(server.name) for server in SERVERS)
        if other.name != plan.name
    )
