"""Clients: requests in the order they are sent, drawn from the day's loads. The same seed sends the same."""

from __future__ import annotations

import math
from random import Random
from typing import TYPE_CHECKING

from kvwatch.demo.day import phase_at
from kvwatch.demo.engine import Arrival

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvwatch.demo.day import Load, ServerPlan

MAX_ANSWER_TOKENS = 1024
"""The `max_tokens` that every client sends."""
_SPREAD = 0.3
"""Standard deviation of the logarithm of a length: most are near the mean, a few are twice as long."""

_SLICE_SECONDS = 0.25
_STEADINESS = 3.0
"""Shape of the gaps between requests: 1 is a Poisson stream, whose accidents would hide a story so short."""


def arrivals(plan: ServerPlan, *, opening: float, speed: float, seed: int) -> Iterator[Arrival]:
    """Yield a server's requests for ever; times are engine seconds since the fleet began."""
    random = Random(f"{seed} {plan.name}")  # noqa: S311  # lengths and gaps of a demonstration
    at = 0.0
    while True:
        # The next one is due when the rate, added up over time, has grown by this gap.
        gap = random.gammavariate(_STEADINESS, 1 / _STEADINESS)
        while gap > (due := _load(plan, opening + at * speed).arrivals_per_second * _SLICE_SECONDS):
            gap -= due
            at += _SLICE_SECONDS
        load = _load(plan, opening + at * speed)
        at += gap / load.arrivals_per_second
        for _ in range(load.burst):
            yield _request(random, plan, load, at)


def _load(plan: ServerPlan, moment: float) -> Load:
    return phase_at(moment).loads[plan.name]


def _request(random: Random, plan: ServerPlan, load: Load, at: float) -> Arrival:
    prompt = _length(random, load.prompt_tokens)
    max_tokens = MAX_ANSWER_TOKENS if load.answer_tokens else 0
    answer = _length(random, load.answer_tokens) if load.answer_tokens else 0
    return Arrival(
        at=at,
        prompt_tokens=min(prompt, plan.max_model_len - max_tokens),
        answer_tokens=min(answer, max_tokens),
        max_tokens=max_tokens,
    )


def _length(random: Random, mean: float) -> int:
    """Draw a length from a log-normal distribution with this mean."""
    return max(1, round(random.lognormvariate(math.log(mean) - _SPREAD**2 / 2, _SPREAD)))
