"""How the fields of an Observation behave when minutes are put together, and their columns. Pure.

A field of `Observation` that is missing here is not kept: the tests compare the two.
"""

from __future__ import annotations

from typing import Literal

LATEST = (
    "started_at",
    "sleeping",
    "usable_blocks",
    "usable_bytes",
)
"""States: the last known of a minute, the last of a longer step."""
TYPICAL = ("typical_prompt_tokens", "typical_generation_tokens", "typical_capacity")
"""Means over a longer window already: the last known of a minute, the mean over a longer step."""
GAINS = (
    "finished",
    "finished_prompt_tokens",
    "finished_generation_tokens",
    "preemptions",
    "suspected",
    "prefix_queries",
    "prefix_hits",
    "generation_tokens",
)
"""They add up."""
MEANS = ("usage_mean", "running_mean")
"""Weighted by the polls they are of."""
MOST = ("usage_max", "running_max", "waiting_max")
"""The largest."""
WAITING = ("capacity", "deferred", "unspecified")
"""The reasons of `waiting_mean`; another word counts as unspecified."""

QUEUE_COLUMNS = ("queue_sum", "queue_count")
WAITING_COLUMNS = tuple(f"waiting_{reason}" for reason in WAITING)

PART_COLUMNS = ("polls", "first_ms", "last_ms")
"""How many polls a row is of; when the first and the last of them were, after its start."""

VALUE_COLUMNS = (
    *LATEST,
    *TYPICAL,
    *GAINS,
    *QUEUE_COLUMNS,
    *MEANS,
    *WAITING_COLUMNS,
    *MOST,
)

Joining = Literal["sum", "mean", "most", "latest"]

JOINING: dict[str, Joining] = {
    **dict.fromkeys(LATEST, "latest"),
    **dict.fromkeys(("polls", *GAINS, *QUEUE_COLUMNS), "sum"),
    **dict.fromkeys((*TYPICAL, *MEANS, *WAITING_COLUMNS), "mean"),
    **dict.fromkeys(MOST, "most"),
}
"""How a column of several rows becomes that of one longer step."""
