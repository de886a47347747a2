"""What is kept of a server over time: the same values whether they come from history or from Prometheus."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kvwatch.readings import SumCount
    from kvwatch.snapshot import KvGroup


SAME_START_SECONDS = 5.0
"""Two sources of one start time differ by a second or so, and /proc's moves by one when the clock is set."""


def is_same_start(before: float | None, now: float | None) -> bool:
    """Tell whether two start times (Unix seconds) are those of one life; an unknown one proves nothing."""
    return before is None or now is None or abs(now - before) <= SAME_START_SECONDS


def distinct_starts(starts: Iterable[float]) -> list[float]:
    """Return the start times of different lives, oldest first; Unix seconds in any order."""
    lives: list[float] = []
    for start in sorted(starts):
        if not lives or not is_same_start(lives[-1], start):
            lives.append(start)
    return lives


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a server was made of; changes only when somebody or something changed it. None is unknown."""

    engine: str | None = None
    model: str | None = None
    version: str | None = None
    model_hash: str | None = None
    fingerprint: str | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """What the fingerprint is made of, sorted; empty where only the fingerprint is known."""
    cache_dtype: str | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    share_ratio: float | None = None
    """gpu_memory_utilization; None under a pin."""
    pin_bytes: int | None = None
    full_length_tokens: int | None = None
    request_limit: int | None = None
    bytes_per_block: int | None = None
    """Of all groups of one rank on one device."""
    resident_blocks: int | None = None
    """R at full length."""
    groups: tuple[KvGroup, ...] = ()
    """The cost function of that moment; empty where it is not known."""
    devices: tuple[str, ...] = ()
    """UUIDs of the devices that the server's processes are on, sorted."""
    driver: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One server's rank over one step, a minute in history. None is unknown, 0 is a measured zero.

    Counts are what the counters gained in the step, over resets too; gauges are means, and the largest
    where named so.
    """

    server: str
    rank: str
    at: float
    """Unix seconds of the step's start."""
    seconds: float
    """Of the step; what was watched of it may be less."""
    setup: Setup
    started_at: float | None = None
    """Unix seconds of the server's start."""
    sleeping: bool | None = None
    usable_blocks: int | None = None
    usable_bytes: int | None = None
    """Of the usable blocks, on each device of the rank."""
    typical_prompt_tokens: float | None = None
    typical_generation_tokens: float | None = None
    typical_capacity: float | None = None
    """C, unfloored, as exported at the time."""
    finished: float | None = None
    finished_prompt_tokens: float | None = None
    finished_generation_tokens: float | None = None
    usage_mean: float | None = None
    usage_max: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    waiting_mean: Mapping[str, float] = field(default_factory=dict)
    """By reason: capacity, deferred, unspecified."""
    waiting_max: float | None = None
    """All reasons together."""
    preemptions: float | None = None
    suspected: float | None = None
    queue_seconds: SumCount | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    generation_tokens: float | None = None
    device_bytes: Mapping[str, int] = field(default_factory=dict)
    """Device UUID -> what the server's processes held at the end of the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """Somebody else's memory on a device while a server started there."""

    server: str
    """Empty where it is no known server's."""
    name: str
    """Short executable name; empty where unknown."""
    pid: int
    first_bytes: int | None
    """At the start of the window; 0 where the process came later."""
    last_bytes: int | None
    """At its end; 0 where the process had gone."""
    most_bytes: int | None
    """The most that was seen in between; None where nothing was."""

    @property
    def grew_bytes(self) -> int | None:
        """By how much it rose above what it held at first; None where that is not known."""
        if self.first_bytes is None or self.most_bytes is None:
            return None
        return self.most_bytes - self.first_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StartWindow:
    """A server's start on one device: from its process's start until its first page with a pool.

    Or its waking: from when it was last seen asleep until it was first seen awake.
    """

    server: str
    device: str
    started_at: float
    """Unix seconds."""
    ready_at: float
    seen_from: float
    """Unix seconds of the first sample in it: later than `started_at` where kvwatch came later."""
    free_first_bytes: int | None
    free_last_bytes: int | None
    neighbours: tuple[Neighbour, ...] = ()
    """Those that held memory at any moment of it, the largest growth first."""
    woke: bool = False

    @property
    def grew_bytes(self) -> int | None:
        """By how much the neighbours grew, all together; None where one of them is not known.

        vLLM measures free memory at its start and takes what vanishes meanwhile for its own.
        """
        grown = [neighbour.grew_bytes for neighbour in self.neighbours]
        return None if None in grown else sum(grew for grew in grown if grew is not None)
