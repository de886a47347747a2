"""The options of `vllm serve` that a field stands for, and their defaults by release.

Read in `engine/arg_utils.py`, `entrypoints/openai/cli_args.py` and `config/` of 0.8.5, 0.10.0, 0.11.0,
0.12.0, 0.14.1, 0.20.0, 0.26.0 to 0.32.0.
"""

from __future__ import annotations

from typing import Any

from kvwatch.flags import values
from kvwatch.flags.options import Option

OLDEST_VERSION = (0, 8, 5)
NEWEST_VERSION = (0, 32)

OPTIONS = (
    Option(field="model", names=("--model",), read=values.text),
    Option(field="served_names", names=("--served-model-name",), read=values.text, many=True),
    Option(field="host", names=("--host",), read=values.text),
    Option(field="port", names=("--port",), read=values.integer),
    Option(field="socket_path", names=("--uds",), read=values.text),
    Option(field="metrics_page", names=("--disable-log-stats",), value=False),
    Option(field="api_servers", names=("--api-server-count", "-asc"), read=values.integer),
    Option(field="headless", names=("--headless",)),
    Option(field="full_length_tokens", names=("--max-model-len",), read=values.length),
    Option(field="request_limit", names=("--max-num-seqs",), read=values.count),
    Option(field="max_num_batched_tokens", names=("--max-num-batched-tokens",), read=values.size),
    Option(field="tensor_parallel", names=("--tensor-parallel-size", "-tp"), read=values.count),
    Option(field="pipeline_parallel", names=("--pipeline-parallel-size", "-pp"), read=values.count),
    Option(field="data_parallel", names=("--data-parallel-size", "-dp"), read=values.count),
    Option(
        field="decode_context_parallel", names=("--decode-context-parallel-size", "-dcp"), read=values.count
    ),
    Option(
        field="prefill_context_parallel", names=("--prefill-context-parallel-size", "-pcp"), read=values.count
    ),
    Option(
        field="share_ratio",
        names=("--gpu-memory-utilization", "--device-memory-utilization"),
        read=values.ratio,
    ),
    Option(field="pin_bytes", names=("--kv-cache-memory-bytes",), read=values.size),
    Option(field="block_size", names=("--block-size",), read=values.count),
    Option(field="num_gpu_blocks_override", names=("--num-gpu-blocks-override",), read=values.count),
    Option(field="cache_dtype", names=("--kv-cache-dtype",), read=values.text),
    Option(field="dtype", names=("--dtype",), read=values.text),
    Option(field="runner", names=("--runner",), read=values.text),
    Option(field="mamba_cache_dtype", names=("--mamba-cache-dtype",), read=values.text),
    Option(field="mamba_ssm_dtype", names=("--mamba-ssm-cache-dtype",), read=values.text),
    Option(field="hybrid_manager", names=("--disable-hybrid-kv-cache-manager",), value=False),
    Option(field="async_scheduling", names=("--async-scheduling",)),
    Option(field="prefix_caching", names=("--enable-prefix-caching",)),
    Option(field="kv_offload_bytes", names=("--kv-offloading-size",), read=values.gibibytes),
    Option(
        field="speculative_tokens",
        names=("--speculative-config", "-sc"),
        read=values.speculative_tokens,
    ),
    Option(
        field="speculative_tokens",
        names=("--spec-tokens", "--speculative-config.num_speculative_tokens"),
        read=values.count,
    ),
)

BY_NAME = {name: option for option in OPTIONS for name in option.names}

# `--task` (until 0.13) also decided what `--runner` decides now.
DOUBTFUL_BY_NAME = {"--task": ("runner",)}

# The same in all releases read. Not here: what the engine chooses by the model, the device or other settings,
# such as max_model_len, max_num_seqs, max_num_batched_tokens, block_size and the hybrid manager.
_ALWAYS: dict[str, Any] = {
    "host": None,
    "port": 8000,
    "socket_path": None,
    "api_prefix": "",
    "metrics_page": True,
    "headless": False,
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "data_parallel": 1,
    "decode_context_parallel": 1,
    "prefill_context_parallel": 1,
    "pin_bytes": None,
    "num_gpu_blocks_override": None,
    "cache_dtype": "auto",
    "dtype": "auto",
    "runner": "auto",
    "mamba_cache_dtype": "auto",
    "mamba_ssm_dtype": "auto",
    "kv_offload_bytes": None,
    "visible_devices": None,
}


def known(version: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return a version whose defaults were read; None for development builds and newer releases."""
    if version is None or version < OLDEST_VERSION or version[:2] > NEWEST_VERSION:
        return None
    return version


def defaults(version: tuple[int, ...] | None) -> dict[str, Any]:
    """Return the documented defaults of a release; where it is not known, of those that never changed."""
    applied = dict(_ALWAYS)
    version = known(version)
    if version is not None:
        applied["share_ratio"] = 0.92 if version >= (0, 20) else 0.9
        if version < (0, 13):
            applied["async_scheduling"] = False
    return applied
