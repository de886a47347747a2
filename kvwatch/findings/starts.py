"""Rules about what a start did to the pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.findings.rule import NO_ANSWER, Condition, Evidence, Unknown, Verdict
from kvwatch.findings.words import mib

if TYPE_CHECKING:
    from collections.abc import Iterator

_SMALLER = 0.98
"""vLLM's profiling varies by some blocks from start to start."""


def pool_changed_same_flags(evidence: Evidence) -> Iterator[Verdict]:
    """Find pools that an earlier start made larger, with the same flags, version, model and card."""
    for server in evidence.snapshot.servers:
        name = server.target.name
        starts = evidence.pools.get(name, ())
        if not starts:
            continue
        now = starts[-1]
        alike = [start for start in starts[:-1] if start.setup == now.setup]
        smaller = [
            (size / best, rank, size, best)
            for rank, size in now.sizes.items()
            if (best := max((start.sizes.get(rank, 0) for start in alike), default=0))
            if size < _SMALLER * best
        ]
        if not smaller:
            continue
        if server.reading is None:
            yield Unknown(server=name, why=NO_ANSWER)
            continue
        ratio, _, size, best = min(smaller)
        unit = "cells" if server.reading.ranks[0].slots is not None else "blocks"
        yield Condition(
            server=name,
            summary=(
                f"the pool of {name} has {size:,} {unit}, {ratio:.0%} of the {best:,} of an earlier start "
                f"with the same flags{_neighbours(evidence, name, now.ready_at)}"
            ),
            detail="Nothing was deployed, and fewer requests fit: they queue or are preempted earlier.",
            next_step=(
                "Restart it while nothing else starts on its device, and pin the pool "
                "(kv_cache_memory_bytes) so that it cannot happen again."
            ),
        )


def _neighbours(evidence: Evidence, server: str, ready_at: float) -> str:
    """Say who grew while it started, where that was watched."""
    windows = [
        window
        for window in evidence.snapshot.start_windows
        if window.server == server and window.ready_at == ready_at
    ]
    grown = [
        (neighbour.grew_bytes, neighbour.server or neighbour.name or "a process", neighbour.pid)
        for window in windows
        for neighbour in window.neighbours
        if neighbour.grew_bytes
    ]
    if not grown:
        return ""
    size, name, pid = max(grown)
    return f"; {name} (process {pid}) grew by {mib(size)} while it started"
