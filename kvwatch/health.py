"""The health of sources: the last outcome of each, what accumulated, and a log line for each change."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from kvwatch.readings import Reason, Source
from kvwatch.snapshot import SourceState

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from kvwatch.readings import Outcome

log = logging.getLogger(__name__)

_KVWATCHS_OWN = (Source.NVML, Source.HISTORY)
"""Their targets are no servers."""


class Health:
    """What is known of each (source, target)."""

    def __init__(self) -> None:
        self._states: dict[tuple[Source, str], SourceState] = {}

    def assess(self, outcomes: Sequence[Outcome], *, now: float) -> tuple[SourceState, ...]:
        """Return the state of each source that was tried; `now` is Unix seconds."""
        tried: set[tuple[Source, str]] = set()
        for outcome in outcomes:
            key = (outcome.source, outcome.target)
            tried.add(key)
            before = self._states.get(key)
            failures = Counter(before.failures) if before else Counter[Reason]()
            last_success_at = before.last_success_at if before else None
            if outcome.reason is None:
                last_success_at = now
            else:
                failures[outcome.reason] += 1
            self._states[key] = SourceState(
                source=outcome.source,
                target=outcome.target,
                reason=outcome.reason,
                detail=outcome.detail,
                duration_seconds=outcome.duration_seconds,
                last_success_at=last_success_at,
                failures=dict(failures),
            )
            _log_change(before, self._states[key])
        return tuple(self._states[key] for key in sorted(tried))

    def forget_servers_except(self, names: Collection[str]) -> None:
        """Drop what is known of servers that are no longer watched."""
        self._states = {
            key: state for key, state in self._states.items() if key[0] in _KVWATCHS_OWN or key[1] in names
        }


def _log_change(before: SourceState | None, after: SourceState) -> None:
    if before is not None and before.reason == after.reason:
        return
    if after.reason is None:
        if before is not None:
            log.info("%s %s: works again", after.source, after.target)
    else:
        level = logging.INFO if after.reason is Reason.NOT_ENABLED else logging.WARNING
        log.log(level, "%s %s: %s (%s)", after.source, after.target, after.reason, after.detail)
