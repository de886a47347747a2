"""What the screen shows, as immutable values; None is unknown, and a reason stands beside it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """Whether a server can take one more full-length request; in order of trouble."""

    SILENT = "silent"
    FULL = "full"
    UNKNOWN = "unknown"
    ASLEEP = "asleep"
    OPEN = "open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Requests of one length against one pool."""

    guaranteed: int | None = None
    now: int | None = None
    empty: int | None = None
    resident_limit: int | None = None
    headroom: int | None = None
    bound_by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """The request that finished of late, and how many of it fit."""

    prompt_tokens: float | None
    generation_tokens: float | None
    requests: float | None
    fits: Fits | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """One rank's pool."""

    rank: str
    usage_ratio: float | None
    usage_why: str
    fits: Fits
    running: int | None
    waiting: int | None
    waiting_for: tuple[tuple[str, int], ...]
    """Reason -> requests, those above 0."""
    request_limit: int | None
    preemptions: int | None
    suspected: int | None
    """Requests that stopped running without finishing since kvwatch started."""
    usable_blocks: int | None
    free_blocks: int | None
    block_size: int | None
    resident_blocks: int | None
    capacity_tokens: float | None
    free_tokens: float | None
    capacity_bytes: int | None
    bytes_per_token: float | None
    ceiling: int | None
    worst_case_ratio: float | None
    engine_concurrency: float | None
    """The engine's own maximum concurrency."""
    engine_tokens: int | None
    """The engine's own KV cache size."""
    start_blocks: int | None
    num_blocks: int | None
    typical: Typical | None
    slots: tuple[int | None, int | None] | None
    """Busy and all, of a llama-server."""
    lower_bounds: bool
    """Only the engine's start-up charge is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A KV group of the cost model."""

    kind: str
    layers: int | None
    block_size: int | None
    page_bytes: int | None
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server."""

    name: str
    url: str
    kind: Kind
    why: str
    """Why nothing or nothing more fits, or why that is not known; empty where it takes more."""
    fits_why: str
    """Why a figure of the fits is not known, should one be."""
    page_why: str
    """Why a figure of the page is not known, should one be."""
    model_why: str
    """Why a figure of the cost model is not known, should one be."""
    engine: str | None
    version: str | None
    model: str | None
    full_length_tokens: int | None
    pools: tuple[Pool, ...]
    groups: tuple[Group, ...]
    model_error_ratio: float | None
    cache_dtype: str | None
    share_ratio: float | None
    pin_bytes: int | None
    fingerprint: str | None
    started_at: float | None
    config_changed_at: float | None
    held: tuple[tuple[str, int | None], ...]
    """Card -> bytes that the server's processes hold there."""
    missing: tuple[str, ...]
    """Series that its page should have and has not."""
    redone_lately: int = 0
    """By which the suspected recomputes grew in the last minute that was seen."""
    severity: int = 3
    """Of its worst finding: 0 critical, 1 warning, 2 to know, 3 none."""

    def total(self, field: str) -> int | None:
        """Return the sum over the pools of `running`, `waiting` ...; None where one is unknown or none is."""
        return _sum([getattr(pool, field) for pool in self.pools])

    def fit(self, field: str) -> int | None:
        """Return the sum over the pools of one of `Fits`; None where one is unknown or none is."""
        return _sum([getattr(pool.fits, field) for pool in self.pools])

    @property
    def usage_ratio(self) -> float | None:
        """Of its fullest pool; None where one is unknown."""
        ratios = [pool.usage_ratio for pool in self.pools]
        known = [ratio for ratio in ratios if ratio is not None]
        return max(known) if known and len(known) == len(ratios) else None

    @property
    def full_if_all_grow(self) -> bool:
        """Whether it is full only if all that run grow to full length: nothing waits, some would fit."""
        return self.kind is Kind.FULL and not self.total("waiting") and bool(self.fit("now"))

    @property
    def lower_bounds(self) -> bool:
        """Whether its fits are at least so many."""
        return any(pool.lower_bounds for pool in self.pools)

    @property
    def is_llama(self) -> bool:
        """Whether its pools are slots, which are never preempted."""
        return any(pool.slots is not None for pool in self.pools)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a card's memory."""

    component: str
    name: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card, or one MIG instance, as a ledger whose parts sum to the card."""

    label: str
    name: str | None
    uuid: str
    divided: bool
    total_bytes: int | None
    used_bytes: int | None
    free_bytes: int | None
    parts: tuple[Part, ...]
    """With what is left of the total as a part `unknown`."""
    excess_bytes: int
    """By which the parts exceed the total."""
    why: str
    """Why its memory is not known, should it not be."""
    claimed_ratio: float | None
    limit_ratio: float | None
    claims: tuple[str, ...]
    """Each server's claim in words."""
    processes: tuple[str, ...]
    """Each process in words."""
    processes_why: str
    """Why the list of processes is incomplete; empty where it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong now."""

    severity: int
    """0 critical, 1 warning, 2 to know."""
    rule: str
    server: str
    card: str
    summary: str
    detail: str
    next_step: str
    since: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """Something that is not known, and why."""

    what: str
    server: str
    why: str
    last_at: float | None = None
    """Unix seconds of its last answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One snapshot."""

    sequence: int | None
    version: str
    taken_at: float | None
    interval_seconds: float | None
    stale: bool
    servers: tuple[Server, ...]
    cards: tuple[Card, ...]
    cards_why: str
    """Why there is no card, should there be none."""
    findings: tuple[Finding, ...]
    """The worst first."""
    changes: tuple[tuple[str, str], ...]
    """Server, and what changed of its capacity since a baseline."""
    gaps: tuple[Gap, ...]
    """Sources that gave no answer, pages that lack something."""
    not_enabled: tuple[Gap, ...]
    unjudged: tuple[Gap, ...]
    """Rules that could not be judged: no all-clear."""
    search: str
    """What the search for servers came to, where there is none."""


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None
