"""The week before the demo began, simulated: what kvwatch would have written down had it watched all along.

The setups are those that were read from the fleet just now, for nobody deployed anything; what clients sent
is drawn from the story. Without it nothing could be compared with a day or a week ago.
"""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

from kvwatch.demo.blocks import blocks_for
from kvwatch.demo.day import DAY, MINUTE, RUNNING_BEFORE_SECONDS, plan_of, usual_load
from kvwatch.history.minute import Minute
from kvwatch.history.recorder import Recorder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.demo.day import Load, ServerPlan
    from kvwatch.observation import Observation
    from kvwatch.snapshot import Snapshot

_CLOSE_SECONDS = 65 * MINUTE
_LONG_SECONDS = 30 * MINUTE
_COMPARED_SECONDS_AGO = (RUNNING_BEFORE_SECONDS, 7 * DAY, DAY, 0.0)
"""The hours that kvwatch looks at. Writing every minute would make the demo's first page late by seconds."""
_SPREAD = 0.3
"""Of a request's length, as a fraction of the mean."""


def week_before(snapshot: Snapshot, *, opening: float, seed: int) -> Iterator[Minute]:
    """Yield the steps of the servers' lives until a snapshot, which was taken at this moment of the script.

    That past went by at its ordinary pace: an hour of the script was an hour.
    """
    recorder = Recorder()
    recorder.record(snapshot)
    end = math.floor(snapshot.taken_at / MINUTE) * MINUTE
    random = Random(seed)  # noqa: S311 - lengths and counts of a demonstration
    for now in recorder.flush():
        plan = plan_of(now.observation.server)
        started_at = now.observation.started_at
        if started_at is None or snapshot.taken_at - started_at < RUNNING_BEFORE_SECONDS:
            continue  # the script began after one of its restarts: that server has no such week
        for ago, seconds in _steps():
            load = usual_load(plan.name, opening - ago, days_ago=ago / DAY)
            observation = _step(now.observation, plan, load, random, seconds)
            at = end - ago
            yield Minute(
                observation=replace(observation, at=at), polls=60, first_at=at, last_at=at + seconds - 1
            )


def _steps() -> Iterator[tuple[float, float]]:
    """Yield (seconds ago, length): minutes around the hours that are compared, long steps between them."""
    ago = RUNNING_BEFORE_SECONDS - MINUTE
    while ago > 0:
        close = any(abs(ago - moment) <= _CLOSE_SECONDS for moment in _COMPARED_SECONDS_AGO)
        seconds = MINUTE if close or ago % _LONG_SECONDS else _LONG_SECONDS
        yield ago, seconds
        ago -= seconds


def _step(now: Observation, plan: ServerPlan, load: Load, random: Random, length: float) -> Observation:
    """Return a step of so many seconds in which clients sent what they usually did, and nobody waited."""
    mean = load.arrivals_per_second * load.burst * length
    finished = max(1, round(random.gauss(mean, math.sqrt(mean) / 3)))
    off = random.gauss(1, _SPREAD / math.sqrt(finished))
    prompt, answer = load.prompt_tokens * off, load.answer_tokens * off
    seconds = prompt * plan.prefill_token_seconds + max(1.0, answer) * plan.step_seconds
    running = finished / length * seconds
    usable = now.usable_blocks
    held = blocks_for(math.ceil(prompt + answer), plan.block_size)
    usage = None if not usable else min(1.0, running * held / usable)
    return replace(
        now,
        seconds=length,
        typical_prompt_tokens=prompt,
        typical_generation_tokens=answer,
        typical_capacity=None if usable is None else usable / held,
        finished=float(finished),
        finished_prompt_tokens=finished * prompt,
        finished_generation_tokens=finished * answer,
        usage_mean=usage,
        usage_max=usage,
        running_mean=running,
        running_max=float(math.ceil(running)),
        waiting_mean=dict.fromkeys(now.waiting_mean, 0.0),
        waiting_max=0.0,
        preemptions=0.0,
        suspected=0.0,
        prefix_queries=finished * prompt,
        prefix_hits=finished * min(prompt, plan.shared_prefix_tokens),
        generation_tokens=finished * answer,
    )
