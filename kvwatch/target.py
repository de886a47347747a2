"""A watched server: where it is, and what was configured because no page states it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kvwatch.readings import Home, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Hindrance:
    """Why a server that was discovered is not asked for its pages; the detail says what to do."""

    reason: Reason
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One inference server as a client sees it: one URL. None means that nothing was configured.

    Attributes:
        engine: an adapter's name, or None to find out.
        start_ticks: of the process `pid`, where discovery knows it: another process may get its number.
        discovered: found among this machine's processes; nobody configured it.
        hindrance: why it is not asked for its pages.
        home: the container or systemd service that its processes are in, as configured.
        full_length_tokens: the longest request the server admits, where no page says so.
        request_limit: vLLM's max_num_seqs; a llama-server states its slots itself.
        pool_tokens, kv_unified: a llama-server's pool, which no endpoint states.
        share_ratio, pin_bytes: gpu_memory_utilization and kv_cache_memory_bytes, where no page says so.
        decode_context_parallel, async_scheduling, prefix_caching: as the command line says; no key sets them.

    """

    name: str
    url: str
    host: str
    port: int
    engine: str | None = None
    bearer_token_file: Path | None = None
    ca_file: Path | None = None
    pid: int | None = None
    start_ticks: int | None = None
    discovered: bool = False
    hindrance: Hindrance | None = None
    home: Home | None = None
    model_config: Path | None = None
    full_length_tokens: int | None = None
    request_limit: int | None = None
    max_num_batched_tokens: int | None = None
    pool_tokens: int | None = None
    kv_unified: bool | None = None
    cache_dtype: str | None = None
    share_ratio: float | None = None
    pin_bytes: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    hybrid_manager: bool | None = None
    decode_context_parallel: int | None = None
    async_scheduling: bool | None = None
    prefix_caching: bool | None = None
