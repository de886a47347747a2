"""The vocabulary: what sources read, as immutable values.

`None` always means unknown; `0` means that zero was measured. Imports nothing but the standard library.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Reason(StrEnum):
    """Why a source has no answer. The list is closed: it is a label of `kvwatch_source_reason`."""

    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"
    UNAUTHORIZED = "unauthorized"
    NOT_FOUND = "not_found"
    NOT_ENABLED = "not_enabled"
    LOADING = "loading"
    HTTP_ERROR = "http_error"
    REDIRECT = "redirect"
    TOO_LARGE = "too_large"
    PARSE_ERROR = "parse_error"
    NO_ENGINE_SERIES = "no_engine_series"
    SLEEPING = "sleeping"
    LIBRARY_NOT_FOUND = "library_not_found"
    DRIVER_NOT_LOADED = "driver_not_loaded"
    VERSION_MISMATCH = "version_mismatch"
    PERMISSION = "permission"
    DEVICE_LOST = "device_lost"
    NOT_SUPPORTED = "not_supported"
    IMPLAUSIBLE = "implausible"
    NAMESPACE = "namespace"
    AMBIGUOUS = "ambiguous"
    UNKNOWN_ARCHITECTURE = "unknown_architecture"
    MISSING_FIELD = "missing_field"
    UNKNOWN_POOL = "unknown_pool"
    DISK = "disk"
    INTERNAL_ERROR = "internal_error"


class Source(StrEnum):
    """Where readings come from: the `source` label."""

    NVML = "nvml"
    PROCFS = "procfs"
    ENGINE = "engine"
    MODEL = "model"
    HISTORY = "history"


class SourceError(Exception):
    """An expected failure of a source: why, and a detail for logs and `/debug`, never for a label."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason}: {detail}" if detail else str(reason))
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one attempt at one target gave: `reason` is None when it worked.

    Targets are a server's name, a device's UUID (`index:N` before the driver told it), or `driver` for NVML
    as a whole.
    """

    source: Source
    target: str
    reason: Reason | None
    detail: str = ""
    duration_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceReading:
    """One GPU as NVML stated it. Bytes; None where the call failed or is not supported.

    `used_bytes` excludes `reserved_bytes` when `memory_version` is 2 (nvmlDeviceGetMemoryInfo_v2);
    with 1 it includes them and `reserved_bytes` is None (nvml.h, nvmlMemory_t).
    """

    uuid: str
    index: int
    name: str | None
    driver: str | None
    parent_uuid: str | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    reserved_bytes: int | None = None
    memory_version: int | None = None
    memory_reason: Reason | None = None
    divided: bool = False
    """MIG is on: memory and processes are those of its instances, and are told there only."""
    processes: tuple[GpuProcess, ...] = ()
    processes_reason: Reason | None = None
    """Set when the process list is incomplete: then nothing may be concluded from an absence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """One process on one device; `used_bytes` is None where NVML says N/A."""

    pid: int
    used_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlReading:
    """All devices of one NVML poll, in NVML's order; those that could not be read carry only a reason."""

    devices: tuple[DeviceReading, ...]
    outcomes: tuple[Outcome, ...]
    """One for `driver`, one for each device that was asked."""


class ProcessRole(StrEnum):
    """What a process's command line, or the title it gave itself, says that it is."""

    SERVER = "server"
    """A server of an engine that is known, or a part of one that answers requests."""
    LAUNCHER = "launcher"
    """Starts engines for a server elsewhere (`vllm serve --headless`)."""
    ENGINE = "engine"
    """A server's child that computes, and never answers requests itself: an engine core, a worker."""
    ACTOR = "actor"
    """A Ray actor: its parent is Ray's, whoever it works for."""
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """A process that cannot be mistaken for a later one with the same number: (pid, start time).

    `start_ticks` is field 22 of /proc/PID/stat (proc(5)): clock ticks after boot.
    """

    pid: int
    start_ticks: int
    parent_pid: int
    name: str
    """Short executable name (comm, at most 15 characters)."""
    started_at: float | None = None
    """Unix seconds."""
    executable: str | None = None
    """Target of /proc/PID/exe; None where it may not be read."""
    role: ProcessRole | None = None
    """None where its command line may not be read, or says too little."""
    container: str | None = None
    """64 hex digits; None where it is in no container, or that cannot be seen. So with the next three."""
    pod_uid: str | None = None
    unit: str | None = None
    """Name of its systemd service."""
    group: str | None = None
    """Path of its container or service: processes with the same path are in the same."""

    @property
    def key(self) -> tuple[int, int]:
        """What no other process of this boot has."""
        return self.pid, self.start_ticks


