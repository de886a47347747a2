"""Whether a vLLM sleeps, and whether it has given its memory back (v1/metrics/loggers.py, 0.11.2+)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvwatch.engines.vllm_levels import SLEEP_STATE

if TYPE_CHECKING:
    from kvwatch.engines.exposition_text import Samples


def sleeping(samples: Samples) -> bool | None:
    """Tell whether any rank is not awake; None where the page has no such gauge (before 0.11.2)."""
    awake = [value for labels, value in samples.of(SLEEP_STATE) if labels.get("sleep_state") == "awake"]
    return None if not awake else any(value == 0 for value in awake)


def memory_kept(samples: Samples) -> bool | None:
    """Tell whether no rank has given memory back; level 0, a pause, sets neither state."""
    gone = [
        value
        for labels, value in samples.of(SLEEP_STATE)
        if labels.get("sleep_state") in ("weights_offloaded", "discard_all")
    ]
    return None if not gone else not any(gone)
