"""The options of `llama-server` that a field stands for, and their defaults by build.

Names, variables and defaults as b11434 prints them (`llama-server --help`); older builds back to b9093 have
the same defaults, and what older ones had differently is left unknown.
"""

from __future__ import annotations

from typing import Any

from kvwatch.flags import values
from kvwatch.flags.options import Option
from kvwatch.flags.word_list import word_set

MODERN_BUILD = (9093,)
"""From this build on: automatic slots, `--fit`, rounding to 256 cells."""
AUTO_SLOTS = 4

MODEL_FIELDS = ("model_repo", "model_path", "docker_repo", "model_url")
"""Where a model may come from; the first one given decides."""

OPTIONS = (
    Option(field="model_path", names=("-m", "--model"), read=values.text, variable="LLAMA_ARG_MODEL"),
    Option(
        field="model_repo",
        names=("-hf", "-hfr", "--hf-repo"),
        read=values.text,
        variable="LLAMA_ARG_HF_REPO",
    ),
    Option(
        field="docker_repo",
        names=("-dr", "--docker-repo"),
        read=values.text,
        variable="LLAMA_ARG_DOCKER_REPO",
    ),
    Option(field="model_url", names=("-mu", "--model-url"), read=values.text, variable="LLAMA_ARG_MODEL_URL"),
    Option(field="served_names", names=("-a", "--alias"), read=values.names, variable="LLAMA_ARG_ALIAS"),
    Option(field="host", names=("--host",), read=values.text, variable="LLAMA_ARG_HOST"),
    Option(field="port", names=("--port",), read=values.leading_integer, variable="LLAMA_ARG_PORT"),
    Option(field="api_prefix", names=("--api-prefix",), read=str, variable="LLAMA_ARG_API_PREFIX"),
    Option(field="metrics_page", names=("--metrics",), variable="LLAMA_ARG_ENDPOINT_METRICS"),
    Option(
        field="slots_page",
        names=("--slots",),
        negatives=("--no-slots",),
        variable="LLAMA_ARG_ENDPOINT_SLOTS",
    ),
    Option(
        field="ctx_size",
        names=("-c", "--ctx-size"),
        read=values.leading_integer,
        variable="LLAMA_ARG_CTX_SIZE",
    ),
    Option(
        field="parallel",
        names=("-np", "--parallel"),
        read=values.leading_integer,
        variable="LLAMA_ARG_N_PARALLEL",
    ),
    Option(
        field="kv_unified",
        names=("-kvu", "--kv-unified"),
        negatives=("-no-kvu", "--no-kv-unified"),
        variable="LLAMA_ARG_KV_UNIFIED",
    ),
    Option(
        field="kv_unified_per_slot",
        names=("--kv-unified-per-slot",),
        read=values.leading_integer,
        variable="LLAMA_ARG_KV_UNIFIED_PER_SLOT",
    ),
    Option(
        field="cache_type_k",
        names=("-ctk", "--cache-type-k"),
        read=values.text,
        variable="LLAMA_ARG_CACHE_TYPE_K",
    ),
    Option(
        field="cache_type_v",
        names=("-ctv", "--cache-type-v"),
        read=values.text,
        variable="LLAMA_ARG_CACHE_TYPE_V",
    ),
    Option(
        field="batch_size",
        names=("-b", "--batch-size"),
        read=values.leading_integer,
        variable="LLAMA_ARG_BATCH",
    ),
    Option(
        field="ubatch_size",
        names=("-ub", "--ubatch-size"),
        read=values.leading_integer,
        variable="LLAMA_ARG_UBATCH",
    ),
    Option(field="swa_full", names=("--swa-full",), variable="LLAMA_ARG_SWA_FULL"),
    Option(
        field="n_gpu_layers",
        names=("-ngl", "--gpu-layers", "--n-gpu-layers"),
        read=values.layers,
        variable="LLAMA_ARG_N_GPU_LAYERS",
    ),
    Option(
        field="no_kv_offload",
        names=("-kvo", "--kv-offload"),
        negatives=("-nkvo", "--no-kv-offload"),
        value=False,
        variable="LLAMA_ARG_KV_OFFLOAD",
    ),
    Option(
        field="split_mode", names=("-sm", "--split-mode"), read=values.text, variable="LLAMA_ARG_SPLIT_MODE"
    ),
    Option(field="device", names=("-dev", "--device"), read=values.text, variable="LLAMA_ARG_DEVICE"),
    Option(
        field="flash_attention",
        names=("-fa", "--flash-attn"),
        read=values.switch_or_auto,
        variable="LLAMA_ARG_FLASH_ATTN",
    ),
    Option(field="fit", names=("-fit", "--fit"), read=values.switch, variable="LLAMA_ARG_FIT"),
    Option(field="sleep_idle_seconds", names=("--sleep-idle-seconds",), read=values.leading_integer),
    Option(
        field="draft_model",
        names=("--spec-draft-model", "-md", "--model-draft"),
        read=values.text,
        variable="LLAMA_ARG_SPEC_DRAFT_MODEL",
    ),
    Option(
        field="draft_model",
        names=("--spec-draft-hf", "-hfd", "-hfrd", "--hf-repo-draft"),
        read=values.text,
        variable="LLAMA_ARG_SPEC_DRAFT_HF_REPO",
    ),
    Option(field="draft_type", names=("--spec-type",), read=values.text, variable="LLAMA_ARG_SPEC_TYPE"),
    Option(
        field="draft_max_tokens",
        names=("--spec-draft-n-max",),
        read=values.leading_integer,
        variable="LLAMA_ARG_SPEC_DRAFT_N_MAX",
    ),
    Option(
        field="draft_cache_type_k",
        names=("--spec-draft-type-k", "-ctkd", "--cache-type-k-draft"),
        read=values.text,
        variable="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_K",
    ),
    Option(
        field="draft_cache_type_v",
        names=("--spec-draft-type-v", "-ctvd", "--cache-type-v-draft"),
        read=values.text,
        variable="LLAMA_ARG_SPEC_DRAFT_CACHE_TYPE_V",
    ),
    Option(
        field="draft_gpu_layers",
        names=("--spec-draft-ngl", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft"),
        read=values.layers,
        variable="LLAMA_ARG_N_GPU_LAYERS_DRAFT",
    ),
    Option(
        field="yarn_orig_ctx",
        names=("--yarn-orig-ctx",),
        read=values.leading_integer,
        variable="LLAMA_ARG_YARN_ORIG_CTX",
    ),
    Option(
        field="rope_scale",
        names=("--rope-scale",),
        read=values.leading_number,
        variable="LLAMA_ARG_ROPE_SCALE",
    ),
)

BY_NAME = {name: option for option in OPTIONS for name in (*option.names, *option.negatives)}

# One word that sets many of the others, in ways that change with the build; what follows it still wins.
PRESETS = word_set(
    """
    --embd-gemma-default --fim-qwen-1.5b-default --fim-qwen-14b-spec --fim-qwen-30b-default
    --fim-qwen-3b-default --fim-qwen-7b-default --fim-qwen-7b-spec --gpt-oss-120b-default
    --gpt-oss-20b-default --spec-default --vision-gemma-12b-default --vision-gemma-4b-default
    """
)

_ALWAYS: dict[str, Any] = {
    "host": "127.0.0.1",
    "port": 8080,
    "api_prefix": "",
    "socket_path": None,
    "metrics_page": False,
    "cache_type_k": "f16",
    "cache_type_v": "f16",
    "batch_size": 2048,
    "ubatch_size": 512,
    "swa_full": False,
    "no_kv_offload": False,
    "split_mode": "layer",
    "device": None,
    "kv_unified_per_slot": None,
    "draft_model": None,
    "draft_cache_type_k": "f16",
    "draft_cache_type_v": "f16",
    "yarn_orig_ctx": None,
    "rope_scale": None,
    "visible_devices": None,
}
_MODERN: dict[str, Any] = {
    "ctx_size": None,
    "parallel": -1,
    "n_gpu_layers": -1,
    "flash_attention": "auto",
    "fit": True,
    "slots_page": True,
    "sleep_idle_seconds": None,
}


def defaults(version: tuple[int, ...] | None) -> dict[str, Any]:
    """Return the documented defaults of a build; where it is not known, of those that never changed."""
    return _ALWAYS | (_MODERN if is_modern(version) else {})


def is_modern(version: tuple[int, ...] | None) -> bool:
    """Say whether a build is known to follow the rules read in b9093 to b11434."""
    return version is not None and version >= MODERN_BUILD
