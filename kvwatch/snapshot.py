"""What kvwatch knows at one moment: readings joined and counted, immutable, published by one assignment."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvwatch.capacity_change import CapacityChange
    from kvwatch.finding import Finding, Unjudged
    from kvwatch.fit import Fit, Load
    from kvwatch.observation import StartWindow
    from kvwatch.readings import DeviceReading, EngineReading, RankReading, Reason, Source
    from kvwatch.target import Target
    from kvwatch.typical import TypicalLength


class Basis(StrEnum):
    """What the fits of a rank rest on: the `basis` label of `kvwatch_fit_basis`."""

    RESIDENT = "resident"
    """A and R are known."""
    ADMISSION = "admission"
    """Only the planner's A_start is: A = R = A_start is assumed, so the fits are lower bounds."""


class Match(StrEnum):
    """How a process was matched to a server: the `match` label of `kvwatch_process_info`."""

    CONFIGURED = "configured"
    PORT = "port"
    TREE = "tree"
    CGROUP = "cgroup"
    """It shares the container or the systemd service of the server's listener."""
    NONE = "none"


class Component(StrEnum):
    """A part of a device's memory: the `component` label of `kvwatch_device_ledger_bytes`."""

    WEIGHTS = "weights"
    KV_CACHE = "kv_cache"
    WORKING = "working"
    """A server's process memory without weights and pool: activations, CUDA graphs, context."""
    WEIGHTS_AND_WORKING = "weights_and_working"
    UNDIVIDED = "undivided"
    """A server's process memory where its KV pool's bytes are not known."""
    OTHER = "other"
    ORPHAN = "orphan"
    """An engine's process whose server is gone."""
    UNATTRIBUTED = "unattributed"
    RESERVED = "reserved"
    FREE = "free"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypicalState:
    """The pool measured in requests of the typical length."""

    length: TypicalLength
    fit: Fit | None
    capacity: float | None
    """Usable blocks / R(typical), unfloored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One rank's pool, in the engine's words and in requests. Blocks and bytes are of this rank alone."""

    reading: RankReading
    load: Load
    basis: Basis | None = None
    usable_blocks: int | None = None
    free_blocks: int | None = None
    usage_ratio: float | None = None
    start_blocks: int | None = None
    resident_blocks: int | None = None
    """R at full length."""
    capacity_tokens: float | None = None
    free_tokens: float | None = None
    capacity_bytes: int | None = None
    """Of the usable blocks, on each device of the rank."""
    bytes_per_token: float | None = None
    full: Fit | None = None
    ceiling: int | None = None
    """Pool bytes / bytes of one full-length request: no blocks, no null block."""
    typical: TypicalState | None = None
    last_block_waste_tokens: int | None = None
    worst_case_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KvGroup:
    """A KV group of the cost model; `page_bytes` of one layer and one block on one rank."""

    kind: str
    layers: int
    block_size: int
    page_bytes: int
    window: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """One server: what it says, what its pool holds, where its memory is."""

    target: Target
    reading: EngineReading | None
    full_length_tokens: int | None = None
    fingerprint: str | None = None
    ranks: tuple[RankState, ...] = ()
    cache_dtype: str | None = None
    share_ratio: float | None = None
    """gpu_memory_utilization; None under a pin."""
    pin_bytes: int | None = None
    groups: tuple[KvGroup, ...] = ()
    bytes_per_block: int | None = None
    pool_bytes: int | None = None
    """Of the whole pool, null block included, on each device."""
    weights_bytes: int | None = None
    """On each device, where the checkpoint settles them."""
    minimum_kv_bytes: int | None = None
    model_error_ratio: float | None = None
    model_hash: str | None = None
    device_bytes: Mapping[str, int | None] = field(default_factory=dict)
    """Device UUID -> sum of the server's processes there; None where one of them is N/A."""
    started_at: float | None = None
    """Unix seconds."""
    config_changed_at: float | None = None
    """Unix seconds; None until a change was seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerPart:
    """One part of a device's memory; `server` is empty where the part is no server's."""

    component: Component
    bytes: int
    server: str = ""


class ClaimBasis(StrEnum):
    """What a server's claim on a device rests on."""

    SHARE = "share"
    """gpu_memory_utilization, for each of its ranks there."""
    PIN = "pin"
    """A pinned pool: weights, pool and working memory, which is what its processes hold."""
    HELD = "held"
    """What its processes hold: it has no share, or holds more than its share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What one server claims of one device, as a fraction of it."""

    server: str
    ratio: float | None
    basis: ClaimBasis
    asleep: bool = False
    """It has given its memory back: this is what it would claim on waking."""
    why: str = ""
    """Why the claim is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device and where its memory went; a part that is not known is not in the ledger."""

    reading: DeviceReading
    ledger: tuple[LedgerPart, ...] = ()
    share_sum_ratio: float | None = None
    """What its servers claim together; None where no server is matched, or one's claim is not known."""
    share_asleep_ratio: float | None = None
    """What servers asleep would claim of it on waking; None where that is not known."""
    claims: tuple[Claim, ...] = ()
    claims_complete: bool = False
    """Every process there has a known owner, or certainly none of the servers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessState:
    """One process on one device."""

    device: str
    pid: int
    used_bytes: int | None
    name: str | None
    server: str | None
    """Of an orphan the server that is gone, where it is known which."""
    match: Match
    container: str | None = None
    """64 hex digits; None where it is in no container, or that cannot be seen. So with the next two."""
    pod_uid: str | None = None
    unit: str | None = None
    """Name of its systemd service."""
    orphan: bool = False
    """An engine's process whose server is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """What Kubernetes calls a container that holds a device."""

    container: str
    """64 hex digits."""
    pod_uid: str
    pod: str
    namespace: str
    name: str
    """Of the container within its pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """Health of one source for one target, as of its last attempt."""

    source: Source
    target: str
    reason: Reason | None
    detail: str
    duration_seconds: float | None
    last_success_at: float | None
    """Unix seconds; None until the first."""
    failures: Mapping[Reason, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryState:
    """What kvwatch's own history file came to."""

    size_bytes: int
    """On disk, the log of writes included."""
    oldest_at: float | None
    """Unix seconds; None where no minute is kept yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One poll."""

    STALE_INTERVALS: ClassVar[int] = 3
    """Older than so many intervals, nothing in it may be shown as current."""

    sequence: int
    taken_at: float
    """Unix seconds."""
    monotonic_at: float
    """Seconds of the clock that ages are measured with."""
    poll_seconds: float
    """What the poll took."""
    interval_seconds: float
    """Configured, between polls."""
    typical_window_seconds: float
    share_limit_ratio: float
    devices: tuple[DeviceState, ...]
    processes: tuple[ProcessState, ...]
    servers: tuple[ServerState, ...]
    sources: tuple[SourceState, ...]
    recompute_suspected: Mapping[tuple[str, str], int]
    """(server, rank) -> requests that stopped running without finishing, since kvwatch started."""
    pods: tuple[PodState, ...] = ()
    """Of the containers that hold a device, where their names are asked for and known."""
    history: HistoryState | None = None
    """None where it is switched off, or cannot be written."""
    start_windows: tuple[StartWindow, ...] = ()
    """The last starts and wakings of each server, in order of time."""
    capacity_changes: tuple[CapacityChange, ...] = ()
    """Against the baselines that the history knows; empty where none is kept."""
    findings: tuple[Finding, ...] = ()
    unjudged: tuple[Unjudged, ...] = ()
    """Rules that could not be judged: that they are no findings is no all-clear."""

    def is_stale(self, now: float) -> bool:
        """Tell whether the data may no longer be shown; `now` is of the same clock as `monotonic_at`."""
        return now - self.monotonic_at > self.STALE_INTERVALS * self.interval_seconds
