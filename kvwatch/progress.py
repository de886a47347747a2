"""What happened to one server from poll to poll: finished, recomputed, reconfigured."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kvwatch.typical import FinishedTotals, LengthWindow

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.readings import EngineReading, RankReading


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """What one server's polls left behind; replaced whole at each poll."""

    reading: EngineReading | None = None
    """Of the last poll; None when it had none."""
    windows: Mapping[str, LengthWindow] = field(default_factory=dict)
    """Rank -> the finished requests of the last window."""
    suspected: Mapping[str, int] = field(default_factory=dict)
    """Rank -> requests that seem to have been preempted since kvwatch started; absent where no page tells."""
    engine: str | None = None
    """Whose settings these are."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """As last stated: a page that is missing for a while changes no setting."""
    config_changed_at: float | None = None
    """Unix seconds."""

    @property
    def fingerprint(self) -> str | None:
        """12 hex digits that change when a setting does, not when the engine's version does."""
        if not self.settings:
            return None
        text = "\n".join(f"{key}={value}" for key, value in sorted(self.settings.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def advance(
        self,
        reading: EngineReading | None,
        *,
        now: float,
        at: float,
        window_seconds: float,
    ) -> Progress:
        """Return the progress after one more poll; `now` is Unix seconds, `at` monotonic seconds."""
        if reading is None:
            # Over a gap nothing can be said about what happened from poll to poll.
            return replace(self, reading=None)
        suspected = suspected_recomputes(self.reading, reading)
        # What another engine stated at this address are settings that this one does not have.
        replaced = self.engine not in (None, reading.engine)
        settings = {**({} if replaced else self.settings), **dict(reading.settings)}
        changed = replaced or any(self.settings.get(key, value) != value for key, value in settings.items())
        return Progress(
            reading=reading,
            windows={
                rank.rank: _advance_window(self.windows.get(rank.rank), rank, at, window_seconds)
                for rank in reading.ranks
            },
            suspected={rank: self.suspected.get(rank, 0) + count for rank, count in suspected.items()},
            engine=reading.engine,
            settings=settings,
            config_changed_at=now if changed else self.config_changed_at,
        )


def _advance_window(
    window: LengthWindow | None, rank: RankReading, at: float, window_seconds: float
) -> LengthWindow:
    window = LengthWindow(window_seconds=window_seconds, samples=window.samples if window else ())
    prompt, generation = rank.finished_prompt_tokens, rank.finished_generation_tokens
    if prompt is None or generation is None:
        return window
    return window.add(
        FinishedTotals(
            at=at, requests=prompt.count, prompt_tokens=prompt.sum, generation_tokens=generation.sum
        )
    )


def suspected_recomputes(before: EngineReading | None, now: EngineReading) -> dict[str, int]:
    """Return, by rank, how many requests seem to have been preempted between two polls.

    The early signal: min(running lost minus finished, waiting gained) where positive; the engine's own
    counter moves only when a victim resumes (vllm/v1/engine/output_processor.py, 0.8.5 to 0.32). A rank
    that does not state all three has no count.
    """
    counts: dict[str, int] = {}
    restarted = before is not None and before.start_timestamp_seconds != now.start_timestamp_seconds
    ranks_before = {rank.rank: rank for rank in before.ranks} if before and not restarted else {}
    for rank in now.ranks:
        if rank.running is None or not rank.waiting or not rank.finished_total:
            continue
        counts[rank.rank] = 0
        old = ranks_before.get(rank.rank)
        if old is None or old.running is None or not old.waiting or not old.finished_total:
            continue
        finished = sum(rank.finished_total.values()) - sum(old.finished_total.values())
        if finished < 0 or (rank.generation_tokens_total or 0) < (old.generation_tokens_total or 0):
            continue  # counters fell: the server restarted
        lost = old.running - rank.running - int(finished)
        gained = sum(rank.waiting.values()) - sum(old.waiting.values())
        counts[rank.rank] = max(0, min(lost, gained))
    return counts
