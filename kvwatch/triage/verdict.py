"""What triage answers: a cause from a closed list, the exact factors, and what speaks for and against it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvwatch.triage.comparison import Comparison
    from kvwatch.triage.decomposition import Factors
    from kvwatch.triage.moment import Moment
    from kvwatch.triage.question import Window


class Cause(StrEnum):
    """The closed list of causes; `docs/triage.md` says when each is given."""

    PROMPTS_LONGER = "prompts_longer"
    ANSWERS_LONGER = "answers_longer"
    POOL_SMALLER_CONFIG = "pool_smaller_config"
    POOL_SMALLER_STARTUP_RACE = "pool_smaller_startup_race"
    POOL_SMALLER_SLEEP_WAKE = "pool_smaller_sleep_wake"
    POOL_SMALLER_UNEXPLAINED = "pool_smaller_unexplained"
    TOKEN_DEARER_ENGINE = "token_dearer_engine"  # noqa: S105 - a token of a language model
    TOKEN_DEARER_MODEL = "token_dearer_model"  # noqa: S105
    TOKEN_DEARER_CACHE_DTYPE = "token_dearer_cache_dtype"  # noqa: S105
    RANK_LOST = "rank_lost"
    REQUEST_LIMIT = "request_limit"
    STALLED_NOT_MEMORY = "stalled_not_memory"
    MORE_TRAFFIC = "more_traffic"
    MIXED = "mixed"
    CAPACITY_GREW = "capacity_grew"
    NO_CHANGE = "no_change"
    NOT_ENOUGH_DATA = "not_enough_data"


class Confidence(StrEnum):
    """How sure the cause is; the factors are exact either way."""

    HIGH = "high"
    """The factor is settled by arithmetic and something seen names the cause."""
    MEDIUM = "medium"
    """The factor is settled; the cause fits what was seen, but something was not seen or could also be it."""
    LOW = "low"
    """What was seen does not tell the cause; the most likely one is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One thing that was seen: a closed kind for programs, a sentence for people."""

    kind: str
    text: str
    before: str | None = None
    after: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """What can be done, what it costs, and what it does for who watches a stream or runs a batch."""

    name: str
    action: str
    cost: str
    stream: str
    batch: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer for one server against one baseline. None is unknown."""

    server: str
    baseline_window: Window
    now_window: Window
    baseline: Moment | None
    now: Moment | None
    comparison: Comparison | None
    factors: Factors
    cause: Cause
    confidence: Confidence
    headline: str
    evidence: tuple[Evidence, ...] = ()
    disproof: tuple[str, ...] = ()
    levers: tuple[Lever, ...] = ()
    trend: tuple[tuple[float, float | None], ...] = ()
    """(Unix seconds, typical requests that fit an empty pool) over the timeline; None where unknown."""

    @property
    def ratio(self) -> float | None:
        """Return C now / C then, unfloored."""
        return None if self.comparison is None else self.comparison.ratio

    @property
    def exit_code(self) -> int:
        """Return 0 where nothing changed, 1 where something did, 3 where it cannot be told."""
        if self.cause is Cause.NOT_ENOUGH_DATA:
            return 3
        return 0 if self.cause is Cause.NO_CHANGE else 1
