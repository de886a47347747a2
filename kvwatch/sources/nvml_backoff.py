"""How patient the NVML source is: growing delays, and the GPUs that are left alone for a while."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvwatch.sources.nvml_reasons import Failure

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from kvwatch.sources.nvml_process import Child


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Growing delays: none after the first failure, then doubling up to a limit."""

    first_seconds: float = 5.0
    limit_seconds: float = 60.0

    def delay_seconds(self, failures: int) -> float:
        """Return how long to wait after that many failures in a row."""
        if failures <= 1:
            return 0.0
        return min(self.limit_seconds, self.first_seconds * 2.0 ** min(failures - 2, 30))


class Restarts:
    """When the next child may be started after children that failed."""

    def __init__(self, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self.clear()

    def clear(self) -> None:
        """Start again at once: all is well, or put right."""
        self._count = 0
        self._at = 0.0
        self._failure: Failure | None = None

    def add(self, failure: Failure) -> None:
        """Count one more child that failed."""
        self._count += 1
        self._at = self._clock() + self._backoff.delay_seconds(self._count)
        self._failure = failure

    def refusal(self) -> Failure | None:
        """Return why no child is started now; None when one may be."""
        wait = self._at - self._clock()
        if self._failure is None or wait <= 0:
            return None
        detail = f"{self._failure.detail} (next start in {wait:.0f} s)"
        return Failure(reason=self._failure.reason, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Patient:
    """A GPU that hung or crashed the library."""

    failures: int
    until: float
    child: Child
    failure: Failure


class Quarantine:
    """GPUs that hung: left alone for a while, and for as long as a child that they caught still exists."""

    def __init__(self, backoff: Backoff, clock: Callable[[], float]) -> None:
        self._backoff = backoff
        self._clock = clock
        self._patients: dict[int, _Patient] = {}

    def add(self, index: int, child: Child, failure: Failure) -> None:
        """Leave a GPU alone, for longer each time."""
        before = self._patients.get(index)
        failures = before.failures + 1 if before else 1
        until = self._clock() + self._backoff.delay_seconds(failures + 1)
        self._patients[index] = _Patient(failures=failures, until=until, child=child, failure=failure)

    def heal(self, index: int) -> None:
        """Forget a GPU that answered."""
        self._patients.pop(index, None)

    def clear(self) -> None:
        """Forget all of them."""
        self._patients.clear()

    def order(self, stuck: Collection[Child]) -> tuple[list[int], dict[int, Failure]]:
        """Return which GPUs to ask last, and which not at all and why; `stuck` children still exist."""
        last: list[int] = []
        skip: dict[int, Failure] = {}
        for index, patient in self._patients.items():
            wait = patient.until - self._clock()
            if wait > 0 or patient.child in stuck:
                detail = f"{patient.failure.detail} (left alone for {max(0.0, wait):.0f} s more)"
                skip[index] = Failure(reason=patient.failure.reason, detail=detail)
            else:
                last.append(index)
        return last, skip