def short_id(container: str) -> str:
    """Return a container's ID as runtimes print it."""
    return container[:12]


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """Where a server's processes are, as configured: a container or a systemd service, one of the two."""

    container: str | None = None
    """An ID, or its beginning."""
    unit: str | None = None

    def holds(self, process: ProcessIdentity) -> bool:
        """Tell whether a process is in it."""
        if self.container is not None:
            return process.container is not None and process.container.startswith(self.container)
        return self.unit is not None and process.unit == self.unit

    def __str__(self) -> str:
        return self.unit or f"container {self.container}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    """The processes of interest and all their ancestors, and which of them listen for which server."""

    processes: Mapping[int, ProcessIdentity] = field(default_factory=dict)
    listeners: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Server name -> PIDs that hold its listening socket, or the configured PID."""
    configured: frozenset[str] = frozenset()
    """Servers whose processes the configuration gave."""
    homes: Mapping[str, Home] = field(default_factory=dict)
    """Server name -> the container or service that the configuration says its processes are in."""
    hidden: frozenset[int] = frozenset()
    """Processes that were asked for, exist, and cannot be seen (hidepid)."""
    reason: Reason | None = None
    """Why nothing was read."""
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One fetched page: the body as text, or why there is none."""

    path: str
    body: str | None
    reason: Reason | None = None
    status: int | None = None
    detail: str = ""
    duration_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReading:
    """One data-parallel engine of a server, as its own page states it."""

    rank: str
    num_blocks: int | None = None
    """N: all blocks of the rank's pool, the null block included."""
    null_blocks: int = 1
    block_size: int | None = None
    """Tokens a block."""
    start_blocks: int | None = None
    """A_start, where the engine's rule is one group of whole blocks and the page states all of it."""
    max_concurrency: float | None = None
    """The engine's own "maximum concurrency": N / A_start (vLLM v1/core/kv_cache_utils.py, 0.24+)."""
    kv_size_tokens: int | None = None
    """The engine's own "KV cache size" in tokens, null block included."""
    usage_ratio: float | None = None
    """0..1 of the usable blocks."""
    usage_of_all_ratio: float | None = None
    """0..1 of all N blocks, the null block counted as used; stated by vLLM up to 0.10.1 and kept only where
    N is unknown, so that it cannot be converted: usage_ratio is None then."""
    running: int | None = None
    waiting: Mapping[str, int] = field(default_factory=dict)
    """Requests by reason: capacity, deferred, unspecified."""
    preemptions_total: float | None = None
    finished_total: Mapping[str, float] = field(default_factory=dict)
    """Finished requests by reason."""
    finished_prompt_tokens: SumCount | None = None
    finished_generation_tokens: SumCount | None = None
    generation_tokens_total: float | None = None
    prefix_cache_queries_total: float | None = None
    prefix_cache_hits_total: float | None = None
    queue_seconds: SumCount | None = None
    time_to_first_token_seconds: SumCount | None = None
    slots: SlotPool | None = None
    """llama.cpp only; its pool has no blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumCount:
    """A summary without quantiles."""

    sum: float
    count: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One llama.cpp slot (tools/server/server-context.cpp, server_slot::to_json, b11434)."""

    limit_tokens: int
    busy: bool
    resident_tokens: int | None
    """`n_prompt_tokens`: tokens in the cache now, generated ones included; None before b9279."""
    remaining_tokens: int | None
    """`n_remain`: tokens that `resident_tokens` may still grow by; None where unlimited, not said, or where
    the prompt is not all in the cache yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotPool:
    """The pool of one llama-server: S slots, what each may hold, and what the busy ones hold."""

    total_slots: int
    slot_limit_tokens: int
    """C: a slot's n_ctx; a request can use one token less."""
    busy_slots: int | None
    slots: tuple[Slot, ...] | None = None
    """None when /slots was not read: it is left alone while nothing runs, so as not to wake a sleeper."""
    longest_tokens: int | None = None
    """High-water mark of tokens in one slot since start (n_tokens_max)."""
    resident_ratio: float | None = None
    """Cells that hold a token, the reusable ones of idle slots included, as a fraction of -c: what
    kv_cache_usage_ratio said until May 2025. Never less than what busy slots hold."""
    resident_tokens: int | None = None
    """kv_cache_tokens of the same builds: a cell that k requests share counts k times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReading:
    """One inference server as its pages describe it."""

    engine: str
    ranks: tuple[RankReading, ...]
    model: str | None = None
    model_path: str | None = None
    """As the server's own process sees it: a folder, or a Hugging Face id."""
    version: str | None = None
    """As the engine prints it."""
    release: tuple[int, ...] | None = None
    """The release whose rules and defaults hold: as stated, or the oldest that the pages prove."""
    full_length_tokens: int | None = None
    full_length_reason: Reason | None = None
    """Why the server does not say: the reason of the page that states it."""
    sleeping: bool | None = None
    memory_kept: bool | None = None
    """Whether a sleeping server has kept its pool and weights: it is paused then (vLLM's level 0)."""
    cost_rules: str | None = None
    """Whose allocation rules a model file is to be read by: `vllm`; None where no rules are known."""
    prefix_caching: bool | None = None
    recurrent_cache_mode: str | None = None
    """vLLM's mamba_cache_mode: how many states of a recurrent layer a request holds."""
    cache_dtype: str | None = None
    share_ratio: float | None = None
    """gpu_memory_utilization; None when a pin overrides it."""
    pin_bytes: int | None = None
    """kv_cache_memory_bytes."""
    start_timestamp_seconds: float | None = None
    settings: tuple[tuple[str, str], ...] = ()
    """What the configuration fingerprint is made of."""
    missing: tuple[str, ...] = ()
    """Series that this feature level should have and does not."""
