"""What a server was told, by name: stated, by default, or not known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Origin(StrEnum):
    """Where the value of a setting comes from."""

    STATED = "stated"
    DEFAULT = "default"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server's settings; None has three meanings, told apart by `stated` and `defaulted`.

    In neither: unknown. In `stated`: given, but only the engine knows what it makes of it (`auto`, or a
    value that could not be read). In `defaulted`: the feature is off, or the engine is left to choose.
    """

    engine: str
    """An adapter's name: vllm, llamacpp."""
    stated: frozenset[str] = frozenset()
    """Fields that the command line, the configuration file or the environment gave."""
    defaulted: frozenset[str] = frozenset()
    """Fields whose value is the documented default of that version."""
    unknown: tuple[tuple[str, ...], ...] = ()
    """Options and `NAME=value` variables that no field stands for, as given; never a secret."""
    notes: tuple[str, ...] = ()
    """What could not be read, for people: names of options, never values."""

    model: str | None = None
    """A path or an id, as given."""
    served_names: tuple[str, ...] | None = None
    host: str | None = None
    """None by default is every address (vLLM)."""
    port: int | None = None
    socket_path: str | None = None
    """A Unix socket; then host and port mean nothing."""
    api_prefix: str | None = None
    metrics_page: bool | None = None
    """Whether `/metrics` has the engine's series."""
    visible_devices: str | None = None
    """CUDA_VISIBLE_DEVICES."""

    full_length_tokens: int | None = None
    """vLLM's max_model_len. A llama-server's slots state theirs; it depends on the model."""
    request_limit: int | None = None
    """vLLM's max_num_seqs; llama-server's slots."""

    max_num_batched_tokens: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    data_parallel: int | None = None
    decode_context_parallel: int | None = None
    prefill_context_parallel: int | None = None
    share_ratio: float | None = None
    """gpu_memory_utilization."""
    pin_bytes: int | None = None
    """kv_cache_memory_bytes."""
    block_size: int | None = None
    num_gpu_blocks_override: int | None = None
    cache_dtype: str | None = None
    dtype: str | None = None
    runner: str | None = None
    mamba_cache_dtype: str | None = None
    mamba_ssm_dtype: str | None = None
    hybrid_manager: bool | None = None
    async_scheduling: bool | None = None
    prefix_caching: bool | None = None
    kv_offload_bytes: int | None = None
    """Host memory for KV blocks, all tensor-parallel ranks together."""
    speculative_tokens: int | None = None
    api_servers: int | None = None
    headless: bool | None = None
    """Engines without an HTTP server: another node's server speaks for them."""

    ctx_size: int | None = None
    """`-c`: tokens of the whole pool; 0 is the training context."""
    pool_tokens: int | None = None
    """Cells of the whole pool, only where `-c` decides them for certain."""
    parallel: int | None = None
    """`-np` as given; -1 is automatic."""
    kv_unified: bool | None = None
    """One pool that all slots share; automatic slots share one."""
    kv_unified_per_slot: int | None = None
    cache_type_k: str | None = None
    cache_type_v: str | None = None
    batch_size: int | None = None
    ubatch_size: int | None = None
    swa_full: bool | None = None
    n_gpu_layers: int | None = None
    """-1 is automatic, -2 all."""
    no_kv_offload: bool | None = None
    """The KV cache stays in host memory."""
    split_mode: str | None = None
    device: str | None = None
    """`none`: no GPU."""
    flash_attention: str | None = None
    """on, off or auto."""
    fit: bool | None = None
    """Whether settings that were not given may be lowered at start to suit the free memory."""
    sleep_idle_seconds: int | None = None
    slots_page: bool | None = None
    draft_model: str | None = None
    draft_type: str | None = None
    """`--spec-type`."""
    draft_max_tokens: int | None = None
    draft_cache_type_k: str | None = None
    draft_cache_type_v: str | None = None
    draft_gpu_layers: int | None = None
    yarn_orig_ctx: int | None = None
    rope_scale: float | None = None

    def origin(self, field: str) -> Origin:
        """Say where the value of a field comes from."""
        if field in self.stated:
            return Origin.STATED
        return Origin.DEFAULT if field in self.defaulted else Origin.UNKNOWN
