"""The catalogue: every exported family, its type, labels and help. The only place where a name is spelled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "summary"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `name` is what a query says, `_total` of counters included.

    `{typical_window}` in `help` stands for the configured length, as in "15 min".
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str


CATALOGUE: list[Metric] = []


def _add(kind: Kind, name: str, labels: str, text: str) -> Metric:
    metric = Metric(f"kvwatch_{name}", kind, tuple(labels.split()), text)
    CATALOGUE.append(metric)
    return metric


def _gauge(name: str, labels: str, text: str) -> Metric:
    return _add("gauge", name, labels, text)


def _counter(name: str, labels: str, text: str) -> Metric:
    return _add("counter", name, labels, text)


def _summary(name: str, labels: str, text: str) -> Metric:
    return _add("summary", name, labels, text)


# kvwatch itself
BUILD_INFO = _gauge("build_info", "version", "Version of kvwatch; always 1.")
UP = _gauge("up", "", "Always 1 while kvwatch serves.")
CONFIG_RELOAD_SUCCESSFUL = _gauge(
    "config_last_reload_successful", "", "Whether the last load of the configuration succeeded."
)
CONFIG_RELOAD_TIMESTAMP = _gauge(
    "config_last_reload_timestamp_seconds", "", "Unix time of the last successful load of the configuration."
)

# Sources
SOURCE_UP = _gauge(
    "source_up", "source target", "Whether the last attempt at a source gave an answer that could be read."
)
SOURCE_REASON = _gauge(
    "source_reason",
    "source target reason",
    "Why a source is down; present only where kvwatch_source_up is 0.",
)
SOURCE_LAST_SUCCESS = _gauge(
    "source_last_success_timestamp_seconds", "source target", "Unix time of a source's last success."
)
SOURCE_DURATION = _gauge("source_duration_seconds", "source target", "Duration of the last attempt.")
SOURCE_FAILURES = _counter("source_failures_total", "source target reason", "Failed attempts by reason.")
HISTORY_SIZE = _gauge(
    "history_size_bytes", "", "Size of kvwatch's own history file; absent while it cannot be written."
)
HISTORY_OLDEST = _gauge(
    "history_oldest_timestamp_seconds", "", "Unix time of the oldest minute in the history."
)
ENGINE_METRIC_MISSING = _gauge(
    "engine_metric_missing", "server metric", "1 for each series that the engine should have and does not."
)

# Devices and processes
DEVICE_INFO = _gauge(
    "device_info",
    "device index name driver parent",
    "A GPU; `device` is its UUID, `parent` that of a MIG instance's GPU.",
)
DEVICE_TOTAL = _gauge("device_memory_total_bytes", "device", "Memory of the device.")
DEVICE_USED = _gauge(
    "device_memory_used_bytes",
    "device",
    "Memory in use, reserved memory excluded where the driver tells it apart.",
)
DEVICE_FREE = _gauge("device_memory_free_bytes", "device", "Memory that can be allocated.")
DEVICE_RESERVED = _gauge("device_memory_reserved_bytes", "device", "Memory that the driver reserves.")
DEVICE_LEDGER = _gauge(
    "device_ledger_bytes",
    "device server component",
    "The device's memory by owner and use. The parts add up to the total; an unknown part is absent.",
)
DEVICE_SHARE_SUM = _gauge(
    "device_share_sum_ratio",
    "device",
    "What the running servers on the device claim together: their shares, or what their processes hold.",
)
DEVICE_SHARE_ASLEEP = _gauge(
    "device_share_asleep_ratio",
    "device",
    "What servers asleep would claim of the device on waking; not in kvwatch_device_share_sum_ratio.",
)
DEVICE_SHARE_LIMIT = _gauge(
    "device_share_limit_ratio", "device", "The configured limit of kvwatch_device_share_sum_ratio."
)
PROCESS_INFO = _gauge(
    "process_info",
    "device pid name server container unit match",
    "A process that holds a device, where it runs, and how it was matched to a server.",
)
POD_INFO = _gauge(
    "pod_info",
    "container pod namespace pod_container",
    "What Kubernetes calls a container that holds a device; only where pods are configured.",
)
PROCESS_MEMORY = _gauge("process_memory_bytes", "device pid", "Device memory of a process; absent where N/A.")
SERVER_DEVICE_MEMORY = _gauge(
    "server_device_memory_bytes", "server device", "Device memory of all processes of a server."
)

# Servers
SERVER_INFO = _gauge("server_info", "server engine model version url fingerprint", "An inference server.")
SERVER_CONFIG_INFO = _gauge(
    "server_config_info",
    "server cache_dtype tensor_parallel pipeline_parallel model_hash block_size max_num_batched_tokens",
    "Settings of a server; empty where not known.",
)
SERVER_SHARE = _gauge(
    "server_share_ratio", "server", "gpu_memory_utilization: the share of a whole card; absent under a pin."
)
SERVER_PIN = _gauge(
    "server_pin_bytes", "server", "kv_cache_memory_bytes: the pinned size of the pool on each card."
)
SERVER_START = _gauge(
    "server_start_timestamp_seconds", "server", "Unix time when the server's process started."
)
SERVER_CONFIG_CHANGED = _gauge(
    "server_config_changed_timestamp_seconds", "server", "Unix time when kvwatch saw the fingerprint change."
)
SERVER_START_GROWTH = _gauge(
    "server_start_neighbour_growth_bytes",
    "server device",
    "By how much other processes on the device grew while the server last started or woke.",
)
SERVER_SLEEPING = _gauge(
    "server_sleeping", "server", "Whether the server sleeps or is paused: nothing fits then."
)
FULL_LENGTH = _gauge("full_length_tokens", "server", "The longest request that the server admits.")

# Pools
_RANK = "server rank"
KV_USAGE = _gauge("kv_usage_ratio", _RANK, "Used part of the usable pool, 0 to 1.")
KV_CAPACITY_BLOCKS = _gauge(
    "kv_capacity_blocks", _RANK, "Usable blocks of the pool, the null block excluded."
)
KV_FREE_BLOCKS = _gauge("kv_free_blocks", _RANK, "Free blocks, evictable cached ones included.")
KV_CAPACITY_TOKENS = _gauge(
    "kv_capacity_tokens", _RANK, "Tokens that full-length requests can hold in the pool."
)
KV_FREE_TOKENS = _gauge(
    "kv_free_tokens", _RANK, "Tokens that full-length requests can hold in the free part."
)
KV_CAPACITY_BYTES = _gauge(
    "kv_capacity_bytes",
    _RANK,
    "Bytes of the usable pool on each device of the rank; of a llama-server, its whole pool.",
)
KV_BYTES_PER_TOKEN = _gauge(
    "kv_bytes_per_token", _RANK, "Bytes of pool that a full-length request holds, divided by its tokens."
)
KV_GROUP_INFO = _gauge(
    "kv_group_info", "server group kind layers block_size page_bytes window", "A KV group of the cost model."
)
KV_MODEL_ERROR = _gauge(
    "kv_model_error_ratio",
    "server",
    "The cost model's blocks of one full-length request / the engine's, minus 1.",
)
MINIMUM_KV_BYTES = _gauge(
    "minimum_kv_bytes", "server", "Bytes of pool that the engine needs to start with one full-length request."
)
ENGINE_KV_TOKENS = _gauge("engine_kv_tokens", _RANK, "The engine's own KV cache size, null block included.")
ENGINE_MAX_CONCURRENCY = _gauge(
    "engine_max_concurrency", _RANK, "The engine's own maximum concurrency: a start-up charge, not what fits."
)

# Change
CAPACITY_CHANGE_RATIO = _gauge(
    "capacity_change_ratio",
    "server baseline",
    "Typical requests that the pool holds now / then, unfloored; baseline is 1d, 7d or start.",
)
CAPACITY_CHANGE_LOG = _gauge(
    "capacity_change_log",
    "server baseline factor",
    "What each factor did to capacity since the baseline: natural logarithms that add up to the ratio's.",
)

# Requests
REQUESTS_RUNNING = _gauge("requests_running", _RANK, "Requests that run.")
REQUESTS_WAITING = _gauge(
    "requests_waiting",
    "server rank reason",
    "Requests that wait; unspecified where the engine does not say for what.",
)
REQUEST_LIMIT = _gauge("request_limit", _RANK, "Most requests that may run at once: max_num_seqs or slots.")
PREEMPTIONS = _counter(
    "preemptions_total", _RANK, "The engine's preemption counter; it moves only when the victim resumes."
)
RECOMPUTE_SUSPECTED = _counter(
    "recompute_suspected_total",
    _RANK,
    "Requests that stopped running without finishing while as many began to wait, seen from poll to poll.",
)
FINISHED_REQUESTS = _counter("finished_requests_total", "server rank reason", "Finished requests by reason.")
FINISHED_PROMPT_TOKENS = _counter(
    "finished_prompt_tokens_total", _RANK, "Prompt tokens of finished requests."
)
FINISHED_GENERATION_TOKENS = _counter(
    "finished_generation_tokens_total", _RANK, "Generated tokens of finished requests."
)
GENERATION_TOKENS = _counter("generation_tokens_total", _RANK, "Tokens generated so far.")
PREFIX_QUERIES = _counter("prefix_cache_queries_total", _RANK, "Prompt tokens looked up in the prefix cache.")
PREFIX_HITS = _counter("prefix_cache_hits_total", _RANK, "Prompt tokens found in the prefix cache.")
QUEUE_SECONDS = _summary(
    "request_queue_seconds", _RANK, "Time that finished requests waited to be scheduled."
)
FIRST_TOKEN_SECONDS = _summary("time_to_first_token_seconds", _RANK, "Time to the first token.")

# Fits
FIT_NOW = _gauge(
    "full_length_requests_fit_now",
    _RANK,
    "Full-length requests that the free part takes if running ones do not grow.",
)
FIT_GUARANTEED = _gauge(
    "full_length_requests_fit_guaranteed",
    _RANK,
    "Full-length requests that can be added and held to full length; 0 while any waits for capacity.",
)
FIT_EMPTY = _gauge(
    "full_length_requests_fit_empty", _RANK, "Full-length requests that the empty pool takes at once."
)
FIT_RESIDENT_LIMIT = _gauge(
    "full_length_requests_resident_limit", _RANK, "Requests that can be held at full length together."
)
FIT_HEADROOM = _gauge(
    "full_length_requests_headroom",
    _RANK,
    "Resident limit minus running and waiting; negative: what was accepted cannot all grow to full length.",
)
FIT_CEILING = _gauge(
    "full_length_requests_ceiling",
    _RANK,
    "Pool bytes / bytes of a request: the textbook's figure, for comparison.",
)
FIT_BASIS = _gauge(
    "fit_basis",
    "server basis",
    "What the fits rest on: resident, or admission (lower bounds) where only that is known.",
)
FIT_BOUND_BY = _gauge(
    "fit_bound_by", "server rank bound", "What bounds fit_guaranteed: memory, slots or queue."
)
TYPICAL_TOKENS = _gauge(
    "typical_request_tokens",
    "server rank part",
    "Mean tokens of the requests that finished in the last {typical_window}.",
)
TYPICAL_FIT_NOW = _gauge(
    "typical_requests_fit_now", _RANK, "As full_length_requests_fit_now, for the typical request."
)
TYPICAL_FIT_EMPTY = _gauge(
    "typical_requests_fit_empty", _RANK, "As full_length_requests_fit_empty, for the typical request."
)
TYPICAL_RESIDENT_LIMIT = _gauge(
    "typical_requests_resident_limit",
    _RANK,
    "As full_length_requests_resident_limit, for the typical request.",
)
TYPICAL_CAPACITY = _gauge(
    "typical_capacity_requests", _RANK, "Usable pool / what the typical request holds, not rounded down."
)
LAST_BLOCK_WASTE = _gauge(
    "last_block_waste_tokens_max", _RANK, "Most tokens that the running requests' last blocks leave unused."
)
WORST_CASE_DEMAND = _gauge(
    "worst_case_demand_ratio",
    _RANK,
    "Request limit x what each may hold / pool; above 1 preemption, or failure at llama.cpp, is possible.",
)

# Findings
FINDING = _gauge(
    "finding",
    "rule severity server device",
    "1 for each rule that holds now; docs/findings.md explains them. An absent one is no all-clear.",
)
